"""Novelty as a reward: random network distillation, and the critic of its returns.

Burda et al. 2018, arXiv:1810.12894. A predictor learns the outputs of a random network on the observations that the policy
meets; its error is large where few have been. Equation numbers do not exist there; sections are named.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from rollax import tree
from rollax.acting.streams import Experience
from rollax.learning import losses, minibatches, normalization
from rollax.learning.returns import gae, over_streams
from rollax.learning.train_state import adam
from rollax.networks import layers
from rollax.spaces import Box, Dict, Space, zeros

CLIP = 5.0  # of normalized observations (section 2.4)


class Outputs(eqx.Module):
    """An observation's features and what a linear layer makes of them: `[outputs]`."""

    encoder: layers.Encoder
    last: Any

    def __call__(self, obs: Any) -> jax.Array:
        return self.last(self.encoder(obs))


class Novelty(NamedTuple):
    """What one set of parameters knows of novelty. All leaves are arrays."""

    target: Outputs  # random, and never learnt
    predictor: Outputs
    critic: Outputs  # of intrinsic returns
    optimizer: Any  # of predictor and critic
    observations: normalization.Moments
    returns: normalization.Moments  # of discounted intrinsic rewards


class Sample(NamedTuple):
    """What is learnt from, `[T, S, ...]`, then `[L, B, ...]`."""

    obs: Any
    next_obs: Any
    target: jax.Array
    mask: jax.Array | None


def new(space: Space, config: Any, key: jax.Array) -> Novelty:
    """Before any update. The config has `novelty_hidden` and `novelty_outputs`; the predictor is two layers deeper."""
    unseen, width = layers.of_critics(space), config.novelty_hidden
    whitened = _whitened(space)

    def network(hidden: tuple[int, ...], outputs: int, gain: float, key: jax.Array) -> Outputs:
        encoder_key, last_key = jax.random.split(key)
        encoder = layers.Encoder(whitened, hidden, "relu", None, 8, unseen, key=encoder_key)
        return Outputs(encoder, layers.linear(hidden[-1], outputs, last_key, gain))

    keys = jax.random.split(key, 3)
    target = network((width, width), config.novelty_outputs, 1.0, keys[0])
    predictor = network((width,) * 4, config.novelty_outputs, 1.0, keys[1])
    critic = network((width, width), 1, 0.01, keys[2])
    learnt: Any = predictor, critic
    optimizer = _optimizer(config).init(learnt)
    moments = normalization.initial(zeros(space)), normalization.initial(0.0)
    return Novelty(target, predictor, critic, optimizer, *moments)


def surprise(novelty: Novelty, obs: Any) -> jax.Array:
    """The predictor's mean squared error at one observation, `[]` (section 2.2)."""
    obs = _normalized(novelty, obs)
    return jnp.mean((novelty.predictor(obs) - jax.lax.stop_gradient(novelty.target(obs))) ** 2)


def value(novelty: Novelty, obs: Any) -> jax.Array:
    """The intrinsic return that is expected from one observation on, `[]`."""
    return novelty.critic(_normalized(novelty, obs))[0]


def _normalized(novelty: Novelty, obs: Any) -> Any:
    """Observations by their moments (section 2.4), pictures and boards too. Symbols stay as they are."""
    return normalization.normalize(novelty.observations, _as_floats(novelty.target.encoder.space, obs), CLIP)


def _as_floats(space: Space, obs: Any) -> Any:
    """The numbers of boxes as float32. By the space: symbols of grids, which are categories, have 8 bits as pixels do."""
    if isinstance(space, Dict):
        return obs | {name: _as_floats(part, obs[name]) for name, part in space.items}
    return obs.astype(jnp.float32) if isinstance(space, Box) else obs


def _whitened(space: Space) -> Space:
    """The space of what `_normalized` returns: without bytes, which networks scale, as these are scaled already."""
    if isinstance(space, Dict):
        return Dict({name: part if name == "action_mask" else _whitened(part) for name, part in space.items})
    return Box(-CLIP, CLIP, space.shape) if isinstance(space, Box) else space


