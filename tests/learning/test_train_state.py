"""Gradients are clipped as by optax, and settings at the ends of their ranges give numbers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rollax.learning import train_state


def gradient(scale: float) -> Any:
    keys = jax.random.split(jax.random.key(0))
    return {"weight": scale * jax.random.normal(keys[0], (5, 3)), "bias": scale * jax.random.normal(keys[1], (3,))}


def clipped(transformation: optax.GradientTransformation, gradient: Any) -> Any:
    return transformation.update(gradient, transformation.init(gradient))[0]


@pytest.mark.parametrize("max_norm", [1e-30, 0.5, 3.0, 1e30, float("inf")])
@pytest.mark.parametrize("scale", [0.0, 1e-20, 0.1, 1.0, 1e10, float("nan")])
def test_clipping_is_that_of_optax(max_norm: float, scale: float) -> None:
    """Bit for bit, for every norm above 0 and none."""
    mine = clipped(train_state.clip_by_global_norm(max_norm), gradient(scale))
    theirs = clipped(optax.clip_by_global_norm(max_norm), gradient(scale))
    for name, values in theirs.items():
        np.testing.assert_array_equal(mine[name], values)


def test_a_norm_of_zero_is_no_gradient() -> None:
    """Also for a gradient that is 0 itself, which optax divides by its norm."""
    for scale in (0.0, 1.0):
        assert all(not jnp.any(values) for values in clipped(train_state.clip_by_global_norm(0.0), gradient(scale)).values())
    adam = train_state.adam(1e-3, 1e-5, jnp.zeros(()))
    changes = jax.jit(lambda g: adam.update(g, adam.init(g))[0])(gradient(0.0))
    assert all(not jnp.any(values) for values in changes.values())
