"""Evaluation over complete episodes in host simulators.

Each episode has a separate seed. A fixed set of episodes is evaluated, so short episodes are not
overrepresented.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax.acting.episode_metrics import validate_reductions
from rollax.acting.evaluation import Episodes, make_policy
from rollax.algorithm import Algorithm
from rollax.environments.environment import HostEnvironment
from rollax.training.simulators.info_tracking import InfoTracker
from rollax.training.simulators.vectorized import Simulators, SimulatorStep
from rollax.training.spec import Spec
from rollax.types import Action, Carry, MetricValues, Observation, PyTree, State

MAX_PARALLEL_SIMULATORS = 32

# (state, obs, carry, reset, keys, time) -> (carry, action), each [S, ...] or [P, S, ...].
ActFn = Callable[..., tuple[Any, Any]]


def make_evaluation_act_fn(algorithm: Algorithm, greedy: bool, has_members: bool) -> ActFn:
    """Return a jitted function that acts with the policies of a state.

    The random key of each step is derived from the episode's key and the time step, as in compiled
    evaluations.

    Args:
        algorithm: Algorithm of one member.
        greedy: Whether to take the most likely actions.
        has_members: Whether the state has a leading member axis.

    Returns:
        The function (see `ActFn`).
    """

    def one(
        state: State,
        obs: Observation,
        carry: Carry,
        reset: jax.Array,
        keys: jax.Array,
        time: jax.Array,
    ) -> tuple[Carry, Action]:
        policy = make_policy(algorithm, state, greedy)

        def act(
            carry: Carry, obs: Observation, reset: jax.Array, key: jax.Array, time: jax.Array
        ) -> tuple[Carry, Action]:
            act_key, _ = jax.random.split(jax.random.fold_in(jax.random.wrap_key_data(key), time))
            carry, action, _ = policy(carry, obs, reset, act_key)
            return carry, action

        return jax.vmap(act)(carry, obs, reset, keys, time)

    return jax.jit(jax.vmap(one) if has_members else one)


def num_parallel_episodes(num_episodes: int, num_members: int = 1) -> int:
    """Return the number of episodes per member that run in parallel."""
    return max(1, min(num_episodes, MAX_PARALLEL_SIMULATORS // num_members))


class EpisodePlan(NamedTuple):
    """Seeds and random keys of N episodes for each of P members.

    Attributes:
        seeds: Seeds of the initial states, int64 [P, N].
        keys: Key data for the actions, uint32 [P, N, ...].
    """

    seeds: np.ndarray
    keys: np.ndarray


def plan_episodes(keys: Sequence[jax.Array], num_episodes: int) -> EpisodePlan:
    """Derive the seeds and keys of all episodes. Equal keys give equal plans.

    Args:
        keys: One random key per member.
        num_episodes: Number of episodes per member.

    Returns:
        The plan.
    """
    seeds, data = [], []
    for key in keys:
        reset_key, run_key = jax.random.split(key)
        seeds.append(
            np.asarray(jax.random.bits(reset_key, (num_episodes,), jnp.uint32)).astype(np.int64)
            >> 1
        )
        data.append(np.asarray(jax.random.key_data(jax.random.split(run_key, num_episodes))))
    return EpisodePlan(np.stack(seeds), np.stack(data))


class EpisodeTracker:
    """State and results of episodes in S simulators for each of P members.

    Simulator s of each member plays the episodes s, s + S, s + 2 S, and so on.
    """

    def __init__(
        self,
        episodes: EpisodePlan,
        side_by_side: int,
        names: tuple[str, ...],
        num_agents: int | None = None,
    ) -> None:
        """Initialize the tracker at the first episode of each simulator.

        Args:
            episodes: Plan of the episodes.
            side_by_side: Number S of simulators per member.
            names: Names of the info values.
            num_agents: Number of agents A, or None without an agent axis.
        """
        agents = () if num_agents is None else (num_agents,)
        members, self.number = episodes.seeds.shape
        self.episodes, self.num_parallel = episodes, side_by_side
        self.member = np.repeat(np.arange(members), side_by_side)
        self.index = np.tile(np.arange(side_by_side), members)  # current episode of each simulator
        self.time = np.zeros(self.index.shape, np.int32)
        self.reset = np.ones((*self.index.shape, *agents), bool)
        self.total = np.zeros((*self.index.shape, *agents))
        self.running_info = InfoTracker(len(self.index), names)
        shape = members, self.number
        self.returns = np.zeros((*shape, *agents), np.float32)
        self.length = np.zeros(shape, np.int32)
        self.terminated, self.truncated = np.zeros(shape, bool), np.zeros(shape, bool)
        self.info = np.full((*shape, len(names), 3), np.nan)  # mean, sum, last
        self.num_failures = np.zeros(shape, np.int64)  # of the simulator in each episode

    @property
    def alive(self) -> np.ndarray:
        """Mask of the simulators with episodes left to play, bool [P x S]."""
        return self.index < self.number

    @property
    def num_finished(self) -> int:
        """Number of finished episodes of all members."""
        return int(np.count_nonzero(self.length))

    @property
    def num_steps(self) -> int:
        """Number of steps of all members."""
        return int(self.length.sum() + self.time.sum())

    def take_episodes(self, values: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Return the value of one episode for each simulator. Indices stop at the last episode.

        Args:
            values: Values of all episodes, [P, N, ...].
            index: Index of the episode of each simulator, [P x S].
        """
        return values[self.member, np.minimum(index, self.number - 1)]

    def make_seeds(self, index: np.ndarray) -> list[int]:
        """Return the seed of an episode for each simulator.

        An episode is repeated with its seed after the first failure of the simulator. Later
        repetitions have new seeds, because the failure may depend on the seed.

        Args:
            index: Index of the episode of each simulator, [P x S].
        """
        seeds = self.take_episodes(self.episodes.seeds, index)
        num_failures = self.take_episodes(self.num_failures, index)
        return [
            int(seed) if number < 2 else _make_new_seed(int(seed), int(number))
            for seed, number in zip(seeds, num_failures, strict=True)
        ]

    def add(self, after: SimulatorStep, max_steps: int) -> np.ndarray:
        """Record one step of all simulators.

        Args:
            after: Results of the step.
            max_steps: Maximum length of an episode.

        Returns:
            Mask of the simulators that must be reset, bool [P x S]: those with an unfinished
            episode at `max_steps`, and those that failed and repeat their episode.
        """
        alive = self.alive
        self.total[alive] += after.reward[alive]
        self.time += alive
        self.running_info.add(after.info)
        repeated = alive & after.restarted
        failed = np.flatnonzero(repeated)
        self.num_failures[self.member[failed], self.index[failed]] += 1
        over = after.ended & ~repeated
        terminated, truncated = after.terminated, after.truncated
        if after.active is not None:
            terminated = after.ended & np.all(terminated, axis=-1)
            truncated = after.ended & ~terminated
        given_up = alive & ~over & ~repeated & (self.time >= max_steps)
        done = np.flatnonzero(alive & (over | given_up))
        where = self.member[done], self.index[done]
        self.returns[where], self.length[where] = self.total[done], self.time[done]
        self.terminated[where], self.truncated[where] = terminated[done], truncated[done]
        self.info[where] = self.running_info.take(done)
        self.index[done] += self.num_parallel
        begins = over | given_up | repeated
        self.reset = after.reset.copy()
        self.reset[begins] = True
        begun = begins & alive
        self.time[begun], self.total[begun] = 0, 0.0
        self.running_info.take(np.flatnonzero(begun))  # discards repeated episodes
        return given_up | repeated


