"""Tests of optimizers by name, weight decay and schedules of the learning rate."""

from types import SimpleNamespace
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import rollax
from rollax.algorithms.ppo import PPOConfig
from rollax.learning.optimizers import (
    OptimizerName,
    adapt_rate_scale,
    clipped_adam,
    cosine_schedule,
    linear_schedule,
    make_optimizer,
    scheduled_rate,
)
from rollax.learning.train_state import apply_gradients

PARAMETERS = {"weight": jnp.arange(1.0, 7.0).reshape(2, 3), "bias": jnp.array([0.5, -2.0, 1.0])}
RATE = 0.01


def settings(**changes: Any) -> Any:
    defaults = {
        "optimizer": "adam",
        "weight_decay": 0.0,
        "adam_epsilon": 1e-8,
        "max_grad_norm": jnp.inf,
        "frozen": (),
        "frozen_fraction": 1.0,
    }
    return SimpleNamespace(**defaults | changes)


def run(optimizer: optax.GradientTransformation, steps: int = 3) -> Any:
    """Return the parameters after a few steps on a quadratic loss."""

    @jax.jit
    def step(parameters: Any, state: Any) -> Any:
        gradient = jax.grad(lambda x: optax.tree.norm(x, squared=True))(parameters)
        return apply_gradients(optimizer, state, parameters, gradient)

    parameters, state = PARAMETERS, optimizer.init(PARAMETERS)
    for _ in range(steps):
        parameters, state = step(parameters, state)
    return parameters


def check_equal(actual: Any, expected: Any, tolerance: float) -> None:
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance)


def test_the_default_equals_clipped_adam_bit_for_bit() -> None:
    config = settings(max_grad_norm=0.5)
    check_equal(run(make_optimizer(config, RATE, 0.0)), run(clipped_adam(RATE, 1e-8, 0.5)), 0.0)


def test_adam_with_weight_decay_is_adamw() -> None:
    decayed = run(make_optimizer(settings(weight_decay=0.1), RATE, 0.0))
    check_equal(decayed, run(optax.adamw(RATE, eps=1e-8, weight_decay=0.1)), 1e-6)


@pytest.mark.parametrize("name", get_args(OptimizerName))
def test_every_optimizer_reduces_the_loss(name: str) -> None:
    before, after = (
        optax.tree.norm(x)
        for x in (PARAMETERS, run(make_optimizer(settings(optimizer=name), RATE, 0.0)))
    )
    assert after < before


def test_schedules_have_the_right_ends_and_middles() -> None:
    for schedule, quarter in ((linear_schedule, 0.8), (cosine_schedule, 0.8828427)):
        rates = [schedule(1.0, 0.2, progress) for progress in (0.0, 0.25, 0.5, 1.0, 2.0)]
        np.testing.assert_allclose(rates, [1.0, quarter, 0.6, 0.2, 0.2], rtol=1e-6)


def test_the_warmup_multiplies_the_schedule() -> None:
    config = PPOConfig(learning_rate_warmup_fraction=0.2, learning_rate_final_fraction=0.0)
    rates = [scheduled_rate(config, 1.0, progress) for progress in (0.0, 0.1, 0.2, 0.6)]
    np.testing.assert_allclose(rates, [0.0, 0.45, 0.8, 0.4], rtol=1e-6)
    assert scheduled_rate(PPOConfig(), 0.3, 0.0) == np.float32(0.3), "no warm-up by default"


@pytest.mark.parametrize(
    ("config", "part"),
    [
        ({"optimizer": "adamm"}, "did you mean adam"),
        ({"optimizer": "sgd", "adam_epsilon": 1e-3}, "lion and sgd have no epsilon"),
        ({"weight_decay": -1.0}, "weight_decay"),
    ],
)
def test_settings_without_effect_are_refused(config: dict[str, Any], part: str) -> None:
    with pytest.raises(rollax.UsageError, match=part):
        rollax.train("ppo", "gymnax/CartPole-v1", config=config, total_steps=8192, quiet=True)


@pytest.mark.quick
def test_the_factor_of_learning_rates_has_bounds() -> None:
    config = SimpleNamespace(learning_rate=1e-3, learning_rate_kl=0.01)
    cases = [  # factor, divergence, next factor
        (1.0, 0.021, 1 / 1.5),
        (1.0, 0.019, 1.0),
        (1.0, 0.006, 1.0),
        (1.0, 0.004, 1.5),
        (1.0, 0.0, 1.0),
        (0.011, 0.1, 0.01),
        (9.0, 1e-4, 10.0),
    ]
    for scale, divergence, expected in cases:
        found = adapt_rate_scale(config, jnp.float32(scale), jnp.float32(divergence))
        assert float(found) == pytest.approx(expected), (scale, divergence)
