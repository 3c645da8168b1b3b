"""Quality-diversity: ask an emitter for solutions, score them, add them to an archive, tell the emitter what became of them.

An algorithm of this kind is an archive and an emitter, as Cully and Demiris 2018, arXiv:1708.09251, take all of them apart; the
rest is here, once. An iteration is one batch, an update of the algorithm `num_iterations` of them.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax import tree
from rollax.acting.scoring import NOTHING, Score, Scorer, Watched, choose, scorer
from rollax.algorithm import Algorithm, Archived, Finite, Metrics, marked, placement_of
from rollax.archives.cells import Cells, Threshold, cells_archive
from rollax.archives.core import Archive, Counts, Scored
from rollax.archives.grid import grid_cells
from rollax.archives.voronoi import voronoi_cells
from rollax.config import LARGEST_FLOAT, number, settings, static
from rollax.emitters.core import Emitter, Told
from rollax.environments.core import Environment, descriptor_space
from rollax.errors import UsageError
from rollax.replay.ring import Replay
from rollax.scopes import scope


@settings
class QDConfig:
    """Settings that all quality-diversity algorithms share."""

    batch_size: int = static(512)
    """Solutions of an iteration. (static)"""
    num_iterations: int = static(8)
    """Iterations of an update. (static)"""
    grid: tuple[int, ...] = static((32, 32))
    """Cells along each dimension of the descriptor. (static)"""
    cvt_cells: int = static(0, low=0)
    """Cells around centroids by k-means, a centroidal Voronoi tessellation, in place of the grid; 0: the grid. (static)"""
    descriptor_low: tuple[float, ...] = static((), low=-LARGEST_FLOAT)
    """Lower bounds of the descriptor, one for each dimension; none: those of the environment. (static)"""
    descriptor_high: tuple[float, ...] = static((), low=-LARGEST_FLOAT)
    """Upper bounds of the descriptor, likewise. (static)"""
    num_episodes: int = static(1)
    """Episodes that each solution is scored by; its fitness and descriptor are their means. (static)"""
    max_steps: int = static(1000)
    """Steps after which such an episode is given up, where the environment sets no limit. (static)"""
    agent_type: str = static("")
    """Whose mean return is the fitness, of agents of several types; all of them share the policy. (static)"""
    qd_offset: float = number(0.0)
    """Added to the fitness of every elite in the QD score; minus the lowest possible fitness makes all terms positive."""
    total_updates: float = number(1.0)
    """Updates after which schedules end. A run sets it from its total steps."""

    @property
    def steps_per_update(self) -> int:
        """Evaluations of solutions in an update."""
        return self.batch_size * self.num_iterations


class QDState(NamedTuple):
    """Everything that changes."""

    key: jax.Array
    config: Any
    archive: Any
    emitter: Any
    updates: jax.Array  # int32 []
    first: Any  # the solution that stands for an empty archive


def quality_diversity(
    environment: Environment,
    solution: Callable[[jax.Array], Any],
    make_archive: Callable[[Any, tuple[float, ...], tuple[float, ...]], Archive],
    make_emitter: Callable[[Any, Archive, Any], Emitter],
    watch: Callable[[Any], Watched] = lambda config: NOTHING,
) -> Algorithm:
    """The algorithm of an archive and an emitter.

    `solution(key)` is one to begin with; `make_archive(config, low, high)` an archive for descriptors within these bounds;
    `make_emitter(config, archive, scorer)` an emitter; `watch(config)` says what scores hold besides fitness and descriptor.
    `init` raises UsageError when they do not go together.
    """
    parts = functools.partial(assemble, environment, make_archive, make_emitter, watch)

    def init(key: jax.Array, config: Any) -> QDState:
        config = tree.as_leaves(config)
        score, archive, emitter = parts(config)
        state_key, solution_key, archive_key, emitter_key = jax.random.split(key, 4)
        # One after the other: on few cores, many decompositions of initial weights at once may wait for each other for ever.
        solutions = jax.lax.map(solution, jax.random.split(solution_key, config.batch_size))
        shapes = jax.eval_shape(lambda solutions, key: scored(solutions, score(solutions, key)), solutions, key)
        example = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), shapes)
        archive_state, emitter_state = archive.init(archive_key, example), emitter.init(emitter_key, solutions)
        first = jax.tree.map(lambda x: x[0], solutions)
        return QDState(state_key, config, archive_state, emitter_state, jnp.zeros((), jnp.int32), first)

    def step(state: QDState) -> tuple[QDState, Metrics]:
        score, archive, emitter = parts(state.config)
        key, run_key = jax.random.split(state.key)
        archive_key = jax.random.fold_in(run_key, state.config.num_iterations)  # after those of the iterations
        body = functools.partial(iterate, score, archive, emitter, state.config.batch_size, run_key)
        loop = archive.refresh(state.archive, archive_key), emitter.refresh(state.emitter)
        loop, (counts, finite) = jax.lax.scan(body, loop, jnp.arange(state.config.num_iterations))
        state = QDState(key, state.config, *loop, state.updates + 1, state.first)
        values = state_metrics(state) | emitter.metrics(state.emitter)
        values |= {name: jnp.sum(x) for name, x in counts._asdict().items()}
        return state, Metrics(values, finite=Finite(parameters=jnp.all(finite)))

    def act(state: QDState, obs: Any, carry: Any, key: jax.Array, greedy: bool | jax.Array) -> tuple[Any, Any]:
        archive = parts(state.config)[1]
        best = tree.where(archive.num_elites(state.archive) == 0, state.first, archive.best(state.archive).solution)
        return choose(environment, best, obs), carry

    def score(state: QDState, solutions: Any, key: jax.Array) -> Score:
        config = dataclasses.replace(state.config, num_episodes=1)
        return scorer_of(environment, config, watch(config)._replace(records=False))(solutions, key)

    def state_metrics(state: QDState) -> dict[str, jax.Array]:
        return parts(state.config)[1].metrics(state.archive, state.config.qd_offset)

    archived, placed = archive_functions(parts, score), functools.partial(placement, parts)
    rest = {"state_metrics": state_metrics, "archived": archived, "placement": placed}
    return Algorithm(init, step, act, lambda state: (), lambda state: state._replace(emitter=None), **rest)


def placement(parts: Callable[[Any], tuple[Scorer, Archive, Emitter]], state: QDState) -> QDState:
    """Which leaves the devices of a single run split, as the archive says and the rows of a replay are."""
    found: list[Callable[[Any], Any]] = []  # a state may be shapes alone: so its archive is made while they are traced
    jax.eval_shape(lambda config: found.append(parts(config)[1].placement), state.config)
    return placement_of((), {Replay: marked, type(state.archive): found[0]})(state)


def archive_functions(parts: Callable[[Any], tuple[Scorer, Archive, Emitter]], score: Callable[..., Score]) -> Archived:
    """What the algorithm of these parts can do with its archive."""

    def archive(state: QDState) -> tuple[Archive, Any]:
        return parts(state.config)[1], state.archive

    def ask(state: QDState) -> tuple[QDState, Any]:
        _, archive, emitter = parts(state.config)
        key, ask_key, archive_key = jax.random.split(state.key, 3)
        archive_state = archive.refresh(state.archive, archive_key)
        emitter_state, solutions = emitter.ask(emitter.refresh(state.emitter), archive_state, ask_key, state.config.batch_size)
        return state._replace(key=key, archive=archive_state, emitter=emitter_state), solutions

    def tell(state: QDState, solutions: Any, score: Score) -> tuple[QDState, Counts]:
        _, archive, emitter = parts(state.config)
        key, tell_key = jax.random.split(state.key)
        loop, counts = take(archive, emitter, (state.archive, state.emitter), solutions, score, tell_key)
        return QDState(key, state.config, *loop, state.updates + 1, state.first), counts

    return Archived(archive, lambda state, archive: state._replace(archive=archive), score, ask, tell)


def assemble(
    environment: Environment, make_archive: Any, make_emitter: Any, watch: Callable[[Any], Watched], config: Any
) -> tuple[Scorer, Archive, Emitter]:
    """The parts that the settings ask for. Raises UsageError when they do not go together."""
    if config.batch_size % tree.num_devices():
        raise UsageError(f"batch_size ({config.batch_size}) must be a multiple of devices ({tree.num_devices()})")
    score = scorer_of(environment, config, watch(config))
    archive = make_archive(config, *descriptor_bounds(environment, config))
    return score, archive, make_emitter(config, archive, score)


def scorer_of(environment: Environment, config: QDConfig, watched: Watched) -> Scorer:
    """The scorer that the settings ask for."""
    max_steps = config.max_steps if environment.time_limit is None else environment.time_limit
    return scorer(environment, config.num_episodes, max_steps, watched, config.agent_type)


def iterate(
    score: Scorer, archive: Archive, emitter: Emitter, batch_size: int, key: jax.Array, loop: tuple[Any, Any], index: jax.Array
) -> tuple[tuple[Any, Any], tuple[Counts, jax.Array]]:
    """One batch: archive and emitter after it, what the archive counted, and whether all solutions were finite."""
    archive_state, emitter_state = loop
    ask_key, score_key, tell_key = jax.random.split(jax.random.fold_in(key, index), 3)
    with scope("emitter"):
        emitter_state, solutions = emitter.ask(emitter_state, archive_state, ask_key, batch_size)
    # Over several devices each has the whole batch, scores its share and is told all scores; what was experienced stays.
    with scope("environment"):
        told = score(tree.spread(tree.spread(solutions, False), True), score_key)
    told = tree.spread(told._replace(experience=()), False)._replace(experience=told.experience)
    loop, counts = take(archive, emitter, (archive_state, emitter_state), solutions, told, tell_key)
    return loop, (counts, tree.all_finite(solutions))


def take(
    archive: Archive, emitter: Emitter, loop: tuple[Any, Any], solutions: Any, score: Score, key: jax.Array
) -> tuple[tuple[Any, Any], Counts]:
    """Archive and emitter after a batch with these scores, and what the archive counted."""
    archive_state, emitter_state = loop
    batch = scored(solutions, score)
    with scope("archive"):
        archive_state, added, counts = archive.add(archive_state, batch)
    with scope("emitter"):
        emitter_state = emitter.tell(emitter_state, archive_state, Told(batch, added, score.experience), key)
    return (archive_state, emitter_state), counts


def cells(config: Any, low: tuple[float, ...], high: tuple[float, ...], threshold: Threshold | None = None) -> Archive:
    """The archive of one solution a cell that the settings ask for."""
    return cells_archive(division(config, low, high), threshold)


def division(config: Any, low: tuple[float, ...], high: tuple[float, ...]) -> Cells:
    """The cells that the settings ask for."""
    return voronoi_cells(config.cvt_cells, low, high) if config.cvt_cells else grid_cells(config.grid, low, high)


def scored(solutions: Any, score: Score) -> Scored:
    """A batch of solutions with its scores, as an archive takes it."""
    return Scored(solutions, score.fitness, score.descriptor, score.extras)


def descriptor_bounds(environment: Environment, config: QDConfig) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The bounds that descriptors are arranged within, K numbers each: those of the settings, else the environment's own.

    Raises UsageError when there are not K, a lower one is not below its upper one, or the environment has none.
    """
    space: Any = descriptor_space(environment)
    size, name = space.shape[0], environment.name

    def side(which: str, given: tuple[float, ...], own: Any) -> tuple[float, ...]:
        if given and len(given) != size:
            raise UsageError(
                f"descriptor_{which} ({shown(given)}) must have {size} numbers: descriptors of {name} have as many"
            )
        if not given and not np.all(np.abs(own) < 1e30):  # as in `Box.is_bounded`
            raise UsageError(
                f"descriptors of {name} have no bounds, which an archive needs: set config.descriptor_{which}, {size} numbers "
                f"(--config.descriptor-{which})"
            )
        return tuple(map(float, given or np.broadcast_to(own, space.shape)))

    low, high = side("low", config.descriptor_low, space.low), side("high", config.descriptor_high, space.high)
    if not all(lower < upper for lower, upper in zip(low, high, strict=True)):
        raise UsageError(f"descriptor_low ({shown(low)}) must be below descriptor_high ({shown(high)}) in every dimension")
    return low, high


def shown(bounds: tuple[float, ...]) -> str:
    """Bounds in a message."""
    return " ".join(f"{bound:g}" for bound in bounds)
