"""Update of quality-diversity algorithms from an archive and an emitter.

Every algorithm provides an archive and an emitter (Cully and Demiris 2018, arXiv:1708.09251). An
iteration requests one batch of solutions from the emitter (`ask`), scores it, inserts it into the
archive and updates the emitter (`tell`). One update of the algorithm consists of `num_iterations`
iterations.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.acting import scoring
from rollax.acting.scoring import DEFAULT_OPTIONS, Score, Scorer, ScoringOptions
from rollax.algorithm import Algorithm, ArchiveFunctions, FiniteChecks, Metrics, make_placement
from rollax.algorithms.descriptor_cells import descriptor_bounds
from rollax.archives.archive import Archive, InsertionCounts, ScoredSolutions, counts_by_name
from rollax.config import MAX_FLOAT32, settings_dataclass, static_field, traced_field
from rollax.emitters.emitter import Emitter, EvaluatedBatch
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.scopes import profile_scope
from rollax.types import Action, Carry, Flag, Observation, PyTree, Settings, Solution, State

ArchiveFn: TypeAlias = Callable[[Settings, tuple[float, ...], tuple[float, ...]], Archive]
"""Function `(config, low, high)` that returns an archive with these descriptor bounds."""
EmitterFn: TypeAlias = Callable[[Settings, Archive, Scorer], Emitter]
"""Function `(config, archive, scorer)` that returns the emitter."""


@settings_dataclass
class QDConfig:
    """Settings that all quality-diversity algorithms share.

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """

    batch_size: int = static_field(512)
    """(static) Solutions per iteration."""
    num_iterations: int = static_field(8)
    """(static) Iterations per update."""
    grid: tuple[int, ...] = static_field((32, 32))
    """(static) Number of cells along each dimension of the descriptor."""
    cvt_cells: int = static_field(0, low=0)
    """(static) Number of cells of a centroidal Voronoi tessellation, which replaces the grid. 0
    uses the grid.
    """
    descriptor_low: tuple[float, ...] = static_field((), low=-MAX_FLOAT32)
    """(static) Lower bounds of the descriptor, one per dimension. Empty uses the bounds of the
    environment.
    """
    descriptor_high: tuple[float, ...] = static_field((), low=-MAX_FLOAT32)
    """(static) Upper bounds of the descriptor, one per dimension. Empty uses the bounds of the
    environment.
    """
    num_episodes: int = static_field(1)
    """(static) Episodes per evaluation. Fitness and descriptor are means over episodes."""
    max_steps: int = static_field(1000)
    """(static) Maximum number of steps per episode if the environment has no time limit."""
    agent_type: str = static_field("")
    """(static) Agent type whose mean return is the fitness, for environments with several types.
    All agents share the policy.
    """
    qd_offset: float = traced_field(0.0)
    """Offset added to the fitness of every elite in the QD score. The negative of the lowest
    possible fitness makes all terms non-negative.
    """
    total_updates: float = traced_field(1.0)
    """Updates until the schedules end. The run sets it from its total steps."""

    @property
    def steps_per_update(self) -> int:
        """Number of evaluated solutions per update."""
        return self.batch_size * self.num_iterations


class QDState(NamedTuple):
    """Training state: all arrays that change between updates.

    Attributes:
        key: Random key of the next update.
        config: Settings of the algorithm. Traced settings are arrays.
        archive: Archive state.
        emitter: Emitter state.
        updates: Number of completed updates, int32 `[]`.
        first: Initial solution. It is the policy while the archive is empty.
    """

    key: jax.Array
    config: Settings
    archive: State
    emitter: State
    updates: jax.Array
    first: Solution


class Components(NamedTuple):
    """Scorer, archive and emitter of an algorithm for fixed settings.

    Attributes:
        score: Scorer of solutions.
        archive: Store of elites.
        emitter: Generator of new solutions.
    """

    score: Scorer
    archive: Archive
    emitter: Emitter


class SearchState(NamedTuple):
    """Fields of `QDState` that change in each iteration.

    Attributes:
        archive: Archive state.
        emitter: Emitter state.
    """

    archive: State
    emitter: State


def init_state(
    components: Callable[[Settings], Components],
    solution: Callable[[jax.Array], Solution],
    key: jax.Array,
    config: QDConfig,
) -> QDState:
    """Return the state before the first update.

    Args:
        components: Function from the config to the scorer, the archive and the emitter.
        solution: Function from a random key to an initial solution.
        key: Random key.
        config: Settings of the algorithm.

    Returns:
        The state, with an empty archive.
    """
    config = tree.to_arrays(config)
    score, archive, emitter = components(config)
    state_key, solution_key, archive_key, emitter_key = jax.random.split(key, 4)
    # Sequential, because many concurrent orthogonal initializations can deadlock on few cores.
    solutions = jax.lax.map(solution, jax.random.split(solution_key, config.batch_size))
    shapes = jax.eval_shape(
        lambda solutions, key: to_scored_solutions(solutions, score(solutions, key)),
        solutions,
        key,
    )
    example = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), shapes)
    state = QDState(
        key=state_key,
        config=config,
        archive=archive.init(archive_key, example),
        emitter=emitter.init(emitter_key, solutions),
        updates=jnp.zeros((), jnp.int32),
        first=jax.tree.map(lambda x: x[0], solutions),
    )
    return tree.to_arrays(state)  # weak types of an archive would compile the second update again


def step(components: Callable[[Settings], Components], state: QDState) -> tuple[QDState, Metrics]:
    """Perform one update of `num_iterations` iterations.

    Args:
        components: Function from the config to the scorer, the archive and the emitter.
        state: State before the update.

    Returns:
        The state after the update and its metrics.
    """
    config, parts = state.config, components(state.config)
    key, run_key = jax.random.split(state.key)
    # The iterations fold in the numbers from 0 to num_iterations - 1.
    archive_key = jax.random.fold_in(run_key, config.num_iterations)
    search = SearchState(
        archive=parts.archive.refresh(state.archive, archive_key),
        emitter=parts.emitter.refresh(state.emitter),
    )
    body = functools.partial(run_iteration, parts, config.batch_size, run_key)
    search, (counts, finite) = jax.lax.scan(body, search, jnp.arange(config.num_iterations))
    state = state._replace(key=key, updates=state.updates + 1, **search._asdict())
    values = parts.archive.metrics(state.archive, config.qd_offset)
    values |= parts.emitter.metrics(state.emitter)
    values |= {name: jnp.sum(x) for name, x in counts_by_name(counts).items()}
    return state, Metrics(values, finite=FiniteChecks(parameters=jnp.all(finite)))


def quality_diversity(
    environment: Environment,
    solution: Callable[[jax.Array], Solution],
    make_archive: ArchiveFn,
    make_emitter: EmitterFn,
    scoring_options: Callable[[Settings], ScoringOptions] = lambda config: DEFAULT_OPTIONS,
) -> Algorithm:
    """Build a quality-diversity algorithm from an archive and an emitter.

    Args:
        environment: Environment with state descriptors (`DescriptorEnvironment`).
        solution: Function from a random key to an initial solution.
        make_archive: Function `(config, low, high)` that returns an archive with the descriptor
            bounds `low` and `high`.
        make_emitter: Function `(config, archive, scorer)` that returns the emitter.
        scoring_options: Function from the config to the options for additional output of the
            scorer, such as recorded transitions.

    Returns:
        The algorithm. Its `init` raises a `UsageError` if the settings are inconsistent.
    """
    components = functools.partial(
        make_components, environment, make_archive, make_emitter, scoring_options
    )

    def act(
        state: QDState, obs: Observation, carry: Carry, key: jax.Array, greedy: Flag
    ) -> tuple[Action, Carry]:
        archive = components(state.config).archive
        best = tree.where(
            archive.num_elites(state.archive) == 0,
            state.first,
            archive.best(state.archive).solution,
        )
        return scoring.solution_action(environment, best, obs), carry

    def score(state: QDState, solutions: Solution, key: jax.Array) -> Score:
        config = dataclasses.replace(state.config, num_episodes=1)
        options = scoring_options(config)._replace(records=False)
        return make_algorithm_scorer(environment, config, options)(solutions, key)

    def state_metrics(state: QDState) -> dict[str, jax.Array]:
        archive = components(state.config).archive
        return archive.metrics(state.archive, state.config.qd_offset)

    return Algorithm(
        init=functools.partial(init_state, components, solution),
        step=functools.partial(step, components),
        act=act,
        initial_carry=lambda state: (),
        acting_state=lambda state: state._replace(emitter=None),
        state_metrics=state_metrics,
        archived=archive_functions(components, score),
        placement=functools.partial(make_state_placement, components),
        parts=lambda state: {"archive": state.archive},
    )


def make_state_placement(components: Callable[[Settings], Components], state: QDState) -> QDState:
    """Return which leaves of a state are split over devices, as in `Algorithm.placement`.

    `Archive.placement` determines the leaves of the archive. All other leaves are replicated.
    """
    # The config of the state may hold only shapes, so the archive is built while tracing.
    found: list[Callable[[State], PyTree]] = []
    jax.eval_shape(lambda config: found.append(components(config).archive.placement), state.config)
    return make_placement((), {type(state.archive): found[0]})(state)


def archive_functions(
    components: Callable[[Settings], Components], score: Callable[..., Score]
) -> ArchiveFunctions:
    """Build the functions that read and change the archive in an algorithm's state.

    Args:
        components: Function from the config to the scorer, the archive and the emitter.
        score: Function `(state, solutions, key)` that scores solutions.

    Returns:
        The functions.
    """

    def archive(state: QDState) -> tuple[Archive, State]:
        return components(state.config).archive, state.archive

    def ask(state: QDState) -> tuple[QDState, Solution]:
        _, archive, emitter = components(state.config)
        key, ask_key, archive_key = jax.random.split(state.key, 3)
        archive_state = archive.refresh(state.archive, archive_key)
        emitter_state, solutions = emitter.ask(
            emitter.refresh(state.emitter), archive_state, ask_key, state.config.batch_size
        )
        return state._replace(key=key, archive=archive_state, emitter=emitter_state), solutions

    def tell(state: QDState, solutions: Solution, score: Score) -> tuple[QDState, InsertionCounts]:
        key, tell_key = jax.random.split(state.key)
        search, counts = insert_and_update(
            components(state.config),
            SearchState(state.archive, state.emitter),
            solutions,
            score,
            tell_key,
        )
        updates = state.updates + 1
        return state._replace(key=key, updates=updates, **search._asdict()), counts

    return ArchiveFunctions(
        archive=archive,
        with_archive=lambda state, archive: state._replace(archive=archive),
        score=score,
        ask=ask,
        tell=tell,
        qd_offset=lambda state: state.config.qd_offset,
        num_batches=lambda state: state.updates,
    )


def make_components(
    environment: Environment,
    make_archive: ArchiveFn,
    make_emitter: EmitterFn,
    scoring_options: Callable[[Settings], ScoringOptions],
    config: QDConfig,
) -> Components:
    """Build the scorer, the archive and the emitter from the settings.

    Args:
        environment: Environment to train in.
        make_archive: Function `(config, low, high)` that returns the archive.
        make_emitter: Function `(config, archive, scorer)` that returns the emitter.
        scoring_options: Function from the config to the options of scoring.
        config: Settings of the algorithm.

    Returns:
        The scorer, the archive and the emitter.

    Raises:
        UsageError: If the settings are inconsistent or not valid for the environment.
    """
    if config.batch_size % tree.num_devices():
        raise UsageError(
            f"batch_size must be a multiple of devices ({tree.num_devices()}), got "
            f"{config.batch_size}. Set it to a multiple."
        )
    score = make_algorithm_scorer(environment, config, scoring_options(config))
    archive = make_archive(config, *descriptor_bounds(environment, config))
    return Components(score, archive, make_emitter(config, archive, score))


def make_algorithm_scorer(
    environment: Environment, config: QDConfig, options: ScoringOptions
) -> Scorer:
    """Build the scorer of an algorithm.

    Args:
        environment: Environment that scores solutions.
        config: Settings with the number of episodes per solution, their maximum length and the
            agent type that solutions play.
        options: Options for additional output of the scorer.
    """
    max_steps = config.max_steps if environment.time_limit is None else environment.time_limit
    return scoring.make_scorer(
        environment, config.num_episodes, max_steps, options, config.agent_type
    )


def run_iteration(
    components: Components,
    batch_size: int,
    key: jax.Array,
    search: SearchState,
    index: jax.Array,
) -> tuple[SearchState, tuple[InsertionCounts, jax.Array]]:
    """Request a batch from the emitter, score and insert it, and update the emitter.

    Args:
        components: Scorer, archive and emitter.
        batch_size: Number of solutions in the batch.
        key: Random key of the update.
        search: Archive state and emitter state.
        index: Index of the iteration in its update, int32 `[]`.

    Returns:
        The updated archive and emitter states, and a tuple of the insertion counts and whether all
        solutions were finite, bool `[]`.
    """
    ask_key, score_key, tell_key = jax.random.split(jax.random.fold_in(key, index), 3)
    with profile_scope("emitter"):
        emitter_state, solutions = components.emitter.ask(
            search.emitter, search.archive, ask_key, batch_size
        )
    # Every device has the whole batch, scores its share and receives all scores. Recorded
    # transitions stay on the device that produced them.
    with profile_scope("environment"):
        scored = components.score(
            tree.constrain_sharding(tree.constrain_sharding(solutions, False), True), score_key
        )
    scored = tree.constrain_sharding(scored._replace(experience=()), False)._replace(
        experience=scored.experience
    )
    search, counts = insert_and_update(
        components, search._replace(emitter=emitter_state), solutions, scored, tell_key
    )
    return search, (counts, tree.all_finite(solutions))


def insert_and_update(
    components: Components, search: SearchState, solutions: Solution, score: Score, key: jax.Array
) -> tuple[SearchState, InsertionCounts]:
    """Insert a scored batch into the archive and update the emitter.

    Args:
        components: Scorer, archive and emitter.
        search: Archive state and emitter state.
        solutions: Solutions `[B, ...]`.
        score: Scores of the solutions.
        key: Random key of the emitter.

    Returns:
        The updated archive and emitter states, and the insertion counts.
    """
    _, archive, emitter = components
    batch = to_scored_solutions(solutions, score)
    with profile_scope("archive"):
        archive_state, inserted, counts = archive.add(
            search.archive, emitter.select_insertions(batch)
        )
    with profile_scope("emitter"):
        evaluated = EvaluatedBatch(batch, inserted, score.experience)
        emitter_state = emitter.tell(search.emitter, archive_state, evaluated, key)
    return SearchState(archive_state, emitter_state), counts


def to_scored_solutions(solutions: Solution, score: Score) -> ScoredSolutions:
    """Combine a batch of solutions and its scores for insertion into an archive."""
    return ScoredSolutions(solutions, score.fitness, score.descriptor, score.extras)
