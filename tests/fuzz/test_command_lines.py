"""Tests of hundreds of command lines.

Each is accepted or ends with exit code 2 and a remedy, in a short time.
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz.conftest import is_remedy

Command = Callable[..., tuple[int, str]]

TRAIN = ["train", "ppo", "probe/memory"]
HUGE = ("1000000000", "1000000000000", "9" * 400, str(2**31), str(2**63))

# Refused options, with parts of the message.
REFUSED = [
    (["--config.num-steps", "1000000000"], "num_steps (1000000000)"),
    (["--config.num-envs", "1000000000"], "num_envs (1000000000)"),
    (["--config.num-epochs", "99999999999"], "num_epochs (99999999999) must be at most 2147483647"),
    (["--seeds", "1000000000"], "1000000000 members"),
    (["--eval-episodes", "1000000000"], "an evaluation of 1000000000 episodes at once"),
    (["--eval-episodes", "100000000000"], "eval_episodes (100000000000) must be"),
    (["--total-steps", "9" * 400], "total_steps (a number of about 400 digits)"),
    (["--seed", "9" * 400], "seed (a number of about 400 digits)"),
    (["--config.learning-rate", "9" * 400], "learning_rate (inf) must be at least 0 and finite"),
    (["--run-dir", "x" * 300], "run_dir", "too long"),
    (["--run-dir", "x/" * 3000], "run_dir", "too long"),
    (["--config.learning-rate", "inf"], "learning_rate (inf) must be at least 0 and finite"),
    (["--config.entropy-coefficient", "nan"], "entropy_coefficient (nan) must be finite"),
    (["--config.entropy-coefficient=-inf"], "entropy_coefficient (-inf) must be finite"),
    (["--sweep.learning-rate", "1e-3", "inf"], "learning_rate (inf)"),
    (["--seeds", "4", "--evolve.learning-rate", "1e-3", "inf"], "must be finite"),
    (["--evolve-every", "2000"], "--evolve-every has no effect because no setting evolves"),
    (["--evolve-fraction", "0.25"], "--evolve-fraction has no effect because no setting evolves"),
    (["--seed", "1", "--seed", "2"], "--seed is given twice"),
    (["--seed=1", "--seed=2"], "--seed is given twice"),
    (["--tensorboard", "--no-tensorboard"], "--no-tensorboard is given twice"),
    (["--config.clip-values", "--config.no-clip-values"], "given twice"),
    (["--env.delay", "3", "--env.delay", "4"], "--env.delay is given twice"),
    (["--sweep.gamma", "0.9", "--sweep.gamma", "0.99"], "--sweep.gamma is given twice"),
    (["--env.", "3"], "--env. needs a name"),
    (["--env.delay", "nan"], "delay must be an integer"),
    (["--env.delay", "9" * 400], "delay"),
    (["--env.delay", "3000000000"], "delay"),
    (["--import"], "--import needs the name of a module"),
    (["--import", "no_such_module"], "there is no such module"),
    (["--import", "./there.py"], "Use there, from its folder"),
    (["--network.hidden", "-3"], "network.hidden"),
    (["--network.hidden", "1000000000", "1000000000"], "a smaller network"),
    (["--config.gamma", "0,9"], "config.gamma"),
    (["--opponents.predator", "x" * 300], "too long"),
    (["--opponents.predator", "nowhere"], "nowhere is not a run"),
]


@pytest.mark.parametrize(
    ("words", "parts"), [(row[0], row[1:]) for row in REFUSED], ids=lambda x: str(x[:1])[:40]
)
def test_invalid_options_are_refused(
    command: Command, words: list[str], parts: tuple[str, ...]
) -> None:
    code, message = command(*TRAIN, *words)
    assert code == 2, message
    assert [part for part in parts if part not in message] == [], message


@pytest.mark.parametrize(
    "words",
    [
        ["--config.max-grad-norm", "inf"],
        ["--config.target-kl", "inf"],
        ["--config.learning-rate", "0"],
        ["--network.hidden"],
        ["--seed", str(2**32 - 1)],
        ["--total-steps", "1000000000000"],
    ],
    ids=" ".join,
)
def test_valid_options_are_accepted(command: Command, words: list[str]) -> None:
    code, message = command(*TRAIN, *words)
    assert code == 0, message


@pytest.mark.parametrize("word", HUGE, ids=lambda word: word[:12])
@pytest.mark.parametrize(
    "option",
    ["--config.capacity", "--config.batch-size", "--config.num-envs", "--config.replay-ratio"],
)
def test_huge_replay_sizes_are_refused(command: Command, option: str, word: str) -> None:
    """The message names the setting, however large the number is."""
    code, message = command("train", "dqn", "probe/two-steps", option, word)
    assert code == 2 and option.split(".")[1].replace("-", "_") in message, message


@pytest.mark.parametrize(
    "words",
    [
        ["eval", "x" * 300],
        ["resume", "x" * 300],
        ["plot", "x" * 300],
        ["render", "x" * 300],
        ["eval", "nowhere", "--seed", "9" * 400],
        ["eval", "nowhere", "--seed", "-1"],
        ["eval", "nowhere", "--episodes", "9" * 5000],
        ["render", "nowhere", "--episodes", "1000000000"],
        ["render", "nowhere", "--seed", "-1"],
        ["eval", "nowhere", "--checkpoint", "9" * 5000],
        ["render", "nowhere", "--checkpoint", "9" * 5000],
        ["eval", "nowhere", "--seed", "1", "--seed", "2"],
        ["plot", "a", "--out", "b.png", "--out", "c.png"],
        ["export", "x" * 300, "--to", "numpy"],
        ["export", "\x00", "--to", "numpy"],
        ["export", "nowhere", "--to", "\x00"],
        ["export", "nowhere", "--to", "numpy", "--batch", "9" * 5000],
        ["export", "nowhere", "--to", "numpy", "--checkpoint", "9" * 5000],
        ["export", "nowhere", "--to", "numpy", "--output", "x" * 5000],
        ["export", "nowhere", "--to", "numpy", "--member", "9" * 400],
        ["export", "nowhere", "--to", "numpy", "--descriptor", "nan"],
        ["envs", "\x00"],
        ["envs", "probe/memory", "--env.delay", "nan"],
        ["envs", "--env.x", "1"],
        ["train", "\x00", "probe/memory"],
        ["train", "ppo", "x" * 5000],
        ["algorithms", "more"],
        ["doctor", "--json", "--json"],
        ["--import", "no_such_module"],
        ["--import=", "envs"],
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_invalid_words_of_other_commands_are_refused(command: Command, words: list[str]) -> None:
    code, message = command(*words)
    assert code == 2 and is_remedy(message), message


VALUES = [
    "",
    "0",
    "-1",
    "1",
    "2.5",
    "1e400",
    "nan",
    "-inf",
    "no",
    "None",
    "[]",
    "1e9",
    "\u0663",
    "'",
    "a b",
    "--",
    *HUGE,
]
OPTIONS = [
    *(
        "--total-steps",
        "--seed",
        "--seeds",
        "--eval-episodes",
        "--eval-count",
        "--eval-max-steps",
        "--checkpoint-minutes",
    ),
    *(
        "--checkpoint-steps",
        "--keep-last",
        "--keep-best",
        "--best-metric",
        "--best-mode",
        "--on-nonfinite",
        "--log-lines",
    ),
    *(
        "--devices",
        "--evolve-every",
        "--evolve-start",
        "--evolve-fraction",
        "--json",
        "--tensorboard",
        "--no-such-option",
    ),
    *(
        "--config.num-envs",
        "--config.num-steps",
        "--config.sequence-length",
        "--config.num-minibatches",
        "--config.num-epochs",
    ),
    *(
        "--config.gamma",
        "--config.learning-rate",
        "--config.total-updates",
        "--config.sharing",
        "--config.clip-values",
    ),
    *(
        "--network.hidden",
        "--network.core",
        "--network.core-size",
        "--network.core-layers",
        "--network.initial-std",
    ),
    *(
        "--network.filters",
        "--network.attention",
        "--network.embedding",
        "--network.precision",
        "--network.agent-id",
    ),
    *(
        "--env.delay",
        "--eval-env.delay",
        "--sweep.gamma",
        "--sweep.num-envs",
        "--evolve.gamma",
        "--evolve.learning-rate",
    ),
    *("--opponents.agent", "--import", "--run-dir"),
]


@pytest.mark.parametrize("seed", range(8))
def test_random_options(command: Command, nowhere: Path, seed: int) -> None:
    """Options with random values are accepted or refused with exit code 2."""
    draw = random.Random(seed)
    for _ in range(20):
        words = [*TRAIN, "--config.num-envs", "4"] if draw.random() < 0.3 else list(TRAIN)
        for option in draw.sample(OPTIONS, draw.choice((1, 1, 1, 2, 3))):
            words += [option, *draw.choices(VALUES, k=draw.choice((0, 1, 1, 1, 2, 3)))]
        code, message = command(*words)
        assert code in (0, 2), (words, message)
        assert code == 0 or is_remedy(message), (words, message)
        for left in nowhere.iterdir():
            shutil.rmtree(left)
