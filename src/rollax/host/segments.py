"""Many updates in one call."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rollax.algorithm import Algorithm, Metrics, State


def segment(algorithm: Algorithm, capacity: int) -> Callable[[State, jax.Array], tuple[State, Metrics]]:
    """`(state, n) -> (state, metrics [capacity, ...])`: n <= capacity updates in one call; rows from n on are zero.

    n is data, so segments of any length run the same compiled program, and cutting a run differently changes no bit of it.
    """

    def run(state: State, num_updates: jax.Array) -> tuple[State, Metrics]:
        shapes = jax.eval_shape(algorithm.step, state)[1]
        rows = jax.tree.map(lambda m: jnp.zeros((capacity, *m.shape), m.dtype), shapes)

        def body(i: jax.Array, loop: tuple[State, Metrics]) -> tuple[State, Metrics]:
            state, rows = loop
            state, metrics = algorithm.step(state)
            return state, jax.tree.map(lambda row, m: row.at[i].set(m), rows, metrics)

        return jax.lax.fori_loop(0, num_updates, body, (state, rows))

    return run
