"""Scorers: fitness and descriptors of a batch of solutions, by a closed form or by whole episodes."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax import tree
from rollax.acting.evaluate import episode_keys, episodes
from rollax.acting.exploration import denormalize_action
from rollax.acting.info import info_shapes
from rollax.acting.streams import Experience
from rollax.environments.core import Environment, agent_types, descriptor_space
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


def scorer(
    environment: Environment, num_episodes: int, max_steps: int, watched: Watched = NOTHING, agent_type: str = ""
) -> Scorer:
    """The scorer of an environment: its closed form if it has one, else the mean over `num_episodes` of each solution.

    `agent_type`: as for `played`. Raises UsageError when the environment describes no behavior, has not what is to be watched,
    or has agents of several types and it is not said which of them score; UnknownNameError for a type that it has not.
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
    return played(environment, num_episodes, max_steps, watched, agent_type)


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


def played(
    environment: Environment, num_episodes: int, max_steps: int, watched: Watched = NOTHING, agent_type: str = ""
) -> Scorer:
    """The scorer that plays every solution for whole episodes, all of them side by side.

    With agents a solution is the policy that all of them share. Its fitness is the mean return of those of `agent_type`, of all
    where that is empty, and what is recorded is what these agents experienced.
    """
    record = experienced if watched.records else seen if watched.num_frames else None
    play_all = episodes(environment, max_steps, record=record, info=dict.fromkeys(watched.objectives, "sum"))
    scoring = scoring_agents(environment, agent_type)

    def policy(solution: Any, obs: Any, reset: jax.Array, key: jax.Array) -> tuple[Any, Any, Any]:
        return solution, *acted(environment, solution, obs)

    def score(solutions: Any, key: jax.Array) -> Score:
        number = jax.tree.leaves(solutions)[0].shape[0]
        each = jax.tree.map(lambda x: jnp.repeat(x, num_episodes, axis=0), solutions)
        # Each device plays its share until the last of its own episodes ends, without waiting for others at every step.
        play = tree.over_devices(functools.partial(play_all, policy), (0, (0, 0)), (0, 1))
        result, rows = play(each, episode_keys(key, number * num_episodes))
        mean = lambda x: x.reshape(number, num_episodes, *x.shape[1:]).mean(axis=1)  # noqa: E731
        extras: Any = ()
        if watched.objectives:
            extras = mean(jnp.stack([result.info[name] for name in watched.objectives], axis=-1))
        elif watched.num_frames:
            extras = mean(frames(rows, result.length, watched.num_frames))
        returns = result.returns if scoring is None else result.returns[:, scoring].mean(axis=-1)
        means = mean(returns), mean(result.descriptor), extras
        if not watched.records:
            return Score(*means)
        steps, acting = rows
        on = jnp.arange(max_steps)[:, None] < result.length[None]
        if scoring is not None:
            steps, acting = jax.tree.map(lambda x: x[:, :, scoring], (steps, acting))
            on = on[:, :, None]
        is_step = acting & on
        # [T, B E A] as [E A T, B]: the episodes of a solution one after the other, and in them its agents.
        apart = jax.tree.map(lambda x: x.reshape(max_steps, number, -1, *x.shape[is_step.ndim :]), (steps, is_step))
        joined = jax.tree.map(lambda x: jnp.moveaxis(x, 2, 0).reshape(-1, number, *x.shape[3:]), apart)
        return Score(*means, joined)

    return score


def scoring_agents(environment: Environment, agent_type: str) -> np.ndarray | None:
    """Which agents' returns are the fitness, int [M]; None without an axis of agents."""
    types = agent_types(environment)
    known = list(dict.fromkeys(types))
    if agent_type and agent_type not in known:
        if not known:
            raise UsageError(f"{environment.name} has no agents: leave out config.agent_type ({agent_type!r})")
        raise UnknownNameError(f"type of agents in {environment.name}", agent_type, known)
    if not agent_type and len(known) > 1:
        raise UsageError(
            f"{environment.name} has agents of several types, and an archive needs one fitness: say whose return that is by "
            f"config.agent_type, one of {', '.join(known)} (--config.agent-type {known[0]})"
        )
    return np.flatnonzero([not agent_type or name == agent_type for name in types]) if types else None


def acted(environment: Environment, solution: Any, obs: Any) -> tuple[Any, Any]:
    """The action of a policy, of all agents where there is an axis of them: in the environment's units, and as it gives it."""

    def one(obs: Any) -> tuple[Any, Any]:
        action = solution(obs)
        return denormalize_action(environment.action_space, action), action

    return one(obs) if environment.num_agents is None else jax.vmap(one)(obs)


def seen(experience: Experience) -> jax.Array:
    """Observations of numbers as rows `[N, D]`."""
    return experience.obs.reshape(experience.obs.shape[0], -1).astype(jnp.float32)


def frames(rows: jax.Array, length: jax.Array, num_frames: int) -> jax.Array:
    """Of rows `[T, N, D]`, `num_frames` of each episode at equal distances, up to the last, `[N, num_frames * D]`."""
    share = jnp.arange(1, num_frames + 1) / num_frames
    time = jnp.round(share[:, None] * jnp.maximum(length - 1, 0)[None]).astype(jnp.int32)
    picked = jnp.take_along_axis(rows, time[:, :, None], axis=0)
    return jnp.moveaxis(picked, 0, 1).reshape(length.shape[0], -1)


def experienced(experience: Experience) -> tuple[Step, jax.Array]:
    """What learners keep of a step, and who was acting; policies in archives have no memory."""
    ends = experience.terminated, experience.truncated
    step = Step(experience.obs, experience.extras, experience.reward, *ends, experience.next_obs, experience.reset, ())
    return step, jnp.ones_like(experience.terminated) if experience.mask is None else experience.mask


def choose(environment: Environment, solution: Any, obs: Any) -> Any:
    """The action of a solution in the environment's units."""
    return solution(obs) if isinstance(solution, Constant) else acted(environment, solution, obs)[0]


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
