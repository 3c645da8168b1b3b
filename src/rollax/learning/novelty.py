"""Random network distillation: intrinsic rewards for novel observations, and their critic.

A predictor learns the outputs of a random network for the observations of the policy. The error of
the predictor is large for rare observations. Citations refer to sections, because the paper does
not number its equations.

References:
    Burda et al. 2018, arXiv:1810.12894.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from rollax import tree
from rollax.acting.streams import Experience
from rollax.environments.image_layouts import FLAT, image_layout
from rollax.learning import losses, minibatches, normalization
from rollax.learning.optimizers import clipped_adam
from rollax.learning.returns import gae, vmap_over_streams
from rollax.networks import layers
from rollax.spaces import Box, Dict, Space, make_zeros
from rollax.types import Observation, Scalar

OBSERVATION_CLIP = 5.0  # largest absolute value of normalized observations (section 2.4)


class NoveltyNetwork(eqx.Module):
    """Network from an observation to `[outputs]`: an encoder with a linear output layer."""

    encoder: layers.Encoder
    last: Any

    def __call__(self, obs: Observation) -> jax.Array:
        return self.last(self.encoder(obs))


class NoveltyState(NamedTuple):
    """Networks, optimizer state and statistics of random network distillation.

    Attributes:
        target: Random network that is not trained.
        predictor: Network that predicts the outputs of the target.
        critic: Critic of intrinsic returns.
        optimizer: Optimizer state of the predictor and the critic.
        observations: Moments of observations.
        returns: Moments of discounted intrinsic rewards.
    """

    target: NoveltyNetwork
    predictor: NoveltyNetwork
    critic: NoveltyNetwork
    optimizer: Any
    observations: normalization.Moments
    returns: normalization.Moments


class NoveltyBatch(NamedTuple):
    """Training data, `[T, S, ...]` for a rollout and `[L, B, ...]` for a minibatch.

    Attributes:
        obs: Observations before each step.
        next_obs: Observations after each step.
        target: Intrinsic value targets.
        mask: Samples of active agents, bool, or None for all samples.
    """

    obs: Any
    next_obs: Any
    target: jax.Array
    mask: jax.Array | None


@runtime_checkable
class NoveltyConfig(Protocol):
    """Settings of random network distillation."""

    @property
    def novelty_hidden(self) -> int: ...
    @property
    def novelty_outputs(self) -> int: ...
    @property
    def novelty_learning_rate(self) -> Scalar: ...
    @property
    def predictor_share(self) -> Scalar: ...
    @property
    def value_coefficient(self) -> Scalar: ...
    @property
    def intrinsic_gamma(self) -> Scalar: ...
    @property
    def gae_lambda(self) -> Scalar: ...
    @property
    def num_epochs(self) -> int: ...
    @property
    def adam_epsilon(self) -> Scalar: ...
    @property
    def max_grad_norm(self) -> Scalar: ...


def init_novelty(space: Space, config: NoveltyConfig, key: jax.Array) -> NoveltyState:
    """Initialize the target, the predictor, the intrinsic critic and their statistics.

    The predictor has two more hidden layers than the target.

    Args:
        space: Observation space.
        config: Settings of the networks and their optimizer.
        key: Random key.

    Returns:
        The networks and statistics before the first update.
    """
    unseen, width = layers.critic_only_parts(space), config.novelty_hidden
    whitened = _normalized_space(space)

    def network(
        hidden: tuple[int, ...], outputs: int, gain: float, key: jax.Array
    ) -> NoveltyNetwork:
        encoder_key, last_key = jax.random.split(key)
        encoder = layers.Encoder(whitened, hidden, "relu", None, 8, unseen, key=encoder_key)
        return NoveltyNetwork(
            encoder, layers.make_orthogonal_linear(hidden[-1], outputs, last_key, gain)
        )

    keys = jax.random.split(key, 3)
    target = network((width, width), config.novelty_outputs, 1.0, keys[0])
    predictor = network((width,) * 4, config.novelty_outputs, 1.0, keys[1])
    critic = network((width, width), 1, 0.01, keys[2])
    trained: Any = predictor, critic
    optimizer = _make_optimizer(config).init(trained)
    moments = normalization.init_moments(make_zeros(space)), normalization.init_moments(0.0)
    return NoveltyState(target, predictor, critic, optimizer, *moments)


def prediction_error(novelty: NoveltyState, obs: Observation) -> jax.Array:
    """Return the mean squared error of the predictor in `novelty` for one observation, `[]`.

    Section 2.2 of the paper defines the error.
    """
    obs = _normalize_observation(novelty, obs)
    return jnp.mean((novelty.predictor(obs) - jax.lax.stop_gradient(novelty.target(obs))) ** 2)


def intrinsic_value(novelty: NoveltyState, obs: Observation) -> jax.Array:
    """Return the critic's estimate of the intrinsic return from one observation, `[]`."""
    return novelty.critic(_normalize_observation(novelty, obs))[0]


