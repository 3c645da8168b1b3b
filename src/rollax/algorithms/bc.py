"""Behavior cloning (BC): a policy that imitates demonstrations by maximum likelihood.

Pomerleau 1991 (Neural Computation 3), with the log-likelihood of a stochastic policy as in Osa et
al. 2018 (arXiv:1811.06711, section 3.2). The policy and the network are those of PPO, so a run of
PPO can start from a run of BC. The critic is not trained. Each gradient step learns from sequences
of consecutive steps that are sampled uniformly with replacement. A network with memory starts each
sequence with an empty memory. docs/algorithms/bc.md has all equations.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rollax import tree
from rollax.acting import parameter_sharing
from rollax.algorithm import Algorithm, Metrics, check_finite
from rollax.config import settings_dataclass, static_field, traced_field
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.learning import normalization, train_state
from rollax.learning.freezing import check_frozen_parts
from rollax.learning.optimizers import (
    OptimizerName,
    ScheduleName,
    make_optimizer,
    rate_metric,
    scheduled_rate,
)
from rollax.learning.train_state import TrainState
from rollax.networks.interop.network_checks import check_actor_critic
from rollax.networks.network import Network
from rollax.replay.demonstrations import Demonstrations, DemonstrationSteps
from rollax.spaces import make_zeros
from rollax.types import Action, Carry, Flag, Observation, Settings


@settings_dataclass
class BCConfig:
    """Settings of behavior cloning.

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """

    batch_size: int = static_field(256)
    """(static) Demonstrated steps per gradient step."""
    num_gradient_steps: int = static_field(40)
    """(static) Gradient steps per update."""
    sequence_length: int = static_field(1)
    """(static) Consecutive steps in a training sequence: 1 without memory, a divisor of
    batch_size with memory.
    """
    normalize_observations: bool = static_field(False)
    """(static) Normalize observations by the mean and variance of the demonstrations."""
    optimizer: OptimizerName = static_field("adam", takes_function=True)
    """(static) Optimizer of optax. adam with weight_decay is AdamW."""
    learning_rate_schedule: ScheduleName = static_field("linear", takes_function=True)
    """(static) Shape of the change of the learning rate over training."""
    frozen: tuple[str, ...] = static_field(())
    """(static) Parts of the network that are not trained, such as encoder or actor.head."""
    frozen_fraction: float = static_field(1.0, low=0)
    """(static) End of freezing, as a fraction of training. 1 freezes until the end."""
    learning_rate: float = traced_field(1e-3, low=0)
    """Learning rate."""
    learning_rate_final_fraction: float = traced_field(0.0, 0, 1)
    """Final learning rate as a fraction of the initial one. 1 is constant."""
    learning_rate_warmup_fraction: float = traced_field(0.0, 0, 1)
    """Fraction of training during which the learning rate rises from 0."""
    entropy_coefficient: float = traced_field(1e-3)
    """Weight of the entropy bonus, which keeps probabilities away from 0 and 1."""
    max_grad_norm: float = traced_field(0.5, low=0, high=float("inf"))
    """Maximum global norm of gradients."""
    weight_decay: float = traced_field(0.0, low=0)
    """Decay of the weights per step, in units of the learning rate."""
    adam_epsilon: float = traced_field(1e-5, low=0)
    """Epsilon of the optimizer."""
    total_updates: float = traced_field(float("inf"), low=1)
    """Updates until the schedules end. The run sets it from its total steps."""

    @property
    def steps_per_update(self) -> int:
        """Number of demonstrated steps per update, which are sampled with replacement."""
        return self.batch_size * self.num_gradient_steps


class BCState(NamedTuple):
    """Training state: all arrays that change between updates.

    Attributes:
        key: Random key of the next update.
        config: Settings of the algorithm. Traced settings are arrays.
        train: Network, optimizer state and observation statistics.
        updates: Number of completed updates, int32 `[]`.
    """

    key: jax.Array
    config: Settings
    train: TrainState
    updates: jax.Array


class BCBatch(NamedTuple):
    """Sequences of demonstrated steps, `[L, B, ...]`.

    Attributes:
        obs: Observations.
        action: Actions.
        reset: Whether the observation begins an episode.
    """

    obs: Observation
    action: Action
    reset: jax.Array


def loss(
    network: Network,
    observations: normalization.Moments | None,
    batch: BCBatch,
    entropy_coefficient: jax.Array,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return the loss, the mean of -log pi(a|s) - c H(pi(.|s)), and its metrics.

    Args:
        network: Actor-critic network.
        observations: Observation statistics, or None if observations are not normalized.
        batch: B sequences of L steps.
        entropy_coefficient: Weight of the entropy bonus c.

    Returns:
        The loss, and scalar metrics keyed by name.
    """
    network = train_state.add_normalization(network, observations)
    carry = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (batch.reset.shape[1], *jnp.shape(x))),
        network.initial_carry(),
    )
    _, output = network.unroll(carry, batch.obs, batch.reset)
    log_prob, entropy = tree.vmap_over_steps(
        lambda policy, action: (policy.log_prob(policy.raw_action(action)), policy.entropy())
    )(output.policy, batch.action)
    log_prob, entropy = jnp.mean(log_prob), jnp.mean(entropy)
    total = -log_prob - entropy_coefficient * entropy
    return total, {"loss": total, "log_prob": log_prob, "entropy": entropy}


