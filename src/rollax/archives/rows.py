"""Operations on elites that are stored in arrays `[C, ...]`, shared by all archives.

An entry along the first axis is called a row. The functions read the fields `elites`, `filled` and
`best` of a state. Empty rows have fitness -inf.
"""

from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from rollax.archives.archive import Elites, ScoredSolutions
from rollax.types import State


@runtime_checkable
class RowsState(Protocol):
    """State of an archive whose filled rows come first.

    Attributes:
        elites: Elites `[C, ...]`, with fitness -inf in empty rows.
        filled: Number of filled rows, int32 `[]`.
        best: Index of the row with the best elite, int32 `[]`.
    """

    @property
    def elites(self) -> ScoredSolutions: ...
    @property
    def filled(self) -> jax.Array: ...
    @property
    def best(self) -> jax.Array: ...


def make_empty_rows(example: ScoredSolutions, size: int) -> ScoredSolutions:
    """Return `size` empty rows with the shapes and dtypes of the solution `example`."""
    rows = jax.tree.map(lambda x: jnp.zeros((size, *jnp.shape(x)), jnp.result_type(x)), example)
    return mark_empty(rows)


def clear_rows(elites: ScoredSolutions) -> ScoredSolutions:
    """Return empty rows with the shapes and dtypes of `elites`."""
    return mark_empty(jax.tree.map(jnp.zeros_like, elites))


def mark_empty(rows: ScoredSolutions) -> ScoredSolutions:
    """Return the rows with their fitness set to -inf, which marks them as empty."""
    return rows._replace(fitness=jnp.full(rows.fitness.shape, -jnp.inf))


def is_filled(elites: ScoredSolutions) -> jax.Array:
    """Return whether each row has an elite, bool `[C]`."""
    return elites.fitness > -jnp.inf


def count_filled(state: RowsState) -> jax.Array:
    """Return the number of filled rows, int32 `[]`."""
    return state.filled


def find_best_row(elites: ScoredSolutions) -> jax.Array:
    """Return the index of the fittest elite, int32 `[]`. Ties go to the lowest index."""
    return jnp.argmax(elites.fitness).astype(jnp.int32)


def set_best(state: State, row: jax.Array | int) -> State:
    """Return the state with the elite in row `row` marked as the best."""
    return state._replace(best=jnp.asarray(row, jnp.int32))


def sample_rows_uniformly(state: RowsState, key: jax.Array, num_elites: int) -> ScoredSolutions:
    """Sample elites uniformly with replacement.

    Args:
        state: State of the archive.
        key: Random key.
        num_elites: Number of elites n.

    Returns:
        The elites, `[n, ...]`. They are empty rows if the archive is empty.
    """
    rows = jax.random.randint(key, (num_elites,), 0, jnp.maximum(state.filled, 1))
    return jax.tree.map(lambda x: x[rows], state.elites)


def read_best_row(state: RowsState) -> ScoredSolutions:
    """Return the elite with the highest fitness."""
    return jax.tree.map(lambda x: x[state.best], state.elites)


def list_rows(state: RowsState) -> Elites:
    """Return all rows of an archive without cells. The centers are the elites' descriptors."""
    return Elites(
        solutions=state.elites,
        mask=is_filled(state.elites),
        center=state.elites.descriptor,
        is_grid=jnp.zeros((), bool),
    )
