"""Scorers: fitness and descriptors of a batch of solutions, by a closed form or by whole episodes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax.acting.evaluate import episodes, info_shapes
from rollax.acting.exploration import denormalize_action
from rollax.acting.streams import Experience
from rollax.environments.core import Environment, descriptor_space
from rollax.errors import UnknownNameError, UsageError
from rollax.networks.solutions import Constant, has_closed_form
from rollax.replay.ring import Step
from rollax.spaces import Box


class Score(NamedTuple):
    """What a scorer says of solutions, `[B, ...]`."""

    fitness: jax.Array  # float32 [B]
    descriptor: jax.Array  # float32 [B, K]
    extras: Any = ()  # of each solution, which the archive keeps
    experience: Any = ()  # (Step [T, B], bool [T, B]: which rows there are): what the policies experienced; () if not recorded


Scorer = Callable[[Any, jax.Array], Score]  # (solutions [B], key) -> what they are like


class Watched(NamedTuple):
    """What a scorer says besides fitness and descriptor: one of these, or nothing."""

    records: bool = False  # all that the policies experienced
    objectives: tuple[str, ...] = ()  # as extras [B, M]: the sums over the episode of these numbers of the environment's `info`
    num_frames: int = 0  # as extras [B, num_frames * D]: that many observations at equal distances, up to the last


NOTHING = Watched()


def scorer(environment: Environment, num_episodes: int, max_steps: int, watched: Watched = NOTHING) -> Scorer:
    """The scorer of an environment: its closed form if it has one, else the mean over `num_episodes` of each solution.

    Raises UsageError when the environment describes no behavior, or has not what is to be watched.
    """
    if descriptor_space(environment) is None:
        raise UsageError(
            f"{environment.name} does not describe behavior, which an archive is arranged by: give it descriptor(state), "
            "descriptor_space and descriptor_extraction (docs/environments.md, Descriptors), or use another, such as "
            "control/point-maze or task/arm"
        )
    check_watched(environment, watched)
    if has_closed_form(environment):
        return closed_form(environment, watched.objectives)
    return played(environment, num_episodes, max_steps, watched)


def check_watched(environment: Environment, watched: Watched) -> None:
    """Raises UsageError when the environment has not what is to be watched."""
    if watched.objectives:
        known = [name for name, number in info_shapes(environment).items() if number.shape == ()]
        if not known:
            raise UsageError(
                f"{environment.name} has no numbers in its info that could be objectives: use another environment, such as "
                "task/rastrigin-multi or one of brax"
            )
        for name in watched.objectives:
            if name not in known:
                raise UnknownNameError(f"objective in the info of {environment.name}", name, known)
    space = environment.observation_space
    if watched.num_frames and (has_closed_form(environment) or not isinstance(space, Box)):
        raise UsageError(
            f"{environment.name} has no observations of numbers to learn descriptors from (it has {space}): use another, such "
            "as control/point-maze"
        )


def closed_form(environment: Any, objectives: tuple[str, ...] = ()) -> Scorer:
    """The scorer of a `ScoredEnvironment`, whose solutions are `Constant`. `objectives`: as for `Watched`."""

    def score(solutions: Constant, key: jax.Array) -> Score:
        values = jax.vmap(environment.score)(solutions.action)
        if not objectives:
            return Score(*values)
        keys = jax.random.split(key)
        step = lambda action: environment.step(keys[0], environment.reset(keys[1])[0], action).info  # noqa: E731
        info = jax.vmap(step)(solutions.action)
        extras = jnp.stack([info[name].astype(jnp.float32) for name in objectives], axis=-1)
        return Score(values[0], values[1], extras)

    return score


def played(environment: Environment, num_episodes: int, max_steps: int, watched: Watched = NOTHING) -> Scorer:
    """The scorer that plays every solution for whole episodes, all of them side by side."""
    record = experienced if watched.records else seen if watched.num_frames else None
    play_all = episodes(environment, max_steps, record=record)

    def policy(solution: Any, obs: Any, reset: jax.Array, key: jax.Array) -> tuple[Any, Any, Any]:
        action = solution(obs)
        return solution, denormalize_action(environment.action_space, action), action

    def score(solutions: Any, key: jax.Array) -> Score:
        number = jax.tree.leaves(solutions)[0].shape[0]
        each = jax.tree.map(lambda x: jnp.repeat(x, num_episodes, axis=0), solutions)
        result, rows = play_all(policy, each, number * num_episodes, key)
        mean = lambda x: x.reshape(number, num_episodes, *x.shape[1:]).mean(axis=1)  # noqa: E731
        extras: Any = ()
        if watched.objectives:
            extras = mean(jnp.stack([result.info[name] for name in watched.objectives], axis=-1))
        elif watched.num_frames:
            extras = mean(frames(rows, result.length, watched.num_frames))
        means = mean(result.returns), mean(result.descriptor), extras
        if not watched.records:
            return Score(*means)
        is_step = jnp.arange(max_steps)[:, None] < result.length[None]
        # [T, B E] as [E T, B]: the episodes of a solution one after the other.
        apart = jax.tree.map(lambda x: x.reshape(max_steps, number, num_episodes, *x.shape[2:]), (rows, is_step))
        joined = jax.tree.map(lambda x: jnp.moveaxis(x, 2, 0).reshape(-1, number, *x.shape[3:]), apart)
        return Score(*means, joined)

    return score


def seen(experience: Experience) -> jax.Array:
    """Observations of numbers as rows `[N, D]`."""
    return experience.obs.reshape(experience.obs.shape[0], -1).astype(jnp.float32)


def frames(rows: jax.Array, length: jax.Array, num_frames: int) -> jax.Array:
    """Of rows `[T, N, D]`, `num_frames` of each episode at equal distances, up to the last, `[N, num_frames * D]`."""
    share = jnp.arange(1, num_frames + 1) / num_frames
    time = jnp.round(share[:, None] * jnp.maximum(length - 1, 0)[None]).astype(jnp.int32)
    picked = jnp.take_along_axis(rows, time[:, :, None], axis=0)
    return jnp.moveaxis(picked, 0, 1).reshape(length.shape[0], -1)


def experienced(experience: Experience) -> Step:
    """What learners keep of a step; policies in archives have no memory."""
    ends = experience.terminated, experience.truncated
    return Step(experience.obs, experience.extras, experience.reward, *ends, experience.next_obs, experience.reset, ())


def choose(environment: Environment, solution: Any, obs: Any) -> Any:
    """The action of a solution in the environment's units."""
    action = solution(obs)
    return action if isinstance(solution, Constant) else denormalize_action(environment.action_space, action)


def gradients(environment: Any) -> Callable[[Constant], Constant]:
    """From a solution of a `ScoredEnvironment` to the gradients of its fitness and of each descriptor, `[1 + K, ...]`.

    Raises UsageError for an environment without a closed form.
    """
    if not has_closed_form(environment) or getattr(environment, "is_outside", False):
        raise UsageError(
            f"{environment.name} has no closed form to take gradients of: use cma_me, cma_mae, map_elites or pga_me, or a task "
            "such as task/sphere"
        )

    def of_solution(solution: Constant) -> Constant:
        both = lambda solution: jnp.concatenate([jnp.atleast_1d(x) for x in environment.score(solution.action)])  # noqa: E731
        return jax.jacrev(both)(solution)

    return of_solution
