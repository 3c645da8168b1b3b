"""Segments: calls of a compiled function that runs several updates."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rollax.algorithm import Algorithm, Metrics, State
from rollax.populations import check_is_algorithm
from rollax.user_input.coercion import coerce


def segment(
    algorithm: Algorithm, capacity: int
) -> Callable[[State, jax.Array], tuple[State, Metrics]]:
    """Return a function that runs several updates of an algorithm in one call.

    The number of updates is an array argument, so segments of any length run the same compiled
    program. Segment lengths do not change the results, bit for bit.

    Args:
        algorithm: Algorithm to run.
        capacity: Maximum number of updates per call.

    Returns:
        Function that maps a state and a number of updates n <= `capacity` to the next state and
        the metrics of each update, with shape [capacity, ...]. Metrics at index n and above are
        zero.

    Raises:
        UsageError: If an argument has the wrong type.
    """
    check_is_algorithm(algorithm)
    capacity = coerce("capacity", capacity, int)

    def run(state: State, num_updates: jax.Array) -> tuple[State, Metrics]:
        shapes = jax.eval_shape(algorithm.step, state)[1]
        rows = jax.tree.map(lambda m: jnp.zeros((capacity, *m.shape), m.dtype), shapes)

        def body(i: jax.Array, loop: tuple[State, Metrics]) -> tuple[State, Metrics]:
            state, rows = loop
            state, metrics = algorithm.step(state)
            return state, jax.tree.map(lambda row, m: row.at[i].set(m), rows, metrics)

        return jax.lax.fori_loop(0, num_updates, body, (state, rows))

    return run
