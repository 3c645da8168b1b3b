"""Tests of the parts of PPO: its loss, its errors and its actions."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laws.programs import begun, fresh
from laws.table import BY_NAME
from laws.walk import Walk
from rollax.algorithms.ppo import PPOBatch, PPOConfig, loss, normalize_minibatch
from rollax.networks import ActorCriticOutput, StepwiseNetwork
from rollax.networks.distributions import Categorical


class Constant:
    """Custom network as a plain pytree with logits (x, 0) and value v for any observation."""

    def __init__(self, x: jax.Array, v: jax.Array) -> None:
        self.x, self.v = x, v

    def initial_carry(self) -> tuple[()]:
        return ()

    def __call__(self, carry: tuple[()], obs: Any) -> tuple[tuple[()], ActorCriticOutput]:
        return (), ActorCriticOutput(Categorical(jnp.stack([self.x, jnp.zeros(())])), self.v)


jax.tree_util.register_pytree_node(
    Constant, lambda n: ((n.x, n.v), None), lambda _, leaves: Constant(*leaves)
)


def batch_of(old_log_prob: float, advantage: list[float], target: list[float]) -> PPOBatch:
    """Return `[1, B]` samples of action 0 with old value 0."""
    size = len(advantage)

    def row(values):
        return jnp.asarray(values, jnp.float32)[None]

    return PPOBatch(
        (),
        jnp.zeros((1, size, 1)),
        jnp.zeros((1, size), bool),
        jnp.zeros((1, size), jnp.int32),
        jnp.full((1, size), old_log_prob),
        jnp.zeros((1, size)),
        row(advantage),
        row(target),
        None,
        None,
    )


@pytest.mark.parametrize("clip_values", [False, True])
def test_loss_by_hand(clip_values: bool) -> None:
    """The probability is 0.6 and was 0.4, so the ratio is 1.5.

    For advantages (1, -1), the objective is 1.2 - 1.5. Values are 1, and targets are (2, 0).
    """
    network = StepwiseNetwork(Constant(jnp.log(jnp.float32(1.5)), jnp.float32(1.0)))
    data = batch_of(float(np.log(0.4)), [1.0, -1.0], [2.0, 0.0])
    config = PPOConfig(normalize_advantages="off", clip_values=clip_values, value_coefficient=0.5)
    total, metrics = loss(network, None, data, config, jnp.float32(0.1))
    policy = (-1.2 + 1.5) / 2
    value = 0.5 * ((max(1, 1.8**2) + max(1, 0.2**2)) / 2 if clip_values else 1.0)
    entropy = -(0.6 * np.log(0.6) + 0.4 * np.log(0.4))
    assert float(metrics["policy_loss"]) == pytest.approx(policy, rel=1e-4)
    assert float(metrics["value_loss"]) == pytest.approx(value, rel=1e-4)
    assert float(metrics["entropy"]) == pytest.approx(entropy, rel=1e-4)
    assert float(metrics["approx_kl"]) == pytest.approx(0.5 - np.log(1.5), rel=1e-3)
    assert float(metrics["clip_fraction"]) == 1
    assert float(total) == pytest.approx(policy + 0.5 * value - 0.1 * entropy, rel=1e-4)


@pytest.mark.parametrize(
    ("choice", "differs"), [("minibatch", False), ("off", True), ("batch", True)]
)
def test_normalized_advantages(choice: Any, differs: bool) -> None:
    """Normalized within the minibatch, shift and scale of the advantages do not change the loss."""
    network = StepwiseNetwork(Constant(jnp.float32(0.3), jnp.float32(0.0)))
    config = PPOConfig(normalize_advantages=choice)

    def policy_loss(advantages: list[float]) -> float:
        data = normalize_minibatch(config, batch_of(-0.7, advantages, [0.0] * 3))
        return float(loss(network, None, data, config, jnp.float32(0))[1]["policy_loss"])

    losses = [policy_loss(advantages) for advantages in ([1.0, 2.0, 4.0], [12.0, 22.0, 42.0])]
    assert (abs(losses[0] - losses[1]) > 1e-3) == differs


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"sequence_length": 5}, ("num_steps (8)", "sequence_length (5)")),
        ({"num_minibatches": 7}, ("num_minibatches (7)", "8 streams")),
    ],
)
def test_sizes_that_do_not_divide_are_refused(
    settings: dict[str, int], names: tuple[str, ...]
) -> None:
    """The error comes from `init`, names the settings with their values, and has a remedy."""
    row = BY_NAME["ppo"]
    with pytest.raises(ValueError, match="Use") as error:
        row.make(Walk()).init(jax.random.key(0), dataclasses.replace(row.config, **settings))
    assert all(name in str(error.value) for name in names)


def test_acting_uses_the_observations_of_the_rollout() -> None:
    """Greedy actions are the mode of the policy in training, also with normalized observations."""
    name = "ppo-normalized"
    state, row = fresh(begun(name)), BY_NAME[name]
    algorithm = row.make(row.environment)
    observations = jax.random.normal(jax.random.key(0), (32, 3))
    act = jax.jit(jax.vmap(algorithm.act, in_axes=(None, 0, None, 0, None)))
    keys = jax.random.split(jax.random.key(1), 32)
    greedy, _ = act(state, observations, algorithm.initial_carry(state), fresh(keys), True)
    drawn, _ = act(state, observations, algorithm.initial_carry(state), fresh(keys), False)
    moments, network = state.train.observations, state.train.network
    seen = (observations - moments.mean[None]) / jnp.sqrt(moments.variance[None])
    policy = jax.vmap(lambda obs: network(algorithm.initial_carry(state), obs)[1].policy.mode())(
        seen
    )
    assert np.array_equal(greedy, policy)
    assert not np.array_equal(greedy, drawn)
    assert float(moments.size) == 3 * 64
