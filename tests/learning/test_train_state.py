"""Tests of gradient clipping, which equals that of optax, and of extreme settings."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rollax.learning.optimizers import clipped_adam


def gradient(scale: float) -> Any:
    keys = jax.random.split(jax.random.key(0))
    return {
        "weight": scale * jax.random.normal(keys[0], (5, 3)),
        "bias": scale * jax.random.normal(keys[1], (3,)),
    }


def changes(optimizer: optax.GradientTransformation, gradient: Any) -> Any:
    return jax.jit(lambda g: optimizer.update(g, optimizer.init(g))[0])(gradient)


@pytest.mark.parametrize("max_norm", [1e-30, 0.5, 3.0, 1e30, float("inf")])
@pytest.mark.parametrize("scale", [0.0, 1e-20, 0.1, 1.0, 1e10, float("nan")])
def test_clipping_equals_optax(max_norm: float, scale: float) -> None:
    """Updates are equal bit for bit, for positive norms."""
    mine = changes(clipped_adam(1e-3, 1e-5, max_norm), gradient(scale))
    theirs = changes(
        optax.chain(optax.clip_by_global_norm(max_norm), optax.adam(1e-3, eps=1e-5)),
        gradient(scale),
    )
    for name, values in theirs.items():
        np.testing.assert_array_equal(mine[name], values)


@pytest.mark.parametrize("scale", [0.0, 1e-20, 1.0, 1e10])
def test_a_maximum_norm_of_zero_gives_no_update(scale: float) -> None:
    """This includes a gradient of 0, for which optax divides by zero."""
    for values in changes(clipped_adam(1e-3, 1e-5, jnp.zeros(())), gradient(scale)).values():
        np.testing.assert_allclose(values, 0.0, atol=1e-15)