def play_episodes(
    act: ActFn,
    state: State,
    carry: Carry,
    simulators: Simulators,
    playing: EpisodeTracker,
    max_steps: int,
    reshape_fn: Callable[[np.ndarray], np.ndarray],
    check_fn: Callable[[], None],
) -> None:
    """Play all episodes and record their results in `playing`.

    Args:
        act: Function that acts with the policy (see `ActFn`).
        state: State of the policy.
        carry: Initial recurrent state of the policy, [P x S, ...].
        simulators: Simulators of all members, P x S in total.
        playing: Plan and results of the episodes.
        max_steps: Maximum number of steps in an episode.
        reshape_fn: Function that reshapes an array [P x S, ...] to the leading axes of `act`,
            [S, ...] or [P, S, ...].
        check_fn: Function that is called before each step.
    """
    episodes, width = playing.episodes, playing.num_parallel

    def reshape_all(tree):
        return jax.tree.map(reshape_fn, tree)

    def flat(leaf):
        return np.asarray(leaf).reshape(
            playing.index.size, *leaf.shape[reshape_fn(playing.index).ndim :]
        )

    obs = simulators.reset(playing.make_seeds(playing.index), playing.alive).obs
    carry = reshape_all(carry)
    while np.any(playing.alive):
        check_fn()
        keys, begins = (
            playing.take_episodes(episodes.keys, playing.index),
            reshape_all((playing.reset, playing.time)),
        )
        carry, action = act(state, reshape_all(obs), carry, begins[0], reshape_fn(keys), begins[1])
        following = playing.make_seeds(playing.index + width)
        after = simulators.step(jax.tree.map(flat, action), following, playing.alive)
        needs_reset = playing.add(after, max_steps)
        obs = after.obs
        if np.any(needs_reset):
            begun = simulators.reset(playing.make_seeds(playing.index), needs_reset).obs
            obs = _replace_rows(obs, begun, needs_reset)


