"""Networks with a policy and a value, as two networks or as one network with two heads."""

import dataclasses
import functools
from typing import Any, Literal

import equinox as eqx
import jax

from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.networks import layers, policy_heads, recurrent
from rollax.networks.layers import MakeHead
from rollax.networks.network import ActorCriticOutput
from rollax.networks.torso import Tower
from rollax.spaces import Ball, Box, Discrete, MultiDiscrete, Space, list_parts, make_zeros
from rollax.types import Carry, Observation
from rollax.user_input.coercion import format_value


class ActorCritic(eqx.Module):
    """Separate policy and critic networks.

    The optimizer of the critic trains all parameters in the field `critic`.
    """

    actor: Tower
    critic: Tower

    def initial_carry(self) -> Any:
        return self.actor.initial_carry(), self.critic.initial_carry()

    def __call__(self, carry: Carry, obs: Observation) -> tuple[Any, ActorCriticOutput]:
        actor_carry, policy = self.actor(carry[0], obs)
        critic_carry, value = self.critic(carry[1], obs)
        return (actor_carry, critic_carry), ActorCriticOutput(policy, value)

    def unroll(
        self, carry: Carry, obs: Observation, reset: jax.Array
    ) -> tuple[Any, ActorCriticOutput]:
        actor_carry, policy = self.actor.unroll(carry[0], obs, reset)
        critic_carry, value = self.critic.unroll(carry[1], obs, reset)
        return (actor_carry, critic_carry), ActorCriticOutput(policy, value)


class TwoHeads(eqx.Module):
    """Head of a shared network that computes a policy and a value from the same features."""

    policy: Any
    value: Any

    def __call__(self, features: jax.Array, obs: Observation) -> ActorCriticOutput:
        return ActorCriticOutput(self.policy(features, obs), self.value(features, obs))


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """Architecture of the actor-critic network."""

    hidden: tuple[int, ...] = (64, 64)
    """Sizes of the dense layers."""
    activation: layers.Activation = "tanh"
    """Activation function of all layers."""
    core: recurrent.CoreKind = "none"
    """Recurrent core between encoder and heads."""
    core_size: int = 64
    """Number of units of the core."""
    core_layers: int = 1
    """Number of layers of the core."""
    core_output: recurrent.CoreOutput = "last"
    """Output of a core with several layers: the last layer ("last"), the sum of all layers
    ("sum"), or residual blocks ("residual", see `recurrent.ResidualBlock`).
    """
    core_heads: int = 4
    """Number of attention heads per layer of a gtrxl core. Must divide core_size."""
    core_memory: int = 64
    """Number of previous steps that each layer of a gtrxl core attends to."""
    attention: int = 0
    """Number of attention heads of policy and value over the cells of grid observations. 0
    disables attention.
    """
    head_hidden: tuple[int, ...] = ()
    """Sizes of dense layers between core and head, separate for each head."""
    shared: bool = False
    """Use one network with two heads instead of separate actor and critic networks."""
    filters: tuple[tuple[int, int, int], ...] | None = None
    """Convolutions (outputs, kernel, stride) for observations [H, W, C]. None selects them by size;
    empty (--network.filters without values) uses convolutions only for 8-bit images."""
    embedding: int = 8
    """Size of the embedding vector per symbol of a grid."""
    squash: bool = False
    """Map continuous actions to their bounds by tanh instead of clipping."""
    initial_std: float = 1.0
    """Initial standard deviation of continuous actions before squashing, or of each weight of the
    noise of gsde."""
    std: policy_heads.StdKind = "shared"
    """Standard deviation of continuous actions: learned and equal in all states ("shared"), a
    function of the state ("state"), constant ("fixed"), or that of noise that is linear in the
    features of the state, with weights that several steps share ("gsde")."""
    agent_id: bool = False
    """Append the index of the agent to observations in multi-agent environments."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of the network's computations. Parameters, policies and values are always
    float32.
    """


def make_policy_head(
    environment: Environment, config: NetworkConfig, inputs: int, key: jax.Array
) -> Any:
    """Return the policy head for the action space of an environment.

    Args:
        environment: Environment with the action space.
        config: Architecture of the network.
        inputs: Number of input features of the head.
        key: Random key of the weights.

    Returns:
        The head, a function `(features, obs)` that returns a distribution.

    Raises:
        ValueError: If no head exists for the action space.
    """
    mask = list_parts(environment.observation_space).get("action_mask")
    make_head = functools.partial(_make_part_head, config, inputs)
    return policy_heads.make_joint_head(environment.action_space, mask, make_head, key)


