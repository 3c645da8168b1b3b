"""Solutions of quality-diversity: policies, or constant actions of tasks (`task/...`)."""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.action_spaces import normalize_space
from rollax.environments.capabilities import has_closed_form
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.networks import layers
from rollax.networks.action_values.q_networks import mask_illegal_values
from rollax.networks.critics import TanhHead, make_actor
from rollax.networks.layers import Linear
from rollax.spaces import Ball, Box, Discrete
from rollax.types import Observation


@dataclasses.dataclass(frozen=True)
class PolicyConfig:
    """Architecture of the policies."""

    hidden: tuple[int, ...] = (64, 64)
    """Sizes of the dense layers."""
    activation: layers.Activation = "tanh"
    """Activation function of all layers."""
    filters: tuple[tuple[int, int, int], ...] | None = None
    """Convolutions (outputs, kernel, stride) for observations [H, W, C]. None selects them by size;
    empty (--network.filters without values) uses convolutions only for 8-bit images."""
    embedding: int = 8
    """Size of the embedding vector per symbol of a grid."""


class ConstantSolution(eqx.Module):
    """Solution of a `ClosedFormEnvironment` (`task/...`): one action, independent of observations.

    The action is not normalized to [-1, 1].
    """

    action: jax.Array

    def __call__(self, obs: Observation) -> jax.Array:
        return self.action


class GreedyHead(eqx.Module):
    """Head that returns the legal discrete action with the largest output."""

    layer: Linear

    def __call__(self, features: jax.Array, obs: Observation) -> jax.Array:
        return jnp.argmax(mask_illegal_values(self.layer(features), obs))


def make_solution(environment: Environment, config: PolicyConfig, key: jax.Array) -> Any:
    """Return an initial solution, a function from an observation to an action.

    In a `ClosedFormEnvironment`, the solution is a `ConstantSolution`. Its action is sampled
    uniformly within the bounds, or 0 if the action space is unbounded. In all other environments,
    the solution is a policy that all agents share. Its actions in a `Box` are in [-1, 1], and its
    actions in a `Ball` are in the unit ball.

    Args:
        environment: Environment with the spaces.
        config: Architecture of policies.
        key: Random key of the solution.

    Returns:
        The solution.

    Raises:
        UsageError: If a policy is required and the action space is not `Discrete`, a `Ball` or a
            bounded `Box` of floats. Also if a size in the config is below 1.
    """
    space: Any = environment.action_space
    if has_closed_form(environment):
        bounded = space.is_bounded
        return ConstantSolution(
            space.sample(key) if bounded else jnp.zeros(space.shape, space.dtype)
        )
    if isinstance(space, Discrete):
        head, outputs = GreedyHead, space.n
    elif isinstance(space, Ball) or (
        isinstance(space, Box) and space.is_bounded and space.dtype.startswith("float")
    ):
        normalized = normalize_space(space)
        head, outputs = (lambda layer: TanhHead(layer, normalized)), math.prod(space.shape)
    else:
        raise UsageError(
            "Policies in archives require discrete actions, a Ball or a Box of floats with "
            f"finite bounds, got {space}."
        )
    encoder_key, dense_key, head_key = jax.random.split(key, 3)
    return make_actor(
        environment,
        config,
        lambda features: head(Linear(features, outputs, head_key, 1.0)),
        encoder_key,
        dense_key,
    )
