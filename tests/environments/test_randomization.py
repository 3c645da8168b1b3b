"""Tests of leaves of environments that are sampled at the start of every episode."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.checks.environment_check import check_environment
from rollax.environments import Transition
from rollax.environments.wrappers import DomainRandomization
from rollax.errors import UnknownNameError, UsageError
from rollax.spaces import Box, Discrete


class Physics(eqx.Module):
    """Parameters that an environment has as leaves."""

    speed: jax.Array
    gear: jax.Array


class Rolling(eqx.Module):
    """Environment that observes its own physics."""

    physics: Physics
    other: Physics

    name = "test/rolling"
    observation_space = Box(0.0, 10.0, (3,))
    action_space = Discrete(2)
    num_agents = None
    time_limit = 3
    descriptor_space = Box(0.0, 10.0, (1,))
    descriptor_extraction = "final"

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return jnp.zeros((), jnp.int32), self._observe()

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        never = jnp.zeros((), bool)
        return Transition(state + 1, self._observe(), self.physics.speed, never, state + 1 >= 3, {})

    def descriptor(self, state: Any) -> jax.Array:
        return self.physics.speed[None]

    def _observe(self) -> jax.Array:
        return jnp.concatenate([self.physics.speed[None], self.physics.gear.astype(jnp.float32)])


def rolling() -> Rolling:
    physics = Physics(jnp.float32(1.0), jnp.asarray([1, 2], jnp.int32))
    return Rolling(physics, physics)


RANGES = {"physics.speed": (2.0, 4.0), "physics.gear": (3, [3, 5])}


@pytest.mark.quick
def test_every_episode_samples_values_and_keeps_them() -> None:
    view = DomainRandomization(rolling(), RANGES)
    keys = jax.random.split(jax.random.key(0), 200)
    states, seen = jax.vmap(view.reset)(keys)
    seen = np.asarray(seen)
    assert (
        2 <= seen[:, 0].min() < 2.2
        and 3.8 < seen[:, 0].max() <= 4
        and len(np.unique(seen[:, 0])) == 200
    )
    assert set(seen[:, 1]) == {3} and set(seen[:, 2]) == {3, 4, 5}
    after = jax.vmap(view.step)(keys, states, jnp.zeros(200, jnp.int32))
    np.testing.assert_array_equal(after.obs, seen)
    np.testing.assert_array_equal(after.reward, seen[:, 0])
    np.testing.assert_array_equal(jax.vmap(view.descriptor)(after.state)[:, 0], seen[:, 0])


def test_a_randomized_environment_passes_the_check() -> None:
    assert check_environment(DomainRandomization(rolling(), RANGES), steps=12).episodes == 16


@pytest.mark.parametrize(
    ("ranges", "kind", "message"),
    [
        ({"physics.sped": (1, 2)}, UnknownNameError, "unknown leaf of test/rolling 'physics.sped'"),
        (
            {"speed": (1, 2)},
            UsageError,
            "got 2 leaves of that name. Write one of physics.speed, other.speed",
        ),
        ({"physics.speed": (2, 1)}, UsageError, "two finite bounds"),
        ({"physics.speed": (1, np.inf)}, UsageError, "two finite bounds"),
        ({"physics.speed": 3}, UsageError, "two finite bounds"),
        ({"physics.gear": (1, [2, 3, 4])}, UsageError, r"int32\[2\]"),
    ],
)
def test_invalid_ranges_are_refused(ranges: Any, kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        DomainRandomization(rolling(), ranges)
