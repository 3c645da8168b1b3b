"""Runs whose training samples parameters of the environment, and whose evaluations do not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import rollax
from rollax.cli.main import main
from rollax.environments.randomization import DomainRandomization
from rollax.errors import UsageError
from rollax.training.compile import program as programs
from rollax.training.run_folder.layout import read_spec
from rollax.training.run_folder.reproduction import format_train_command
from support.runs import FRAMES, SMALL_WORDS, Script

CARTPOLE = ["train", "ppo", "gymnax/CartPole-v1", "--eval-count", "1"]


def test_training_samples_and_evaluations_are_fixed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    words = [*CARTPOLE, *SMALL_WORDS, "--total-steps", str(2 * FRAMES), "--run-dir", str(folder)]
    assert main([*words, "--env.gravity", "9", "--randomize.gravity", "5", "15"]) == 0
    said = "Every training episode samples gravity from 5 to 15. Evaluations use the fixed values"
    assert capsys.readouterr().out.count(said) == 2
    spec = read_spec(folder)
    assert spec.randomize == {"gravity": (5.0, 15.0)}
    _, environment = programs.build_algorithm_and_environment(spec)
    assert isinstance(environment, DomainRandomization)
    draws = jax.vmap(environment.draw)(jax.random.split(jax.random.key(0), 200))[0]
    assert 5 <= np.min(draws) < 6 and 14 < np.max(draws) <= 15
    policy = rollax.load(folder)
    assert not isinstance(policy.environment, DomainRandomization)
    assert 9.0 in jax.tree.leaves(policy.environment)
    assert "--randomize.gravity 5.0 15.0" in format_train_command(spec, str(folder))
    assert rollax.resume(folder, total_steps=3 * FRAMES, show=Script()).status == "done"


def test_an_environment_object_and_agents(train: Callable[..., Any]) -> None:
    environment = rollax.make("gymnax/CartPole-v1")
    result = train("object", environment, randomize={"gravity": [5, 15]}, updates=1)
    assert result.policy(environment=environment).environment is environment
    spec = read_spec(result.folder)
    _, randomized = programs.build_algorithm_and_environment(spec, environment)
    assert programs.evaluation_environment(spec, randomized) is environment


@pytest.mark.parametrize(
    ("environment", "randomize", "message"),
    [
        ("gymnax/CartPole-v1", {"gravty": (5, 15)}, "'gravty': did you mean gravity"),
        (
            "gymnax/CartPole-v1",
            {"gravity": (15, 5)},
            "randomize gravity must be two finite numbers",
        ),
        ("gymnax/CartPole-v1", {"gravity": 5}, "randomize gravity must be two finite numbers"),
        ("gymnax/CartPole-v1", {"gravity": (1, float("inf"))}, "randomize gravity must be two"),
        ("gymnax/CartPole-v1", {"gravity": (1, 2, "log")}, "randomize gravity must be two"),
        ("gymnax/CartPole-v1", {"gravity": (1, 1e300)}, "must consist of float32 values, got 1e"),
        (
            "gymnax/CartPole-v1",
            {"gravity": (5, 15), "params.gravity": (1, 2)},
            "gravity and params.gravity must be different parameters",
        ),
        ("gymnax/CartPole-v1", [5, 15], "randomize .* must be a dictionary"),
        ("gymnasium/CartPole-v1", {"gravity": (5, 15)}, "must be used with a compiled environment"),
    ],
)
def test_what_is_refused(
    train: Callable[..., Any], tmp_path: Path, environment: str, randomize: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        train("refused", environment, randomize=randomize)
    assert not (tmp_path / "refused").exists()


def test_batched_parameters_are_refused_with_the_way(train: Callable[..., Any]) -> None:
    pair = [rollax.make("gymnax/CartPole-v1", gravity=gravity) for gravity in (5.0, 15.0)]
    batched = jax.tree.map(lambda *leaves: np.stack(leaves), *pair)
    with pytest.raises(UsageError, match="lead with an axis of 2, as under jax.vmap.* randomize="):
        train("batched", batched)