def credit(
    config: Any,
    novelty: Novelty,
    rollout: Experience,
    last_obs: Any,
    discounted_return: jax.Array,
    agent_done: jax.Array | None = None,
) -> tuple[Novelty, jax.Array, jax.Array, jax.Array, dict[str, jax.Array]]:
    """Intrinsic advantages and value targets of a rollout, `[T, S]` each.

    Rewards are errors at the observations that steps lead to, over the running deviation of their discounted returns; these
    returns go on through the ends of episodes (section 2.3), so that an end costs nothing that is new. `last_obs`: what the
    next rollout begins with, `[S, ...]`; `discounted_return`: `[S]`, as the rollout before left it; `agent_done`: bool `[S]`,
    whose episode has ended before its environment's by then, None where none ever does. Returns: the novelty with its
    moments, advantage, target, `discounted_return` after the rollout, and metrics.
    """
    observations = normalization.update(novelty.observations, rollout.next_obs, axes=2, mask=rollout.mask)
    novelty = novelty._replace(observations=observations)
    error = jax.vmap(jax.vmap(lambda obs: surprise(novelty, obs)))(rollout.next_obs)
    error = error if rollout.mask is None else jnp.where(rollout.mask, error, 0.0)
    never = jnp.zeros(error.shape, bool)
    endless = rollout._replace(reward=error, terminated=never, truncated=never)
    reward, discounted_return, returns = normalization.scale_rewards(
        novelty.returns, endless, discounted_return, config.intrinsic_gamma
    )
    values = jax.vmap(jax.vmap(lambda obs: value(novelty, obs)))(rollout.obs)
    following = jnp.concatenate([values[1:], jax.vmap(lambda obs: value(novelty, obs))(last_obs)[None]])
    if rollout.mask is not None and agent_done is not None:
        values, following = _without_waiting(values, following, rollout.mask, agent_done)
    advantage = over_streams(gae, 2)(reward, values, following, never, never, config.intrinsic_gamma, config.gae_lambda)
    metrics = losses.means({"intrinsic_reward": reward, "intrinsic_value": values, "novelty": error}, rollout.mask)
    return novelty._replace(returns=returns), advantage, advantage + values, discounted_return, metrics


def _without_waiting(
    values: jax.Array, following: jax.Array, mask: jax.Array, agent_done: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Values before and after every step, `[T, S]`, of agents that wait for the next episode where `mask` is false.

    What they observe then is learnt from by nobody. So both are 0 there, and the value after an agent's last step is that of
    its next episode; of its own observation where that begins in a later rollout.
    """
    num_steps = values.shape[0]
    plays_next = jnp.concatenate([mask[1:], ~agent_done[None]])
    time = jnp.where(plays_next, jnp.arange(num_steps)[:, None], num_steps)
    time = jax.lax.cummin(time, axis=0, reverse=True)
    later = jnp.take_along_axis(following, jnp.minimum(time, num_steps - 1), axis=0)
    return jnp.where(mask, values, 0.0), jnp.where(mask, jnp.where(time < num_steps, later, values), 0.0)


def learn(
    config: Any, novelty: Novelty, rollout: Experience, target: jax.Array, cut: minibatches.Layout, key: jax.Array
) -> tuple[Novelty, dict[str, jax.Array]]:
    """`num_epochs` epochs of the predictor, from a random share of the samples, and of the critic. Returns metrics as well."""
    rows = minibatches.to_rows(Sample(rollout.obs, rollout.next_obs, target, rollout.mask), cut)
    shuffle_key, share_key = jax.random.split(key)
    orders = jax.vmap(lambda key: minibatches.shuffle(key, cut))(jax.random.split(shuffle_key, config.num_epochs))
    orders = orders.reshape(-1, *orders.shape[2:])

    def loss(parts: tuple[Outputs, Outputs], novelty: Novelty, data: Sample, key: jax.Array) -> Any:
        novelty = novelty._replace(predictor=parts[0], critic=parts[1])
        counts = jax.random.uniform(key, data.target.shape) < config.predictor_share
        counts = counts if data.mask is None else counts & data.mask
        predicted = losses.mean(tree.over_steps(lambda obs: surprise(novelty, obs))(data.next_obs), counts)
        error = (tree.over_steps(lambda obs: value(novelty, obs))(data.obs) - data.target) ** 2
        metrics = {"predictor_loss": predicted, "intrinsic_value_loss": losses.mean(error, data.mask)}
        return predicted + config.value_coefficient * metrics["intrinsic_value_loss"], metrics

    def minibatch(novelty: Novelty, x: tuple[jax.Array, jax.Array]) -> tuple[Novelty, dict[str, jax.Array]]:
        parts: Any = novelty.predictor, novelty.critic
        data, key = minibatches.take(rows, x[0]), jax.random.fold_in(share_key, x[1])
        gradient, metrics = jax.grad(loss, has_aux=True)(parts, novelty, data, key)
        updates, optimizer = _optimizer(config).update(gradient, novelty.optimizer, parts)
        predictor, critic = eqx.apply_updates(parts, updates)
        return novelty._replace(predictor=predictor, critic=critic, optimizer=optimizer), metrics

    novelty, metrics = jax.lax.scan(minibatch, novelty, (orders, jnp.arange(orders.shape[0])))
    return novelty, jax.tree.map(jnp.mean, metrics)


def _optimizer(config: Any) -> optax.GradientTransformation:
    return adam(config.novelty_learning_rate, config.adam_epsilon, config.max_grad_norm)