def _normalize_observation(novelty: NoveltyState, obs: Observation) -> Any:
    """Normalize values of `Box` spaces, including images, by their moments (section 2.4).

    Values of other spaces, such as grids of symbols, are unchanged.
    """
    return normalization.normalize(
        novelty.observations,
        _convert_boxes_to_float(novelty.target.encoder.space, obs),
        OBSERVATION_CLIP,
    )


def _convert_boxes_to_float(space: Space, obs: Observation) -> Any:
    """Convert values of `Box` spaces to float32. Values of other spaces are unchanged."""
    if isinstance(space, Dict):
        return obs | {name: _convert_boxes_to_float(part, obs[name]) for name, part in space.items}
    return obs.astype(jnp.float32) if isinstance(space, Box) else obs


def _normalized_space(space: Space) -> Space:
    """Return the space of normalized observations, where every `Box` has dtype float32.

    Encoders divide values of 8-bit boxes by 255, which would be wrong for normalized values.
    """
    if isinstance(space, Dict):
        return Dict(
            {
                name: part if name == "action_mask" else _normalized_space(part)
                for name, part in space.items
            }
        )
    return (
        Box(-OBSERVATION_CLIP, OBSERVATION_CLIP, space.shape, layout=image_layout(space) or FLAT)
        if isinstance(space, Box)
        else space
    )


class IntrinsicEstimates(NamedTuple):
    """Intrinsic advantages and value targets of a rollout.

    Attributes:
        novelty: Networks with updated statistics.
        advantage: Intrinsic advantages, `[T, S]`.
        target: Targets of the intrinsic critic, `[T, S]`.
        discounted_return: Discounted intrinsic returns after the rollout, `[S]`.
        metrics: Means "intrinsic_reward", "intrinsic_value" and "novelty" (prediction error).
    """

    novelty: NoveltyState
    advantage: jax.Array
    target: jax.Array
    discounted_return: jax.Array
    metrics: dict[str, jax.Array]


def estimate_intrinsic_advantages(
    config: NoveltyConfig,
    novelty: NoveltyState,
    rollout: Experience,
    last_obs: Observation,
    discounted_return: jax.Array,
    agent_done: jax.Array | None = None,
) -> IntrinsicEstimates:
    """Compute intrinsic advantages and value targets of a rollout.

    Intrinsic rewards are the prediction errors for the next observations, divided by the running
    standard deviation of their discounted returns. Intrinsic returns continue across episodes
    (section 2.3), so that the end of an episode does not penalize exploration.

    Args:
        config: Settings with `intrinsic_gamma` and `gae_lambda`.
        novelty: Networks and statistics.
        rollout: Rollout `[T, S]`.
        last_obs: First observations of the next rollout, `[S, ...]`.
        discounted_return: Discounted intrinsic returns before the rollout, `[S]`.
        agent_done: Whether the agent has terminated or been truncated after the rollout while the
            episode of its environment continues, bool `[S]`. None if agents never end early.

    Returns:
        The estimates.
    """
    observations = normalization.update_moments(
        novelty.observations, rollout.next_obs, axes=2, mask=rollout.mask
    )
    novelty = novelty._replace(observations=observations)
    error = jax.vmap(jax.vmap(lambda obs: prediction_error(novelty, obs)))(rollout.next_obs)
    error = error if rollout.mask is None else jnp.where(rollout.mask, error, 0.0)
    never = jnp.zeros(error.shape, bool)
    endless = rollout._replace(reward=error, terminated=never, truncated=never)
    scaled = normalization.scale_rewards(
        novelty.returns, endless, discounted_return, config.intrinsic_gamma
    )
    values = jax.vmap(jax.vmap(lambda obs: intrinsic_value(novelty, obs)))(rollout.obs)
    next_values = jnp.concatenate(
        [values[1:], jax.vmap(lambda obs: intrinsic_value(novelty, obs))(last_obs)[None]]
    )
    if rollout.mask is not None and agent_done is not None:
        values, next_values = _mask_waiting_values(values, next_values, rollout.mask, agent_done)
    advantage = vmap_over_streams(gae, 2)(
        scaled.reward, values, next_values, never, never, config.intrinsic_gamma, config.gae_lambda
    )
    metrics = losses.masked_means(
        {"intrinsic_reward": scaled.reward, "intrinsic_value": values, "novelty": error},
        rollout.mask,
    )
    return IntrinsicEstimates(
        novelty=novelty._replace(returns=scaled.moments),
        advantage=advantage,
        target=advantage + values,
        discounted_return=scaled.discounted_return,
        metrics=metrics,
    )


