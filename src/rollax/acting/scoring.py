"""Scoring of solutions by a score function (`task/...`) or by complete episodes of a policy."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax import tree
from rollax.acting.episode_metrics import info_shapes
from rollax.acting.evaluation import make_episode_runner, split_episode_keys
from rollax.acting.exploration import denormalize_action
from rollax.acting.streams import Experience
from rollax.environments.capabilities import capabilities, has_closed_form, has_descriptors
from rollax.environments.environment import ClosedFormEnvironment, Environment
from rollax.errors import UnknownNameError, UsageError
from rollax.networks.solutions import ConstantSolution
from rollax.replay.ring import ReplayStep
from rollax.spaces import Box
from rollax.types import Observation, Solution


class Score(NamedTuple):
    """Fitness, descriptor and optional extras of a batch of B solutions.

    Attributes:
        fitness: Fitness, float32 `[B]`.
        descriptor: Descriptors, float32 `[B, K]`.
        extras: Additional values that the archive stores with each solution, `[B, ...]`: objectives
            or recorded observations (`ScoringOptions`), or `()`.
        experience: Tuple of a `ReplayStep` with the transitions of the policies, `[T, B, ...]`, and
            a mask of the valid transitions, bool `[T, B]`. `()` if transitions are not recorded.
    """

    fitness: jax.Array
    descriptor: jax.Array
    extras: Any = ()
    experience: Any = ()


Scorer = Callable[[Any, jax.Array], Score]  # (solutions [B], key) -> scores


class ScoringOptions(NamedTuple):
    """Options for the additional output of a scorer. At most one option is set.

    Attributes:
        records: Whether to record the transitions of the policies as `Score.experience`.
        objectives: Names of M scalar entries of the environment's `info`. Their sums over the
            episode become the extras `[B, M]`.
        num_frames: Number of evenly spaced observations of each episode, including the last one.
            Concatenated, they become the extras `[B, num_frames * D]`. 0 records no observations.
    """

    records: bool = False
    objectives: tuple[str, ...] = ()
    num_frames: int = 0


DEFAULT_OPTIONS = ScoringOptions()


def make_scorer(
    environment: Environment,
    num_episodes: int,
    max_steps: int,
    options: ScoringOptions = DEFAULT_OPTIONS,
    agent_type: str = "",
) -> Scorer:
    """Build the scorer of an environment.

    Solutions of a `ClosedFormEnvironment` (`task/...`) are scored by its score function. All other
    solutions are policies, which are scored by complete episodes.

    Args:
        environment: Environment with state descriptors.
        num_episodes: Number of episodes per solution.
        max_steps: Maximum number of steps of an episode.
        options: Options for the additional output.
        agent_type: Type of the agents whose return is the fitness, as in `make_episode_scorer`.

    Returns:
        The scorer. Scores from episodes are means over the episodes of a solution.

    Raises:
        UsageError: If the environment has no state descriptors, cannot provide the additional
            output, or has several agent types and `agent_type` is empty.
        UnknownNameError: If the environment does not have an objective or the agent type.
    """
    if not has_descriptors(environment):
        raise UsageError(
            f"{environment.name} must describe behavior, because archives are organized by "
            "descriptors. Add descriptor(state), descriptor_space and descriptor_extraction to the "
            "environment (docs/environments.md, Descriptors), or use another one such as "
            "control/point-maze or task/arm."
        )
    check_options(environment, options)
    if has_closed_form(environment):
        return make_closed_form_scorer(environment, options.objectives)
    return make_episode_scorer(environment, num_episodes, max_steps, options, agent_type)


def check_options(environment: Environment, options: ScoringOptions) -> None:
    """Check that an environment can provide the additional output that the options request.

    Raises:
        UsageError: If objectives are requested and the `info` has no scalars, or if frames are
            requested and the environment has no episodes or no observations in a `Box`.
        UnknownNameError: If an objective is not a scalar entry of the `info`.
    """
    if options.objectives:
        known = [name for name, number in info_shapes(environment).items() if number.shape == ()]
        if not known:
            raise UsageError(
                f"{environment.name} must have numbers in its info to use as objectives. Use "
                "another environment, such as task/rastrigin-multi or one of brax."
            )
        for name in options.objectives:
            if name not in known:
                raise UnknownNameError(f"objective in the info of {environment.name}", name, known)
    space = environment.observation_space
    if options.num_frames and (has_closed_form(environment) or not isinstance(space, Box)):
        raise UsageError(
            f"{environment.name} must have observations in a Box to learn descriptors from, got "
            f"{space}. Use another environment, such as control/point-maze."
        )


def make_closed_form_scorer(
    environment: ClosedFormEnvironment, objectives: tuple[str, ...] = ()
) -> Scorer:
    """Build the scorer of a `ClosedFormEnvironment`, whose solutions are `ConstantSolution`s.

    Args:
        environment: Environment with a score function.
        objectives: Names of entries of `info` to return as extras, as in `ScoringOptions`.

    Returns:
        The scorer.
    """

    def score(solutions: ConstantSolution, key: jax.Array) -> Score:
        values = jax.vmap(environment.score)(solutions.action)
        if not objectives:
            return Score(*values)
        keys = jax.random.split(key)

        def step(action):
            return environment.step(keys[0], environment.reset(keys[1])[0], action).info

        info = jax.vmap(step)(solutions.action)
        extras = jnp.stack([info[name].astype(jnp.float32) for name in objectives], axis=-1)
        return Score(values[0], values[1], extras)

    return score


def make_episode_scorer(
    environment: Environment,
    num_episodes: int,
    max_steps: int,
    options: ScoringOptions = DEFAULT_OPTIONS,
    agent_type: str = "",
) -> Scorer:
    """Build a scorer that plays complete episodes of all solutions in parallel.

    In multi-agent environments, all agents use the same solution as their policy.

    Args:
        environment: Environment with state descriptors.
        num_episodes: Number of episodes per solution.
        max_steps: Maximum number of steps of an episode.
        options: Options for the additional output.
        agent_type: Type of the agents to score. Their mean return is the fitness, and only their
            transitions are recorded. "" selects all agents and is valid only with a single type.

    Returns:
        The scorer.

    Raises:
        UsageError: If the environment has several agent types and `agent_type` is empty, or if it
            has no agent types and `agent_type` is not empty.
        UnknownNameError: If the environment does not have the agent type.
    """
    record = (
        make_replay_step
        if options.records
        else flatten_next_observations
        if options.num_frames
        else None
    )
    play_all = make_episode_runner(
        environment, max_steps, record=record, info=dict.fromkeys(options.objectives, "sum")
    )
    scoring = find_scoring_agents(environment, agent_type)

    def policy(
        solution: Solution, obs: Observation, reset: jax.Array, key: jax.Array
    ) -> tuple[Any, Any, Any]:
        return solution, *compute_actions(environment, solution, obs)

    def score(solutions: Solution, key: jax.Array) -> Score:
        number = jax.tree.leaves(solutions)[0].shape[0]
        each = jax.tree.map(lambda x: jnp.repeat(x, num_episodes, axis=0), solutions)
        # Each device runs its own loop, so that devices do not synchronize at every step.
        play = tree.shard_map_over_devices(functools.partial(play_all, policy), (0, (0, 0)), (0, 1))
        result, rows = play(each, split_episode_keys(key, number * num_episodes))

        def mean(x):
            return x.reshape(number, num_episodes, *x.shape[1:]).mean(axis=1)

        extras: Any = ()
        if options.objectives:
            extras = mean(jnp.stack([result.info[name] for name in options.objectives], axis=-1))
        elif options.num_frames:
            extras = mean(select_frames(rows, result.length, options.num_frames))
        returns = result.returns if scoring is None else result.returns[:, scoring].mean(axis=-1)
        return Score(
            fitness=mean(returns),
            descriptor=mean(result.descriptor),
            extras=extras,
            experience=(
                join_transitions(rows, result.length, scoring, number) if options.records else ()
            ),
        )

    return score


def join_transitions(
    rows: tuple[ReplayStep, jax.Array],
    length: jax.Array,
    scoring: np.ndarray | None,
    num_solutions: int,
) -> tuple[ReplayStep, jax.Array]:
    """Return the transitions of all episodes and agents of each solution in sequence.

    Args:
        rows: Recorded steps of N episodes and masks of active agents, `[T, N, ...]`, as returned by
            `make_replay_step` for each step. N is the number of solutions B times their episodes.
        length: Number of steps of each episode, int32 `[N]`.
        scoring: Indices of the M agents to score, or None without an agent axis.
        num_solutions: Number of solutions B.

    Returns:
        The transitions `[N / B * M * T, B, ...]`, and a mask of the valid ones, bool.
    """
    steps, is_active = rows
    num_steps = is_active.shape[0]
    is_running = jnp.arange(num_steps)[:, None] < length[None]
    if scoring is not None:
        steps, is_active = jax.tree.map(lambda x: x[:, :, scoring], (steps, is_active))
        is_running = is_running[:, :, None]
    is_step = is_active & is_running

    def join(x: jax.Array) -> jax.Array:
        # Reshape [T, N, M] to [T, B, N / B * M], and then to [N / B * M * T, B].
        by_solution = x.reshape(num_steps, num_solutions, -1, *x.shape[is_step.ndim :])
        return jnp.moveaxis(by_solution, 2, 0).reshape(-1, num_solutions, *by_solution.shape[3:])

    return jax.tree.map(join, (steps, is_step))


def find_scoring_agents(environment: Environment, agent_type: str) -> np.ndarray | None:
    """Return the indices of the agents of a type, int `[M]`.

    Args:
        environment: Single-agent or multi-agent environment.
        agent_type: Agent type. "" selects all agents and is valid only with a single type.

    Returns:
        The indices, or None if the environment has no agent types.

    Raises:
        UsageError: If the environment has several agent types and `agent_type` is empty, or if it
            has no agent types and `agent_type` is not empty.
        UnknownNameError: If the environment does not have the agent type.
    """
    types = capabilities(environment).agent_types
    known = list(dict.fromkeys(types))
    if agent_type and agent_type not in known:
        if not known:
            raise UsageError(
                f"config.agent_type ({agent_type!r}) must be empty, because {environment.name} has "
                "no agents. Remove it."
            )
        raise UnknownNameError(f"type of agents in {environment.name}", agent_type, known)
    if not agent_type and len(known) > 1:
        raise UsageError(
            "config.agent_type must name the agents whose return is the fitness, because "
            f"{environment.name} has several agent types. Set it to one of {', '.join(known)} "
            f"(--config.agent-type {known[0]})."
        )
    return (
        np.flatnonzero([not agent_type or name == agent_type for name in types]) if types else None
    )


def compute_actions(
    environment: Environment, solution: Solution, obs: Observation
) -> tuple[Any, Any]:
    """Compute the action of a policy.

    Args:
        environment: Environment with the action space.
        solution: Policy from an observation to an action, which all agents share.
        obs: Observation, with a leading agent axis in multi-agent environments.

    Returns:
        The action scaled to the bounds of the action space, and the action that the policy returned
        (normalized for a `Box` or a `Ball`). They have a leading agent axis if `obs` has one.
    """

    def one(obs: Observation) -> tuple[Any, Any]:
        action = solution(obs)
        return denormalize_action(environment.action_space, action), action

    return one(obs) if environment.num_agents is None else jax.vmap(one)(obs)


def flatten_next_observations(experience: Experience) -> jax.Array:
    """Return the observations of N environments after a step as float vectors, `[N, D]`."""
    return experience.next_obs.reshape(experience.next_obs.shape[0], -1).astype(jnp.float32)


def select_frames(rows: jax.Array, length: jax.Array, num_frames: int) -> jax.Array:
    """Return `num_frames` evenly spaced observations of each episode, including the last one.

    For an episode of T steps and F frames, frame i = 1 ... F is the observation after step
    `i * T / F`, rounded half up and at least 1. Episodes shorter than F steps therefore repeat
    observations: T = 2 and F = 5 gives steps 1, 1, 1, 2, 2.

    Args:
        rows: Observations after each step, `[max_steps, N, D]`. Observations after the end of an
            episode are ignored.
        length: Number of steps of each episode, int32 `[N]`.
        num_frames: Number of observations to select.

    Returns:
        The selected observations of each episode, concatenated: `[N, num_frames * D]`.
    """
    index = jnp.arange(1, num_frames + 1)[:, None]
    step = jnp.maximum((2 * index * length[None] + num_frames) // (2 * num_frames), 1)
    selected = jnp.take_along_axis(rows, step[:, :, None] - 1, axis=0)
    return jnp.moveaxis(selected, 0, 1).reshape(length.shape[0], -1)


def make_replay_step(experience: Experience) -> tuple[ReplayStep, jax.Array]:
    """Convert the experience of a step to a replay step without memory.

    Returns:
        The replay step, and a mask of the agents that were active before the step, bool. The carry
        of the step is `()`, because policies in archives have no memory.
    """
    step = ReplayStep(
        obs=experience.obs,
        action=experience.extras,
        reward=experience.reward,
        terminated=experience.terminated,
        truncated=experience.truncated,
        next_obs=experience.next_obs,
        reset=experience.reset,
        carry=(),
    )
    if experience.mask is None:
        return step, jnp.ones_like(experience.terminated)
    return step, experience.mask


def solution_action(environment: Environment, solution: Solution, obs: Observation) -> Any:
    """Return the action of a solution, scaled to the bounds of the action space.

    Args:
        environment: Environment with the action space.
        solution: Policy, or a `ConstantSolution`, whose action does not depend on `obs`.
        obs: Observation, with a leading agent axis in multi-agent environments.
    """
    return (
        solution(obs)
        if isinstance(solution, ConstantSolution)
        else compute_actions(environment, solution, obs)[0]
    )


def make_gradient_fn(environment: Environment) -> Callable[[ConstantSolution], ConstantSolution]:
    """Build a function that computes the gradients of the fitness and K descriptors of a solution.

    Args:
        environment: A `ClosedFormEnvironment`.

    Returns:
        Function from a solution to a pytree of gradients with leaves `[1 + K, ...]`: first the
        gradient of the fitness, then those of the descriptors.

    Raises:
        UsageError: If the environment has no differentiable score function.
    """
    if not has_closed_form(environment) or capabilities(environment).has_external_scores:
        raise UsageError(
            f"{environment.name} must have a closed form to compute gradients. Use cma_me, "
            "cma_mae, map_elites or pga_me, or a task such as task/sphere."
        )

    def of_solution(solution: ConstantSolution) -> ConstantSolution:
        def both(solution):
            return jnp.concatenate([jnp.atleast_1d(x) for x in environment.score(solution.action)])

        return jax.jacrev(both)(solution)

    return of_solution
