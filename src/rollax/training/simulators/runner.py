"""Training and evaluation with host simulators.

In each step, one call of the compiled policy computes the actions for all simulators. The algorithm
learns from the recorded rollouts.
"""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.acting.episode_metrics import validate_reductions
from rollax.acting.evaluation import Episodes
from rollax.algorithm import Algorithm, Metrics
from rollax.environments.capabilities import is_on_host
from rollax.environments.environment import Environment, HostEnvironment
from rollax.spaces import Discrete, MultiDiscrete, make_zeros
from rollax.training.compile import background
from rollax.training.console.signals import StopRequested, is_stop_requested
from rollax.training.options import HOST_EVAL_EPISODES, parse_workers
from rollax.training.simulators import episodes
from rollax.training.simulators.info_tracking import InfoTracker
from rollax.training.simulators.pools import PooledSimulators
from rollax.training.simulators.ray_workers import RaySimulators
from rollax.training.simulators.recording import (
    ActorInputs,
    RecordedSteps,
    Recording,
    find_actor,
    learn_from_recording,
    make_rollout_act_fn,
)
from rollax.training.simulators.restarts import SimulatorError
from rollax.training.simulators.vectorized import (
    InProcessSimulators,
    Simulators,
    SimulatorSpec,
    SimulatorStep,
)
from rollax.training.simulators.workers import MultiprocessSimulators
from rollax.training.spec import Spec
from rollax.types import Action, Leaf, PyTree, State

TRAINING_SEED_STREAM = 1
# Seconds between reports of progress within a segment, and within an evaluation.
REPORT_SECONDS, EVALUATION_REPORT_SECONDS = 1.0, 10.0


def make_simulators(
    environment: HostEnvironment,
    number: int,
    workers: int | str,
    timeout: float,
    names: tuple[str, ...] = (),
    max_restarts: int = 0,
) -> Simulators:
    """Make the simulators of an environment.

    Args:
        environment: Host environment.
        number: Number of simulators.
        workers: Number of worker processes, or "ray:N" (see `options.parse_workers`).
        timeout: Time limit in seconds for each reset or step.
        names: Names of the info values that each step returns.
        max_restarts: Maximum number of consecutive restarts of a simulator. 0 disables restarts.

    Returns:
        The simulators.

    Raises:
        UsageError: If the simulators cannot be made.
    """
    has_choices = isinstance(environment.action_space, Discrete | MultiDiscrete)
    zeros = jax.tree.map(
        np.asarray, make_zeros(environment.observation_space, environment.num_agents)
    )
    layout = SimulatorSpec(zeros, names, has_choices, environment.num_agents)
    if environment.make_pool is not None:
        return PooledSimulators(environment.make_pool, number, layout)
    placement = parse_workers(workers)
    if placement.number:
        kind = RaySimulators if placement.is_on_ray else MultiprocessSimulators
        return kind(
            environment.make_simulator, number, layout, placement.number, timeout, max_restarts
        )
    return InProcessSimulators(
        environment.make_simulator, number, layout, timeout=timeout, max_restarts=max_restarts
    )


