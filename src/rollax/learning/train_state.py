"""Parameters and what belongs to them. Optimizers are rebuilt at every trace from numbers that may be traced, so that their
states are arrays only."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from rollax import tree
from rollax.acting.streams import Experience
from rollax.errors import UsageError
from rollax.learning import normalization
from rollax.networks import layers
from rollax.networks.core import Extras, Network, Rescaled, choose_action, sample_action
from rollax.scopes import scope

Parts = dict[str, Any]


class TrainState(NamedTuple):
    """One set of parameters that learns from rollouts, and what belongs to it."""

    network: Any
    optimizer: Parts  # by part of the network: "actor", "critic"
    observations: normalization.Moments | None  # of observations, None where they are not normalized
    returns: normalization.Moments | None  # of discounted returns, None where rewards are not normalized
    values: normalization.Moments | None = None  # of value targets, None where values are not normalized


def new(network: Network, optimizers: dict[str, optax.GradientTransformation], obs: Any, config: Any) -> TrainState:
    """Before any update. `obs`: one observation; the config has `normalize_observations` and `normalize_rewards`."""
    states = {name: optimizers[name].init(part) for name, part in split(network).items()}
    observations = normalization.initial(obs) if config.normalize_observations else None
    returns = normalization.initial(0.0) if config.normalize_rewards else None
    return TrainState(network, states, observations, returns)


def new_actor_critic(
    network: Network, optimizers: dict[str, optax.GradientTransformation], obs: Any, config: Any
) -> TrainState:
    """As `new`, with moments of value targets where the config's `normalize_values` asks for them.

    Raises UsageError for a network without a `ValueHead` then.
    """
    train = new(network, optimizers, obs, config)
    if not config.normalize_values:
        return train
    is_head = lambda part: isinstance(part, layers.ValueHead)  # noqa: E731
    if not any(map(is_head, jax.tree.leaves(network, is_leaf=is_head))):
        raise UsageError(
            "config.normalize_values rescales the last layer of a critic, a rollax.networks.layers.ValueHead, and this network "
            "has none: leave it off (config.normalize_rewards scales rewards instead)"
        )
    return train._replace(values=normalization.initial(0.0))


def normalized(
    network: Any, observations: normalization.Moments | None, values: normalization.Moments | None = None
) -> Network:
    """The network behind the normalization of its observations, its values in units of return; without moments as it is."""
    network = network if observations is None else normalization.normalized(network, observations)
    return network if values is None else Rescaled(network, *value_scale(values))


def sample(train: TrainState, carry: Any, obs: Any, reset: jax.Array, key: jax.Array) -> tuple[Any, Any, Extras]:
    """One step of one stream by an actor-critic: its memory, a sampled action, and what learning needs besides.

    The value of a network without a memory is left out: `returns.with_values` computes it, in larger batches.
    """
    network = normalized(train.network, train.observations, train.values)
    carry, action, extras = sample_action(network, carry, obs, reset, key)
    return carry, action, extras if jax.tree.leaves(carry) else extras._replace(value=None)


def choose(config: Any, greedy: jax.Array, train: TrainState, carry: Any, obs: Any, key: jax.Array) -> tuple[Any, Any]:
    """As `sample` within an episode, or the mode of the policy where `greedy`: memory and action."""
    return choose_action(normalized(train.network, train.observations), carry, obs, key, greedy)


@scope("credit")
def scale_rewards(
    train: TrainState, rollout: Experience, discounted_return: jax.Array, gamma: jax.Array | float
) -> tuple[TrainState, jax.Array, jax.Array]:
    """Rewards `[T, S]`, scaled where the moments of discounted returns are kept; discounted returns `[S]` after the rollout."""
    if train.returns is None:
        return train, rollout.reward, discounted_return
    # Simulators may have begun anew without an end, as when a run is resumed.
    discounted_return = jnp.where(rollout.reset[0], 0.0, discounted_return)
    reward, discounted_return, returns = normalization.scale_rewards(train.returns, rollout, discounted_return, gamma)
    return train._replace(returns=returns), reward, discounted_return


def value_scale(values: normalization.Moments | None) -> tuple[Any, Any]:
    """Mean and standard deviation (1e-4 to 1e6) by which the critic's values are normalized; 0 and 1 where they are not."""
    return (0.0, 1.0) if values is None else (values.mean, jnp.clip(jnp.sqrt(values.variance), 1e-4, 1e6))


