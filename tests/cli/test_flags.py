"""Options without prefixes, whole numbers as people write them, and the help of train."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollax.algorithms import ALGORITHMS
from rollax.cli import flags
from rollax.cli.help import documented, foremost
from rollax.host.options import RunOptions

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
def test_whole_numbers(text: str, digits: str) -> None:
    assert flags.written_out(text) == digits


@pytest.mark.parametrize(
    ("typed", "full"),
    [
        ("--learning-rate 3e-4", "--config.learning-rate 3e-4"),
        ("--learning_rate=3e-4", "--config.learning-rate=3e-4"),
        ("--hidden 128 1k", "--network.hidden 128 1000"),
        ("--total-steps 1e6 --seeds 2", "--total-steps 1000000 --seeds 2"),
        ("--total-steps=100k", "--total-steps=100000"),
        ("--config.num-envs 2k", "--config.num-envs 2000"),
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
def test_in_full(typed: str, full: str) -> None:
    words = flags.whole_words(typed.split(), RunOptions, PPO, lambda: ["gravity", "pole_length"])
    kinds = {"": RunOptions} | PPO
    assert flags.switches(flags.counts(words, kinds), kinds) == full.split()


def test_a_run_of_short_options_is_that_of_long_ones(rollax: Rollax) -> None:
    sizes = ["--num-envs", "4", "--num-steps", "6", "--num-minibatches", "2", "--num-epochs", "1", "--hidden", "8"]
    words = ["train", "ppo", "probe/memory", "--total-steps", "0.024k", *sizes, "--delay", "2", "--learning-rate", "1e-3"]
    outcome = rollax(*words, "--eval-episodes", "4", "--eval-count", "0", "--run-dir", "run")
    assert outcome.code == 0, outcome.err
    document = yaml.safe_load(Path("run/config.yaml").read_text())
    assert document["config"]["learning_rate"] == 1e-3 and document["config"]["num_envs"] == 4
    assert document["network"]["hidden"] == [8] and document["options"]["total_steps"] == 24
    assert document["arguments"] == {"delay": "2"}


def test_help_shows_what_matters_and_all_of_it_if_asked(rollax: Rollax) -> None:
    short, everything = (rollax("train", "ppo", "gymnax/CartPole-v1", word).out for word in ("--help", "--help-all"))
    options = [line for line in short.splitlines() if line.startswith("  --")]
    assert 10 <= len(options) <= 16 and "--checkpoint-minutes" not in short and "--adam-epsilon" not in short
    for name in ("--learning-rate FLOAT", "Adam's step size", "[0.001]", "gravity 9.8", "\nRun\n", "\nPPO\n", "\nNetwork\n"):
        assert name in short, name
    for name in ("--checkpoint-minutes", "--adam-epsilon", "--core-size", "--env.gravity", "--config.normalize-rewards"):
        assert name.replace("config.", "") in everything, name
    assert all(line == line.rstrip() for line in short.splitlines())


def test_names_that_two_have_are_shown_in_full(rollax: Rollax) -> None:
    out = rollax("train", "map_elites", "granular/single-navigator", "--help-all").out
    assert "--config.max-steps" in out and "--env.max-steps" in out and "--batch-size" in out


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_setting_is_documented(name: str) -> None:
    kinds = ALGORITHMS[name]
    for kind in (kinds.config, kinds.network_config, RunOptions):
        words = documented(kind)
        assert [field for field in kind.__dataclass_fields__ if not words.get(field)] == []
    assert len(foremost(kinds.config)) == 8


def test_with_json_nothing_else_is_on_standard_output(rollax: Rollax) -> None:
    sizes = ["--num-envs", "4", "--num-steps", "8", "--num-minibatches", "2", "--num-epochs", "1", "--hidden", "8"]
    outcome = rollax("train", "ppo", "probe/memory", "--total-steps", "32", *sizes, "--run-dir", "run", "--json")
    assert outcome.code == 0 and len(outcome.lines) == 1 and outcome.object["steps"] == 32
    assert "run folder run" in outcome.err and "done: 32 steps" in outcome.err
    outcome = rollax("resume", "run", "--total-steps", "0.064k", "--json")
    assert outcome.code == 0 and len(outcome.lines) == 1 and "going on from step 32" in outcome.err
