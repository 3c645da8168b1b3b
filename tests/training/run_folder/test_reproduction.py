"""Tests of commands and scripts that repeat a run, and of the origin of settings."""

import dataclasses
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rollax
from rollax.cli.main import main
from rollax.config import CUSTOM
from rollax.training.options import RunOptions
from rollax.training.run_folder import creation, reproduction
from rollax.training.spec import Spec, make_spec


def spec(algorithm: str = "ppo", environment: str = "gymnax/CartPole-v1", **given: Any) -> Spec:
    names = (
        "arguments",
        "config",
        "network",
        "options",
        "sweep",
        "eval_arguments",
        "opponents",
        "evolve",
    )
    values = [given.get(name) for name in names]
    return make_spec(algorithm, environment, *values[:3], values[3] or RunOptions(), *values[4:])


SPECS: dict[str, Callable[[], Spec]] = {
    "preset": spec,
    "numbers": lambda: spec(
        options=RunOptions(total_steps=5000, seed=3, seeds=2), config={"gamma": 0.5, "num_envs": 8}
    ),
    "truths": lambda: spec(config={"normalize_rewards": True}, options=RunOptions(eval_fresh=True)),
    "none": lambda: spec(
        options=RunOptions(evolve_every=100, seeds=4), evolve={"gamma": (0.5, 0.9)}
    ),
    "negative": lambda: spec("map_elites", "task/arm", config={"qd_offset": -2.5, "grid": (7, 8)}),
    "words": lambda: spec(
        network={"hidden": (), "activation": "relu"}, options=RunOptions(best_metric="length_mean")
    ),
    "sweep": lambda: spec(sweep={"learning_rate": [1e-3, 1e-5], "gamma": [0.9]}),
    "evolve": lambda: spec(
        options=RunOptions(seeds=4),
        evolve={"learning_rate": (1e-4, 1e-2), "gamma": (0.0, 1.0, "linear")},
    ),
    "environment": lambda: spec(
        environment="control/point-maze", arguments={"time_limit": 7}, algorithm="map_elites"
    ),
    "evaluation": lambda: spec(environment="gymnax/CartPole-v1", eval_arguments={"gravity": 3.5}),
    "infinite": lambda: spec(environment="gymnax/Acrobot-v1", config={"target_kl": float("inf")}),
    "finite": lambda: spec(config={"target_kl": 0.02}, network={"hidden": (16,)}),
    "several": lambda: spec(
        environment="hunting/2-players",
        options=RunOptions(eval_info=("caught=sum", "survived=last")),
    ),
    "switched off": lambda: spec(
        "map_elites", "control/point-maze", arguments={"observe_time": False}
    ),
}


class Made(BaseException):
    """Raised in place of creating the run folder, after all arguments were checked."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Spec]:
    """Return a list that receives the specifications of runs that would start."""
    found = list[Spec]()

    def create(spec: Spec, environment: Any) -> Path:
        found.append(spec)
        raise Made

    monkeypatch.setattr(creation, "create_run_folder", create)
    return found


def plain(spec: Spec) -> dict[str, Any]:
    """Return the fields of a specification, with arguments as text like on the command line."""
    values = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    for name in ("arguments", "eval_arguments"):
        values[name] = {key: str(value).lower() for key, value in values[name].items()}
    return values


@pytest.mark.parametrize("name", SPECS)
def test_the_command_repeats_the_run(name: str, made: list[Spec]) -> None:
    wanted = SPECS[name]()
    words = shlex.split(reproduction.format_train_command(wanted, "runs/one"))
    with pytest.raises(Made):
        main(words[1:])
    assert plain(made[0]) == plain(wanted)


@pytest.mark.parametrize("name", SPECS)
def test_the_script_repeats_the_run(name: str, made: list[Spec]) -> None:
    wanted = SPECS[name]()
    with pytest.raises(Made):
        exec(reproduction.format_train_script(wanted, "runs/one"), {})
    assert plain(made[0]) == plain(wanted)


def test_objects_modules_and_opponents_in_scripts() -> None:
    """Objects are variables, and commands have modules and opponents."""
    own = dataclasses.replace(
        spec(), own_environment=True, environment="mine/World", arguments={}, network=CUSTOM
    )
    assert reproduction.needs_python(own) and not reproduction.needs_python(spec())
    lines = reproduction.format_train_script(own, "runs/one").splitlines()
    assert "    environment,  # the one that was passed" in lines and not any(
        "mine/World" in line for line in lines
    )
    assert "    network=network,  # the function that was passed" in lines
    compile("\n".join(lines), "program", "exec")
    against = dataclasses.replace(
        spec(), opponents={"prey": "opponents/prey"}, imports=("my_module",)
    )
    command = reproduction.format_train_command(against, "runs/a b")
    assert "--opponents.prey 'runs/a b/opponents/prey'" in command and command.endswith(
        "--import my_module"
    )
    assert 'opponents={"prey": "runs/a b/opponents/prey"}' in reproduction.format_train_script(
        against, "runs/a b"
    )


def test_the_origin_of_settings() -> None:
    """Settings are given, from the preset, or defaults."""
    found = {
        each.name: each
        for each in reproduction.list_settings(spec(config={"gamma": 0.5, "num_envs": 16}))
    }
    assert (found["config.gamma"].value, found["config.gamma"].preset) == (0.5, 0.98)
    assert found["config.gamma"].default == rollax.PPOConfig().gamma
    assert [name for name, each in found.items() if each.is_overridden] == ["config.gamma"]
    assert found["config.num_envs"].is_tuned  # equal to the preset, although it was given
    assert found["total_steps"].is_tuned and not found["config.clip_values"].is_tuned
    assert (
        "config.total_updates" not in found
        and "run_dir" not in found
        and "tensorboard" not in found
    )


def test_the_origin_of_environment_arguments() -> None:
    """Arguments of the preset are recognized, also as text."""
    maze = spec("map_elites", "control/point-maze", arguments={"time_limit": "9"})
    found = {
        each.name: each for each in reproduction.list_settings(maze) if each.name.startswith("env.")
    }
    assert found["env.time_limit"].is_overridden and found["env.time_limit"].value == "9"
    assert found["env.observe_time"].is_tuned
    assert {
        each.name
        for each in reproduction.list_settings(dataclasses.replace(maze, own_environment=True))
    } & set(found) == set()


def test_literals_evaluate_to_their_values() -> None:
    values = {"a": (1.5,), "b": [-float("inf"), True, None], 'c"\n': "d'\"", "e": (), "f": {}}
    assert eval(reproduction._format_literal(values)) == values