@scope("credit")
def observe_targets(train: TrainState, target: jax.Array, mask: jax.Array | None) -> TrainState:
    """Updates the moments of value targets `[T, S]`, where they are kept, and the critic's last layer: no value changes."""
    if train.values is None:
        return train
    values = normalization.update(train.values, target, axes=2, mask=mask)
    network = layers.preserve_values(train.network, value_scale(train.values), value_scale(values))
    return train._replace(network=network, values=values)


@scope("bookkeeping")
def observe(train: TrainState, rollout: Experience) -> TrainState:
    """Updates the moments of observations, where they are kept, after learning from a rollout."""
    if train.observations is None:
        return train
    return train._replace(observations=normalization.update(train.observations, rollout.obs, axes=2, mask=rollout.mask))


def adam(rate: jax.Array | float, epsilon: jax.Array | float, max_norm: jax.Array | float) -> optax.GradientTransformation:
    """Adam on gradients clipped by their global norm (Pascanu et al. 2013)."""
    max_norm = jnp.where(max_norm > 0, max_norm, jnp.finfo(jnp.float32).tiny)  # 0, with a gradient of 0, divides 0 by 0
    return optax.chain(optax.clip_by_global_norm(max_norm), optax.adam(rate, eps=epsilon))


def anneal(initial: jax.Array | float, final_fraction: jax.Array | float, progress: jax.Array | float) -> jax.Array:
    """From `initial` to `final_fraction * initial` in a straight line as progress goes from 0 to 1."""
    return initial * (1 + (jnp.asarray(final_fraction) - 1) * jnp.clip(progress, 0.0, 1.0))


def actor_and_critic(config: Any, progress: jax.Array | float) -> dict[str, optax.GradientTransformation]:
    """The optimizer of each part of an actor-critic; `progress` goes from 0 to 1 over the run."""
    critic_rate = jnp.where(config.critic_learning_rate > 0, config.critic_learning_rate, config.learning_rate)
    rates = {"actor": config.learning_rate, "critic": critic_rate}
    rates = {name: anneal(rate, config.learning_rate_final_fraction, progress) for name, rate in rates.items()}
    return {name: adam(rate, config.adam_epsilon, config.max_grad_norm) for name, rate in rates.items()}


def num_epochs(config: Any, train: TrainState) -> tuple[int, int]:
    """Epochs of the policy and of a separate critic, 0 where there is none."""
    return config.num_epochs, (config.critic_epochs or config.num_epochs) if "critic" in train.optimizer else 0


def split(network: Any) -> Parts:
    """A network's parts that have an optimizer of their own: what lies under its field `critic`, and the rest as "actor"."""

    def is_critic(path: tuple[Any, ...], _: Any) -> bool:
        return bool(path) and isinstance(path[0], jax.tree_util.GetAttrKey) and path[0].name == "critic"

    critic, rest = eqx.partition(network, jax.tree_util.tree_map_with_path(is_critic, network))
    return {"actor": rest, "critic": critic} if jax.tree.leaves(critic) else {"actor": rest}


@scope("optimizer")
def apply_gradients(optimizer: optax.GradientTransformation, state: Any, part: Any, gradient: Any) -> tuple[Any, Any]:
    """One step of an optimizer: the part of a network after it, and the optimizer's state."""
    updates, state = optimizer.update(gradient, state, part)
    return eqx.apply_updates(part, updates), state


@scope("optimizer")
def update(
    train: TrainState, optimizers: dict[str, optax.GradientTransformation], gradient: Any, active: dict[str, jax.Array]
) -> TrainState:
    """One step of each part's optimizer, where `active`; the others stay as they are."""
    gradients, parts, states = split(gradient), {}, {}
    for name, part in split(train.network).items():
        new = apply_gradients(optimizers[name], train.optimizer[name], part, gradients[name])
        parts[name], states[name] = tree.where(active[name], new, (part, train.optimizer[name]))
    return train._replace(network=eqx.combine(*parts.values()), optimizer=states)
