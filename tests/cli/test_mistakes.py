"""Tests of user errors: one message with a remedy, exit code 2, and nothing written."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

import rollax as library
from rollax.algorithms.registry import ALGORITHMS
from rollax.environments import registry
from rollax.runtime.installation import install_command
from rollax.spaces import Box, Grid
from rollax.training.compile import device_memory
from support.command import Command
from support.runs import FRAMES, SMALL_WORDS, Bad, over

Rollax = Callable[..., Any]
TRAIN = ["train", "ppo", "probe/memory", "--total-steps", 2 * FRAMES, *SMALL_WORDS]


def refused(outcome: Any, *parts: str) -> None:
    """Check that a command failed with exit code 2 and `parts` in its message.

    It must have no traceback and no other output, and must not create files.
    """
    assert outcome.code == 2, outcome
    message = " ".join(outcome.err.split())
    assert [part for part in parts if part not in message] == [], message
    assert "Traceback" not in outcome.err
    assert outcome.out == ""
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["trian"], ["unknown command 'trian'", "did you mean train?"]),
        (
            ["train", "ppo"],
            ["an algorithm and an environment", "rollax train ppo gymnax/CartPole-v1"],
        ),
        (["train", "ppo", "probe/memory", "more"], ["an algorithm and an environment"]),
        (
            ["train", "MAPPO", "probe/memory"],
            ["Unknown algorithm 'MAPPO'", "ppo with --env.global-state true"],
        ),
        (["train", "cvt-map-elites", "task/arm"], ["map_elites with --config.cvt-cells"]),
        (["train", "ppp", "probe/memory"], ["unknown algorithm 'ppp'", "did you mean ppo?"]),
        (
            ["train", "ppo", "gymnax/CartPol-v1"],
            ["unknown environment", "did you mean gymnax/CartPole-v1"],
        ),
        (["train", "ppo", "cartpole"], ["did you mean gymnax/CartPole-v1"]),
        (
            ["train", "ppo", "kinetix/h9"],
            ["unknown environment 'kinetix/h9': known are: gymnax/..., ", "jumanji/..., "],
        ),
        (
            ["train", "sac", "probe/continuous", "--total-steps", "500"],
            [
                "warmup (1000) must be smaller than total_steps (500)",
                "total_steps (500)",
                "config.warmup to 50",
            ],
        ),
        (
            over(TRAIN, "--env.dely", "3"),
            ["unknown argument of probe/memory 'dely'", "did you mean delay?"],
        ),
        (
            over(TRAIN, "--env.delay", "soon"),
            ["delay must be an integer, got 'soon'. The default is 3."],
        ),
        (over(TRAIN, "--env.delay", "-1"), ["delay (-1) must be at least 0"]),
        (over(TRAIN, "--env.delay"), ["--env.delay needs a value"]),
        (
            over(TRAIN, "--config.lerning-rate", "1"),
            ["--config.lerning-rate", "Perhaps you meant", "--config.learning-rate"],
        ),
        (
            over(TRAIN, "--totl-steps", "1"),
            ["unknown option '--totl-steps': did you mean --total-steps"],
        ),
        (
            over(TRAIN, "--lerning-rate", "1"),
            ["unknown option '--lerning-rate': did you mean --learning-rate"],
        ),
        (
            over(TRAIN, "--zzzz", "1"),
            ["unknown option --zzzz. Add --help-all to list all options of this pair."],
        ),
        (
            ["train", "map_elites", "granular/single-navigator", "--max-steps", "9"],
            ["--max-steps is ambiguous. Write --config.max-steps or --env.max-steps."],
        ),
        (
            over(TRAIN, "--gae-lambda", "0.9", "1"),
            ["--config.gae-lambda takes one number", "--sweep.gae-lambda 0.9 1"],
        ),
        (over(TRAIN, "--gamma", "0.9", "--config.gamma", "0.8"), ["--config.gamma is given twice"]),
        (over(TRAIN, "--total-steps", "1.5"), ["--total-steps", "1.5"]),
        (over(TRAIN, "--config.num-envs", "four"), ["--config.num-envs", "'four'"]),
        (over(TRAIN, "--network.core", "grru"), ["'grru'", "'gru'"]),
        (over(TRAIN, "--on-nonfinite", "ignore"), ["'ignore'", "'rollback'"]),
        (
            over(TRAIN, "--config.num-minibatches", "3"),
            ["num_minibatches (3)", "Use num_minibatches 2 or 4 or num_envs 3 or 6"],
        ),
        (
            over(TRAIN, "--config.sequence-length", "3"),
            ["sequence_length (3)", "Use sequence_length 2 or 4 or num_steps 6 or 9"],
        ),
        (over(TRAIN, "--config.num-envs", "0"), ["num_envs (0) must be at least 1"]),
        (over(TRAIN, "--config.num-steps", "-8"), ["num_steps (-8) must be at least 1"]),
        (over(TRAIN, "--config.gamma", "2"), ["gamma (2.0) must be between 0 and 1"]),
        (over(TRAIN, "--config.learning-rate", "nan"), ["learning_rate (nan) must be at least 0"]),
        (
            over(TRAIN, "--config.total-updates", "3"),
            ["total_updates must not be set", "Set --total-steps instead"],
        ),
        (over(TRAIN, "--network.hidden", "0"), ["network.hidden must be at least 1, got (0,)"]),
        (
            over(TRAIN, "--network.core", "gru", "--network.core-size", "0"),
            ["network.core_size must be at least 1, got 0"],
        ),
        (
            over(TRAIN, "--network.initial-std", "0"),
            ["network.initial_std must be greater than 0, got 0.0"],
        ),
        (
            ["train", "sac", "probe/continuous", "--network.critics", "0"],
            ["network.critics must be at least 1, got 0"],
        ),
        (
            ["train", "td3", "probe/continuous", "--network.critics", "-1"],
            ["network.critics must be at least 1, got -1"],
        ),
        (over(TRAIN, "--total-steps", "0"), ["total_steps (0) must be at least 1"]),
        (over(TRAIN, "--eval-episodes", "0"), ["eval_episodes (0) must be at least 1"]),
        (over(TRAIN, "--eval-count", "-1"), ["eval_count (-1) must be at least 0"]),
        (over(TRAIN, "--keep-last", "0"), ["keep_last (0) must be at least 1"]),
        (over(TRAIN, "--seeds", "0"), ["seeds (0) must be at least 1"]),
        (over(TRAIN, "--seed", "-1"), ["seed (-1) must be at least 0"]),
        (
            over(TRAIN, "--best-metric", "retrun_mean"),
            ["unknown best_metric", "did you mean return_mean"],
        ),
        (over(TRAIN, "--sweep.num-envs", "4", "8"), ["static ones cannot be", "learning_rate"]),
        (over(TRAIN, "--sweep.lerning-rate", "1"), ["did you mean learning_rate"]),
        (over(TRAIN, "--sweep.gamma", "0.9", "2"), ["gamma (2.0) must be between 0 and 1"]),
        (over(TRAIN, "--sweep.gamma", "high"), ["--sweep.gamma must be numbers, got 'high'."]),
        (over(TRAIN, "--sweep.gamma"), ["--sweep.gamma needs a value"]),
        (
            over(TRAIN, "--config.gae-lambda", "0.9", "1"),
            ["--config.gae-lambda takes one number", "--sweep.gae-lambda 0.9 1"],
        ),
        (
            over(TRAIN, "--config.gae_lambda=0.9", "1e0"),
            ["--config.gae_lambda takes one number", "--sweep.gae-lambda 0.9 1e0"],
        ),
        (over(TRAIN, "--config.gae-lambda", "0.9", "high"), ["Unrecognized options: high"]),
        (
            over(TRAIN, "--network.shared", "--config.critic-epochs", "2"),
            ["config.critic_epochs (2)", "Remove one of the two"],
        ),
        (
            ["train", "impala", *TRAIN[2:], "--network.shared", "--config.critic-epochs", "2"],
            ["config.critic_epochs (2)"],
        ),
        (
            over(TRAIN, "--network.shared", "--sweep.critic-learning-rate", "0", "1e-3"),
            ["config.critic_learning_rate (0.001)"],
        ),
        (
            over(
                TRAIN,
                "--network.shared",
                "--seeds",
                "2",
                "--evolve.critic-learning-rate",
                "1e-4",
                "1e-3",
            ),
            ["config.critic_learning_rate (0.001)"],
        ),
        (
            over(TRAIN, "--devices", "64"),
            ["devices (64) must be at most the number of devices", "--devices auto"],
        ),
        (over(TRAIN, "--devices", "0"), ["devices (0) must be at least 1"]),
        (
            over(TRAIN, "--run-dir", "/dev/null/run"),
            ["/dev/null/run cannot be written", "Choose another --run-dir"],
        ),
        (["resume"], ["Folder of the run", "rollax resume --help"]),
        (["resume", "nowhere"], ["nowhere is not a run, because it has no config.yaml"]),
        (["eval", "nowhere"], ["nowhere is not a run"]),
        (["eval", "nowhere", "--episodes", "0"], ["episodes must be at least 1, got 0"]),
        (["plot"], ["rollax plot RUN"]),
        (["report"], ["rollax report RUN"]),
        (["report", "nowhere"], ["nowhere is not a run"]),
        (["plot", "nowhere"], ["nowhere is not a run"]),
        (["render", "nowhere"], ["nowhere is not a run"]),
        (["envs", "gymnx"], ["unknown suite of environments 'gymnx'", "did you mean gymnax?"]),
        (["envs", "probe/memry"], ["did you mean probe/memory"]),
        (
            ["envs", "memory/CartPole-v1", "--env.gravity", "5"],
            ["has no task descriptions", "Remove the --env. options"],
        ),
        (["algorithms", "--jsn"], ["--jsn"]),
    ],
    ids=lambda value: (
        " ".join(map(str, [w for w in value if w not in TRAIN] or value))
        if isinstance(value, list)
        else None
    ),
)
def test_invalid_command_lines_are_refused(
    rollax: Rollax, words: list[Any], parts: list[str]
) -> None:
    """Messages suggest similar names, sizes that divide, and ranges."""
    refused(rollax(*words), *parts)


@pytest.mark.parametrize(
    ("algorithm", "setting", "parts"),
    [
        (
            "ppo",
            {"core": "gruu"},
            [
                "network.core ('gruu') must be one of none, gru, lstm, mingru, gtrxl: "
                "did you mean gru"
            ],
        ),
        (
            "impala",
            {"core_output": "summ"},
            ["network.core_output ('summ') must be one of", "did you mean sum?"],
        ),
        (
            "ppo",
            {"precision": "bf16"},
            ["network.precision ('bf16') must be one of", "did you mean bfloat16?"],
        ),
        (
            "dqn",
            {"activation": "rellu"},
            ["network.activation ('rellu') must be one of", "did you mean relu"],
        ),
        (
            "pqn",
            {"core": "transformer"},
            ["network.core ('transformer') must be one of none, gru, lstm, mingru, gtrxl"],
        ),
    ],
)
def test_invalid_network_settings_in_python(
    tmp_path: Path, algorithm: str, setting: dict[str, str], parts: list[str]
) -> None:
    """The command line refuses these values. Here they are in a dictionary or a config."""
    kind = ALGORITHMS[algorithm].network_config
    for network in (setting, kind(**setting)):
        with pytest.raises(library.UsageError) as caught:
            library.train(
                algorithm,
                "probe/memory",
                network=network,
                options=library.RunOptions(run_dir=tmp_path / "run"),
            )
        assert [part for part in parts if part not in str(caught.value)] == []
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_a_real_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code and standard error are those of a shell."""
    monkeypatch.chdir(tmp_path)
    command = Command("train", "ppo", "gymnax/CartPol-v1")
    assert command.finish() == 2
    assert command.out == []
    assert len(command.err) == 1 and command.err[0].startswith(
        "error: unknown environment 'gymnax/CartPol-v1': did you mean"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words", [["--checkpoint", "worst"], ["--checkpoint", "7"], ["--member", "1"]]
)
def test_missing_checkpoints_and_members_are_refused(
    rollax: Rollax, finished: Path, words: list[str]
) -> None:
    for command in ("eval", "render"):
        refused(rollax(command, finished, *words), "error: ", words[1])