def _mask_waiting_values(
    values: jax.Array, next_values: jax.Array, mask: jax.Array, agent_done: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Set the values of agents that wait for their next episode to 0.

    An agent waits after it has terminated or been truncated, until the episode of its environment
    ends. The value after its last step is then the value of the first observation of its next
    episode. If that episode begins in a later rollout, the value before its last step is used.

    Args:
        values: Values before each step, `[T, S]`.
        next_values: Values after each step, `[T, S]`.
        mask: Whether an agent is active in a step, bool `[T, S]`. It is false for waiting agents.
        agent_done: Whether an agent waits after the rollout, bool `[S]`.

    Returns:
        Masked values before and after each step, `[T, S]` each.
    """
    num_steps = values.shape[0]
    plays_next = jnp.concatenate([mask[1:], ~agent_done[None]])
    time = jnp.where(plays_next, jnp.arange(num_steps)[:, None], num_steps)
    time = jax.lax.cummin(time, axis=0, reverse=True)
    later = jnp.take_along_axis(next_values, jnp.minimum(time, num_steps - 1), axis=0)
    return jnp.where(mask, values, 0.0), jnp.where(
        mask, jnp.where(time < num_steps, later, values), 0.0
    )


def learn_novelty(
    config: NoveltyConfig,
    novelty: NoveltyState,
    rollout: Experience,
    target: jax.Array,
    layout: minibatches.MinibatchLayout,
    key: jax.Array,
) -> tuple[NoveltyState, dict[str, jax.Array]]:
    """Train the predictor on a random fraction of the samples, and the critic on all samples.

    Args:
        config: Settings with `num_epochs`, `predictor_share`, `value_coefficient` and the settings
            of the optimizer.
        novelty: Networks and statistics.
        rollout: Rollout `[T, S]`.
        target: Intrinsic value targets `[T, S]`.
        layout: Layout of the rollout for minibatches.
        key: Random key.

    Returns:
        The networks and statistics after training, and the mean "predictor_loss" and
        "intrinsic_value_loss", keyed by name.
    """
    rows = minibatches.to_rows(
        NoveltyBatch(rollout.obs, rollout.next_obs, target, rollout.mask), layout
    )
    shuffle_key, share_key = jax.random.split(key)
    orders = jax.vmap(lambda key: minibatches.shuffle_rows(key, layout))(
        jax.random.split(shuffle_key, config.num_epochs)
    )
    orders = orders.reshape(-1, *orders.shape[2:])

    def loss(
        parts: tuple[NoveltyNetwork, NoveltyNetwork],
        novelty: NoveltyState,
        data: NoveltyBatch,
        key: jax.Array,
    ) -> Any:
        novelty = novelty._replace(predictor=parts[0], critic=parts[1])
        counts = jax.random.uniform(key, data.target.shape) < config.predictor_share
        counts = counts if data.mask is None else counts & data.mask
        predicted = losses.masked_mean(
            tree.vmap_over_steps(lambda obs: prediction_error(novelty, obs))(data.next_obs), counts
        )
        error = (
            tree.vmap_over_steps(lambda obs: intrinsic_value(novelty, obs))(data.obs) - data.target
        ) ** 2
        metrics = {
            "predictor_loss": predicted,
            "intrinsic_value_loss": losses.masked_mean(error, data.mask),
        }
        return predicted + config.value_coefficient * metrics["intrinsic_value_loss"], metrics

    def minibatch(
        novelty: NoveltyState, x: tuple[jax.Array, jax.Array]
    ) -> tuple[NoveltyState, dict[str, jax.Array]]:
        parts: Any = novelty.predictor, novelty.critic
        data, key = minibatches.gather_minibatch(rows, x[0]), jax.random.fold_in(share_key, x[1])
        gradient, metrics = jax.grad(loss, has_aux=True)(parts, novelty, data, key)
        updates, optimizer = _make_optimizer(config).update(gradient, novelty.optimizer, parts)
        predictor, critic = eqx.apply_updates(parts, updates)
        return novelty._replace(predictor=predictor, critic=critic, optimizer=optimizer), metrics

    novelty, metrics = jax.lax.scan(minibatch, novelty, (orders, jnp.arange(orders.shape[0])))
    return novelty, jax.tree.map(jnp.mean, metrics)


def _make_optimizer(config: NoveltyConfig) -> optax.GradientTransformation:
    return clipped_adam(config.novelty_learning_rate, config.adam_epsilon, config.max_grad_norm)
