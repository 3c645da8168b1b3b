"""Recording of episodes for rendering, with every state, action, reward and return."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.acting.evaluation import RunningEpisodes, init_episodes, make_policy
from rollax.acting.evaluation import step_episodes as play_step
from rollax.environments.capabilities import is_on_host
from rollax.environments.wrapper import state_to_render
from rollax.errors import UsageError
from rollax.policy import Policy
from rollax.training.compile import keys
from rollax.training.compile.evaluators import max_eval_steps
from rollax.types import PyTree, State
from rollax.user_input.coercion import format_value
from rollax.visualization.render import host_episodes
from rollax.visualization.render.frames import Frame, RecordedEpisode, thin_frames

STEPS_PER_CALL = 64  # environment steps per compiled call


def episode_keys(seed: int, episodes: int) -> jax.Array:
    """Return one random key per episode. The keys differ from those of a run with this seed.

    Args:
        seed: Seed from 0 to 2^32 - 1.
        episodes: Number of episodes.

    Raises:
        UsageError: If the seed is out of range.
    """
    if not 0 <= seed < 2**32:
        raise UsageError(f"seed must be at least 0 and less than 2^32, got {format_value(seed)}.")
    return jax.random.split(keys.render_key(jax.random.key(seed)), episodes)


def record_episodes(
    policies: Sequence[Policy], seed: int, episodes: int, greedy: bool, max_frames: int
) -> list[list[RecordedEpisode]]:
    """Record several episodes of each policy from the same initial states.

    Args:
        policies: Policies of one run. They share one compiled program.
        seed: Seed of the episodes.
        episodes: Number of episodes per policy.
        greedy: Whether the policies take their most likely action instead of sampling.
        max_frames: Maximum number of frames per episode.

    Returns:
        The episodes of each policy.

    Raises:
        UsageError: If the seed is out of range or the environment cannot be rendered.
    """
    if is_on_host(policies[0].environment):
        return host_episodes.record_host_episodes(
            policies, episode_keys(seed, episodes), greedy, max_frames
        )
    run, begin = make_episode_runner(policies[0], greedy), make_episode_initializer(policies[0])
    same = [dataclasses.replace(policies[0], state=policy.state) for policy in policies]
    return [
        [
            record_episode(policy, run, key, max_frames, begin)
            for key in episode_keys(seed, episodes)
        ]
        for policy in same
    ]


def make_episode_runner(
    policy: Policy, greedy: bool
) -> Callable[[Any, RunningEpisodes, jax.Array], tuple[RunningEpisodes, Any]]:
    """Return a jitted function that plays a chunk of n steps of an episode.

    Args:
        policy: Policy that defines the algorithm and the environment.
        greedy: Whether the policy takes its most likely action instead of sampling.

    Returns:
        A function `(algorithm state, episodes, keys [n]) -> (episodes, steps [n, ...])`. `episodes`
        is a `RunningEpisodes` with one episode. `steps` is a tuple of the states to render, the
        episodes after each step, the actions, the rewards, and whether the episode was still
        running before each step.
    """
    environment = policy.environment

    def step(state: State, running: RunningEpisodes, key: jax.Array) -> tuple[RunningEpisodes, Any]:
        old_running, keys = running, key[None]
        running, (experience, transition) = play_step(
            environment, make_policy(policy.algorithm, state, greedy), old_running, keys
        )
        env_key = jax.random.split(key)[1]  # the same split as in `step_episodes`

        def select_first(values):
            return jax.tree.map(lambda x: x[0], values)

        transition_to_show = select_first(
            (old_running.actor.env_state, experience.action, transition.state)
        )
        shown_state = state_to_render(environment, env_key, *transition_to_show)
        return running, (
            shown_state,
            *select_first((running, experience.action, experience.reward, old_running.alive)),
        )

    def play_chunk(state, running, keys):
        return jax.lax.scan(lambda p, key: step(state, p, key), running, keys)

    return jax.jit(play_chunk)


def make_episode_initializer(policy: Policy) -> Callable[[jax.Array, Any], RunningEpisodes]:
    """Return a jitted function `(key, recurrent state) -> episodes` that starts an episode."""
    return jax.jit(lambda key, memory: init_episodes(policy.environment, key[None], memory))


def init_episode(
    policy: Policy,
    key: jax.Array,
    init_fn: Callable[[jax.Array, PyTree], RunningEpisodes] | None = None,
) -> RunningEpisodes:
    """Return an episode in its initial state.

    Args:
        policy: Policy that plays the episode.
        key: Random key of the initial state.
        init_fn: Jitted function from `make_episode_initializer`. None creates it.
    """
    memory = jax.tree.map(lambda x: jnp.asarray(x)[None], policy.initial_carry())
    return (init_fn or make_episode_initializer(policy))(key, memory)


def record_episode(
    policy: Policy,
    run_chunk_fn: Callable[..., PyTree],
    key: jax.Array,
    max_frames: int,
    init_fn: Callable[[jax.Array, PyTree], RunningEpisodes] | None = None,
) -> RecordedEpisode:
    """Record one episode until it ends or reaches the time limit of evaluations.

    Args:
        policy: Policy that plays the episode.
        run_chunk_fn: Jitted function from `make_episode_runner`.
        key: Random key of the episode.
        max_frames: Maximum number of frames.
        init_fn: Jitted function from `make_episode_initializer`. None creates it.

    Returns:
        The recorded episode. Its last frame is the last step of the episode.
    """
    reset_key, run_key = jax.random.split(key)
    return record_from_start(
        policy, run_chunk_fn, init_episode(policy, reset_key, init_fn), run_key, max_frames
    )


def record_from_start(
    policy: Policy,
    run_chunk_fn: Callable[..., PyTree],
    running: RunningEpisodes,
    run_key: jax.Array,
    max_frames: int,
) -> RecordedEpisode:
    """Record one episode from a given initial state (see `record_episode`).

    Args:
        policy: Policy that plays the episode.
        run_chunk_fn: Jitted function from `make_episode_runner`.
        running: Episode in its initial state, from `init_episode`.
        run_key: Random key of the steps.
        max_frames: Maximum number of frames.

    Returns:
        The recorded episode. Its last frame is the last step of the episode.
    """
    limit = max_eval_steps(policy.environment, policy.spec)
    zero = np.zeros(() if policy.environment.num_agents is None else policy.environment.num_agents)
    env_state, obs = jax.tree.map(
        lambda x: x[0], jax.device_get((running.actor.env_state, running.actor.obs))
    )
    last = Frame(0, env_state, obs, None, zero, zero, "")
    frames, stride = [last], 1
    for first in range(0, limit, STEPS_PER_CALL):
        keys = jax.vmap(jax.random.fold_in, (None, 0))(run_key, first + jnp.arange(STEPS_PER_CALL))
        running, steps = run_chunk_fn(policy.state, running, keys)
        new_frames = _chunk_frames(jax.device_get(steps), first, limit, last.total)
        last = new_frames[-1]
        frames, stride = thin_frames(frames, new_frames, stride, max_frames)
        if last.end:
            break
    return RecordedEpisode(frames if frames[-1] is last else [*frames, last], stride)


def _chunk_frames(steps: PyTree, first: int, limit: int, total: np.ndarray) -> list[Frame]:
    """Return the frames of one chunk up to the end of the episode.

    `first` is the number of steps before the chunk, and `total` is the return before the chunk.
    """
    shown_states, running, action, reward, alive = steps
    count = min(int(np.sum(alive)), limit - first)
    totals = total + np.cumsum(reward, axis=0)

    def select_step(values, step):
        return jax.tree.map(lambda x: x[step], values)

    return [
        Frame(
            first + step + 1,
            select_step(shown_states, step),
            select_step(running.actor.obs, step),
            select_step(jax.tree.map(np.asarray, action), step),
            reward[step],
            totals[step],
            "terminated"
            if running.terminated[step]
            else "truncated"
            if running.truncated[step]
            else "",
        )
        for step in range(count)
    ]
