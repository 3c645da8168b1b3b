"""What quality-diversity collects: policies without memory, or the numbers of one action for an environment of one step."""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.environments.core import Environment
from rollax.errors import UsageError
from rollax.networks import layers
from rollax.networks.critics import Actor, TanhHead, make_encoder
from rollax.networks.distributions import RadialSquash
from rollax.networks.layers import MLP, Linear
from rollax.networks.q_networks import mask_actions
from rollax.spaces import Ball, Box, Discrete


@dataclasses.dataclass(frozen=True)
class PolicyConfig:
    """How policies are built."""

    hidden: tuple[int, ...] = (64, 64)
    """Sizes of the dense layers."""
    activation: layers.Activation = "tanh"
    """Activation of every layer."""
    filters: tuple[tuple[int, int, int], ...] | None = None
    """Convolutions (outputs, kernel, stride) for observations [H, W, C]; by size when None; for 8-bit images only when empty
    (--network.filters without values)."""
    embedding: int = 8
    """Size of the vector for each symbol of a grid."""


class Constant(eqx.Module):
    """A solution of an environment of one step: its action, in the environment's units."""

    action: jax.Array

    def __call__(self, obs: Any) -> jax.Array:
        return self.action


class GreedyHead(eqx.Module):
    """Features to the discrete action of the largest output that the observation's "action_mask" leaves."""

    layer: Linear

    def __call__(self, features: jax.Array, obs: Any) -> jax.Array:
        return jnp.argmax(mask_actions(self.layer(features), obs))


class BallHead(eqx.Module):
    """Features to the action within a ball that has the direction of the outputs u, R tanh(|u|) u / |u|."""

    layer: Linear
    space: Ball = eqx.field(static=True)

    def __call__(self, features: jax.Array, obs: Any) -> jax.Array:
        raw_action = self.layer(features)
        return RadialSquash(raw_action, jnp.zeros(()), self.space).action(raw_action)


def has_closed_form(environment: Environment) -> bool:
    """Whether the environment is a `ScoredEnvironment`: one action is a solution, and is scored without playing."""
    return callable(getattr(environment, "score", None))


def solution(environment: Environment, config: PolicyConfig, key: jax.Array) -> Any:
    """A solution to begin with, which maps an observation to an action, of a box normalized.

    Of a closed form it is a `Constant`: uniform within bounds, 0 where there are none. Else it is a network, with agents that
    which all of them share.

    Raises UsageError for actions that are neither a bounded box, a ball nor discrete.
    """
    space: Any = environment.action_space
    if has_closed_form(environment):
        bounded = space.is_bounded
        return Constant(space.sample(key) if bounded else jnp.zeros(space.shape, space.dtype))
    if isinstance(space, Discrete):
        head, outputs, scale = GreedyHead, space.n, 1.0
    elif isinstance(space, Box) and space.is_bounded and space.dtype.startswith("float"):
        head, outputs, scale = (lambda layer: TanhHead(layer, space.shape)), math.prod(space.shape), 1.0
    elif isinstance(space, Ball):
        head, outputs, scale = (lambda layer: BallHead(layer, space)), space.size, 1.0
    else:
        raise UsageError(
            f"policies in archives need discrete actions, a Ball or a Box of floats with finite bounds, not {space}"
        )
    encoder_key, dense_key, head_key = jax.random.split(key, 3)
    encoder, features = make_encoder(environment, config, encoder_key)
    dense = MLP(features, config.hidden, config.activation, key=dense_key)
    features = config.hidden[-1] if config.hidden else features
    return Actor(encoder, dense, head(Linear(features, outputs, head_key, scale)))
