"""Tests of policies over discrete and mixed actions: joint choices, values and entropies."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.acting.exploration import sample_normal
from rollax.action_spaces import discrete_sizes, make_normalized_zeros
from rollax.errors import UsageError
from rollax.learning.policy_values import expected_min_q, joint_log_probabilities, sample_mixed
from rollax.networks.critics import (
    StochasticActorCriticsConfig,
    make_stochastic_actor_critics,
    split_action,
)
from rollax.networks.distributions import transform_noise
from rollax.spaces import Ball, Box, Dict, Discrete, MultiDiscrete, Tuple

FEATURES = Box(-1.0, 1.0, (3,))
MIXED = Dict(
    {
        "which": MultiDiscrete((2, 3)),
        "push": Tuple((Ball(2, 5.0), Discrete(2))),
        "force": Box(0.0, 4.0, (2, 1)),
    }
)
# The mask of the second variable of "which" forbids two of three choices.
MASK = Dict({"which": Box(0.0, 1.0, (2, 3), "bool")})


class Spaces:
    """Spaces of an environment, which is all that networks need."""

    name, num_agents = "test/spaces", None

    def __init__(self, action_space: Any, mask: Any = None) -> None:
        self.action_space = action_space
        parts = {"features": FEATURES} | ({} if mask is None else {"action_mask": mask})
        self.observation_space = Dict(parts)

    def observe(self, key: jax.Array) -> dict[str, Any]:
        obs = {"features": FEATURES.sample(key)}
        if "action_mask" in self.observation_space.spaces:
            legal = jnp.array([[True, True, False], [False, True, False]])
            obs["action_mask"] = {"which": legal}
        return obs


def make_networks(space: Any, mask: Any = None) -> tuple[Spaces, Any]:
    environment: Any = Spaces(space, mask)
    config = StochasticActorCriticsConfig(hidden=(8,))
    network = make_stochastic_actor_critics(environment, config, jax.random.key(0))
    # Larger weights make probabilities differ.
    return environment, jax.tree.map(lambda x: 3 * x, network)


@pytest.mark.quick
@pytest.mark.parametrize("mask", [None, MASK])
def test_values_are_means_over_all_choices(mask: Any) -> None:
    """The value is that of enumerated complete actions with probabilities of the policy."""
    environment, network = make_networks(MIXED, mask)
    obs = environment.observe(jax.random.key(1))
    noise = sample_normal(jax.random.key(2), make_normalized_zeros(MIXED))
    sizes = discrete_sizes(MIXED)
    assert sizes == (2, 2, 3)
    batch = jax.tree.map(lambda x: x[None], (obs, noise))
    found = sample_mixed(sizes, network.actor, *batch)
    policy = network.actor(obs)
    action = policy.action(transform_noise(policy, noise, jax.random.key(3)))
    mean = entropy = 0.0
    for first, *which in itertools.product(*map(range, sizes)):
        complete = action | {"which": jnp.array(which), "push": (action["push"][0], first)}
        complete = jax.tree.map(jnp.asarray, complete)
        parts = policy.parts["push"].parts[1], policy.parts["which"]
        log_prob = parts[0].log_prob(jnp.int32(first)) + parts[1].log_prob(jnp.array(which))
        value = min(float(critic(obs, complete)) for critic in network.critic)
        mean += np.exp(log_prob) * value
        entropy -= np.exp(log_prob) * log_prob
    np.testing.assert_allclose(expected_min_q(network.critic, batch[0], found)[0], mean, rtol=1e-5)
    np.testing.assert_allclose(found.log_prob["discrete"][0], -entropy, rtol=1e-5)
    num_legal = 4 if mask is not None else 12
    np.testing.assert_allclose(found.size["discrete"][0], np.log(num_legal), rtol=1e-6)
    assert float(found.size["continuous"][0]) == 4
    assert [part.shape for part in split_action(action).continuous] == [(2, 1), (2,)]


@pytest.mark.quick
def test_joint_log_probabilities_are_those_of_the_policy() -> None:
    environment, network = make_networks(MultiDiscrete((2, 4)))
    policy = network.actor(environment.observe(jax.random.key(1)))
    joint = joint_log_probabilities([policy], (2, 4))
    choices = jnp.array(list(itertools.product(range(2), range(4))))
    np.testing.assert_allclose(joint, jax.vmap(policy.log_prob)(choices), rtol=1e-5)
    assert float(jnp.sum(jnp.exp(joint))) == pytest.approx(1.0)


@pytest.mark.quick
def test_too_many_joint_choices_are_refused() -> None:
    with pytest.raises(UsageError, match="at most 4,096 joint choices, got 4,608. Use ppo"):
        make_networks(Tuple((MultiDiscrete((64, 72)), Box(-1.0, 1.0, (1,)))))


@pytest.mark.quick
def test_unbounded_parts_are_refused() -> None:
    with pytest.raises(UsageError, match="finite bounds .*Give the space finite bounds"):
        make_networks(Dict({"a": Discrete(2), "b": Box(-np.inf, np.inf, (1,))}))