def bc(
    environment: Environment,
    network: Callable[[jax.Array], Network],
    demonstrations: Demonstrations | None = None,
) -> Algorithm:
    """Build behavior cloning (BC).

    Args:
        environment: Environment of the demonstrations and of the evaluations.
        network: Function from a random key to a network that outputs `ActorCriticOutput`.
        demonstrations: Demonstrations to imitate. Without them, a trained policy can act, but
            `step` raises a `UsageError`.

    Returns:
        The algorithm. Its `init` raises a `UsageError` if sizes in the config are inconsistent.

    Raises:
        UsageError: If the demonstrations do not fit the environment.
    """
    make_network = check_actor_critic("bc", environment, network)
    groups = parameter_sharing.make_agent_groups(environment, "all")
    steps = (
        None
        if demonstrations is None
        else demonstrations.to_steps(
            environment.observation_space, environment.action_space, environment.num_agents
        )
    )

    def step(state: BCState) -> tuple[BCState, Metrics]:
        if steps is None:
            raise UsageError(
                "bc must have demonstrations to learn from, got none. Record episodes with "
                "`rollax record RUN -o FILE`, and set --demonstrations FILE."
            )
        config, progress = state.config, state.updates / state.config.total_updates
        key, batch_key = jax.random.split(state.key)
        step_once = functools.partial(learn, config, progress, steps, batch_key)
        train, rows = jax.lax.scan(step_once, state.train, jnp.arange(config.num_gradient_steps))
        values = jax.tree.map(jnp.mean, rows)
        finite = check_finite(
            None, jnp.zeros(()), None, rows["loss"], train.network, on_policy=False
        )
        rate = scheduled_rate(config, config.learning_rate, progress)
        values |= rate_metric(config, rate)
        state = state._replace(key=key, train=train, updates=state.updates + 1)
        return state, Metrics(values, finite=finite)

    def act(
        state: BCState, obs: Observation, carry: Carry, key: jax.Array, greedy: Flag
    ) -> tuple[Action, Carry]:
        choose = functools.partial(train_state.select_action, state.config, jnp.asarray(greedy))
        return parameter_sharing.act_agents(groups, choose, state.train, obs, carry, key)

    def initial_carry(state: BCState) -> Carry:
        return parameter_sharing.initial_carry(
            groups, lambda train: train.network.initial_carry(), state.train
        )

    return Algorithm(
        init=functools.partial(init_state, environment, make_network, steps),
        step=step,
        act=act,
        initial_carry=initial_carry,
        parts=lambda state: train_state.select_parts(state.train),
    )