class SimulatorRunner:
    """Simulators of a run and the compiled functions that act and learn with them."""

    def __init__(
        self,
        spec: Spec,
        member_algorithm: Algorithm,
        run_algorithm: Algorithm,
        environments: tuple[Environment, Environment],
        abstract_state: State,
    ) -> None:
        """Create the runner. Training simulators start before the first update.

        Args:
            spec: Specification of the run.
            member_algorithm: Algorithm of one member.
            run_algorithm: Algorithm of the whole run, vectorized over members for a population.
            environments: `(training environment, evaluation environment)`.
            abstract_state: Shapes of the state of the run.
        """
        self.spec = spec
        self.member_algorithm = member_algorithm
        self.run_algorithm = run_algorithm
        self.abstract_state = abstract_state
        environment, evaluation_environment = environments
        assert is_on_host(environment) and is_on_host(evaluation_environment)
        self.environment, self.evaluation_environment = environment, evaluation_environment
        self.num_members = spec.num_members
        self.has_members = spec.num_members > 1
        self.seeds = [int(member["seed"]) for member in spec.members()]
        # The state is passed as its leaves, because flattening modules in every call takes longer
        # than a step of most simulators.
        self._structure = jax.tree.structure(abstract_state)
        self._evaluation_act_fn = episodes.make_evaluation_act_fn(
            member_algorithm, not spec.options.eval_stochastic, self.has_members
        )
        self._compiled_act_fn: Any = None
        self._compiled_update_fn: Any = None
        self._make_rows: Any = None
        self._training_simulators: Simulators | None = None
        self._evaluation_simulators: Simulators | None = None
        self._info_tracker: InfoTracker | None = None  # of the training simulators
        # Whether a reset or a rollout of the training simulators did not complete. Workers may then
        # have answers that were not read.
        self._is_incomplete = False
        self._next_inputs: ActorInputs | None = None  # inputs of the next step
        self._needs_restart = np.ones(self.num_members, bool)  # members whose episodes must restart
        self._restart_counters = [0, 0]  # number of updates, and of restarts
        self.failure: SimulatorError | None = None  # error after which training cannot continue
        # Function that is called about once per second during `advance`, with the number of
        # updates and the seconds since its start.
        self.report_fn: Callable[[float, float], None] | None = None
        # Function that is called every few seconds during `evaluate`.
        self.report_evaluation_fn: Callable[[episodes.EpisodeTracker], None] | None = None
        # Function that is called with the error message of the first restart of a simulator.
        self.report_restart_fn: Callable[[str], None] | None = None
        self.num_restarts = 0

    @functools.cached_property
    def _act_fn(self) -> Any:
        """Jitted function that acts in training with the leaves of the run's state."""
        act = make_rollout_act_fn(self.member_algorithm)
        return jax.jit(
            self._accept_state_leaves(
                jax.vmap(act, (0, 0, 0, 0, None)) if self.has_members else act
            )
        )

    def _accept_state_leaves(self, act: Callable[..., PyTree]) -> Callable[..., PyTree]:
        """Convert a function of `members(state)` to a function of the leaves of the run's state."""

        def by_leaves(leaves: list[Leaf], *arguments: PyTree) -> PyTree:
            return act(self.members(self._structure.unflatten(leaves)), *arguments)

        return by_leaves

    def members(self, state: State) -> State:
        """Return the algorithm state without the state of the evolution.

        For a population, its leaves have a leading axis [P] of members.
        """
        return state.members if self.spec.evolve else state

    def split_members(self, rows: Leaf) -> Leaf:
        """Return an array [P x E, ...] as [P, E, ...] for a population, otherwise unchanged."""
        return rows.reshape(self.num_members, -1, *rows.shape[1:]) if self.has_members else rows

    def restart_episodes(self, updates: int, members: np.ndarray | None = None) -> None:
        """Schedule a restart of episodes before the next update.

        Args:
            updates: Number of completed updates.
            members: Mask of the members whose episodes restart, bool [P]. None restarts the
                episodes of all members.
        """
        self._restart_counters, self.failure = [updates, self._restart_counters[1] + 1], None
        self._needs_restart = (
            np.ones(self.num_members, bool) if members is None else self._needs_restart | members
        )

    def compile(self, capacity: int) -> Any:
        """Compile the acting function and the update function.

        Args:
            capacity: Maximum number of updates in one call of `advance`.

        Returns:
            The compiled update function.
        """
        recording, actor, leaves = (
            self.abstract_recording,
            find_actor(self.abstract_state),
            jax.tree.leaves(self.abstract_state),
        )
        index = jax.ShapeDtypeStruct((), np.int32)
        self._compiled_act_fn = background.compile_for_arguments(
            self._act_fn, leaves, actor.obs, actor.carry, actor.reset, index
        )
        shapes = jax.eval_shape(self.learn, self.abstract_state, recording)[1]
        self._make_rows = jax.jit(
            lambda: jax.tree.map(lambda m: jnp.zeros((capacity, *m.shape), m.dtype), shapes)
        )

        def learn(
            leaves: list[Leaf], rows: Metrics, index: jax.Array, recording: Recording
        ) -> tuple[list[Any], Metrics]:
            state, metrics = self.learn(self._structure.unflatten(leaves), recording)
            return jax.tree.leaves(state), jax.tree.map(
                lambda row, m: row.at[index].set(m), rows, metrics
            )

        rows = jax.eval_shape(self._make_rows)
        learning_jitted = jax.jit(learn, donate_argnums=(0, 1))
        self._compiled_update_fn = background.compile_for_arguments(
            learning_jitted, leaves, rows, index, recording
        )
        return self._compiled_update_fn

    def learn(self, state: State, recording: Recording) -> tuple[State, Metrics]:
        """Perform one update of the run from a recorded rollout."""
        return learn_from_recording(
            self.environment, self.run_algorithm, state, recording, has_members=self.has_members
        )

    @functools.cached_property
    def abstract_recording(self) -> Recording:
        """Shapes and types of the rollout of one update."""
        state, actor = self.members(self.abstract_state), find_actor(self.abstract_state)
        one_state = jax.tree.map(_drop_leading_axis, state) if self.has_members else state
        num_steps = int(_num_rollout_steps(self.member_algorithm, one_state))
        arguments = jax.tree.leaves(self.abstract_state), actor.obs, actor.carry, actor.reset, 0
        carry, action, extras = jax.eval_shape(self._act_fn, *arguments)
        reward = jax.ShapeDtypeStruct(actor.reset.shape, np.float32)
        active = None if self.environment.num_agents is None else actor.reset
        step = RecordedSteps(
            obs=actor.obs,
            reset=actor.reset,
            carry=actor.carry,
            action=action,
            extras=extras,
            reward=reward,
            terminated=actor.reset,
            truncated=actor.reset,
            next_obs=actor.obs,
            mask=active,
        )
        lead = int(self.has_members)

        def with_steps(x: Leaf) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((*x.shape[:lead], num_steps, *x.shape[lead:]), x.dtype)

        last = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype),
            ActorInputs(actor.obs, actor.reset, carry, active),
        )
        number = jax.ShapeDtypeStruct(actor.reset.shape[:lead], np.float32)
        restarted = with_steps(jax.ShapeDtypeStruct(actor.reset.shape[: lead + 1], bool))
        info = dict.fromkeys(self.environment.info_names, (number, number))
        return Recording(jax.tree.map(with_steps, step), restarted, last, info)

    def advance(self, state: State, num_updates: int) -> tuple[State, Metrics]:
        """Run updates with the training simulators.

        Args:
            state: State of the run.
            num_updates: Number of updates.

        Returns:
            The new state, and the metrics of each update with a leading axis of completed updates.
            If a simulator fails after the first update, there are fewer updates, and `failure` is
            the error. After a stop request, the update under way is discarded.

        Raises:
            SimulatorError: If a simulator fails before the first update is complete.
        """
        rows, done, leaves = self._make_rows(), 0, jax.tree.leaves(state)
        self.begin(state)
        report = self._make_report_fn()
        while done < num_updates:
            try:
                recording = self.collect_rollout(leaves, functools.partial(report, done))
            except StopRequested:
                break
            except SimulatorError as error:
                self.failure = error
                if done == 0:
                    raise
                break
            leaves, rows = self._compiled_update_fn(leaves, rows, np.int32(done), recording)
            done += 1
        rows = jax.device_get(rows)
        return self._structure.unflatten(leaves), jax.tree.map(lambda values: values[:done], rows)

    def _make_report_fn(self) -> Callable[[int, float], None]:
        """Return a function that calls `report_fn` if its last call is long enough ago.

        The arguments are the number of completed updates and the completed share of the next one.
        """
        started = last = time.monotonic()

        def report(num_updates: int, share: float) -> None:
            nonlocal last
            now = time.monotonic()
            if self.report_fn is not None and now - last >= REPORT_SECONDS:
                last = now
                self.report_fn(num_updates + share, now - started)

        return report

    def collect_rollout(
        self, leaves: list[Leaf], report: Callable[[float], None] = lambda share: None
    ) -> Recording:
        """Collect the rollout of one update. Call `begin` first to start the episodes.

        Args:
            leaves: Leaves of the state of the run.
            report: Function that is called before each step with the completed share of the steps.

        Returns:
            The recorded rollout.

        Raises:
            StopRequested: If a stop was requested.
            SimulatorError: If a simulator fails.
        """
        assert self._training_simulators is not None and self._next_inputs is not None
        assert self._info_tracker is not None
        num_steps = self.abstract_recording.steps.reset.shape[int(self.has_members)]
        inputs = self._next_inputs
        taken, restarted, completed, completed_info = [], [], [], []
        lead = 1 + int(self.has_members)
        self._is_incomplete = True

        def flat(values: np.ndarray) -> np.ndarray:
            return values.reshape(-1, *values.shape[lead:])

        for step in range(num_steps):
            if is_stop_requested():
                raise StopRequested
            report(step / num_steps)
            carry, action, extras = jax.device_get(
                self._compiled_act_fn(
                    leaves, inputs.obs, inputs.carry, inputs.reset, np.int32(step)
                )
            )
            after = self._training_simulators.step(jax.tree.map(flat, action))
            self._report_restarts(self._training_simulators)
            taken.append(self._record_step(inputs, action, extras, after))
            obs, reset, active = jax.tree.map(
                self.split_members, (after.obs, after.reset, after.active)
            )
            inputs = ActorInputs(obs, reset, carry, active)
            restarted.append(self.split_members(after.restarted))
            self._info_tracker.add(after.info)
            self._info_tracker.take(np.flatnonzero(after.restarted))  # discards failed episodes
            completed.append(np.flatnonzero(after.ended & ~after.restarted))
            completed_info.append(self._info_tracker.take(completed[-1]))
        self._next_inputs, self._is_incomplete = inputs, False
        axis = int(self.has_members)
        steps = jax.tree.map(lambda *x: np.stack(x, axis), *taken)
        values = self._info_tracker.select(
            np.concatenate(completed_info), validate_reductions(self.environment)
        )
        member = np.concatenate(completed) // self._num_envs
        info = self._sum_by_member(values, member)
        return Recording(steps, np.stack(restarted, axis), inputs, info)

    def _record_step(
        self, inputs: ActorInputs, action: Action, extras: PyTree, after: SimulatorStep
    ) -> RecordedSteps:
        """Return the record of one step of all simulators."""
        reward, terminated, truncated, next_obs = jax.tree.map(
            self.split_members, (after.reward, after.terminated, after.truncated, after.next_obs)
        )
        return RecordedSteps(
            obs=inputs.obs,
            reset=inputs.reset,
            carry=inputs.carry,
            action=action,
            extras=extras,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            next_obs=next_obs,
            mask=inputs.active,
        )

    def _sum_by_member(
        self, values: Mapping[str, np.ndarray], member: np.ndarray
    ) -> dict[str, tuple[Any, Any]]:
        """Sum the info values of N completed episodes over the episodes of each member.

        Args:
            values: Info values of the episodes, [N] each, keyed by name.
            member: Index of the member of each episode, [N].

        Returns:
            Number of finite values and their sum, keyed by name, `[P]` each for a population and
            `[]` for a single run.
        """

        def sum_finite(of_episodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            is_finite = np.isfinite(of_episodes)
            where = member[is_finite]
            number = np.bincount(where, minlength=self.num_members).astype(np.float32)
            total = np.bincount(where, of_episodes[is_finite], self.num_members).astype(np.float32)
            return (number, total) if self.has_members else (number[0], total[0])

        return {name: sum_finite(of_episodes) for name, of_episodes in values.items()}

    @property
    def _num_envs(self) -> int:
        """Number of training simulators of one member."""
        return find_actor(self.abstract_state).reset.shape[int(self.has_members)]

    def begin(self, state: State) -> None:
        """Create the training simulators if needed, and perform scheduled restarts of episodes.

        The simulators are created again if their last rollout did not complete. An algorithm
        without rollouts does not act in training.
        """
        if self.member_algorithm.rollouts is None:
            return
        number = self.num_members * self._num_envs
        if self._is_incomplete and self._training_simulators is not None:
            self._training_simulators.close()
            self._training_simulators = None
        if self._training_simulators is None:
            options = self.spec.options
            self._training_simulators = make_simulators(
                self.environment,
                number,
                options.env_workers,
                options.env_timeout,
                self.environment.info_names,
                max_restarts=options.env_restarts,
            )
            self._info_tracker = InfoTracker(number, self.environment.info_names)
            self._needs_restart[:] = True
        if not self._needs_restart.any():
            return
        num_envs = self._num_envs
        seeds = [
            x
            for seed in self.seeds
            for x in _derive_seeds((seed, TRAINING_SEED_STREAM, *self._restart_counters), num_envs)
        ]
        where = np.repeat(self._needs_restart, num_envs)
        assert self._info_tracker is not None
        self._info_tracker.take(np.flatnonzero(where))  # discards interrupted episodes
        self._is_incomplete = True
        start = self._training_simulators.reset(seeds, None if where.all() else where)
        reset = np.repeat(where[:, None], self.environment.num_agents or 1, axis=1)
        inputs = ActorInputs(
            obs=jax.tree.map(self.split_members, start.obs),
            reset=self.split_members(where if start.active is None else reset),
            carry=jax.device_get(find_actor(state).carry),
            active=jax.tree.map(self.split_members, start.active),
        )
        if self._next_inputs is not None and not where.all():
            inputs = jax.tree.map(
                lambda new, old: np.where(_broadcast_mask(self._needs_restart, old), new, old),
                inputs,
                self._next_inputs,
            )
        self._next_inputs, self._needs_restart = inputs, np.zeros(self.num_members, bool)
        self._is_incomplete = False

    def evaluate(self, state: State, keys: Sequence[jax.Array]) -> Episodes:
        """Play complete episodes of every member.

        Args:
            state: State of the run.
            keys: One random key per member.

        Returns:
            The episode records.

        Raises:
            StopRequested: If a stop was requested.
            SimulatorError: If a simulator fails.
        """
        options, members = self.spec.options, self.members(state)
        num_episodes = options.eval_episodes or HOST_EVAL_EPISODES
        width = episodes.num_parallel_episodes(num_episodes, self.num_members)
        names = self.evaluation_environment.info_names
        if self._evaluation_simulators is None:
            self._evaluation_simulators = make_simulators(
                self.evaluation_environment,
                self.num_members * width,
                options.env_workers,
                options.env_timeout,
                names,
                options.env_restarts,
            )
        plan = episodes.plan_episodes(keys, num_episodes)
        playing = episodes.EpisodeTracker(
            plan, width, names, self.evaluation_environment.num_agents
        )
        played = episodes.play_planned_episodes(
            algorithm=self.member_algorithm,
            act=self._evaluation_act_fn,
            state=members,
            simulators=self._evaluation_simulators,
            playing=playing,
            environment=self.evaluation_environment,
            spec=self.spec,
            has_members=self.has_members,
            check_fn=self._make_evaluation_check_fn(playing),
        )
        self._report_restarts(self._evaluation_simulators)
        return played

    def _report_restarts(self, simulators: Simulators) -> None:
        """Count the restarts of simulators since the last call, and report the first one."""
        messages = simulators.pop_restart_messages()
        if messages and not self.num_restarts and self.report_restart_fn is not None:
            self.report_restart_fn(messages[0])
        self.num_restarts += len(messages)

    def _make_evaluation_check_fn(self, playing: episodes.EpisodeTracker) -> Callable[[], None]:
        """Return a function that reports progress and raises StopRequested after a stop request."""
        last = time.monotonic()

        def check() -> None:
            nonlocal last
            if is_stop_requested():
                raise StopRequested
            if self._evaluation_simulators is not None:
                self._report_restarts(self._evaluation_simulators)
            now = time.monotonic()
            if self.report_evaluation_fn is not None and now - last >= EVALUATION_REPORT_SECONDS:
                last = now
                self.report_evaluation_fn(playing)

        return check

    def close(self) -> None:
        """Close all simulators."""
        for simulators in (self._training_simulators, self._evaluation_simulators):
            if simulators is not None:
                simulators.close()
        self._training_simulators = self._evaluation_simulators = None


def _num_rollout_steps(algorithm: Algorithm, state: State) -> int:
    """Return the number of steps in each environment during one rollout."""
    sizes: list[int] = []
    assert algorithm.rollouts is not None
    rollouts = algorithm.rollouts
    jax.eval_shape(lambda state: sizes.append(rollouts(state).num_steps), state)
    return sizes[0]


def _broadcast_mask(members: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Reshape a mask [P] so that it broadcasts with values [P, ...]."""
    return members.reshape(-1, *[1] * (np.ndim(values) - 1))


def _drop_leading_axis(x: Leaf) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape[1:], x.dtype)


def _derive_seeds(entropy: tuple[int, ...], number: int) -> list[int]:
    """Derive `number` simulator seeds from a tuple of integers."""
    return [int(x) >> 1 for x in np.random.SeedSequence(entropy).generate_state(number)]
