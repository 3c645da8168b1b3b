"""Replay of off-policy agents: storage of transitions and gradient steps on replayed batches."""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rollax import tree
from rollax.acting.exploration import normalize_action
from rollax.acting.streams import Experience
from rollax.action_spaces import make_normalized_zeros
from rollax.algorithm import FiniteChecks, check_finite
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.learning import normalization
from rollax.learning.optimizers import make_optimizer, rate_metric, scheduled_rate
from rollax.learning.train_state import apply_gradients
from rollax.networks.critics import CriticFn, critic_values
from rollax.replay.demonstrations import Demonstrations
from rollax.replay.replay_config import ReplayConfig
from rollax.replay.ring import ReplayBatch, ReplayBuffer, ReplayStep
from rollax.scopes import profile_scope
from rollax.types import Carry, Observation, Parameters, Scalar, Settings, State


class AgentFns(NamedTuple):
    """Pure functions of an off-policy agent. Continuous actions are normalized to [-1, 1].

    Attributes:
        init: Function `(key, config)` that returns the agent, a pytree of networks and optimizer
            states.
        explore: Function `(agent, config, obs, carry, noise, key, progress)` that returns the
            action in training and the memory after the step.
        act: Function `(agent, config, obs, carry, key, greedy)` that returns the action in
            evaluation and the memory after the step.
        update: Function `(agent, config, batch, key, progress)` that returns the agent after one
            gradient step, and metrics keyed by name, including absolute TD errors "td_error" `[B]`.
        initial_carry: Function from the agent to the memory at the start of an episode.
    """

    init: Callable[[jax.Array, Settings], State]
    explore: Callable[..., tuple[jax.Array, Carry]]
    act: Callable[..., tuple[jax.Array, Carry]]
    update: Callable[..., tuple[State, dict[str, jax.Array]]]
    initial_carry: Callable[[State], Carry] = lambda agent: ()


class CriticUpdate(NamedTuple):
    """Critics after one gradient step, with metrics of the step.

    Attributes:
        critic: Critics.
        optimizer: Optimizer state of the critics.
        loss: Loss before the step, float32 `[]`.
        value: Mean Q before the step, float32 `[]`.
        td_error: Absolute TD errors, averaged over critics, float32 `[B]`.
    """

    critic: Parameters
    optimizer: State
    loss: jax.Array
    value: jax.Array
    td_error: jax.Array


def example_step(environment: Environment, obs: Observation, memory: Carry) -> ReplayStep:
    """Return a transition with the shapes and dtypes of the transitions in the replay buffer.

    Args:
        environment: Environment with the action space.
        obs: Observation of one stream.
        memory: Example of `ReplayStep.carry`.
    """
    no = jnp.zeros((), bool)
    return ReplayStep(
        obs=obs,
        action=make_normalized_zeros(environment.action_space),
        reward=jnp.zeros(()),
        terminated=no,
        truncated=no,
        next_obs=obs,
        reset=no,
        carry=memory,
    )


def make_demonstration_steps(
    environment: Environment, demonstrations: Demonstrations | None
) -> ReplayStep | None:
    """Return the steps of demonstrations with normalized actions and without memory, `[M, ...]`.

    Args:
        environment: Environment to train in.
        demonstrations: Demonstrations, or None.

    Raises:
        UsageError: If the demonstrations do not fit the environment.
    """
    if demonstrations is None:
        return None
    space = environment.action_space
    steps = demonstrations.to_steps(environment.observation_space, space, environment.num_agents)
    values = steps._asdict() | {"action": normalize_action(space, steps.action)}
    return ReplayStep(**values, carry=())


