"""Networks with a policy and a value: two of them, or one with two heads."""

import dataclasses
from typing import Any, Literal

import equinox as eqx
import jax

from rollax.environments.core import Environment
from rollax.networks import cores, layers
from rollax.networks.core import ActorCriticOutput
from rollax.networks.tower import Tower
from rollax.spaces import Ball, Box, Dict, Discrete, MultiDiscrete


class ActorCritic(eqx.Module):
    """A policy and a critic that share nothing. What lies under the field `critic` is trained by the critic's optimizer."""

    actor: Tower
    critic: Tower

    def initial_carry(self) -> Any:
        return self.actor.initial_carry(), self.critic.initial_carry()

    def __call__(self, carry: Any, obs: Any) -> tuple[Any, ActorCriticOutput]:
        actor_carry, policy = self.actor(carry[0], obs)
        critic_carry, value = self.critic(carry[1], obs)
        return (actor_carry, critic_carry), ActorCriticOutput(policy, value)

    def unroll(self, carry: Any, obs: Any, reset: jax.Array) -> tuple[Any, ActorCriticOutput]:
        actor_carry, policy = self.actor.unroll(carry[0], obs, reset)
        critic_carry, value = self.critic.unroll(carry[1], obs, reset)
        return (actor_carry, critic_carry), ActorCriticOutput(policy, value)


class TwoHeads(eqx.Module):
    """The head of a shared network: a policy and a value from the same features."""

    policy: Any
    value: Any

    def __call__(self, features: jax.Array, obs: Any) -> ActorCriticOutput:
        return ActorCriticOutput(self.policy(features, obs), self.value(features, obs))


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """How the actor-critic network is built."""

    hidden: tuple[int, ...] = (64, 64)
    """Sizes of the dense layers."""
    activation: layers.Activation = "tanh"
    """Activation of every layer."""
    core: cores.Kind = "none"
    """Recurrent core between encoder and heads."""
    core_size: int = 64
    """Units of the core."""
    core_layers: int = 1
    """Layers of the core."""
    core_output: cores.Output = "last"
    """What several memories give: the last one's output, the sum of all, or each as a residual block (see `cores.Block`)."""
    core_heads: int = 4
    """Heads of attention in each layer of a gtrxl; a divisor of core_size."""
    core_memory: int = 64
    """Steps before the current one that each layer of a gtrxl remembers."""
    attention: int = 0
    """Heads of attention by which policy and value look among the cells of grids, if there are any, for what memory asks for;
    0: none."""
    head_hidden: tuple[int, ...] = ()
    """Sizes of dense layers between memory and heads, for each head its own."""
    shared: bool = False
    """One network with two heads instead of a separate actor and critic."""
    filters: tuple[tuple[int, int, int], ...] | None = None
    """Convolutions (outputs, kernel, stride) for observations [H, W, C]; by size when None; for 8-bit images only when empty
    (--network.filters without values)."""
    embedding: int = 8
    """Size of the vector for each symbol of a grid."""
    squash: bool = False
    """Continuous actions through tanh onto the action space instead of clipped to it."""
    initial_std: float = 1.0
    """Spread of continuous actions at the start, before any squash."""
    agent_id: bool = False
    """Agents see which one they are (where there are agents)."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What the network computes in; parameters, policies and values stay in float32."""


def policy_head(environment: Environment, config: NetworkConfig, inputs: int, key: jax.Array) -> Any:
    """The head that the action space asks for. Raises ValueError for an action space without one."""
    space, observation = environment.action_space, environment.observation_space
    is_masked = isinstance(observation, Dict) and "action_mask" in observation.spaces
    if isinstance(space, Discrete | MultiDiscrete):
        return layers.CategoricalHead(inputs, space, is_masked, key=key)
    if isinstance(space, Box) and space.dtype.startswith("float"):
        return layers.GaussianHead(inputs, space, config.squash, config.initial_std, is_masked, key=key)
    if isinstance(space, Ball):
        return layers.BallHead(inputs, space, config.initial_std, key=key)
    raise ValueError(f"no policy for the action space {space}: it must be Discrete, MultiDiscrete, Ball or a Box of floats")


def actor_critic(environment: Environment, config: NetworkConfig, key: jax.Array) -> Any:
    """A new network for the environment's spaces, with orthogonal weights.

    A part "global_state" of the observation is an input of the critic alone. Raises ValueError for sizes below 1, and for a
    shared network where there is such a part.
    """
    _check_sizes(config)
    observation = environment.observation_space
    hidden = layers.of_critics(observation)
    if hidden and config.shared:
        raise ValueError("network.shared cannot be with a global_state, which only a separate critic may see: leave it off")

    def tower(head: Any, key: jax.Array, unseen: tuple[str, ...] = ()) -> Tower:
        encoder_key, core_key, head_key = jax.random.split(key, 3)
        sizes = config.hidden
        shape = sizes, config.activation, config.filters, config.embedding
        encoder = layers.Encoder(observation, *shape, unseen, key=encoder_key)
        features = sizes[-1] if sizes else jax.eval_shape(encoder, layers.zeros(observation)).shape[0]
        core, features = cores.of_config(config, features, core_key)
        if not config.attention:
            return Tower(encoder, core, head(features, head_key), config.precision)
        attentive = layers.Attentive(encoder.space, features, config.attention, config.embedding, head, key=head_key)
        return Tower(encoder, core, attentive, config.precision)

    def deep(make: Any, inputs: int, key: jax.Array) -> Any:
        if not config.head_hidden:
            return make(inputs, key)
        dense_key, head_key = jax.random.split(key)
        dense = layers.MLP(inputs, config.head_hidden, config.activation, key=dense_key)
        return layers.Deep(dense, make(config.head_hidden[-1], head_key))

    def policy(inputs: int, key: jax.Array) -> Any:
        return deep(lambda n, k: policy_head(environment, config, n, k), inputs, key)

    def value(inputs: int, key: jax.Array) -> Any:
        return deep(lambda n, k: layers.ValueHead(n, key=k), inputs, key)

    def both(inputs: int, key: jax.Array) -> TwoHeads:
        policy_key, value_key = jax.random.split(key)
        return TwoHeads(policy(inputs, policy_key), value(inputs, value_key))

    if config.shared:
        return tower(both, key)
    actor_key, critic_key = jax.random.split(key)
    return ActorCritic(tower(policy, actor_key, hidden), tower(value, critic_key))


def _check_sizes(config: NetworkConfig) -> None:
    lists = {name: min(getattr(config, name), default=1) for name in ("hidden", "head_hidden")}
    for name, size in (lists | {"embedding": config.embedding}).items():
        if size < 1:
            raise ValueError(f"network.{name} ({getattr(config, name)}) must be at least 1")
    if config.attention < 0:
        raise ValueError(f"network.attention ({config.attention}) must be at least 0")
    if not config.initial_std > 0:
        raise ValueError(f"network.initial_std ({config.initial_std}) must be more than 0")
