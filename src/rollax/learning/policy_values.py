"""Samples of stochastic policies and their values, for continuous, discrete and mixed actions."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from rollax.networks.critics import min_q, sample_actions
from rollax.networks.distributions import (
    ILLEGAL_LOGIT,
    Categorical,
    RadiallySquashedGaussian,
    SquashedGaussian,
    SquashedPolicy,
)
from rollax.types import Observation, PyTree

PolicyPart: TypeAlias = Categorical | SquashedGaussian | RadiallySquashedGaussian
"""Distribution over one array of an action."""


class PolicySample(NamedTuple):
    """Actions and entropies of a policy in a batch of B observations.

    Attributes:
        action: Normalized actions `[B, ...]`, or a list of the continuous parts of actions with
            discrete parts.
        log_prob: Log-probabilities, whose negative mean is the entropy, float `[B]`. The keys are
            "continuous" and "discrete", or one of them if the action has only these parts.
        size: Unit of the target entropy, float `[B]`, with the same keys: the number of legal
            dimensions of the continuous parts, and the logarithm of the number of legal joint
            choices of the discrete parts, which is the maximum of their entropy.
        probability: Probabilities of all joint choices of the discrete parts, float `[B, K]`, or
            None without discrete parts.
    """

    action: Any
    log_prob: dict[str, jax.Array]
    size: dict[str, jax.Array]
    probability: jax.Array | None = None


def sample_continuous(
    actor: Callable[[Observation], SquashedPolicy], obs: Observation, noise: jax.Array
) -> PolicySample:
    """Sample the actions of a policy over a `Box` or a `Ball`.

    Args:
        actor: Policy.
        obs: Observations `[B, ...]`.
        noise: Standard normal noise with the shape of the actions, `[B, ...]`.
    """
    policies = jax.vmap(actor)(obs)
    action, log_prob = sample_actions(policies, noise)
    size = jax.vmap(lambda policy: policy.num_dimensions)(policies)
    return PolicySample(action, {"continuous": log_prob}, {"continuous": size})


def sample_mixed(
    sizes: tuple[int, ...], actor: Callable[[Observation], Any], obs: Observation, noise: PyTree
) -> PolicySample:
    """Sample the continuous parts of actions, and return the probabilities of the discrete parts.

    Args:
        sizes: Number of choices of each discrete variable, as returned by `spaces.discrete_sizes`.
        actor: Policy.
        obs: Observations `[B, ...]`.
        noise: Standard normal noise with the structure and shapes of the actions, and None for
            discrete parts.
    """

    def sample(obs: Observation, noise: PyTree) -> PolicySample:
        parts = jax.tree.leaves(actor(obs), is_leaf=lambda part: isinstance(part, PolicyPart))
        joint = joint_log_probabilities([p for p in parts if isinstance(p, Categorical)], sizes)
        probability = jnp.exp(joint)
        log_prob = {"discrete": jnp.sum(probability * joint)}
        size = {"discrete": jnp.log(jnp.sum(joint > ILLEGAL_LOGIT / 2))}
        pairs = list(
            zip(
                [part for part in parts if not isinstance(part, Categorical)],
                jax.tree.leaves(noise),
                strict=True,
            )
        )
        raw = [(part, part.transform_noise(z)) for part, z in pairs]
        if pairs:
            log_prob["continuous"] = jnp.sum(jnp.stack([part.log_prob(u) for part, u in raw]))
            size["continuous"] = jnp.sum(jnp.stack([part.num_dimensions for part, _ in pairs]))
        return PolicySample([part.action(u) for part, u in raw], log_prob, size, probability)

    return jax.vmap(sample)(obs, noise)


def joint_log_probabilities(parts: list[Categorical], sizes: tuple[int, ...]) -> jax.Array:
    """Return the log-probabilities of all joint choices of independent variables, `[K]`.

    Args:
        parts: Categorical distributions with one or several variables each.
        sizes: Number of choices of each variable. K is their product.

    Returns:
        The log-probabilities, in the order of `itertools.product`.
    """
    rows = [row for part in parts for row in jnp.atleast_2d(part.log_probabilities)]
    return functools.reduce(
        lambda joint, row: (joint[:, None] + row[None]).reshape(-1),
        [row[:size] for row, size in zip(rows, sizes, strict=True)],
    )


def expected_min_q(critic: tuple[Any, ...], obs: Observation, sample: PolicySample) -> jax.Array:
    """Return the minimum of the critics, averaged over the discrete parts of actions, `[B]`.

    Args:
        critic: Critics, which are `ChoiceCritic`s if the actions have discrete parts.
        obs: Observations `[B, ...]`.
        sample: Sample of the policy for these observations.
    """
    if sample.probability is None:
        return min_q(critic, obs, sample.action)
    values = [jax.vmap(network.choice_values)(obs, sample.action) for network in critic]
    return jnp.sum(sample.probability * functools.reduce(jnp.minimum, values), axis=1)