def num_filled_steps(num_steps: int, num_streams: int, capacity: int) -> int:
    """Return the number of demonstrated steps that a replay buffer stores.

    Args:
        num_steps: Number of steps of the demonstrations.
        num_streams: Number of streams S. All streams store equally many steps.
        capacity: Capacity of the buffer in steps.
    """
    return min(num_steps // num_streams, capacity // num_streams) * num_streams


def start_with_demonstrations(
    environment: Environment,
    make_buffer: Callable[[Settings], ReplayBuffer],
    demonstrations: Demonstrations | None,
) -> Callable[[Settings], ReplayBuffer]:
    """Return a function that builds a replay buffer whose initial state has demonstrated steps.

    The buffer stores the last steps, as many as fit. Each stream stores consecutive steps. An
    episode that continues in the next stream ends without a termination in n-step returns.

    Args:
        environment: Environment to train in.
        make_buffer: Function from the config to the replay buffer.
        demonstrations: Demonstrations, or None to return `make_buffer`.

    Returns:
        The function. The `init` of its buffers raises a `UsageError` if there are fewer steps than
        streams.

    Raises:
        UsageError: If the demonstrations do not fit the environment.
    """
    steps = make_demonstration_steps(environment, demonstrations)
    if steps is None:
        return make_buffer

    def make(config: Settings) -> ReplayBuffer:
        buffer = make_buffer(config)

        def init(example: ReplayStep, num_streams: int, config: ReplayConfig) -> State:
            return _fill_replay(buffer, steps, example, num_streams, config)

        return buffer._replace(init=init)

    return make


def _fill_replay(
    buffer: ReplayBuffer,
    steps: ReplayStep,
    example: ReplayStep,
    num_streams: int,
    config: ReplayConfig,
) -> State:
    """Return the state of a buffer with the last of the steps `[M, ...]`."""
    total = len(steps.reward)
    number = num_filled_steps(total, num_streams, config.capacity)
    if not number:
        raise UsageError(
            f"demonstrations must have at least one step for each of the {num_streams} streams of "
            f"the replay buffer, got {total}. Lower num_envs, or record more episodes."
        )

    def split_streams(x: np.ndarray) -> jax.Array:
        newest = x[total - number :].reshape(num_streams, -1, *x.shape[1:])
        return jnp.asarray(np.swapaxes(newest, 0, 1))

    carry = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_streams, *jnp.shape(x))), example.carry)

    def add(replay: State, row: ReplayStep) -> tuple[State, None]:
        return buffer.add(replay, row._replace(carry=carry), jnp.ones(num_streams, bool)), None

    empty = buffer.init(example, num_streams, config)
    return jax.lax.scan(add, empty, jax.tree.map(split_streams, steps))[0]


def select_parts(
    agent: State, observations: normalization.Moments | None, replay: State
) -> dict[str, State]:
    """Return the networks, optimizer states, statistics and replay, keyed as in `Algorithm.parts`.

    The networks are all fields of the agent except its optimizer states and its number of steps.

    Args:
        agent: State of the agent.
        observations: Observation statistics, or None.
        replay: State of the replay buffer.
    """
    return {
        "networks": agent._replace(optimizer=None, steps=None),
        "optimizer": agent.optimizer,
        "statistics": observations,
        "replay": replay,
    }


def make_optimizers(
    config: ReplayConfig, progress: Scalar, **learning_rates: Scalar
) -> dict[str, optax.GradientTransformation]:
    """Build one optimizer for each learning rate.

    Args:
        config: Settings of the optimizers.
        progress: Completed fraction of training, from 0 to 1.
        **learning_rates: Learning rate of each component of the agent, such as `actor` or `critic`.
            0 uses `config.learning_rate`.

    Returns:
        Optimizers, keyed by component name.
    """
    rates = {
        name: jnp.where(jnp.asarray(rate) > 0, rate, config.learning_rate)
        for name, rate in learning_rates.items()
    }
    return {name: make_optimizer(config, rate, progress, (name,)) for name, rate in rates.items()}