def _make_new_seed(seed: int, attempt: int) -> int:
    """Return the seed of a repeated episode."""
    return int(np.random.SeedSequence((seed, attempt)).generate_state(1)[0]) >> 1


def _replace_rows(old: PyTree, new: PyTree, where: np.ndarray) -> PyTree:
    return jax.tree.map(
        lambda a, b: np.where(where.reshape(-1, *(1,) * (a.ndim - 1)), b, a), old, new
    )


def make_episodes(
    environment: HostEnvironment,
    playing: EpisodeTracker,
    choices: Mapping[str, str] | None,
    has_members: bool,
    state_metrics: MetricValues,
) -> Episodes:
    """Convert the results to `Episodes`, in the same format as compiled evaluations.

    Args:
        environment: Environment of the episodes.
        playing: Results of the episodes.
        choices: Reduction of each info value over an episode, keyed by value name. None uses the
            environment's reductions.
        has_members: Whether to keep the leading member axis.
        state_metrics: Metrics of the algorithm's state, keyed by name.

    Returns:
        The episode records.
    """
    reductions = validate_reductions(environment, choices)
    info: Any = playing.running_info.select(playing.info, reductions)
    ends = playing.terminated, playing.truncated
    fields: Any = (playing.returns, playing.length, *ends, info)
    fields = fields if has_members else jax.tree.map(lambda x: x[0], fields)
    return Episodes(*fields, state_metrics=state_metrics)


def play_planned_episodes(
    algorithm: Algorithm,
    act: ActFn,
    state: State,
    simulators: Simulators,
    playing: EpisodeTracker,
    environment: HostEnvironment,
    spec: Spec,
    has_members: bool,
    choices: Mapping[str, str] | None = None,
    check_fn: Callable[[], None] = lambda: None,
) -> Episodes:
    """Play the episodes of a plan.

    Args:
        algorithm: Algorithm of one member.
        act: Function that acts with the policies (see `ActFn`).
        state: State of `algorithm`, with a leading axis [P] if `has_members`.
        simulators: Simulators of all members.
        playing: Plan and results of the episodes.
        environment: Evaluation environment.
        spec: Specification of the run.
        has_members: Whether the state has a leading member axis.
        choices: Reduction of each info value over an episode, keyed by value name. None uses the
            reductions of the run.
        check_fn: Function that is called before each step.

    Returns:
        The episode records.
    """

    def by_member(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
        return jax.jit(jax.vmap(function)) if has_members else function

    members = by_member(algorithm.acting_state)(state)
    width = playing.num_parallel
    carry = jax.tree.map(np.asarray, by_member(algorithm.initial_carry)(members))

    def repeat_per_episode(x: np.ndarray) -> np.ndarray:
        return np.repeat(x if has_members else x[None], width, axis=0)

    def split_members(x: np.ndarray) -> np.ndarray:
        return x.reshape(-1, width, *x.shape[1:]) if has_members else x

    limit = environment.time_limit or spec.options.eval_max_steps
    carry = jax.tree.map(repeat_per_episode, carry)
    play_episodes(act, members, carry, simulators, playing, limit, split_members, check_fn)
    reductions = spec.options.info if choices is None else choices
    state_metrics = jax.device_get(by_member(algorithm.state_metrics)(state))
    return make_episodes(environment, playing, reductions, has_members, state_metrics)