@pytest.mark.parametrize("command", ["resume", "eval", "plot", "table", "report", "render", "ls"])
def test_a_study_is_not_a_run(
    rollax: Rollax, tmp_path_factory: pytest.TempPathFactory, command: str
) -> None:
    """No run of the study has started. Commands that look for runs in a folder refuse it."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "study.yaml").write_text("algorithm: ppo")
    refused(
        rollax(command, folder), f"{folder} is a study", f"`rollax sweep {folder}` continues it"
    )


@pytest.mark.quick
def test_a_run_folder_in_use_is_refused(
    rollax: Rollax, finished: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It is unchanged, and the message says how to continue if it is a run."""
    folder = tmp_path_factory.mktemp("taken")
    (folder / "notes.txt").write_text("mine")
    refused(
        rollax(*TRAIN, "--run-dir", finished),
        f"{finished} exists and is not empty",
        f"rollax resume {finished}",
    )
    refused(
        rollax(*TRAIN, "--run-dir", folder),
        f"{folder} exists and is not empty. Choose another --run-dir",
    )
    assert "resume" not in rollax(*TRAIN, "--run-dir", folder).err
    refused(rollax(*TRAIN, "--run-dir", folder / "notes.txt"), "exists and is not empty")
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_suite_that_is_not_installed(rollax: Rollax, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the command to install it."""
    monkeypatch.setitem(sys.modules, "gymnax", None)  # importing it now fails
    monkeypatch.delitem(sys.modules, "rollax.environments.suites.gymnax.adapter", raising=False)
    refused(
        rollax("train", "ppo", "gymnax/CartPole-v1"),
        "The package gymnax is not installed",
        install_command("gymnax"),
    )


@pytest.mark.parametrize("package", ["wandb", "trackio"])
def test_a_logger_that_is_not_installed(
    rollax: Rollax, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    from rollax.training import loop

    monkeypatch.setattr(loop, "installed_version", lambda name: None)
    refused(rollax(*TRAIN, f"--{package}", "project"), install_command(package))


@pytest.mark.parametrize(
    ("space", "words", "parts"),
    [
        (
            Box(-float("inf"), float("inf"), (1,)),
            ["--network.squash"],
            ["network.squash", "finite bounds", "Remove network.squash"],
        ),
        (
            Grid((2, 2), (3,)),
            [],
            [
                "got Grid",
                "must be a rollax.spaces Ball, Box, Discrete, MultiDiscrete, Dict or Tuple",
            ],
        ),
        (
            Box(0, 5, (1,), "int32"),
            [],
            ["action space must be Discrete, MultiDiscrete, Ball, a Box"],
        ),
    ],
)
def test_unsupported_action_spaces_are_refused(
    rollax: Rollax, monkeypatch: pytest.MonkeyPatch, space: Any, words: list[str], parts: list[str]
) -> None:
    """They are refused before compilation."""

    class Other(Bad):
        name = "mine/other"
        action_space = space

    monkeypatch.setattr(registry, "_registered_factories", {})
    library.register("mine/Other", Other)
    refused(rollax("train", "ppo", "mine/Other", *SMALL_WORDS, *words), *parts)


def test_devices_that_do_not_divide_are_refused(
    rollax: Rollax, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members of a population are distributed over devices."""
    device = jax.devices()[0]
    monkeypatch.setattr(jax, "devices", lambda *_: [device] * 2)
    refused(
        rollax(*TRAIN, "--seeds", 3, "--devices", 2), "must be a multiple of devices (2), got 3"
    )


def test_unexpected_errors_have_one_message(
    rollax: Rollax, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code is 1, and one message says how to show the traceback."""
    from rollax import api

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", "metrics.jsonl")

    monkeypatch.setattr(api, "train", full)
    outcome = rollax(*TRAIN)
    assert outcome.code == 1
    assert (
        "No space left on device: 'metrics.jsonl'" in outcome.err
        and "ROLLAX_TRACEBACK=1" in outcome.err
    )
    monkeypatch.setenv("ROLLAX_TRACEBACK", "1")
    with pytest.raises(OSError):
        rollax(*TRAIN)


@pytest.mark.parametrize(("algorithm", "needed"), [("map_elites", "83.2 GB"), ("dns", "25.6 GB")])
def test_too_many_cells_for_the_memory_are_refused(
    rollax: Rollax, monkeypatch: pytest.MonkeyPatch, algorithm: str, needed: str
) -> None:
    """The cells are those of an archive or those of the grid for a population's metrics."""
    monkeypatch.setattr(device_memory, "available_memory_bytes", lambda: 16 * 10**9)
    words = ["train", algorithm, "task/arm", "--total-steps", "5000"]
    refused(
        rollax(*words, "--config.grid", "40000", "40000"),
        f"the state needs {needed}",
        "Use fewer cells or seeds",
    )
    refused(rollax(*words, "--config.grid", "100000", "100000"), "Use fewer cells per dimension")
