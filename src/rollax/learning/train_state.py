"""Trained parameters with their optimizer states and statistics.

The training state contains only arrays. Optimizers are rebuilt in every trace
(`rollax.learning.optimizers`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from rollax import tree
from rollax.acting.streams import Experience
from rollax.errors import UsageError
from rollax.learning import minibatches, normalization
from rollax.learning.freezing import check_frozen_parts
from rollax.learning.optimizers import (
    AdaptiveScheduleConfig,
    OptimizerConfig,
    ScheduleConfig,
    ScheduledOptimizerConfig,
    adapt_rate_scale,
    check_adaptive_rate,
    make_optimizer,
    scheduled_rate,
)
from rollax.networks import layers
from rollax.networks.network import (
    ActorCriticExtras,
    Network,
    RescaledValueNetwork,
    choose_action,
    sample_action,
)
from rollax.scopes import profile_scope
from rollax.types import Carry, Leaf, Observation, Parameters, PyTree, Scalar, State

NetworkParts = dict[str, Any]


class TrainState(NamedTuple):
    """Network that is trained on rollouts, with its optimizer states and statistics.

    Attributes:
        network: Network.
        optimizer: Optimizer states, keyed by "actor" and, if the critic is separate, "critic" (see
            `split_network`).
        observations: Moments of observations, or None if observations are not normalized.
        returns: Moments of discounted returns, or None if rewards are not normalized.
        values: Moments of value targets, or None if values are not normalized.
        rate_scale: Factor of the learning rates, float `[]`, or None if they do not adapt to the
            KL divergence.
    """

    network: Any
    optimizer: NetworkParts
    observations: normalization.Moments | None
    returns: normalization.Moments | None
    values: normalization.Moments | None = None
    rate_scale: jax.Array | None = None


@runtime_checkable
class NormalizationConfig(Protocol):
    """Settings of the normalization of observations and rewards."""

    @property
    def normalize_observations(self) -> bool: ...
    @property
    def normalize_rewards(self) -> bool: ...


@runtime_checkable
class ActorCriticConfig(NormalizationConfig, ScheduledOptimizerConfig, Protocol):
    """Settings of an actor-critic that can normalize its values and freeze parts."""

    @property
    def normalize_values(self) -> bool: ...


@runtime_checkable
class ActorCriticOptimizerConfig(AdaptiveScheduleConfig, OptimizerConfig, Protocol):
    """Settings of the optimizers of an actor-critic."""

    @property
    def critic_learning_rate(self) -> Scalar: ...


@runtime_checkable
class EpochConfig(Protocol):
    """Settings of the numbers of epochs of the policy and of a separate critic."""

    @property
    def num_epochs(self) -> int: ...
    @property
    def critic_epochs(self) -> int: ...


@runtime_checkable
class GradientStepConfig(ActorCriticOptimizerConfig, EpochConfig, Protocol):
    """Settings of the gradient steps of an actor-critic."""

    @property
    def target_kl(self) -> Scalar: ...
    @property
    def gradient_accumulation(self) -> int: ...


@runtime_checkable
class ActingParameters(Protocol):
    """Parameters and statistics that an actor-critic needs to act, such as a `TrainState`."""

    @property
    def network(self) -> Network: ...
    @property
    def observations(self) -> normalization.Moments | None: ...
    @property
    def values(self) -> normalization.Moments | None: ...


def init_train_state(
    network: Network,
    optimizers: dict[str, optax.GradientTransformation],
    obs: Observation,
    config: NormalizationConfig,
) -> TrainState:
    """Return the training state before the first update.

    Args:
        network: Network.
        optimizers: Optimizers, keyed by "actor" and, for a separate critic, "critic".
        obs: One observation, which determines the structure and shapes of the moments.
        config: Settings with `normalize_observations` and `normalize_rewards`.
    """
    states = {name: optimizers[name].init(part) for name, part in split_network(network).items()}
    observations = normalization.init_moments(obs) if config.normalize_observations else None
    returns = normalization.init_moments(0.0) if config.normalize_rewards else None
    return TrainState(network, states, observations, returns)


def init_actor_critic(
    network: Network,
    optimizers: dict[str, optax.GradientTransformation],
    obs: Observation,
    config: ActorCriticConfig,
) -> TrainState:
    """Return the training state of an actor-critic before the first update.

    It has moments of value targets if `config.normalize_values` is set, and a factor of the
    learning rates if `config.learning_rate_schedule` is "kl".

    Args:
        network: Network.
        optimizers: Optimizers, keyed by "actor" and, for a separate critic, "critic".
        obs: One observation, which determines the structure and shapes of the moments.
        config: Settings of the actor-critic.

    Raises:
        UsageError: If `normalize_values` is true and the network has no `ValueHead`, or if
            `config.frozen` contains an unknown part or all parameters.
    """
    check_frozen_parts(config.frozen, network)
    check_adaptive_rate(config, config.learning_rate_schedule)
    train = init_train_state(network, optimizers, obs, config)
    if config.learning_rate_schedule == "kl":
        train = train._replace(rate_scale=jnp.ones(()))
    if not config.normalize_values:
        return train

    def is_head(part):
        return isinstance(part, layers.ValueHead)

    if not any(map(is_head, jax.tree.leaves(network, is_leaf=is_head))):
        raise UsageError(
            "config.normalize_values must be False for a network without a "
            "rollax.networks.layers.ValueHead, the last layer of a critic that it rescales. Set it "
            "to False (config.normalize_rewards scales rewards instead)."
        )
    return train._replace(values=normalization.init_moments(0.0))


def add_normalization(
    network: Network,
    obs_moments: normalization.Moments | None,
    value_moments: normalization.Moments | None = None,
) -> Network:
    """Return a network that normalizes observations and returns values in units of return.

    Args:
        network: Network that takes normalized observations and returns normalized values.
        obs_moments: Moments of observations, or None to leave observations unchanged.
        value_moments: Moments of value targets, or None to leave values unchanged.
    """
    network = (
        network if obs_moments is None else normalization.add_normalization(network, obs_moments)
    )
    return (
        network
        if value_moments is None
        else RescaledValueNetwork(network, *value_mean_and_std(value_moments))
    )


def sample_action_with_extras(
    train: ActingParameters, carry: Carry, obs: Observation, reset: jax.Array, key: jax.Array
) -> tuple[Any, Any, ActorCriticExtras]:
    """Sample the action of one agent in one environment with an actor-critic.

    Args:
        train: Network and statistics.
        carry: Memory before the step.
        obs: Observation.
        reset: Whether the observation is the first of an episode, bool `[]`.
        key: Random key of the action.

    Returns:
        The memory after the step, the action, and the extras for learning. The value in the extras
        is None for networks without memory, because `returns.add_values` later computes it in
        larger batches.
    """
    network = add_normalization(train.network, train.observations, train.values)
    carry, action, extras = sample_action(network, carry, obs, reset, key)
    return carry, action, extras if jax.tree.leaves(carry) else extras._replace(value=None)


def select_action(
    config: object,
    greedy: jax.Array,
    train: ActingParameters,
    carry: Carry,
    obs: Observation,
    key: jax.Array,
) -> tuple[Any, Any]:
    """Choose the action of one agent in evaluation: the mode of the policy, or a sample.

    Args:
        config: Unused. All algorithms share this signature.
        greedy: Whether to return the mode instead of a sample, bool `[]`.
        train: Training state.
        carry: Memory before the step.
        obs: Observation.
        key: Random key.

    Returns:
        The memory after the step and the action.
    """
    return choose_action(
        add_normalization(train.network, train.observations), carry, obs, key, greedy
    )


@profile_scope("credit")
def scale_rewards(
    train: TrainState, rollout: Experience, discounted_return: jax.Array, gamma: jax.Array | float
) -> normalization.ScaledRewards:
    """Scale the rewards of a rollout. If rewards are not normalized, return them unchanged.

    Args:
        train: Training state.
        rollout: Rollout `[T, S]`.
        discounted_return: Discounted returns before the rollout, `[S]`.
        gamma: Discount factor.

    Returns:
        The rewards, with the moments that become `TrainState.returns`.
    """
    if train.returns is None:
        return normalization.ScaledRewards(rollout.reward, discounted_return, None)
    # Simulators restart without the end of an episode when a run is resumed.
    discounted_return = jnp.where(rollout.reset[0], 0.0, discounted_return)
    return normalization.scale_rewards(train.returns, rollout, discounted_return, gamma)


def value_mean_and_std(values: normalization.Moments | None) -> tuple[Any, Any]:
    """Return the mean and standard deviation of value targets. Without moments, return 0 and 1.

    The standard deviation is clipped to the range from 1e-4 to 1e6.
    """
    return (
        (0.0, 1.0)
        if values is None
        else (values.mean, jnp.clip(jnp.sqrt(values.variance), 1e-4, 1e6))
    )


@profile_scope("credit")
def update_value_statistics(
    train: TrainState, target: jax.Array, mask: jax.Array | None
) -> TrainState:
    """Update the moments of value targets, and rescale the value head to preserve all values.

    If values are not normalized, the training state is unchanged.

    Args:
        train: Training state.
        target: Value targets `[T, S]`.
        mask: Samples of active agents, bool `[T, S]`, or None for all samples.

    Returns:
        The training state with updated moments and network.
    """
    if train.values is None:
        return train
    values = normalization.update_moments(train.values, target, axes=2, mask=mask)
    network = layers.preserve_values(
        train.network, value_mean_and_std(train.values), value_mean_and_std(values)
    )
    return train._replace(network=network, values=values)


@profile_scope("bookkeeping")
def update_observation_statistics(train: TrainState, rollout: Experience) -> TrainState:
    """Update the moments of observations from a rollout, if observations are normalized."""
    if train.observations is None:
        return train
    return train._replace(
        observations=normalization.update_moments(
            train.observations, rollout.obs, axes=2, mask=rollout.mask
        )
    )


def make_optimizers(
    config: ActorCriticOptimizerConfig,
    progress: jax.Array | float,
    rate_scale: jax.Array | None = None,
) -> dict[str, optax.GradientTransformation]:
    """Build the optimizers of an actor-critic, with learning rates at the current progress.

    Args:
        config: Settings of the optimizers and their learning rates.
        progress: Completed fraction of training, from 0 to 1.
        rate_scale: Factor of the learning rates, or None for 1.

    Returns:
        Optimizers, keyed by "actor" and "critic".
    """
    critic_rate = jnp.where(
        config.critic_learning_rate > 0, config.critic_learning_rate, config.learning_rate
    )
    rates = {"actor": config.learning_rate, "critic": critic_rate}
    rates = {name: scheduled_rate(config, rate, progress) for name, rate in rates.items()}
    if rate_scale is not None:
        rates = {name: rate * rate_scale for name, rate in rates.items()}
    return {name: make_optimizer(config, rate, progress) for name, rate in rates.items()}


def adapt_rates(
    train: TrainState, config: AdaptiveScheduleConfig, divergence: jax.Array, is_active: jax.Array
) -> TrainState:
    """Adapt the learning rates to the KL divergence of the policy.

    Args:
        train: Training state with a factor of the learning rates.
        config: Settings of the schedule.
        divergence: KL divergence of the policy from the policy that acted.
        is_active: Whether the policy is trained. If false, the learning rates do not change.
    """
    assert train.rate_scale is not None
    scale = adapt_rate_scale(config, train.rate_scale, divergence)
    return train._replace(rate_scale=jnp.where(is_active, scale, train.rate_scale))


def current_rate(train: TrainState, config: ScheduleConfig, progress: jax.Array) -> jax.Array:
    """Return the current learning rate of the policy.

    Args:
        train: Training state with the factor of an adaptive schedule, if any.
        config: Settings of the schedule.
        progress: Completed fraction of training, from 0 to 1.
    """
    rate = scheduled_rate(config, config.learning_rate, progress)
    return rate if train.rate_scale is None else rate * train.rate_scale


def num_part_epochs(config: EpochConfig, train: TrainState) -> tuple[int, int]:
    """Return the number of epochs of the policy and of the critic (0 without a separate critic)."""
    return config.num_epochs, (
        config.critic_epochs or config.num_epochs
    ) if "critic" in train.optimizer else 0


def split_network(network: Parameters) -> NetworkParts:
    """Split a network into two pytrees with separate optimizers, "actor" and "critic".

    Returns:
        Dictionary of pytrees with the structure of the network. "critic" holds the arrays of the
        field `critic` of the network and is absent if there are none. "actor" holds the arrays of
        all other fields. The remaining leaves of both are None.
    """

    def is_critic(path: jax.tree_util.KeyPath, _: Leaf) -> bool:
        return (
            bool(path)
            and isinstance(path[0], jax.tree_util.GetAttrKey)
            and path[0].name == "critic"
        )

    mask = jax.tree_util.tree_map_with_path(is_critic, network)
    critic, actor = eqx.partition(network, mask)
    return {"actor": actor, "critic": critic} if jax.tree.leaves(critic) else {"actor": actor}


def select_parts(train: Parameters) -> NetworkParts:
    """Return networks, optimizer states and statistics, keyed as in `Algorithm.parts`.

    Args:
        train: Training state, or a dictionary of training states keyed by parameter group.
    """

    def select(function: Callable[[TrainState], PyTree]) -> PyTree:
        return jax.tree.map(
            function, train, is_leaf=lambda part: isinstance(part, ActingParameters)
        )

    return {
        "networks": select(lambda each: each.network),
        "optimizer": select(lambda each: each.optimizer),
        "statistics": select(
            lambda each: {
                "observations": each.observations,
                "returns": each.returns,
                "values": each.values,
            }
        ),
    }


@profile_scope("optimizer")
def apply_gradients(
    optimizer: optax.GradientTransformation, state: State, part: Parameters, gradient: Parameters
) -> tuple[Any, Any]:
    """Update parameters and optimizer state by one optimizer step.

    Args:
        optimizer: Optimizer.
        state: State of the optimizer.
        part: Parameters.
        gradient: Gradient of the parameters.

    Returns:
        The parameters and the optimizer state after the step.
    """
    updates, state = optimizer.update(gradient, state, part)
    return eqx.apply_updates(part, updates), state


@profile_scope("optimizer")
def update_parameters(
    train: TrainState,
    optimizers: dict[str, optax.GradientTransformation],
    gradient: Parameters,
    active: dict[str, jax.Array],
) -> TrainState:
    """Apply one optimizer step to the active components of the network, "actor" and "critic".

    Args:
        train: Training state.
        optimizers: Optimizers, keyed by component.
        gradient: Gradient of the loss with respect to the network.
        active: Whether to update each component, bool `[]`, keyed by component. Parameters and
            optimizer states of inactive components are unchanged.

    Returns:
        The training state after the step.
    """
    gradients, parts, states = split_network(gradient), {}, {}
    for name, part in split_network(train.network).items():
        new = apply_gradients(optimizers[name], train.optimizer[name], part, gradients[name])
        parts[name], states[name] = tree.where(active[name], new, (part, train.optimizer[name]))
    return train._replace(network=eqx.combine(*parts.values()), optimizer=states)


def fit(
    loss: Callable[[Network, TrainState, PyTree], tuple[jax.Array, dict[str, jax.Array]]],
    train: TrainState,
    rows: PyTree,
    layout: minibatches.MinibatchLayout,
    config: GradientStepConfig,
    progress: jax.Array,
    key: jax.Array,
    shuffle: Callable[
        [jax.Array, minibatches.MinibatchLayout], jax.Array
    ] = minibatches.shuffle_rows,
    prepare: Callable[[PyTree], PyTree] = lambda minibatch: minibatch,
) -> tuple[TrainState, dict[str, jax.Array]]:
    """Train an actor-critic for several epochs on shuffled minibatches.

    Args:
        loss: Function `(network, train, minibatch)` that returns the loss and its metrics.
        train: Parameters and optimizer states.
        rows: Training data, as returned by `minibatches.to_rows`.
        layout: Layout of `rows`.
        config: Settings with the numbers of epochs, `target_kl` and the settings of the optimizers.
        progress: Completed fraction of training, from 0 to 1.
        key: Random key of the shuffles.
        shuffle: Function `(key, layout)` that returns the row indices of the minibatches of one
            epoch.
        prepare: Function of a minibatch, which is applied before the minibatch is divided for
            gradient accumulation.

    Returns:
        The updated train state, and the means of the metrics over the last epoch.
    """
    optimizers = make_optimizers(config, progress)

    def gradient_step(
        train: TrainState, order: jax.Array, active: dict[str, jax.Array]
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        minibatch = prepare(minibatches.gather_minibatch(rows, order))
        gradient, metrics = minibatches.accumulate_gradients(
            lambda network, part: loss(network, train, part),
            train.network,
            minibatch,
            config.gradient_accumulation,
        )
        if train.rate_scale is None:
            return update_parameters(train, optimizers, gradient, active), metrics
        train = adapt_rates(train, config, metrics["approx_kl"], active["actor"])
        adapted = make_optimizers(config, progress, train.rate_scale)
        return update_parameters(train, adapted, gradient, active), metrics

    epochs = num_part_epochs(config, train)
    return minibatches.run_epochs(
        gradient_step, train, layout, key, *epochs, config.target_kl, shuffle
    )
