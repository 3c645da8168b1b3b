"""Recording of episodes of a policy, or of a Python function, as demonstrations."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax.acting.evaluation import (
    init_episodes,
    make_episode_runner,
    make_policy,
    split_episode_keys,
    step_episodes,
)
from rollax.acting.streams import Experience
from rollax.algorithm import Algorithm
from rollax.environments.environment import Environment, HostEnvironment
from rollax.errors import UsageError, describe_error
from rollax.replay.demonstrations import (
    ACTIONS,
    EPISODE_LENGTHS,
    FINAL_OBSERVATIONS,
    OBSERVATIONS,
    REWARDS,
    TERMINATED,
    TRUNCATED,
    Demonstrations,
)
from rollax.spaces import describe_space, flatten_value, make_zeros, map_space
from rollax.training.simulators.episodes import make_evaluation_act_fn, plan_episodes
from rollax.training.simulators.runner import make_simulators
from rollax.types import Action, Carry, Observation, PyTree, Record, State
from rollax.user_input.coercion import format_value

ActFn = Callable[[Observation], Action]
"""Python function from an observation to an action."""
MAX_BATCH_BYTES = 2**28  # of the steps of episodes that are recorded in parallel
MAX_PARALLEL_EPISODES = 128


class EpisodeSteps(NamedTuple):
    """Steps of one or more episodes, `[T, ...]`, as NumPy arrays.

    Attributes:
        obs: Observations before the steps.
        action: Actions.
        reward: Rewards.
        terminated: Whether the step terminated the episode.
        truncated: Whether the step truncated the episode.
        next_obs: Observations after the steps.
    """

    obs: PyTree
    action: PyTree
    reward: PyTree
    terminated: PyTree
    truncated: PyTree
    next_obs: PyTree


def record_policy(
    environment: Environment,
    algorithm: Algorithm,
    state: State,
    key: jax.Array,
    num_episodes: int,
    greedy: bool,
    max_steps: int,
) -> Iterator[EpisodeSteps]:
    """Record episodes of a policy in a compiled environment.

    Args:
        environment: Environment of the episodes.
        algorithm: Algorithm whose policy acts.
        state: State of the algorithm.
        key: Random key.
        num_episodes: Number of episodes.
        greedy: Whether to take the most likely actions instead of sampling.
        max_steps: Maximum number of steps of an episode.

    Yields:
        Each episode.
    """

    def select(experience: Experience) -> EpisodeSteps:
        return EpisodeSteps(*(getattr(experience, name) for name in EpisodeSteps._fields))

    run = make_episode_runner(environment, max_steps, record=select)

    def play(state: State, keys: tuple[jax.Array, jax.Array]) -> PyTree:
        number, carry = keys[0].shape[0], algorithm.initial_carry(state)
        each = jax.tree.map(lambda x: jnp.broadcast_to(x, (number, *jnp.shape(x))), carry)
        return run(make_policy(algorithm, state, greedy), each, keys)

    keys = split_episode_keys(key, num_episodes)
    one = jax.eval_shape(play, state, jax.tree.map(lambda x: x[:1], keys))[1]
    size = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(one))
    batch = min(max(1, MAX_BATCH_BYTES // size), MAX_PARALLEL_EPISODES)
    play_batch = jax.jit(play)
    for first in range(0, num_episodes, batch):
        taken = jax.tree.map(lambda x, i=first: x[i : i + batch], keys)
        episodes, steps = jax.device_get(play_batch(state, taken))
        for index, length in enumerate(episodes.length):
            yield jax.tree.map(lambda x, i=index, n=length: x[:n, i], steps)


def record_function(
    environment: Environment, act: ActFn, key: jax.Array, num_episodes: int, max_steps: int
) -> Iterator[EpisodeSteps]:
    """Record episodes of a Python function in a compiled environment.

    Args:
        environment: Environment of the episodes.
        act: Function from an observation to an action.
        key: Random key.
        num_episodes: Number of episodes.
        max_steps: Maximum number of steps of an episode.

    Yields:
        Each episode.
    """
    agents = () if environment.num_agents is None else (environment.num_agents,)

    def repeat_action(
        carry: Carry, obs: Observation, reset: jax.Array, key: jax.Array
    ) -> tuple[Carry, Action, None]:
        return carry, carry, None  # the memory is the action that `act` returned

    def step(playing: PyTree, action: Action, key: jax.Array, time: jax.Array) -> PyTree:
        carry = jax.tree.map(lambda x: x[None], action)
        playing = playing._replace(actor=playing.actor._replace(carry=carry))
        keys = jax.random.fold_in(key, time)[None]
        playing, (experience, _) = step_episodes(environment, repeat_action, playing, keys)
        steps = EpisodeSteps(*(getattr(experience, name) for name in EpisodeSteps._fields))
        return playing, jax.tree.map(lambda x: x[0], steps), playing.alive[0]

    zeros = jax.tree.map(
        lambda x: jnp.zeros((1, *agents, *x.shape), x.dtype), make_zeros(environment.action_space)
    )
    begin = jax.jit(lambda key: init_episodes(environment, key[None], zeros))
    step_once = jax.jit(step)
    choose = functools.partial(_call_act_fn, act, environment, agents)
    for reset_key, step_key in zip(*split_episode_keys(key, num_episodes), strict=True):
        playing, steps, alive = begin(reset_key), [], True
        obs = jax.tree.map(lambda x: x[0], jax.device_get(playing.actor.obs))
        while alive and len(steps) < max_steps:
            action = choose(obs)
            playing, row, alive = jax.device_get(
                step_once(playing, action, step_key, np.int32(len(steps)))
            )
            obs = row.next_obs
            steps.append(row)
        yield jax.tree.map(lambda *x: np.stack(x), *steps)


def record_simulators(
    environment: HostEnvironment,
    actor: "PolicyActor | ActFn",
    key: jax.Array,
    num_episodes: int,
    max_steps: int,
    timeout: float,
) -> Iterator[EpisodeSteps]:
    """Record episodes in a simulator on the host.

    Args:
        environment: Host environment.
        actor: Policy, or a function from an observation to an action.
        key: Random key.
        num_episodes: Number of episodes.
        max_steps: Maximum number of steps of an episode.
        timeout: Time limit in seconds for each reset or step.

    Yields:
        Each episode.

    Raises:
        UsageError: If the environment has an agent axis.
    """
    if environment.num_agents is not None:
        raise UsageError(
            f"record must be used with one agent in simulators on the host, and {environment.name} "
            f"has {environment.num_agents}. Use a compiled environment."
        )
    plan = plan_episodes([key], num_episodes)
    with contextlib.closing(make_simulators(environment, 1, 0, timeout)) as simulators:
        for seed, episode_key in zip(plan.seeds[0], plan.keys[0], strict=True):
            steps = []
            choose = (
                actor.begin(episode_key)
                if isinstance(actor, PolicyActor)
                else functools.partial(_call_act_fn, actor, environment, ())
            )
            obs = jax.tree.map(lambda x: np.array(x[0]), simulators.reset([int(seed)]).obs)
            is_over = False
            while not is_over and len(steps) < max_steps:
                action = choose(obs)
                batch = jax.tree.map(lambda x: np.asarray(x)[None], action)
                after = simulators.step(batch, [int(seed)], np.ones(1, bool))
                row = (after.reward, after.terminated, after.truncated, after.next_obs)
                reward, terminated, truncated, next_obs = jax.tree.map(
                    lambda x: np.array(x[0]), row
                )
                steps.append(EpisodeSteps(obs, action, reward, terminated, truncated, next_obs))
                obs, is_over = next_obs, bool(terminated | truncated)
            yield jax.tree.map(lambda *x: np.stack(x), *steps)


class PolicyActor:
    """Policy of an algorithm that acts in one simulator on the host."""

    def __init__(self, algorithm: Algorithm, state: State, greedy: bool) -> None:
        """Create the actor from an algorithm and its state.

        Args:
            algorithm: Algorithm whose policy acts.
            state: State of the algorithm.
            greedy: Whether to take the most likely actions instead of sampling.
        """
        self.state = state
        self.act = make_evaluation_act_fn(algorithm, greedy, False)
        self.initial_carry = jax.tree.map(
            lambda x: np.asarray(x)[None], algorithm.initial_carry(state)
        )

    def begin(self, key: np.ndarray) -> ActFn:
        """Return a function from an observation to an action, for one episode.

        Args:
            key: Data of the random key of the episode.
        """
        carry, time = self.initial_carry, 0

        def choose(obs: Observation) -> Action:
            nonlocal carry, time
            batch = jax.tree.map(lambda x: np.asarray(x)[None], obs)
            reset, times = np.full(1, time == 0), np.full(1, time, np.int32)
            carry, action = self.act(self.state, batch, carry, reset, key[None], times)
            time += 1
            return jax.tree.map(lambda x: np.asarray(x)[0], action)

        return choose


def _call_act_fn(
    act: ActFn, environment: Environment, agents: tuple[int, ...], obs: Observation
) -> Action:
    """Call a user's function, and return its action with the dtypes of the action space.

    Raises:
        UsageError: If the function fails, or the action is not in the action space.
    """
    space = environment.action_space
    try:
        action = act(obs)
    except Exception as error:  # a user's function may raise anything
        raise UsageError(
            f"The function that acts in {environment.name} fails with {describe_error(error)}"
        ) from error

    def cast(part: Any, value: object) -> np.ndarray:
        array = np.asarray(value)
        converted = array.astype(part.dtype)
        is_inside = array.shape == (*agents, *part.shape) and np.all(
            jax.vmap(part.contains)(converted) if agents else part.contains(converted)
        )
        if not is_inside or not np.allclose(array, converted):
            raise ValueError
        return converted

    try:
        return map_space(cast, space, action)
    except (TypeError, ValueError, KeyError, IndexError):
        shape = f" for each of {agents[0]} agents" if agents else ""
        raise UsageError(
            f"The function that acts in {environment.name} must return an action of "
            f"{describe_space(space)}{shape}, got {format_value(action)}."
        ) from None


def join_episodes(
    environment: Environment, episodes: Iterator[EpisodeSteps], metadata: Record
) -> Demonstrations:
    """Join recorded episodes.

    Args:
        environment: Environment of the episodes.
        episodes: The episodes.
        metadata: Description of their origin.

    Returns:
        The demonstrations. The last step of an episode that did not end counts as truncated.
    """
    recorded = list(episodes)
    lasts = [jax.tree.map(lambda x: x[-1], episode.next_obs) for episode in recorded]
    steps: Any = jax.tree.map(lambda *x: np.concatenate(x), *recorded)
    lengths = np.array([len(episode.reward) for episode in recorded], np.int64)
    truncated, ends = np.array(steps.truncated), np.cumsum(lengths) - 1
    truncated[ends] |= ~steps.terminated[ends]
    spaces = environment.observation_space, environment.action_space
    arrays = (
        flatten_value(spaces[0], steps.obs, OBSERVATIONS)
        | flatten_value(spaces[1], steps.action, ACTIONS)
        | {
            REWARDS: steps.reward,
            TERMINATED: steps.terminated,
            TRUNCATED: truncated,
            EPISODE_LENGTHS: lengths,
        }
        | flatten_value(spaces[0], jax.tree.map(lambda *x: np.stack(x), *lasts), FINAL_OBSERVATIONS)
    )
    return Demonstrations(arrays, metadata)