def _make_part_head(
    config: NetworkConfig, inputs: int, space: Space, is_masked: bool, key: jax.Array
) -> Any:
    """Return the head for an action space that is not a `Dict` or a `Tuple`."""
    policy_heads.check_std(config.std, space)
    if isinstance(space, Discrete | MultiDiscrete):
        return policy_heads.CategoricalHead(inputs, space, is_masked, key=key)
    if isinstance(space, Box) and space.dtype.startswith("float"):
        return policy_heads.GaussianHead(
            inputs, space, config.squash, config.initial_std, is_masked, config.std, key=key
        )
    if isinstance(space, Ball):
        return policy_heads.BallHead(inputs, space, config.initial_std, config.std, key=key)
    raise ValueError(
        "The action space must be Discrete, MultiDiscrete, Ball, a Box of floats, or a Dict or "
        f"Tuple of these, got {space}. Wrap the environment."
    )


def actor_critic(environment: Environment, config: NetworkConfig, key: jax.Array) -> Any:
    """Return an actor-critic network with orthogonal weights for the spaces of an environment.

    The entry "global_state" of a dictionary observation is an input of the critic only.

    Args:
        environment: Environment with the spaces.
        config: Architecture of the network.
        key: Random key of the weights.

    Returns:
        A `Tower` with two heads if `config.shared`, otherwise an `ActorCritic`.

    Raises:
        ValueError: If a size is below 1, if `config.shared` is true and observations have a
            "global_state", or if no policy head exists for the action space.
        UsageError: If `config` is not a NetworkConfig, or the settings of the core are not valid.
    """
    _check_sizes(config)
    observation = environment.observation_space
    hidden = layers.critic_only_parts(observation)
    if hidden and config.shared:
        raise ValueError(
            "network.shared must be false with a global_state, which only a separate critic may "
            "observe. Remove network.shared."
        )

    def make_tower(head: MakeHead, key: jax.Array, omitted_parts: tuple[str, ...] = ()) -> Tower:
        encoder_key, core_key, head_key = jax.random.split(key, 3)
        sizes = config.hidden
        shape = sizes, config.activation, config.filters, config.embedding
        encoder = layers.Encoder(observation, *shape, omitted_parts, key=encoder_key)
        features = sizes[-1] if sizes else jax.eval_shape(encoder, make_zeros(observation)).shape[0]
        core, features = recurrent.make_core(config, features, core_key)
        if not config.attention:
            return Tower(encoder, core, head(features, head_key), config.precision)
        attentive = layers.AttentionHead(
            encoder.space, features, config.attention, config.embedding, head, key=head_key
        )
        return Tower(encoder, core, attentive, config.precision)

    def make_deep_head(make: MakeHead, inputs: int, key: jax.Array) -> Any:
        if not config.head_hidden:
            return make(inputs, key)
        dense_key, head_key = jax.random.split(key)
        dense = layers.MLP(inputs, config.head_hidden, config.activation, key=dense_key)
        return layers.DeepHead(dense, make(config.head_hidden[-1], head_key))

    def make_policy(inputs: int, key: jax.Array) -> Any:
        return make_deep_head(lambda n, k: make_policy_head(environment, config, n, k), inputs, key)

    def make_value(inputs: int, key: jax.Array) -> Any:
        return make_deep_head(lambda n, k: layers.ValueHead(n, key=k), inputs, key)

    def make_both_heads(inputs: int, key: jax.Array) -> TwoHeads:
        policy_key, value_key = jax.random.split(key)
        return TwoHeads(make_policy(inputs, policy_key), make_value(inputs, value_key))

    if config.shared:
        return make_tower(make_both_heads, key)
    actor_key, critic_key = jax.random.split(key)
    return ActorCritic(
        make_tower(make_policy, actor_key, hidden), make_tower(make_value, critic_key)
    )


def _check_sizes(config: NetworkConfig) -> None:
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise UsageError(f"config must be a NetworkConfig, got {format_value(config)}.")
    lists = {name: min(getattr(config, name), default=1) for name in ("hidden", "head_hidden")}
    for name, size in (lists | {"embedding": config.embedding}).items():
        if size < 1:
            raise ValueError(f"network.{name} must be at least 1, got {getattr(config, name)}.")
    if config.attention < 0:
        raise ValueError(f"network.attention must be at least 0, got {config.attention}.")
    policy_heads.check_initial_std(config.initial_std)
