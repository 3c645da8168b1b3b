"""Evaluation of policies in complete, equally weighted episodes."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.acting import descriptors
from rollax.acting.episode_metrics import InfoReduction, make_info_reduction
from rollax.acting.streams import (
    ActorState,
    Experience,
    PolicyFn,
    has_episode_ended,
    make_actor,
    split_step_keys,
    step,
)
from rollax.algorithm import Algorithm
from rollax.environments.environment import Environment, Transition
from rollax.environments.trace_cache import trace_once
from rollax.types import Carry, Observation, PyTree, State, Task

# Entries of `info` in a trial of several episodes: fractions of terminated and truncated episodes.
TRIAL_END_NAMES = ("episodes_terminated", "episodes_truncated")


class Episodes(NamedTuple):
    """Results of N episodes.

    For a population, all arrays have a leading axis `[P]`.

    Attributes:
        returns: Undiscounted return, float `[N]`, or `[N, A]` with agents.
        length: Number of steps, int32 `[N]`.
        terminated: Whether the episode terminated, bool `[N]`. In multi-agent environments, whether
            all agents terminated.
        truncated: Whether the episode was truncated, bool `[N]`. Episodes that are neither
            terminated nor truncated were stopped after `max_steps`.
        info: Entries of the environment's `info`, keyed by name, `[N, ...]` each. Each entry is
            reduced over the episode (`rollax.acting.episode_metrics`).
        descriptor: Descriptor of each episode, float `[N, K]`, or None if the environment has no
            state descriptors.
        state_metrics: Scalars of the evaluated state, keyed by name (`Algorithm.state_metrics`).
    """

    returns: jax.Array
    length: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    info: dict[str, jax.Array] = {}
    descriptor: Any = None
    state_metrics: dict[str, jax.Array] = {}


class RunningEpisodes(NamedTuple):
    """N parallel episodes that are in progress, one per environment.

    Attributes:
        actor: Environment states, observations and episode statistics.
        terminated: Whether each episode has terminated, bool `[N]`.
        truncated: Whether each episode has been truncated, bool `[N]`.
    """

    actor: ActorState
    terminated: jax.Array
    truncated: jax.Array

    @property
    def alive(self) -> jax.Array:
        """Mask of the episodes that are still running, bool `[N]`."""
        return ~(self.terminated | self.truncated)


def make_policy(algorithm: Algorithm, state: State, greedy: bool | jax.Array) -> PolicyFn:
    """Return the evaluation policy of an algorithm's state.

    Args:
        algorithm: The algorithm.
        state: State of the algorithm.
        greedy: Whether to select the best actions instead of sampling.

    Returns:
        The policy. The extras of its outputs are None.
    """

    def act(
        carry: Carry, obs: Observation, reset: jax.Array, key: jax.Array
    ) -> tuple[Any, Any, None]:
        carry = tree.where(reset, algorithm.initial_carry(state), carry)
        action, carry = algorithm.act(state, obs, carry, key, greedy)
        return carry, action, None

    return act


def init_episodes(
    environment: Environment, keys: jax.Array, carry: Carry, tasks: Task = None
) -> RunningEpisodes:
    """Reset one environment per key.

    Args:
        environment: Environment of the episodes.
        keys: Random keys `[N]`.
        carry: Initial memory of the policy in each episode, `[N, ...]`.
        tasks: Task of each episode of a `TaskEnvironment`, `[N, ...]`. If None, the environment
            samples the tasks.

    Returns:
        Episodes before their first step.
    """
    if tasks is None:
        state, obs = jax.vmap(trace_once(environment, "reset"))(keys)
    else:
        state, obs = jax.vmap(trace_once(environment, "reset_task"))(keys, tasks)
    actor = make_actor(environment, state, obs, ())._replace(carry=carry)
    no = jnp.zeros(keys.shape, bool)
    # Remove weak types, so that the first step does not compile a second program.
    return tree.to_arrays(RunningEpisodes(actor, no, no))


def step_episodes(
    environment: Environment, policy: PolicyFn, playing: RunningEpisodes, keys: jax.Array
) -> tuple[RunningEpisodes, tuple[Experience, Transition]]:
    """Step all running episodes. Episodes that have ended are unchanged.

    Args:
        environment: Environment of the episodes.
        policy: Policy that acts in all episodes.
        playing: Episodes before the step.
        keys: Random keys `[N]`.

    Returns:
        The episodes after the step, and a tuple of the experience and the transition of the step,
        `[N, ...]` each. Both are invalid for episodes that had ended before the step.
    """
    actor, experience, after = step(environment, policy, playing.actor, split_step_keys(keys))
    ended, all_terminated = has_episode_ended(environment, after), after.terminated
    if environment.num_agents is not None:
        all_terminated = jnp.all(all_terminated, axis=-1)
    moved = RunningEpisodes(actor, ended & all_terminated, ended & ~all_terminated)
    return tree.where(playing.alive, moved, playing), (experience, after)


def make_evaluator(
    environment: Environment,
    algorithm: Algorithm,
    num_episodes: int,
    max_steps: int,
    greedy: bool,
    descriptor: descriptors.ExtractionChoice = None,
    info: Mapping[str, str] | None = None,
) -> Callable[..., Episodes]:
    """Build a function that plays N episodes in parallel.

    The function runs until the last episode ends, but at most `max_steps` steps. With several
    agents, the return of an agent excludes rewards after the agent has terminated or been
    truncated.

    Args:
        environment: Environment of the episodes.
        algorithm: Algorithm whose policy acts.
        num_episodes: Number of episodes N.
        max_steps: Maximum number of steps of an episode.
        greedy: Whether to take the most likely actions instead of sampling.
        descriptor: Extraction of descriptors, passed to `descriptors.make_batched_extraction`.
        info: Reductions of `info` entries, keyed by name, passed to `make_info_reduction`.

    Returns:
        Function `(state, key, tasks=None) -> Episodes`, with `tasks` as in `init_episodes`.
    """
    play_all = make_episode_runner(environment, max_steps, descriptor, info=info)

    def evaluate(state: State, key: jax.Array, tasks: Task = None) -> Episodes:
        policy, carry = make_policy(algorithm, state, greedy), algorithm.initial_carry(state)
        each = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_episodes, *jnp.shape(x))), carry)
        result, _ = play_all(policy, each, split_episode_keys(key, num_episodes), tasks)
        return result._replace(state_metrics=algorithm.state_metrics(state))

    return evaluate


def split_episode_keys(key: jax.Array, num_episodes: int) -> tuple[jax.Array, jax.Array]:
    """Split a key into N keys for resets and N keys for steps, `[N]` each."""
    reset_key, run_key = jax.random.split(key)
    return jax.random.split(reset_key, num_episodes), jax.random.split(run_key, num_episodes)


class EpisodeLoop(NamedTuple):
    """State of a loop over the steps of N parallel episodes.

    Attributes:
        time: Number of steps so far, int32 `[]`.
        playing: Episodes in progress.
        info_memory: Accumulators of the `info` reduction.
        descriptor_memory: Accumulators of the descriptor extraction.
        rows: Recorded values `[max_steps, N, ...]`, or `()` if nothing is recorded.
    """

    time: jax.Array
    playing: RunningEpisodes
    info_memory: Any
    descriptor_memory: Any
    rows: Any


def make_episode_runner(
    environment: Environment,
    max_steps: int,
    descriptor: descriptors.ExtractionChoice = None,
    record: Callable[[Experience], PyTree] | None = None,
    info: Mapping[str, str] | None = None,
) -> Callable[..., tuple[Episodes, Any]]:
    """Build a function that runs N episodes in parallel until all have ended.

    Each episode has its own policy carry. The carry may contain the policy parameters, so each
    episode can use a different policy.

    Args:
        environment: Environment of the episodes.
        max_steps: Maximum number of steps of an episode.
        descriptor: Extraction of descriptors, as in `make_evaluator`.
        record: Function from the experience of a step `[N, ...]` to a pytree to record. None
            records nothing.
        info: Reductions of `info` entries, as in `make_evaluator`.

    Returns:
        Function `(policy, carry, (reset_keys, step_keys), tasks=None) -> (Episodes, recorded)`. The
        leaves of `carry` have a leading axis `[N]`. `split_episode_keys` creates the keys. The
        leaves of `recorded` have the shape `[max_steps, N, ...]` and are invalid after the end of
        an episode. If `record` is None, `recorded` is `()`.
    """
    extraction = descriptors.make_batched_extraction(environment, descriptor, max_steps)

    def play_all(
        policy: PolicyFn, carry: Carry, episode_keys: PyTree, tasks: Task = None
    ) -> tuple[Episodes, Any]:
        info_reduction = make_info_reduction(environment, info)
        reset_keys, keys = episode_keys
        number = keys.shape[0]
        playing = init_episodes(environment, reset_keys, carry, tasks)

        def is_running(loop: EpisodeLoop) -> jax.Array:
            return (loop.time < max_steps) & jnp.any(loop.playing.alive)

        def step_all(loop: EpisodeLoop) -> EpisodeLoop:
            time, alive, rows = loop.time, loop.playing.alive, loop.rows
            step_keys = jax.vmap(lambda key: jax.random.fold_in(key, time))(keys)
            playing, (experience, after) = step_episodes(
                environment, policy, loop.playing, step_keys
            )
            info_memory = info_reduction.add(loop.info_memory, after.info, alive)
            if record is not None:
                rows = jax.tree.map(lambda x, row: x.at[time].set(row), rows, record(experience))
            return EpisodeLoop(
                time=time + 1,
                playing=playing,
                info_memory=info_memory,
                descriptor_memory=extraction.add(loop.descriptor_memory, after.state, time, alive),
                rows=rows,
            )

        row: Any = ()
        if record is not None:
            _, (experience, _) = jax.eval_shape(
                lambda: step_episodes(environment, policy, playing, keys)
            )
            row = jax.eval_shape(record, experience)
        start = EpisodeLoop(
            time=jnp.zeros((), jnp.int32),
            playing=playing,
            info_memory=info_reduction.start(number),
            descriptor_memory=extraction.start(number),
            rows=jax.tree.map(lambda x: jnp.zeros((max_steps, *x.shape), x.dtype), row),
        )
        end = jax.lax.while_loop(is_running, step_all, start)
        return _finish_episodes(environment, end, info_reduction, extraction), end.rows

    return play_all


def _finish_episodes(
    environment: Environment,
    end: EpisodeLoop,
    info_reduction: InfoReduction,
    extraction: descriptors.BatchedExtraction,
) -> Episodes:
    """Return the results of the episodes after their loop has finished."""
    playing = end.playing
    length = playing.actor.episode_length
    length = length if environment.num_agents is None else jnp.max(length, axis=-1)
    return Episodes(
        returns=playing.actor.episode_return,
        length=length,
        terminated=playing.terminated,
        truncated=playing.truncated,
        info=info_reduction.finish(end.info_memory, length),
        descriptor=extraction.finish(end.descriptor_memory, length),
    )
