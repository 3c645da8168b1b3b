"""Networks with a policy and critics Q(s, a) without shared parameters."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.action_spaces import discrete_sizes, make_normalized_zeros, normalize_space
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.networks import distributions, layers
from rollax.networks.layers import MLP, Linear
from rollax.networks.policy_heads import (
    MAX_LOG_STD,
    MIN_LOG_STD,
    CategoricalHead,
    StdKind,
    check_initial_std,
    check_std,
    make_joint_head,
    make_latent_noise,
    split_std,
)
from rollax.spaces import Ball, Box, Dict, Discrete, MultiDiscrete, Space, list_parts, make_zeros
from rollax.types import Action, Observation

# Critic of one sample: (obs, action) -> Q.
CriticFn = Callable[[Observation, Action], jax.Array]


class ConditionedObservation(NamedTuple):
    """Input of a conditioned network: an observation and a behavior descriptor."""

    observation: Any
    descriptor: jax.Array  # float32 [K]


class ContinuousCritic(eqx.Module):
    """Critic that returns the value `[]` of an observation and a normalized action."""

    encoder: layers.Encoder
    dense: MLP
    head: Linear

    def __call__(self, obs: Observation, action: jax.Array) -> jax.Array:
        return self.head(self.dense(jnp.concatenate([self.encoder(obs), action.reshape(-1)])))[0]


class ChoiceValues(eqx.Module):
    """Network that returns the values `[K]` of all joint choices of discrete parts of an action.

    Its inputs are an observation and the vector of all continuous parts of a normalized action.
    """

    encoder: layers.Encoder
    dense: MLP
    head: Linear

    def __call__(self, obs: Observation, continuous: jax.Array) -> jax.Array:
        return self.head(self.dense(jnp.concatenate([self.encoder(obs), continuous])))


class ChoiceCritic(eqx.Module):
    """Critic that returns the value `[]` of an observation and a normalized action of any kind.

    Attributes:
        network: `ChoiceValues`, or a custom function with the same arguments.
        sizes: Number of choices of each discrete variable, as returned by `spaces.discrete_sizes`.
            Joint choices are in the order of `itertools.product`.
    """

    network: Any
    sizes: tuple[int, ...] = eqx.field(static=True)

    def choice_values(self, obs: Observation, continuous: Sequence[jax.Array]) -> jax.Array:
        """Return the values of all joint choices, `[K]`.

        Args:
            obs: Observation.
            continuous: Continuous parts of a normalized action.
        """
        return self.network(obs, concatenate_parts(continuous))

    def __call__(self, obs: Observation, action: Action) -> jax.Array:
        parts = split_action(action)
        values = self.choice_values(obs, parts.continuous)
        choices = jnp.concatenate([part.reshape(-1) for part in parts.discrete])
        index = jnp.ravel_multi_index(tuple(choices), self.sizes, mode="clip")
        # A comparison avoids the gradient of an index, a scatter, which is slow on all devices.
        is_chosen = jax.nn.one_hot(index, values.shape[0], dtype=bool)
        return jnp.sum(jnp.where(is_chosen, values, 0.0))


def concatenate_parts(parts: Sequence[jax.Array]) -> jax.Array:
    """Return one vector with the elements of all continuous parts, which is empty without any."""
    return jnp.concatenate([jnp.zeros(0), *(part.reshape(-1) for part in parts)])


class ActionParts(NamedTuple):
    """Continuous and discrete arrays of a normalized action, in the order of its leaves."""

    continuous: list[jax.Array]
    discrete: list[jax.Array]


def split_action(action: Action) -> ActionParts:
    """Split a normalized action into its arrays of floats and its arrays of integers."""
    parts = ActionParts([], [])
    for part in jax.tree.leaves(action):
        is_continuous = jnp.issubdtype(part.dtype, jnp.floating)
        (parts.continuous if is_continuous else parts.discrete).append(part)
    return parts


class Actor(eqx.Module):
    """Policy that consists of an encoder, dense layers and a head."""

    encoder: layers.Encoder
    dense: MLP
    head: Any

    def __call__(self, obs: Observation) -> Any:
        return self.head(self.dense(self.encoder(obs)), obs)


class TanhHead(eqx.Module):
    """Head that returns a normalized action.

    Attributes:
        layer: Linear layer.
        space: Space of normalized actions, as returned by `spaces.normalize_space`.
    """

    layer: Linear
    space: Box | Ball = eqx.field(static=True)

    def __call__(self, features: jax.Array, obs: Observation) -> jax.Array:
        return squash_action(self.layer(features), self.space, obs)


class TanhGaussianHead(eqx.Module):
    """Head that returns a squashed normal distribution.

    Attributes:
        layer: Linear layer, whose outputs are the mean and, if `std` is "state", the log standard
            deviation.
        space: Space of normalized actions, as returned by `spaces.normalize_space`.
        std: Computation of the standard deviation (`policy_heads.split_std`).
        initial_std: Initial standard deviation, or that of each weight of the noise of gSDE.
        log_std: Its logarithm if it is a learned parameter ("shared" or "gsde"), otherwise None.
    """

    layer: Linear
    space: Box | Ball = eqx.field(static=True)
    std: StdKind = eqx.field(static=True, default="state")
    initial_std: float = eqx.field(static=True, default=1.0)
    log_std: jax.Array | None = None

    def __call__(self, features: jax.Array, obs: Observation) -> distributions.SquashedPolicy:
        size, shape, noise_scale = math.prod(self.space.shape), std_shape(self.space), None
        start = self.log_std
        if start is None:
            start = jnp.full(shape, math.log(self.initial_std), jnp.float32)
        mean, log_std = split_std(self.layer(features), start, size, self.std)
        if self.std == "gsde":
            log_std, noise_scale = make_latent_noise(features, log_std)
        return _squash(mean, log_std, self.space, obs, noise_scale)


def squash_action(raw_action: jax.Array, space: Box | Ball, obs: Observation) -> jax.Array:
    """Squash a raw action into a space of normalized actions.

    Args:
        raw_action: Action before squashing, with as many elements as the action.
        space: Space of normalized actions.
        obs: Observation. Dimensions of a `Box` that its "action_mask" forbids are 0.

    Returns:
        The action with the shape of the space. Squashing into a `Ball` preserves the direction.
    """
    if isinstance(space, Ball):
        return distributions.RadiallySquashedGaussian(raw_action, jnp.zeros(()), space).action(
            raw_action
        )
    return masked_action(jnp.tanh(raw_action).reshape(space.shape), obs)


def std_shape(space: Box | Ball) -> tuple[int, ...]:
    """Return the shape of the standard deviation: a `Ball` has one for all directions."""
    return () if isinstance(space, Ball) else space.shape


def make_squashed_policy(
    mean: jax.Array, log_std: jax.Array, space: Box | Ball, obs: Observation
) -> distributions.SquashedPolicy:
    """Return a squashed normal distribution over a space of normalized actions.

    Args:
        mean: Mean before squashing, with as many elements as the action.
        log_std: Log standard deviation, with as many elements as `std_shape(space)`. It is clipped
            to the range from `MIN_LOG_STD` to `MAX_LOG_STD`.
        space: Space of normalized actions.
        obs: Observation. Dimensions of a `Box` that its "action_mask" forbids are 0 and do not
            contribute to log-density and entropy.

    Returns:
        The distribution.
    """
    log_std = jnp.clip(log_std, MIN_LOG_STD, MAX_LOG_STD)
    return _squash(mean, log_std.reshape(std_shape(space)), space, obs)


def _squash(
    mean: jax.Array,
    log_std: jax.Array,
    space: Box | Ball,
    obs: Observation,
    noise_scale: jax.Array | None = None,
) -> distributions.SquashedPolicy:
    """Return the distribution of `make_squashed_policy`, without a bound of `log_std`."""
    mean = mean.reshape(space.shape)
    if isinstance(space, Ball):
        return distributions.RadiallySquashedGaussian(mean, log_std, space)
    legal = get_action_mask(obs)
    return distributions.SquashedGaussian(
        distributions.Gaussian(mean, log_std, space, legal, noise_scale)
    )


class ActorCritics(eqx.Module):
    """Policy and critics without shared parameters."""

    actor: Any  # (obs) -> action, or a distribution over actions
    critic: tuple[Any, ...]  # each (obs, action) -> value


@dataclasses.dataclass(frozen=True)
class ActorCriticsConfig:
    """Architecture of policy and critics."""

    hidden: tuple[int, ...] = (256, 256)
    """Sizes of the dense layers."""
    activation: layers.Activation = "relu"
    """Activation function of all layers."""
    critics: int = 2
    """Number of critics. Targets use the minimum of their values."""
    layer_norm: bool = False
    """Apply layer normalization to the dense layers of the critics."""
    filters: tuple[tuple[int, int, int], ...] | None = None
    """Convolutions (outputs, kernel, stride) for observations [H, W, C]. None selects them by size;
    empty (--network.filters without values) uses convolutions only for 8-bit images."""
    embedding: int = 8
    """Size of the embedding vector per symbol of a grid."""


@dataclasses.dataclass(frozen=True)
class StochasticActorCriticsConfig(ActorCriticsConfig):
    """Architecture of a stochastic policy and critics."""

    std: StdKind = "state"
    """Standard deviation of continuous actions: learned and equal in all states ("shared"), a
    function of the state ("state"), constant ("fixed"), or that of noise that is linear in the
    features of the state, with weights that several steps share ("gsde")."""
    initial_std: float = 1.0
    """Initial standard deviation of continuous actions before squashing, or of each weight of the
    noise of gsde."""


def make_deterministic_actor_critics(
    environment: Environment, config: ActorCriticsConfig, key: jax.Array
) -> ActorCritics:
    """Return a deterministic policy and critics.

    Args:
        environment: Environment with the spaces.
        config: Architecture of the networks.
        key: Random key of the weights.

    Returns:
        The policy and the critics.

    Raises:
        UsageError: If the action space is neither a `Ball` nor a bounded `Box`, or a size in the
            config is below 1.
    """
    space = normalize_space(environment.action_space)

    def make_head(inputs: int, key: jax.Array) -> TanhHead:
        return TanhHead(Linear(inputs, math.prod(space.shape), key, 0.01), space)

    return _make_actor_critics(environment, config, make_head, key)


def make_stochastic_actor_critics(
    environment: Environment, config: StochasticActorCriticsConfig, key: jax.Array
) -> ActorCritics:
    """Return a stochastic policy and critics.

    For actions with discrete parts, the policy returns a `Categorical` or a `JointDistribution`,
    and the critics are `ChoiceCritic`s.

    Args:
        environment: Environment with the spaces.
        config: Architecture of the networks.
        key: Random key of the weights.

    Returns:
        The policy and the critics.

    Raises:
        UsageError: If a continuous part of the action space is neither a `Ball` nor a bounded
            `Box`, the discrete parts have too many joint choices, a size in the config is below 1,
            or `std` or `initial_std` is not valid.
    """
    check_initial_std(config.initial_std)
    mask = list_parts(environment.observation_space).get("action_mask")

    def make_head(inputs: int, key: jax.Array) -> Any:
        make_part_head = functools.partial(_make_stochastic_head, config, inputs)
        return make_joint_head(environment.action_space, mask, make_part_head, key)

    return _make_actor_critics(environment, config, make_head, key)


def _make_stochastic_head(
    config: StochasticActorCriticsConfig,
    inputs: int,
    space: Space,
    is_masked: bool,
    key: jax.Array,
) -> CategoricalHead | TanhGaussianHead:
    check_std(config.std, space)
    if isinstance(space, Discrete | MultiDiscrete):
        return CategoricalHead(inputs, space, is_masked, key=key)
    space = normalize_space(space)
    size, shape = math.prod(space.shape), std_shape(space)
    layer = Linear(inputs, size + math.prod(shape) * (config.std == "state"), key, 0.01)
    log_std = None
    if config.std in ("shared", "gsde"):
        shape = (inputs, *shape) if config.std == "gsde" else shape
        log_std = jnp.full(shape, math.log(config.initial_std), jnp.float32)
    return TanhGaussianHead(layer, space, config.std, config.initial_std, log_std)


def _make_actor_critics(
    environment: Environment,
    config: ActorCriticsConfig,
    make_head: Callable[[int, jax.Array], Any],
    key: jax.Array,
) -> ActorCritics:
    if config.critics < 1:
        raise UsageError(f"network.critics must be at least 1, got {config.critics}.")
    encoder_key, dense_key, head_key, critics_key = jax.random.split(key, 4)
    actor = make_actor(
        environment,
        config,
        lambda features: make_head(features, head_key),
        encoder_key,
        dense_key,
    )
    space = environment.action_space
    size = sum(part.size for part in split_action(make_normalized_zeros(space)).continuous)
    critics = make_critics(environment, config, size, critics_key, discrete_sizes(space))
    return ActorCritics(actor, critics)


@runtime_checkable
class EncoderConfig(Protocol):
    """Settings of an encoder and its dense layers."""

    @property
    def hidden(self) -> tuple[int, ...]: ...
    @property
    def activation(self) -> layers.Activation: ...
    @property
    def filters(self) -> tuple[tuple[int, int, int], ...] | None: ...
    @property
    def embedding(self) -> int: ...


@runtime_checkable
class CriticsConfig(EncoderConfig, Protocol):
    """Settings of several critics with the same architecture."""

    @property
    def critics(self) -> int: ...
    @property
    def layer_norm(self) -> bool: ...


def make_critics(
    environment: Environment,
    config: CriticsConfig,
    num_extra_inputs: int,
    key: jax.Array,
    choices: tuple[int, ...] = (),
) -> tuple[Any, ...]:
    """Return critics of an observation and other inputs, such as a flattened action.

    Args:
        environment: Environment with the observation space.
        config: Architecture of the critics.
        num_extra_inputs: Number of inputs in addition to the observation.
        key: Random key of the weights.
        choices: Number of choices of each discrete variable of an action.

    Returns:
        `config.critics` critics: `ChoiceCritic`s if there are `choices`, or `ContinuousCritic`s.
    """

    def critic(key: jax.Array) -> ContinuousCritic | ChoiceCritic:
        encoder_key, dense_key, head_key = jax.random.split(key, 3)
        encoder, features = make_encoder(environment, config, encoder_key)
        dense = MLP(
            features + num_extra_inputs,
            config.hidden,
            config.activation,
            config.layer_norm,
            key=dense_key,
        )
        features = config.hidden[-1] if config.hidden else features + num_extra_inputs
        head = Linear(features, math.prod(choices), head_key, 1.0)
        if choices:
            return ChoiceCritic(ChoiceValues(encoder, dense, head), choices)
        return ContinuousCritic(encoder, dense, head)

    return tuple(critic(k) for k in jax.random.split(key, config.critics))


def make_actor(
    environment: Environment,
    config: EncoderConfig,
    make_head: Callable[[int], Any],
    encoder_key: jax.Array,
    dense_key: jax.Array,
) -> Actor:
    """Return a policy that consists of an encoder, dense layers and a head.

    Args:
        environment: Environment with the observation space.
        config: Settings of the encoder and of the dense layers.
        make_head: Function from the number of input features to the head.
        encoder_key: Random key of the encoder.
        dense_key: Random key of the dense layers.
    """
    encoder, features = make_encoder(environment, config, encoder_key)
    dense = MLP(features, config.hidden, config.activation, key=dense_key)
    return Actor(encoder, dense, make_head(config.hidden[-1] if config.hidden else features))


def make_encoder(
    environment: Environment, config: EncoderConfig, key: jax.Array
) -> tuple[layers.Encoder, int]:
    """Return an encoder without dense layers and the number of its output features.

    Args:
        environment: Environment with the observation space.
        config: Architecture of the network.
        key: Random key of the weights.

    Returns:
        The encoder, which ignores the entry "global_state" of observations, and the number of its
        output features.

    Raises:
        UsageError: If a size in the config is below 1.
    """
    for name, size in {
        "hidden": min(config.hidden, default=1),
        "embedding": config.embedding,
    }.items():
        if size < 1:
            raise UsageError(f"network.{name} must be at least 1, got {getattr(config, name)}.")
    space = _actor_observation_space(environment.observation_space)
    encoder = layers.Encoder(
        space, (), config.activation, config.filters, config.embedding, key=key
    )
    return encoder, jax.eval_shape(encoder, make_zeros(space)).shape[0]


def _actor_observation_space(space: Space) -> Space:
    """Return an observation space without the entry "global_state", which only critics observe."""
    unseen = layers.critic_only_parts(space)
    return (
        Dict({name: part for name, part in space.items if name not in unseen})
        if isinstance(space, Dict)
        else space
    )


def critic_values(
    critic: tuple[CriticFn, ...], obs: Observation, action: Action
) -> list[jax.Array]:
    """Return the values `[B]` of a batch of observations and actions for each critic, as a list."""
    return [jax.vmap(network)(obs, action) for network in critic]


def min_q(critic: tuple[CriticFn, ...], obs: Observation, action: jax.Array) -> jax.Array:
    """Return the minimum of the values of all critics, `[B]`.

    The minimum reduces overestimation (Fujimoto et al. 2018, arXiv:1802.09477).
    """
    return functools.reduce(jnp.minimum, critic_values(critic, obs, action))


def sample_actions(
    policies: distributions.SquashedPolicy, noise: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Sample one action of each policy from given noise, and compute its log-density.

    Args:
        policies: Batch of B policies.
        noise: Standard normal noise with the shape of the actions, `[B, ...]`.

    Returns:
        Normalized actions `[B, ...]`, and log-densities `[B]`.
    """
    raw_actions = jax.vmap(lambda policy, z: policy.transform_noise(z))(policies, noise)
    return jax.vmap(lambda policy, u: (policy.action(u), policy.log_prob(u)))(policies, raw_actions)


def clip_to_box(action: jax.Array) -> jax.Array:
    """Return the nearest point of the box with bounds -1 and 1."""
    return jnp.clip(action, -1.0, 1.0)


def project_onto_ball(action: jax.Array) -> jax.Array:
    """Return the nearest point of the unit ball."""
    return action * jax.lax.rsqrt(jnp.maximum(jnp.sum(action**2), 1.0))


def make_projection(space: Box | Ball) -> Callable[[jax.Array], jax.Array]:
    """Return the function that maps an action to the nearest point of a normalized space."""
    return project_onto_ball if isinstance(space, Ball) else clip_to_box


def masked_action(action: jax.Array, obs: Observation) -> jax.Array:
    """Set the dimensions of a normalized action that the "action_mask" forbids to 0."""
    mask = get_action_mask(obs)
    return action if mask is None else jnp.where(mask, action, 0.0)


def get_action_mask(obs: Observation) -> jax.Array | None:
    """Return the entry "action_mask" of an observation as bool, or None if there is none."""
    obs = obs.observation if isinstance(obs, ConditionedObservation) else obs
    return (
        obs["action_mask"].astype(bool) if isinstance(obs, dict) and "action_mask" in obs else None
    )
