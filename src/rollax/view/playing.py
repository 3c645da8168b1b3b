"""Episodes that are played to be shown: every state that a picture needs, with action, reward and return."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.acting.evaluate import Playing, begin_episodes, policy_of
from rollax.acting.evaluate import play as play_step
from rollax.environments.core import is_on_host
from rollax.environments.view_base import shown_state
from rollax.host import keys
from rollax.host.api import Policy
from rollax.host.program import eval_steps
from rollax.view import hosted
from rollax.view.frames import Frame, Play, thinned

CHUNK = 64  # steps in one call of the device


def play_keys(seed: int, episodes: int) -> jax.Array:
    """A key of each episode; they share no random numbers with a run of that seed."""
    return jax.random.split(keys.of_render(jax.random.key(seed)), episodes)


def play_all(policies: Sequence[Policy], seed: int, episodes: int, greedy: bool, max_frames: int) -> list[list[Play]]:
    """Several episodes of each policy, each of no more than `max_frames` frames. All policies play from the same starts.

    The policies are those of one run, so that one program plays them all.
    """
    if is_on_host(policies[0].environment):
        return hosted.play_all(policies, play_keys(seed, episodes), greedy, max_frames)
    run, begin = player(policies[0], greedy), beginner(policies[0])
    same = [dataclasses.replace(policies[0], state=policy.state) for policy in policies]
    return [[play(policy, run, key, max_frames, begin) for key in play_keys(seed, episodes)] for policy in same]


def player(policy: Policy, greedy: bool) -> Callable[[Any, Playing, jax.Array], tuple[Playing, Any]]:
    """`(algorithm's state, playing, keys [n]) -> (playing, steps [n, ...])`, compiled: n steps, none after the end.

    A step is the state to show, the episode after it, the action, the reward, and whether the episode still went on.
    """
    environment = policy.environment

    def step(state: Any, playing: Playing, key: jax.Array) -> tuple[Playing, Any]:
        before, keys = playing, key[None]
        playing, (experience, after) = play_step(environment, policy_of(policy.algorithm, state, greedy), before, keys)
        env_key = jax.random.split(key)[1]  # as the step splits it
        first = lambda values: jax.tree.map(lambda x: x[0], values)  # noqa: E731
        seen = first((before.actor.env_state, experience.action, after.state))
        shown = shown_state(environment, env_key, *seen)
        return playing, (shown, *first((playing, experience.action, experience.reward, before.alive)))

    with_keys = lambda state, playing, keys: jax.lax.scan(lambda p, key: step(state, p, key), playing, keys)  # noqa: E731
    return jax.jit(with_keys)


def beginner(policy: Policy) -> Callable[[jax.Array, Any], Playing]:
    """`(key, memory) -> playing`, compiled: the beginning of an episode."""
    return jax.jit(lambda key, memory: begin_episodes(policy.environment, key[None], memory))


def start(policy: Policy, key: jax.Array, begin: Callable[[jax.Array, Any], Playing] | None = None) -> Playing:
    """The beginning of an episode."""
    memory = jax.tree.map(lambda x: jnp.asarray(x)[None], policy.initial_carry())
    return (begin or beginner(policy))(key, memory)


def play(
    policy: Policy,
    run: Callable[..., Any],
    key: jax.Array,
    max_frames: int,
    begin: Callable[[jax.Array, Any], Playing] | None = None,
) -> Play:
    """One episode to its end, or to the most steps that an evaluation would take."""
    reset_key, run_key = jax.random.split(key)
    return play_from(policy, run, start(policy, reset_key, begin), run_key, max_frames)


def play_from(policy: Policy, run: Callable[..., Any], playing: Playing, run_key: jax.Array, max_frames: int) -> Play:
    """One episode from its beginning, as for `play`."""
    limit = eval_steps(policy.environment, policy.spec)
    zero = np.zeros(() if policy.environment.num_agents is None else policy.environment.num_agents)
    env_state, obs = jax.tree.map(lambda x: x[0], jax.device_get((playing.actor.env_state, playing.actor.obs)))
    last = Frame(0, env_state, obs, None, zero, zero, "")
    frames, stride = [last], 1
    for first in range(0, limit, CHUNK):
        keys = jax.vmap(jax.random.fold_in, (None, 0))(run_key, first + jnp.arange(CHUNK))
        playing, steps = run(policy.state, playing, keys)
        new = _frames(jax.device_get(steps), first, limit, last.total)
        last = new[-1]
        frames, stride = thinned(frames, new, stride, max_frames)
        if last.end:
            break
    return Play(frames if frames[-1] is last else [*frames, last], stride)


def _frames(steps: Any, first: int, limit: int, total: np.ndarray) -> list[Frame]:
    """The frames of one chunk, those after the end left out. `first`: steps before it; `total`: return before it."""
    shown, playing, action, reward, alive = steps
    count = min(int(np.sum(alive)), limit - first)
    totals = total + np.cumsum(reward, axis=0)
    at = lambda values, i: jax.tree.map(lambda x: x[i], values)  # noqa: E731
    return [
        Frame(
            first + i + 1,
            at(shown, i),
            at(playing.actor.obs, i),
            np.asarray(action[i]),
            reward[i],
            totals[i],
            "terminated" if playing.terminated[i] else "truncated" if playing.truncated[i] else "",
        )
        for i in range(count)
    ]
