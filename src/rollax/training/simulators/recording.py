"""Recording of rollouts in host simulators, and updates of algorithms from recorded rollouts."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.acting.episode_metrics import sum_ended_episodes, total_sums
from rollax.acting.streams import (
    ActorState,
    Experience,
    Rollout,
    flatten_streams,
    make_step_keys,
    split_step_keys,
)
from rollax.algorithm import Algorithm, EpisodeSums
from rollax.environments.capabilities import find_acting_agents
from rollax.environments.environment import Environment
from rollax.networks import memory_windows
from rollax.types import Action, Carry, Observation, PyTree, State


class RecordedSteps(NamedTuple):
    """Steps `[T, E, ...]` of E simulators, with the fields of `rollax.acting.streams.Experience`.

    With agents, all fields have the leading axes `[T, E, A]`.

    Attributes:
        obs: Observations before the step.
        reset: Whether `obs` is the first observation of an episode, bool.
        carry: Recurrent state of the policy before the step. It is not yet reset where `reset` is
            True.
        action: Actions.
        extras: Additional outputs of the policy, such as log-probabilities.
        reward: Rewards, float32.
        terminated: Whether the step terminated the episode, bool.
        truncated: Whether the step truncated the episode, bool.
        next_obs: Observations after the step. At the end of an episode, its final observation.
        mask: Whether the agent was in the episode before the step, bool, or None without agents.
    """

    obs: Any
    reset: Any
    carry: Any
    action: Any
    extras: Any
    reward: Any
    terminated: Any
    truncated: Any
    next_obs: Any
    mask: Any


class ActorInputs(NamedTuple):
    """Inputs of the policy in E simulators, `[E, ...]` each, or `[E, A, ...]` with agents.

    Attributes:
        obs: Observations.
        reset: Whether `obs` is the first observation of an episode, bool.
        carry: Recurrent state of the policy.
        active: Whether the agent is in the episode, bool, or None without agents.
    """

    obs: Any
    reset: Any
    carry: Any
    active: Any


class Recording(NamedTuple):
    """Rollout that was recorded on the host.

    Attributes:
        steps: Steps of the rollout.
        restarted: Whether the simulator failed in the step and was recreated, bool `[T, E]`. Its
            episode is truncated and does not count in the episode statistics.
        last: Inputs of the policy after the last step.
        info: `EpisodeSums.info` of the episodes that were completed during the rollout.
    """

    steps: RecordedSteps
    restarted: Any
    last: ActorInputs
    info: dict[str, tuple[Any, Any]]


def make_rollout_act_fn(algorithm: Algorithm) -> Callable[..., tuple[Any, Any, Any]]:
    """Return a function that acts in E environments for one step of a rollout.

    It draws the same random numbers in each step as `rollax.acting.streams.unroll`.

    Args:
        algorithm: Algorithm of one member.

    Returns:
        A function that maps `(state, obs, carry, reset, time)` to the recurrent state, the actions
        and the extras, `[E, ...]` each. `time` is the index of the step in the rollout, int32 `[]`.
    """
    rollouts = algorithm.rollouts
    assert rollouts is not None, "`check_rollouts` rejects other algorithms"

    def act(
        state: State, obs: Observation, carry: Carry, reset: jax.Array, time: jax.Array
    ) -> tuple[Carry, Action, PyTree]:
        policy, _, key, _ = rollouts(state)
        act_keys, _ = split_step_keys(make_step_keys(jax.random.split(key, reset.shape[0]), time))
        return jax.vmap(policy)(carry, obs, reset, act_keys)

    return act


def to_rollout(environment: Environment, recording: Recording, actor: ActorState) -> Rollout:
    """Convert a recording to the rollout that `rollax.acting.streams.unroll` would return.

    Args:
        environment: Environment of the simulators.
        recording: Recorded steps.
        actor: Actor state before the rollout.

    Returns:
        The rollout.
    """
    last = recording.last
    # A single agent is in the episode until it ends.
    has_masks = actor.agent_done is not None
    steps = recording.steps._replace(mask=recording.steps.mask if has_masks else None)
    acts = find_acting_agents(environment, steps.obs)
    experience = jax.vmap(functools.partial(flatten_streams, environment))(
        Experience(*steps, acts=acts)
    )
    carry = memory_windows.join_entries(
        jax.tree.map(lambda x: x[0], experience.carry),
        memory_windows.newest_entries(experience.carry),
    )
    totals, episodes = _sum_episodes(environment, recording._replace(steps=steps), actor)
    moved = actor._replace(
        obs=last.obs,
        reset=last.reset,
        carry=last.carry,
        agent_done=~last.active if has_masks else None,
        episode_return=totals[0],
        episode_length=totals[1],
    )
    return Rollout(moved, experience._replace(carry=carry), episodes)


def _sum_episodes(
    environment: Environment, recording: Recording, actor: ActorState
) -> tuple[tuple[jax.Array, jax.Array], EpisodeSums]:
    """Return the returns and lengths of running episodes, and the sums over ended episodes.

    Episodes that were interrupted, such as by a failure or by resuming a run, do not count.
    """
    steps = recording.steps
    num_active = jnp.ones_like(steps.reset, jnp.int32) if steps.mask is None else steps.mask

    def clear(where: jax.Array, totals: PyTree) -> PyTree:
        return tree.where(where, jax.tree.map(jnp.zeros_like, totals), totals)

    def body(totals: PyTree, row: tuple[jax.Array, ...]) -> tuple[PyTree, EpisodeSums]:
        reward, active, ended, restarted = row
        totals = totals[0] + reward, totals[1] + active
        is_counted = tree.where(
            ended & ~restarted, jnp.ones_like(reward, bool), jnp.zeros_like(reward, bool)
        )
        return clear(ended, totals), sum_ended_episodes(totals[0], totals[1], is_counted)

    # An episode starts for all agents at once. Agents that return to it do not return all at once.
    begins = jnp.concatenate([steps.reset, recording.last.reset[None]])
    begins = begins if environment.num_agents is None else jnp.all(begins, axis=-1)
    totals = clear(begins[0], (actor.episode_return, actor.episode_length))
    rows = steps.reward, num_active, begins[1:], recording.restarted
    totals, sums = jax.lax.scan(body, totals, rows)
    return totals, total_sums(environment, sums)._replace(info=recording.info)


def learn_from_recording(
    environment: Environment,
    algorithm: Algorithm,
    state: State,
    recording: Recording,
    *,
    has_members: bool,
) -> tuple[State, Any]:
    """Perform one update from a recorded rollout.

    Args:
        environment: Environment of the simulators.
        algorithm: Algorithm of the run.
        state: State of the run.
        recording: Recorded rollout.
        has_members: Whether the recording has a leading axis of members.

    Returns:
        The state after the update, and the metrics of the update.
    """
    assert algorithm.learn is not None, "`check_rollouts` rejects other algorithms"
    convert = functools.partial(to_rollout, environment)
    convert = jax.vmap(convert) if has_members else convert
    return algorithm.learn(state, convert(recording, find_actor(state)))


def find_actor(state: State) -> ActorState:
    """Return the actor state in the state of an algorithm, which must contain exactly one."""
    (actor,) = [part for part in jax.tree.leaves(state, is_leaf=_is_actor) if _is_actor(part)]
    return actor


def _is_actor(part: object) -> bool:
    return isinstance(part, ActorState)
