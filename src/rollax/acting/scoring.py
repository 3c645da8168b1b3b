"""Scorers: fitness and descriptors of a batch of solutions, by a closed form or by whole episodes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax.acting.evaluate import episodes
from rollax.acting.exploration import denormalize_action
from rollax.acting.streams import Experience
from rollax.environments.core import Environment, descriptor_space
from rollax.errors import UsageError
from rollax.networks.solutions import Constant, has_closed_form
from rollax.replay.ring import Step


class Score(NamedTuple):
    """What a scorer says of solutions, `[B, ...]`."""

    fitness: jax.Array  # float32 [B]
    descriptor: jax.Array  # float32 [B, K]
    extras: Any = ()  # of each solution, which the archive keeps
    experience: Any = ()  # (Step [T, B], bool [T, B]: which rows there are): what the policies experienced; () if not recorded


Scorer = Callable[[Any, jax.Array], Score]  # (solutions [B], key) -> what they are like


def scorer(environment: Environment, num_episodes: int, max_steps: int, records: bool = False) -> Scorer:
    """The scorer of an environment: its closed form if it has one, else the mean over `num_episodes` of each solution.

    `records`: what the policies experience is kept.

    Raises UsageError when the environment describes no behavior.
    """
    if descriptor_space(environment) is None:
        raise UsageError(
            f"{environment.name} does not describe behavior, which an archive is arranged by: give it descriptor(state), "
            "descriptor_space and descriptor_extraction (docs/environments.md, Descriptors), or use another, such as "
            "control/point-maze or task/arm"
        )
    if has_closed_form(environment):
        return closed_form(environment)
    return played(environment, num_episodes, max_steps, records)


def closed_form(environment: Any) -> Scorer:
    """The scorer of a `ScoredEnvironment`, whose solutions are `Constant`."""

    def score(solutions: Constant, key: jax.Array) -> Score:
        return Score(*jax.vmap(environment.score)(solutions.action))

    return score


def played(environment: Environment, num_episodes: int, max_steps: int, records: bool = False) -> Scorer:
    """The scorer that plays every solution for whole episodes, all of them side by side. `records`: as for `scorer`."""
    play_all = episodes(environment, max_steps, record=experienced if records else None)

    def policy(solution: Any, obs: Any, reset: jax.Array, key: jax.Array) -> tuple[Any, Any, Any]:
        action = solution(obs)
        return solution, denormalize_action(environment.action_space, action), action

    def score(solutions: Any, key: jax.Array) -> Score:
        number = jax.tree.leaves(solutions)[0].shape[0]
        each = jax.tree.map(lambda x: jnp.repeat(x, num_episodes, axis=0), solutions)
        result, rows = play_all(policy, each, number * num_episodes, key)
        means = [x.reshape(number, num_episodes, *x.shape[1:]).mean(axis=1) for x in (result.returns, result.descriptor)]
        if not records:
            return Score(*means)
        is_step = jnp.arange(max_steps)[:, None] < result.length[None]
        # [T, B E] as [E T, B]: the episodes of a solution one after the other.
        apart = jax.tree.map(lambda x: x.reshape(max_steps, number, num_episodes, *x.shape[2:]), (rows, is_step))
        joined = jax.tree.map(lambda x: jnp.moveaxis(x, 2, 0).reshape(-1, number, *x.shape[3:]), apart)
        return Score(*means, experience=joined)

    return score


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