def critic_loss(
    critic: tuple[CriticFn, ...], batch: ReplayBatch, target: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Return the loss of all critics, sum_i mean w (Q_i(s, a) - y)^2, and its metrics.

    Args:
        critic: Critics Q_i.
        batch: Batch of B transitions with weights w.
        target: Targets y, `[B]`.

    Returns:
        The loss, and a tuple of the mean Q, float32 `[]`, and the absolute TD errors averaged over
        critics, float32 `[B]`.
    """
    values = jnp.stack(critic_values(critic, batch.obs, batch.action))
    td_error = values - target[None]
    loss = jnp.sum(jnp.mean(batch.weight[None] * td_error**2, axis=1))
    return loss, (jnp.mean(values), jnp.mean(jnp.abs(td_error), axis=0))


def update_critics(
    optimizer: optax.GradientTransformation,
    optimizer_state: State,
    critic: tuple[CriticFn, ...],
    batch: ReplayBatch,
    target: jax.Array,
) -> CriticUpdate:
    """Perform one gradient step of all critics on `critic_loss`.

    Args:
        optimizer: Optimizer of the critics.
        optimizer_state: State of the optimizer.
        critic: Critics.
        batch: Batch of B transitions.
        target: Targets y, `[B]`.

    Returns:
        The updated critics and the metrics of the step.
    """
    (loss, (value, td_error)), gradient = jax.value_and_grad(critic_loss, has_aux=True)(
        critic, batch, target
    )
    critic, optimizer_state = apply_gradients(optimizer, optimizer_state, critic, gradient)
    return CriticUpdate(critic, optimizer_state, loss, value, td_error)


def with_normalized_observations(
    agent_fns: AgentFns, observations: normalization.Moments | None
) -> AgentFns:
    """Return the functions of an agent with normalized observations.

    Args:
        agent_fns: Functions of the agent.
        observations: Observation statistics. None leaves observations unchanged.

    Returns:
        The wrapped functions.
    """
    if observations is None:
        return agent_fns
    normalize = functools.partial(normalization.normalize, observations)

    def update(
        agent: State,
        config: ReplayConfig,
        batch: ReplayBatch,
        key: jax.Array,
        progress: Scalar = 0.0,
    ) -> tuple[State, dict[str, jax.Array]]:
        obs, next_obs = jax.vmap(normalize)(batch.obs), jax.vmap(normalize)(batch.next_obs)
        batch = batch._replace(obs=obs, next_obs=next_obs)
        return agent_fns.update(agent, config, batch, key, progress)

    return agent_fns._replace(
        explore=lambda agent, config, obs, *rest: agent_fns.explore(
            agent, config, normalize(obs), *rest
        ),
        act=lambda agent, config, obs, *rest: agent_fns.act(agent, config, normalize(obs), *rest),
        update=update,
    )


def anneal_learning_rates(config: ReplayConfig, progress: jax.Array) -> ReplayConfig:
    """Return the config with all learning rates set to their scheduled value at `progress`."""
    names = [
        field.name for field in dataclasses.fields(config) if field.name.endswith("learning_rate")
    ]
    rates = {name: scheduled_rate(config, getattr(config, name), progress) for name in names}
    return dataclasses.replace(config, **rates)


def learning_rate_metric(config: ReplayConfig, progress: jax.Array) -> dict[str, jax.Array]:
    """Return the metric "learning_rate" at `progress`, as `optimizers.rate_metric` does."""
    return rate_metric(config, scheduled_rate(config, config.learning_rate, progress))


@profile_scope("replay")
def add_to_replay(buffer: ReplayBuffer, replay: State, experience: Experience) -> State:
    """Add the transitions of a cycle to the replay buffer.

    Steps of agents that were not active are left out.

    Args:
        buffer: Functions of the replay buffer.
        replay: State of the replay buffer.
        experience: Steps of S streams, `[c, S, ...]`. The extras of the policy are the normalized
            actions, which are stored instead of the actions of the environment.

    Returns:
        The new state of the replay buffer.
    """
    keep = jnp.ones_like(experience.terminated) if experience.mask is None else experience.mask
    steps = ReplayStep(
        obs=experience.obs,
        action=experience.extras,
        reward=experience.reward,
        terminated=experience.terminated,
        truncated=experience.truncated,
        next_obs=experience.next_obs,
        reset=experience.reset,
        carry=experience.carry.memory,
    )
    replay, _ = jax.lax.scan(
        lambda replay, row: (buffer.add(replay, *row), None), replay, (steps, keep)
    )
    return replay


def update_from_replay(
    fns: AgentFns,
    buffer: ReplayBuffer,
    config: ReplayConfig,
    progress: jax.Array,
    is_warm: jax.Array,
    key: jax.Array,
    loop: tuple[State, State],
    index: jax.Array,
) -> tuple[tuple[State, State], dict[str, jax.Array]]:
    """Perform one gradient step on a batch from the replay buffer.

    Before learning starts, and while the replay buffer holds too few transitions for a batch, the
    step is skipped and all metrics are 0.

    Args:
        fns: Functions of the agent.
        buffer: Replay buffer.
        config: Settings with the current learning rates.
        progress: Completed fraction of training, from 0 to 1.
        is_warm: Whether learning has started, bool `[]`.
        key: Random key of the cycle.
        loop: Tuple of the agent and the state of the replay buffer.
        index: Index of the gradient step in its cycle, int32 `[]`.

    Returns:
        The tuple of the updated agent and replay state, and the scalar metrics of the step, keyed
        by name. The metric "active" is 1 if the step was performed, else 0.
    """
    agent, replay = loop
    sample_key, update_key = jax.random.split(jax.random.fold_in(key, index))
    is_active = is_warm & buffer.can_sample(replay, config)
    batch, places = profile_scope("replay")(buffer.sample)(replay, config, sample_key, progress)
    shapes = jax.eval_shape(fns.update, agent, config, batch, update_key, progress)[1]
    nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    def update(before):
        return fns.update(before[0], config, batch, update_key, progress)

    agent, metrics = profile_scope("credit")(tree.cond_any_member)(
        is_active, update, (agent, nothing)
    )
    replay = profile_scope("replay")(buffer.update_priorities)(
        replay, config, places, metrics["td_error"], is_active
    )
    metrics |= {"td_error": jnp.mean(metrics["td_error"]), "active": is_active.astype(jnp.float32)}
    return (agent, replay), metrics


@profile_scope("bookkeeping")
def update_observation_statistics(
    observations: normalization.Moments | None, experience: Experience
) -> normalization.Moments | None:
    """Update the observation statistics with the experience of all cycles, `[cycles, c, S]`."""
    if observations is None:
        return None
    return normalization.update_moments(observations, experience.obs, axes=3, mask=experience.mask)


@profile_scope("bookkeeping")
def summarize_metrics(
    experience: Experience, metrics: dict[str, jax.Array], agent: State
) -> tuple[dict[str, jax.Array], FiniteChecks]:
    """Return the metrics and finite checks of an update.

    Args:
        experience: Experience of all cycles of c steps, `[cycles, c, S]`.
        metrics: Metrics of the g gradient steps of each cycle, keyed by name, `[cycles, g]` each.
        agent: Agent after the update.

    Returns:
        Scalar metrics, keyed by name, and `FiniteChecks`. Metrics of gradient steps are averaged
        over the steps that were not skipped, and are NaN if all steps were skipped.
    """
    number = jnp.sum(metrics["active"])
    means = {
        name: jnp.where(number > 0, jnp.sum(x) / jnp.maximum(number, 1), jnp.nan)
        for name, x in metrics.items()
        if name != "active"
    }
    finite = check_finite(
        experience.next_obs,
        experience.reward,
        None,
        metrics["loss"],
        agent.network,
        on_policy=False,
    )
    return means | {
        "gradient_steps": number,
        "reward": jnp.mean(experience.reward, where=experience.mask),
    }, finite
