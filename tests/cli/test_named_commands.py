"""Tests that the commands in help texts, errors and warnings work as printed."""

import json
import re
import shlex
import shutil
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollax.cli.main import COMMANDS
from support.runs import FRAMES, SMALL_WORDS

Rollax = Callable[..., Any]
TRAIN = ["train", "ppo", "probe/memory", "--total-steps", 4 * FRAMES, *SMALL_WORDS]
WORDS = {
    "RUN...": "runs/one",
    "RUN": "runs/one",
    "FORMAT": "numpy",
    "[FOLDER]": "runs",
    "[SUITE]": "gymnax",
    "runs/*": "of_ppo/*",
    "FILE.yaml": "compared.yaml",
    "FOLDER": "study",
    "2M": str(8 * FRAMES),
    "--env.gravity": "--env.delay",
}
# Options that shorten an example of `train`, by algorithm.
SHORT = {
    "ppo": ["--total-steps", "64", *SMALL_WORDS],
    "sac": [
        "--total-steps",
        "256",
        "--config.warmup",
        "64",
        "--eval-episodes",
        "2",
        "--no-tensorboard",
    ],
}

STUDY = {
    "algorithm": "ppo",
    "environment": "probe/memory",
    "sweep": {"gamma": [0.5, 0.9]},
    "config": {"num_envs": 4, "num_steps": 8, "num_minibatches": 2},
    "options": {"total_steps": 64, "eval_episodes": 8, "tensorboard": False},
}


def named(text: str) -> list[str]:
    """Return the commands in a text: in backticks, at the start of a line, or after a colon."""
    text = re.sub(r" \\\n +", " ", text)  # continued on the next line
    found = re.findall(r"`(rollax (?:envs|algorithms|\w+ [^`]+))`", text) + re.findall(
        r"(?:^ +|(?<!usage): )(rollax .+?)(?=  |\.?$)", text, re.MULTILINE
    )
    return [
        command for command in dict.fromkeys(found) if not re.search(r"ALGORITHM|COMMAND", command)
    ]


def run(rollax: Rollax, command: str) -> Any:
    """Run a command as printed, with placeholders replaced and long runs shortened."""
    words = shlex.split(command)[1:]
    if words[0] in ("train", "bench") and not any(word.startswith("--help") for word in words):
        short = SHORT[words[1]]
        words = [*words, *(short if "--total-steps" not in words else short[2:])]
        if "--num-envs" in words and "--config.num-envs" in words:
            words[words.index("--config.num-envs") :] = words[
                words.index("--config.num-envs") + 2 :
            ]
        if "--hidden" in words and "--network.hidden" in words:
            words[words.index("--network.hidden") :] = words[words.index("--network.hidden") + 2 :]
    if words[0] == "sweep" and "--trials" in words:
        words += SHORT["ppo"]
    if words[0] == "eval" and "--eval-env.episodes" in words:
        words += ["--episodes", "2"]
    return rollax(*(WORDS.get(word, word) for word in words))


def is_long(command: str) -> bool:
    """Return whether a command compiles its own programs, for up to a minute each."""
    return (
        re.match(r"rollax (bench|train|cross-play|sweep \w+ \S+ .*--trials)|.*--eval-env", command)
        is not None
        and "--help" not in command
    )


@pytest.mark.parametrize("long", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_commands_in_help_texts(
    rollax: Rollax, finished: Path, monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    """These are the examples of every help text, the overview and `train --help`."""
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda page: opened.append(page) or True)
    texts = [rollax().out, *(rollax(command, "--help").out for command in COMMANDS)]
    commands = [command for text in texts for command in named(text)]
    assert {shlex.split(command)[1] for command in commands} == set(COMMANDS)
    assert "rollax train ppo gymnax/CartPole-v1 --total-steps 100k --seeds 8" in commands
    for name in ("runs/one", "of_ppo/one", "of_ppo/two"):
        shutil.copytree(finished, name)
    unfinished(Path("runs/one"))
    small = [
        "--config.sequence-length",
        "8",
        "--env.num-rulesets",
        "20",
        "--env.rulesets",
        "small",
        "--env.episodes",
        "2",
    ]
    of = {
        "--eval-env.episodes": "trials",
        "--eval-env.opponent": "games",
        "cross-play": "games",
    }
    trials, games = (
        ["rl2/XLand-MiniGrid-R1-9x9", *TRAIN[3:], *small],
        ["pgx/tic_tac_toe", *TRAIN[3:]],
    )
    for name, words in {"trials": trials, "games": games}.items():
        assert not long or rollax(*TRAIN[:2], *words, "--run-dir", name).code == 0
    Path("compared.yaml").write_text(yaml.safe_dump(STUDY))
    assert rollax("sweep", "compared.yaml", "--study-dir", "study").code == 0
    failed = {}
    for command in [command for command in commands if is_long(command) == long]:
        folder = next((folder for argument, folder in of.items() if argument in command), "RUN")
        done = run(rollax, command.replace("RUN", folder))
        failed |= {command: (done.code, done.err)} if done.code else {}
    assert failed == {}
    assert long or (len(opened) == 1 and opened[0].endswith(".html"))


def unfinished(folder: Path) -> None:
    """Change a run as if it had been stopped at its first checkpoint."""
    first, *others = sorted(
        path for path in (folder / "checkpoints").iterdir() if path.name.startswith("step_")
    )
    lines = [
        line
        for line in (folder / "metrics.jsonl").read_text().splitlines()
        if json.loads(line)["step"] == 0
    ]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    assert others
    for path in others:
        shutil.rmtree(path)


def answered(rollax: Rollax, *words: Any) -> list[str]:
    """Return the commands that an error names."""
    outcome = rollax(*words)
    assert outcome.code == 2, outcome
    commands = named(" ".join(outcome.err.split()))
    assert commands, outcome.err
    return commands


def test_commands_in_errors(rollax: Rollax, finished: Path) -> None:
    for name in ("runs/one", "runs/two", "stopped", "empty"):
        shutil.copytree(finished, name)
    unfinished(Path("stopped"))
    for name in ("metrics.jsonl", "evaluations.npz"):
        Path("empty", name).unlink(missing_ok=True)
    arm = [
        "train",
        "map_elites",
        "task/arm",
        "--total-steps",
        "1000",
        "--no-tensorboard",
        "--run-dir",
        "arm",
    ]
    assert rollax(*arm).code == 0
    commands = [
        *answered(rollax, "train"),
        *(answered(rollax, command)[0] for command in ("eval", "plot", "report")),
        *answered(rollax, "train", "rl2", "probe/memory"),
        *answered(rollax, "plot", "empty"),
        *answered(rollax, *TRAIN, "--run-dir", "runs/one"),
        *answered(rollax, *TRAIN, "--run-dir", "stopped"),
        *answered(rollax, "resume", "runs/two"),
        *answered(rollax, "render", "arm"),
        *answered(rollax, "export", "arm", "--to", "numpy"),
    ]
    for command in commands:
        done = run(rollax, command)
        assert done.code == 0, (command, done)
