"""Interface of emitters, which propose solutions and adapt to the scores of these solutions."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.archives.archive import Archive, InsertionResult, ScoredSolutions
from rollax.errors import UsageError, suggest_multiples
from rollax.types import PyTree, Solution, State


class EvaluatedBatch(NamedTuple):
    """Evaluated solutions of an emitter, in the order of `ask`.

    Attributes:
        solutions: Scored solutions, `[B, ...]`.
        insertion: Result of the insertion of each solution, `[B]`. With
            `Emitter.select_insertions`, the result of each selected solution.
        experience: Tuple of the recorded transitions of the policies, `[T, B, ...]`, and a mask of
            the valid transitions, bool `[T, B]`. `()` if transitions are not recorded.
    """

    solutions: ScoredSolutions
    insertion: InsertionResult
    experience: Any = ()


class Emitter(NamedTuple):
    """Pure functions of an emitter.

    Attributes:
        init: Function `(key, solutions)` from initial solutions `[B, ...]` to the initial state.
        ask: Function `(state, archive_state, key, B)` that returns the state and new solutions
            `[B, ...]`.
        tell: Function `(state, archive_state, evaluated, key)` that returns the state updated with
            an `EvaluatedBatch` of the emitter's solutions. It is called after the insertion into
            the archive.
        metrics: Function from the state to a dictionary of scalar metrics.
        refresh: Function from the state to a new state, which runs once per update, before the
            iterations.
        select_insertions: Function from the scored batch `[B, ...]` to the solutions to insert into
            the archive, such as one solution with the mean of repeated scores. `multi_emitter` and
            `bandit_emitter` ignore this function of their emitters and insert all solutions.
    """

    init: Callable[[jax.Array, Any], Any]
    ask: Callable[[Any, Any, jax.Array, int], tuple[Any, Any]]
    tell: Callable[[Any, Any, EvaluatedBatch, jax.Array], Any]
    metrics: Callable[[Any], dict[str, jax.Array]] = lambda state: {}
    refresh: Callable[[Any], Any] = lambda state: state
    select_insertions: Callable[[ScoredSolutions], ScoredSolutions] = lambda batch: batch


def ignore_evaluation(
    state: State, archive_state: State, evaluated: EvaluatedBatch, key: jax.Array
) -> State:
    """Return the state unchanged. This is the `tell` function of emitters that do not adapt."""
    return state


def check_floats(solution: Solution, emitter: str) -> None:
    """Raise UsageError if a leaf of the solutions is not a float array."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(solution):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            name = jax.tree_util.keystr(path) or "a solution"
            raise UsageError(
                f"{emitter} requires solutions of floats, got {leaf.dtype} for {name}. Use float "
                "arrays only."
            )


def compute_share(solutions: Solution, num_emitters: int, min_share: int) -> int:
    """Return the number of solutions per search if B solutions are divided evenly among searches.

    Args:
        solutions: Batch of solutions, `[B, ...]`.
        num_emitters: Number of searches.
        min_share: Minimum number of solutions per search.

    Returns:
        The number of solutions per search.

    Raises:
        UsageError: If B is not a multiple of `num_emitters`, or the result is below `min_share`.
    """
    total = jax.tree.leaves(solutions)[0].shape[0]
    if total % num_emitters or total < min_share * num_emitters:
        near = suggest_multiples(max(total, min_share * num_emitters), num_emitters)
        raise UsageError(
            f"batch_size must be a multiple of num_emitters ({num_emitters}) with at least "
            f"{min_share} solutions for each, got {total}. Set batch_size to {near}."
        )
    return total // num_emitters


def sample_parents(
    archive: Archive, archive_state: State, initial: Solution, key: jax.Array, num_parents: int
) -> Any:
    """Sample the solutions of n elites. If the archive is empty, return initial solutions.

    Args:
        archive: Archive with the parents.
        archive_state: State of the archive.
        initial: Initial solutions `[B, ...]`, which are repeated if n > B.
        key: Random key.
        num_parents: Number of parents n.

    Returns:
        The solutions, `[n, ...]`.
    """
    return use_initial_if_empty(
        archive, archive_state, initial, archive.sample(archive_state, key, num_parents).solution
    )


def use_initial_if_empty(
    archive: Archive, archive_state: State, initial: Solution, solutions: Solution
) -> Any:
    """Return `solutions`. If the archive is empty, return n initial solutions instead.

    Args:
        archive: Archive.
        archive_state: State of the archive.
        initial: Initial solutions `[B, ...]`, which are repeated if n > B.
        solutions: Solutions of n elites, `[n, ...]`.

    Returns:
        The solutions, `[n, ...]`.
    """
    number = jax.tree.leaves(solutions)[0].shape[0]
    first = jax.tree.map(lambda x: jnp.resize(x, (number, *x.shape[1:])), initial)
    return tree.where(
        jnp.broadcast_to(archive.num_elites(archive_state) == 0, (number,)), first, solutions
    )


def multi_emitter(emitters: dict[str, Emitter], sizes: dict[str, int]) -> Emitter:
    """Build an emitter that divides every batch among several emitters.

    Args:
        emitters: Emitters, keyed by name.
        sizes: Number of solutions of each emitter, keyed by name.

    Returns:
        The emitter. Its metrics have the prefix "name/".
    """
    names = list(emitters)
    bounds = {name: sum(sizes[other] for other in names[:i]) for i, name in enumerate(names)}

    def select_share(name: str, batch: PyTree) -> Any:
        return jax.tree.map(lambda x: x[bounds[name] : bounds[name] + sizes[name]], batch)

    def keys(key: jax.Array) -> dict[str, jax.Array]:
        return dict(zip(names, jax.random.split(key, len(names)), strict=True))

    def init(key: jax.Array, solutions: Solution) -> Any:
        emitter_keys = keys(key)
        return {
            name: emitter.init(emitter_keys[name], select_share(name, solutions))
            for name, emitter in emitters.items()
        }

    def ask(state: State, archive_state: State, key: jax.Array, batch_size: int) -> tuple[Any, Any]:
        emitter_keys = keys(key)
        results = {
            name: emitter.ask(state[name], archive_state, emitter_keys[name], sizes[name])
            for name, emitter in emitters.items()
        }
        solutions = jax.tree.map(
            lambda *parts: jnp.concatenate(parts), *(results[name][1] for name in names)
        )
        return {name: results[name][0] for name in names}, solutions

    def tell(state: State, archive_state: State, evaluated: EvaluatedBatch, key: jax.Array) -> Any:
        emitter_keys = keys(key)
        experience = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), evaluated.experience)

        def share_evaluated(name: str) -> EvaluatedBatch:
            own_experience = select_share(name, experience)
            return EvaluatedBatch(
                solutions=select_share(name, evaluated.solutions),
                insertion=select_share(name, evaluated.insertion),
                experience=jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), own_experience),
            )

        return {
            name: emitter.tell(
                state[name], archive_state, share_evaluated(name), emitter_keys[name]
            )
            for name, emitter in emitters.items()
        }

    def metrics(state: State) -> dict[str, jax.Array]:
        return {
            f"{name}/{k}": v
            for name, emitter in emitters.items()
            for k, v in emitter.metrics(state[name]).items()
        }

    def refresh(state: State) -> Any:
        return {name: emitter.refresh(state[name]) for name, emitter in emitters.items()}

    return Emitter(init=init, ask=ask, tell=tell, metrics=metrics, refresh=refresh)
