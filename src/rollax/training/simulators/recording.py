"""Recording of rollouts in host simulators, and updates of algorithms from recorded rollouts."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.acting.streams import (
    ActorState,
    Experience,
    Rollout,
    make_step_keys,
    split_step_keys,
    sum_ended_episodes,
)
from rollax.algorithm import Algorithm, EpisodeSums
from rollax.networks import memory_windows
from rollax.types import Action, Carry, Observation, PyTree, State


class RecordedSteps(NamedTuple):
    """Steps `[T, E, ...]` of E simulators, with the fields of `rollax.acting.streams.Experience`.

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


class Recording(NamedTuple):
    """Rollout that was recorded on the host.

    Attributes:
        steps: Steps of the rollout.
        restarted: Whether the simulator failed in the step and was made again, bool `[T, E]`. Its
            episode is truncated, and does not count in the episode statistics.
        last: Observations, reset flags and recurrent state of the policy after the last step,
            `[E, ...]` each.
        info: `EpisodeSums.info` of the episodes that were completed during the rollout.
    """

    steps: RecordedSteps
    restarted: Any
    last: tuple[Any, Any, Any]
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


def to_rollout(recording: Recording, actor: ActorState) -> Rollout:
    """Convert a recording to the rollout that `rollax.acting.streams.unroll` would return.

    Args:
        recording: Recorded steps of single-agent environments.
        actor: Actor state before the rollout.

    Returns:
        The rollout.
    """
    steps = recording.steps
    carry = memory_windows.join_entries(
        jax.tree.map(lambda x: x[0], steps.carry), memory_windows.newest_entries(steps.carry)
    )
    experience = Experience(*steps, mask=None)._replace(carry=carry)
    totals = actor.episode_return, actor.episode_length

    def clear(where: jax.Array, totals: PyTree) -> PyTree:
        return tree.where(where, jax.tree.map(jnp.zeros_like, totals), totals)

    def body(totals: PyTree, row: tuple[jax.Array, ...]) -> tuple[PyTree, EpisodeSums]:
        reward, ended, restarted = row
        totals = totals[0] + reward, totals[1] + 1
        sums = sum_ended_episodes(totals[0], totals[1], ended & ~restarted)
        return clear(ended, totals), sums

    # Episodes that were interrupted, such as by a failure or by resuming a run, do not count.
    rows = steps.reward, steps.terminated | steps.truncated, recording.restarted
    totals, sums = jax.lax.scan(body, clear(steps.reset[0], totals), rows)
    obs, reset, carry = recording.last
    moved = actor._replace(
        obs=obs, reset=reset, carry=carry, episode_return=totals[0], episode_length=totals[1]
    )
    episodes = jax.tree.map(jnp.sum, sums)._replace(info=recording.info)
    return Rollout(moved, experience, episodes)


def learn_from_recording(
    algorithm: Algorithm, state: State, recording: Recording, *, has_members: bool
) -> tuple[State, Any]:
    """Perform one update from a recorded rollout.

    Args:
        algorithm: Algorithm of the run.
        state: State of the run.
        recording: Recorded rollout.
        has_members: Whether the recording has a leading axis of members.

    Returns:
        The state after the update, and the metrics of the update.
    """
    assert algorithm.learn is not None, "`check_rollouts` rejects other algorithms"
    convert = jax.vmap(to_rollout) if has_members else to_rollout
    return algorithm.learn(state, convert(recording, find_actor(state)))


def find_actor(state: State) -> ActorState:
    """Return the actor state in the state of an algorithm, which must contain exactly one."""
    (actor,) = [part for part in jax.tree.leaves(state, is_leaf=_is_actor) if _is_actor(part)]
    return actor


def _is_actor(part: object) -> bool:
    return isinstance(part, ActorState)
