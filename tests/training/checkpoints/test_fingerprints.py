"""Tests of the recorded fingerprint of an environment, and of the environments that match it."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax
from rollax import Transition, UsageError
from rollax.spaces import Box, Dict, Discrete
from rollax.training.checkpoints.fingerprints import (
    check_fingerprint_fits,
    check_same_environment,
    fingerprint,
)
from rollax.training.run_folder import layout
from support.runs import FRAMES, Script


class Drift(eqx.Module):
    """Environment with a number that drifts, which the action pushes back."""

    drift: jax.Array = eqx.field(converter=lambda x: jnp.asarray(x, jnp.float32), default=0.1)
    name: str = eqx.field(static=True, default="mine/Drift")
    time_limit: int = eqx.field(static=True, default=5)
    num_actions: int = eqx.field(static=True, default=2)
    size: int = eqx.field(static=True, default=1)
    num_agents: None = eqx.field(static=True, default=None)

    @property
    def observation_space(self) -> Box:
        return Box(-100, 100, (self.size,))

    @property
    def action_space(self) -> Discrete:
        return Discrete(self.num_actions)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state = jnp.zeros(()), jnp.zeros((), jnp.int32)
        return state, jnp.zeros(self.size)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        place, time = state[0] + self.drift - 0.2 * action, state[1] + 1
        obs = jnp.full(self.size, place)
        return Transition(
            (place, time), obs, -jnp.abs(place), jnp.asarray(False), time >= self.time_limit, {}
        )


class Plain:
    """Environment that is not a pytree, with settings as attributes and a lazily filled cache."""

    name, num_agents, time_limit = "mine/Plain", None, 5
    observation_space, action_space = Box(-1, 1, (2,)), Discrete(2)

    def __init__(self, length: float, layout: Any) -> None:
        self.length, self._layout = length, layout

    @functools.cached_property
    def table(self) -> list[float]:
        return [self.length]


def test_a_run_is_resumed_only_in_an_equal_environment(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    train(environment=Drift(), updates=2, eval_count=1, checkpoint_steps=0)
    more: dict[str, Any] = {"total_steps": 4 * FRAMES, "show": Script()}
    for changed, part in (
        (Drift(drift=0.3), "drift (expected 0.1, got 0.3)"),
        (Drift(time_limit=7), "time limit (expected 5, got 7)"),
        (Drift(num_actions=3), "action space (expected Discrete(2), got Discrete(3))"),
        (Drift(size=2), "observation space (expected Box((1,), float32), got Box((2,), float32))"),
    ):
        with pytest.raises(UsageError, match="The environment does not match the run") as error:
            rollax.resume(tmp_path / "run", environment=changed, **more)
        assert part in str(error.value) and "train a new run" in str(error.value)
    assert rollax.resume(tmp_path / "run", environment=Drift(), **more).steps == 4 * FRAMES
    # A folder without a fingerprint has less to compare.
    path = tmp_path / "run" / layout.ENVIRONMENT_FILE
    record = json.loads(path.read_text())
    assert record.pop(layout.FINGERPRINT_KEY)["settings"]["drift"] == "0.1"
    path.write_text(json.dumps(record))
    assert (
        rollax.resume(
            tmp_path / "run", environment=Drift(drift=0.3), show=Script(), total_steps=6 * FRAMES
        ).status
        == "done"
    )


def test_a_policy_is_loaded_in_another_environment_if_spaces_match(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    train(environment=Drift(), updates=1, eval_count=1, checkpoint_steps=0)
    policy = rollax.load(tmp_path / "run", environment=Drift(drift=0.3, time_limit=9))
    assert policy.evaluate(2, jax.random.key(0))[1].length.tolist() == [9, 9]
    message = (
        r"The environment's action space does not match the checkpoint: expected "
        r"Discrete\(2\), got Discrete\(3\)\."
    )
    with pytest.raises(UsageError, match=message):
        rollax.load(tmp_path / "run", environment=Drift(num_actions=3))
    with pytest.raises(
        UsageError,
        match=r"observation space .* expected Box\(\(1,\), float32\), got Box\(\(2,\), float32\)",
    ):
        rollax.load(tmp_path / "run", environment=Drift(size=2))


def test_environments_of_suites_are_compared(undisturbed: Path) -> None:
    """Without a fingerprint, the environment of the run's id is compared."""
    for recorded in (layout.read_environment_fingerprint(undisturbed), {}):
        assert "settings" not in recorded
    with pytest.raises(UsageError, match="observation space does not match the checkpoint"):
        rollax.load(undisturbed, environment=rollax.make("gymnax/CartPole-v1"))


def test_objects_that_are_not_pytrees_are_compared() -> None:
    first = fingerprint(Plain(1, {"walls": [1, 2]}), is_object=True)
    used = Plain(1.0, {"walls": [1, 2]})
    assert used.table == [1.0]
    check_same_environment(first, used)
    for other, part in (
        (Plain(2, {"walls": [1, 2]}), "length"),
        (Plain(1, {"walls": [1, 3]}), "_layout.walls.1"),
    ):
        with pytest.raises(UsageError, match=part):
            check_same_environment(first, other)


def test_captured_variables_of_functions_are_compared() -> None:
    def made(gravity: float) -> Any:
        plain: Any = Plain(1, {})
        plain.make = functools.partial(lambda shift: gravity + shift, shift=1)
        return plain

    first = fingerprint(made(9.8), is_object=True)
    check_same_environment(first, made(9.8))
    with pytest.raises(UsageError, match="gravity"):
        check_same_environment(first, made(5.0))


def test_a_damaged_record_is_skipped(tmp_path: Path) -> None:
    for text in (
        "[1, 2",
        "[]",
        '{"environment": 5}',
        '{"environment": {"name": 5, "settings": 3, "action form": null}}',
    ):
        (tmp_path / layout.ENVIRONMENT_FILE).write_text(text)
        recorded = layout.read_environment_fingerprint(tmp_path)
        check_same_environment(recorded, Drift())
        check_fingerprint_fits(recorded, Drift())


def test_the_form_of_dict_observations() -> None:
    parts: Any = Plain(1, {})
    parts.observation_space = Dict({"a": Box(0, 1, (2,)), "b": Discrete(3)})
    assert (
        fingerprint(parts, is_object=False)["observation form"]
        == "Dict(a: Box((2,), float32), b: Discrete(3))"
    )


def test_values_that_differ_between_processes_are_not_recorded() -> None:
    """These are addresses of objects, and variables of closures that are not assigned yet."""

    def made() -> Any:
        plain: Any = Plain(1, np.array([object(), None], object))
        plain.make = lambda: later
        if plain.length > 1:
            later = 1
        return plain

    assert fingerprint(made(), is_object=True) == fingerprint(made(), is_object=True)
