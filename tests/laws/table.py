"""The table of algorithms: a new algorithm is one more row, and passes every law of this folder."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from laws.walk import Walk
from rollax import moments
from rollax.algorithm import Algorithm
from rollax.algorithms.ppo import PPOConfig, PPOState, ppo
from rollax.environments import Environment
from rollax.networks import NetworkConfig, actor_critic
from rollax.spaces import Discrete

DISCRETE = (
    "one-action",
    "two-observations",
    "two-steps",
    "action-reward",
    "action-observation",
    "two-agents",
    "multi-discrete",
    "masked",
)


class Row(NamedTuple):
    name: str
    make: Callable[[Environment], Algorithm]
    config: Any
    environment: Environment  # of the program laws
    probes: tuple[str, ...]  # that apply to it
    telling: tuple[str, ...]  # those of them that say something about this row; the others are slow tests
    value: Callable[[Any, Any, Any], tuple[Any, jax.Array]]  # (state, carry, obs) -> (carry, value in units of reward)
    memory: bool = False
    rounding: float = 1e-5  # how far from 0 the logarithm of an importance ratio may be before the first gradient step


def ppo_row(
    name: str,
    telling: tuple[str, ...],
    environment: Environment | None = None,
    network: Any = None,
    rounding: float = 1e-5,
    **settings: Any,
) -> Row:
    """A row of PPO: `network` and `settings` differ from those that all rows share."""
    shape = dataclasses.replace(NetworkConfig(hidden=(16,), activation="relu", core_size=8), **(network or {}))
    shared = PPOConfig(num_envs=8, num_steps=8, num_minibatches=2, num_epochs=2, learning_rate=1e-2, gamma=0.9)
    config = dataclasses.replace(shared, **settings)

    def make(environment: Environment) -> Algorithm:
        return ppo(environment, lambda key: actor_critic(environment, shape, key))

    environment, memory = environment or Walk(), shape.core != "none"
    discrete = DISCRETE + ("memory",) * memory
    probes = discrete if isinstance(environment.action_space, Discrete) else ("continuous",)
    return Row(name, make, config, environment, probes, telling, ppo_value, memory, rounding)


def ppo_value(state: PPOState, carry: Any, obs: Any) -> tuple[Any, jax.Array]:
    """What the critic expects, with the scales of observations and rewards undone."""
    scale = 1.0 if state.returns == () else jnp.sqrt(state.returns.variance)
    carry, output = moments.view(state.observations)(state.network)(carry, obs)
    return carry, output.value * scale


# Two memories, whose sequences are solved in parallel, added up, before heads of two layers.
MINGRU = {"core": "mingru", "core_layers": 2, "core_sum": True, "head_hidden": (16,), "shared": True}

ROWS = (
    ppo_row("ppo", DISCRETE),
    ppo_row("ppo-shared", ("action-observation",), network={"shared": True}),
    ppo_row("ppo-gru", ("two-steps", "two-agents", "memory"), network={"core": "gru"}, sequence_length=4),
    ppo_row("ppo-lstm", ("memory",), network={"core": "lstm", "shared": True}, sequence_length=4),
    ppo_row("ppo-mingru", ("memory",), network=MINGRU, sequence_length=4),
    # Half precision rounds a step alone in another way than a sequence in parallel; measured are 3e-3 and less.
    ppo_row("ppo-bfloat16", (), network=MINGRU | {"precision": "bfloat16"}, sequence_length=4, rounding=1e-2),
    ppo_row("ppo-continuous", ("continuous",), Walk(continuous=True), network={"initial_std": 0.5}),
    ppo_row("ppo-squashed", ("continuous",), Walk(continuous=True), network={"squash": True, "initial_std": 0.5}),
    ppo_row(
        "ppo-separate-epochs",
        ("two-steps", "action-observation"),
        critic_epochs=3,
        critic_learning_rate=2e-2,
        target_kl=0.05,
    ),
    ppo_row(
        "ppo-normalised",
        ("two-observations", "action-observation"),
        normalize_observations=True,
        normalize_rewards=True,
    ),
    ppo_row("ppo-agents", (), Walk(agents=2)),
)
NAMES = [row.name for row in ROWS]
BY_NAME = {row.name: row for row in ROWS}


def first(*names: str) -> list[Any]:
    """All rows as parameters of a test, those not named here as slow: for laws that cost seconds of compilation a row."""
    return [name if name in names else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
