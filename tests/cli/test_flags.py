"""Tests of options without prefixes, abbreviated counts, and the help of train."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollax.algorithms.registry import ALGORITHMS
from rollax.cli import train_command
from rollax.cli.parsing import flags
from rollax.cli.parsing.dynamic_options import parse_options
from rollax.cli.parsing.help import field_docstrings, main_settings
from rollax.training.options import RunOptions
from rollax.training.presets import load_preset

Rollax = Callable[..., Any]
PPO = {"config.": ALGORITHMS["ppo"].config, "network.": ALGORITHMS["ppo"].network_config}


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        ("1e6", "1000000"),
        ("1E6", "1000000"),
        ("2.5e3", "2500"),
        ("100k", "100000"),
        ("2.5M", "2500000"),
        ("1g", "1000000000"),
        ("1_000_000", "1000000"),
        ("1,000", "1000"),
        ("7", "7"),
        ("1e-6", "1e-6"),
        ("1.5", "1.5"),
        ("0.0001k", "0.0001k"),
        ("-3", "-3"),
        ("many", "many"),
        ("k", "k"),
        ("123456789012345678901", "123456789012345678901"),
    ],
)
def test_counts_are_expanded(text: str, digits: str) -> None:
    assert flags.expand_count(text) == digits


@pytest.mark.parametrize(
    ("typed", "full"),
    [
        ("--learning-rate 3e-4", "--config.learning-rate 3e-4"),
        ("--learning_rate=3e-4", "--config.learning-rate=3e-4"),
        ("--hidden 128 1k", "--network.hidden 128 1k"),
        ("--total-steps 1e6 --seeds 2", "--total-steps 1e6 --seeds 2"),
        ("--config.num-envs 2k", "--config.num-envs 2k"),
        ("--gamma 1e0", "--config.gamma 1e0"),
        ("--no-clip-values --shared", "--config.no-clip-values --network.shared"),
        ("--no-tensorboard --json", "--no-tensorboard --json"),
        ("--gravity 5k", "--env.gravity 5k"),
        ("--wandb 1e6", "--wandb 1e6"),
        ("--network.agent-id true --shared false", "--network.agent-id --network.no-shared"),
        ("--agent_id=true --tensorboard=false", "--network.agent-id --no-tensorboard"),
        ("--shared maybe --json", "--network.shared maybe --json"),
        ("--env.direction true", "--env.direction true"),
    ],
)
def test_options_are_expanded_to_their_full_names(typed: str, full: str) -> None:
    words = flags.expand_option_names(
        typed.split(), RunOptions, PPO, lambda: ["gravity", "pole_length"]
    )
    kinds = {"": RunOptions} | PPO
    assert flags.normalize_switches(words, kinds) == full.split()


@pytest.mark.parametrize(
    ("words", "group", "name", "value"),
    [
        ("--network.hidden 128 1k", "network", "hidden", (128, 1000)),
        ("--total-steps 1e6", "run", "total_steps", 1_000_000),
        ("--total-steps=100k", "run", "total_steps", 100_000),
        ("--config.num-envs 2k", "config", "num_envs", 2000),
        ("--config.gamma 1e0", "config", "gamma", 1.0),
        ("--wandb 1e6", "run", "wandb", "1e6"),
    ],
)
def test_counts_are_read_by_the_type_of_the_option(
    words: str, group: str, name: str, value: Any
) -> None:
    tuned = load_preset("ppo", "gymnax/CartPole-v1")
    kind = train_command._make_options_class("ppo", tuned)
    parsed = getattr(getattr(parse_options(kind, words.split(), "rollax train"), group), name)
    assert parsed == value and type(parsed) is type(value)


def test_short_options_equal_long_ones(rollax: Rollax) -> None:
    sizes = [
        "--num-envs",
        "4",
        "--num-steps",
        "6",
        "--num-minibatches",
        "2",
        "--num-epochs",
        "1",
        "--hidden",
        "8",
    ]
    words = [
        "train",
        "ppo",
        "probe/memory",
        "--total-steps",
        "0.024k",
        *sizes,
        "--delay",
        "2",
        "--learning-rate",
        "1e-3",
    ]
    outcome = rollax(*words, "--eval-episodes", "4", "--eval-count", "0", "--run-dir", "run")
    assert outcome.code == 0, outcome.err
    document = yaml.safe_load(Path("run/config.yaml").read_text())
    assert document["config"]["learning_rate"] == 1e-3 and document["config"]["num_envs"] == 4
    assert document["network"]["hidden"] == [8] and document["options"]["total_steps"] == 24
    assert document["arguments"] == {"delay": "2"}


def test_help_is_short_and_help_all_is_complete(rollax: Rollax) -> None:
    short, everything = (
        rollax("train", "ppo", "gymnax/CartPole-v1", word).out for word in ("--help", "--help-all")
    )
    options = [line for line in short.splitlines() if line.startswith("  --")]
    assert (
        10 <= len(options) <= 17
        and "--checkpoint-minutes" not in short
        and "--adam-epsilon" not in short
    )
    for name in (
        "--learning-rate FLOAT",
        "Learning rate, of the policy only if the critic is separate.",
        "[0.001]",
        "gravity 9.8",
        "\nRun\n",
        "\nPPO\n",
        "\nNetwork\n",
    ):
        assert name in short, name
    for name in (
        "--checkpoint-minutes",
        "--adam-epsilon",
        "--core-size",
        "--env.gravity",
        "--config.normalize-rewards",
    ):
        assert name.replace("config.", "") in everything, name
    assert all(line == line.rstrip() for line in short.splitlines())


def test_ambiguous_options_are_shown_with_their_prefixes(rollax: Rollax) -> None:
    out = rollax("train", "map_elites", "granular/single-navigator", "--help-all").out
    assert "--config.max-steps" in out and "--env.max-steps" in out and "--batch-size" in out


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_setting_is_documented(name: str) -> None:
    kinds = ALGORITHMS[name]
    for kind in (kinds.config, kinds.network_config, RunOptions):
        words = field_docstrings(kind)
        assert [field for field in kind.__dataclass_fields__ if not words.get(field)] == []
    assert len(main_settings(kinds.config)) == 8


def test_json_is_the_only_standard_output(rollax: Rollax) -> None:
    sizes = [
        "--num-envs",
        "4",
        "--num-steps",
        "8",
        "--num-minibatches",
        "2",
        "--num-epochs",
        "1",
        "--hidden",
        "8",
    ]
    outcome = rollax(
        "train", "ppo", "probe/memory", "--total-steps", "32", *sizes, "--run-dir", "run", "--json"
    )
    assert outcome.code == 0 and len(outcome.lines) == 1 and outcome.object["steps"] == 32
    assert "run folder run" in outcome.err and "Finished 32 steps" in outcome.err
    outcome = rollax("resume", "run", "--total-steps", "0.064k", "--json")
    assert (
        outcome.code == 0 and len(outcome.lines) == 1 and "Continuing from step 32" in outcome.err
    )