def init_state(
    environment: Environment,
    make_network: Callable[[jax.Array], Network],
    steps: DemonstrationSteps | None,
    key: jax.Array,
    config: BCConfig,
) -> BCState:
    """Return the state before the first update.

    Args:
        environment: Environment of the demonstrations.
        make_network: Function from a random key to a network.
        steps: Demonstrated steps `[M, ...]` for the observation statistics, or None.
        key: Random key.
        config: Settings of the algorithm.

    Raises:
        UsageError: If the sizes in the config are inconsistent, or if `config.frozen` contains an
            unknown part or all parameters.
    """
    check_sizes(config, steps)
    config = tree.to_arrays(config)
    state_key, network_key = jax.random.split(key)
    network = make_network(network_key)
    check_frozen_parts(config.frozen, network)
    optimizer = make_optimizer(config, config.learning_rate, 0.0)
    state = optimizer.init(train_state.split_network(network)["actor"])
    observations = None
    if config.normalize_observations:
        observations = normalization.init_moments(make_zeros(environment.observation_space))
        if steps is not None:
            obs = jax.tree.map(jnp.asarray, steps.obs)
            observations = normalization.update_moments(observations, obs, axes=1)
    train = TrainState(network, {"actor": state}, observations, None)
    return BCState(state_key, config, train, jnp.zeros((), jnp.int32))


def check_sizes(config: BCConfig, steps: DemonstrationSteps | None) -> None:
    """Check that minibatches consist of whole sequences.

    Args:
        config: Settings of the algorithm.
        steps: Demonstrated steps `[M, ...]`, or None to check only the settings.

    Raises:
        UsageError: If `sequence_length` does not divide `batch_size`, or is larger than the number
            of demonstrated steps.
    """
    length = config.sequence_length
    if config.batch_size % length:
        raise UsageError(
            f"sequence_length ({length}) must divide batch_size ({config.batch_size}). Set "
            f"batch_size to {-(-config.batch_size // length) * length}."
        )
    if steps is not None and len(steps.reward) < length:
        raise UsageError(
            f"sequence_length ({length}) must be at most the number of demonstrated steps "
            f"({len(steps.reward)}). Lower it, or record more episodes."
        )


def learn(
    config: BCConfig,
    progress: jax.Array,
    steps: DemonstrationSteps,
    key: jax.Array,
    train: TrainState,
    index: jax.Array,
) -> tuple[TrainState, dict[str, jax.Array]]:
    """Perform one gradient step of the policy on random sequences of the demonstrations.

    Args:
        config: Settings of the algorithm.
        progress: Completed fraction of training, from 0 to 1.
        steps: Demonstrated steps `[M, ...]`.
        key: Random key of the update of the run.
        train: Network, optimizer state and observation statistics.
        index: Index of the gradient step in the update, int32 `[]`.

    Returns:
        The updated train state, and scalar metrics keyed by name.
    """
    batch = sample_sequences(config, steps, jax.random.fold_in(key, index))
    gradient, metrics = jax.grad(loss, has_aux=True)(
        train.network, train.observations, batch, config.entropy_coefficient
    )
    rate = scheduled_rate(config, config.learning_rate, progress)
    gradient = train_state.split_network(gradient)["actor"]
    parts = train_state.split_network(train.network)
    parts["actor"], state = train_state.apply_gradients(
        make_optimizer(config, rate, progress), train.optimizer["actor"], parts["actor"], gradient
    )
    metrics["grad_norm"] = optax.tree.norm(gradient)
    network = eqx.combine(*parts.values())
    return train._replace(network=network, optimizer={"actor": state}), metrics


def sample_sequences(config: BCConfig, steps: DemonstrationSteps, key: jax.Array) -> BCBatch:
    """Sample sequences of the demonstrations, uniformly with replacement.

    Args:
        config: Settings with `batch_size` (steps in all sequences) and `sequence_length` L.
        steps: Demonstrated steps, `[M, ...]`.
        key: Random key.

    Returns:
        The sequences, `[L, B, ...]`.
    """
    length = config.sequence_length
    last = len(steps.reward) - length
    first = jax.random.randint(key, (config.batch_size // length,), 0, last + 1)
    index = first[None] + jnp.arange(length)[:, None]

    def gather(x: np.ndarray) -> jax.Array:
        return jnp.asarray(x).at[index].get(mode="promise_in_bounds")

    obs, action, reset = jax.tree.map(gather, (steps.obs, steps.action, steps.reset))
    return BCBatch(obs, action, reset)
