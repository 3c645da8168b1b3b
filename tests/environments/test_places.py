"""Tests of positions as descriptors, as fractions of the box."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.environments import make


def play(env: Any, action: Any, steps: int, seed: int = 0) -> tuple[Any, Any]:
    """Return the first state and the transitions `[T, ...]` under one constant action."""
    state, _ = jax.jit(lambda key: env.reset(key))(jax.random.key(seed))

    def step(state: Any, _: None) -> tuple[Any, Any]:
        after = env.step(jax.random.key(0), state, action)
        return after.state, after

    return state, jax.jit(lambda state: jax.lax.scan(step, state, None, steps)[1])(state)


@pytest.mark.parametrize(
    ("name", "given"),
    [("single-navigator", {}), ("single-navigator", {"dimension": 3}), ("single-roller", {})],
)
def test_the_descriptor_is_the_position_as_a_fraction_of_the_box(
    name: str, given: dict[str, int]
) -> None:
    """A long push into a corner ends about one radius from the walls, from any start."""
    env: Any = make(f"granular/{name}", side=5.0, max_steps=400, **given)
    size = env.descriptor_space.shape[0]
    push = (
        jnp.array([1.0, -1.0, 0.0]) if name == "single-roller" else -jnp.ones(size)
    )  # a torque moves it at a right angle
    for seed in range(3):
        start, after = play(env, push, 400, seed)
        first, last = (
            env.descriptor(start),
            env.descriptor(jax.tree.map(lambda x: x[-1], after.state)),
        )
        assert first.dtype == jnp.float32 and first.shape == (size,)
        np.testing.assert_allclose(first, start.spheres.position[0, :size] / 5, rtol=1e-6)
        np.testing.assert_allclose(last, 0.1, atol=0.02)  # the radius is 0.5 and the side is 5
        every = np.asarray(jax.vmap(env.descriptor)(after.state))
        assert every.min() >= 0 and every.max() <= 1
