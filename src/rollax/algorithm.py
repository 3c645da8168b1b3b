"""What an algorithm is: a few pure functions on one pytree that holds everything that changes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

State = Any
Metrics = Any


class Algorithm(NamedTuple):
    """Pure functions; jit, vmap and shard them as you like.

    `step` returns what does not carry over to the next update as metrics: a dictionary of scalars.
    """

    init: Callable[[jax.Array, Any], State]  # (key, config) -> state
    step: Callable[[State], tuple[State, Metrics]]  # one update
    # (state, carry, obs, key, greedy) -> (carry, action), for evaluation and serving: of one environment, so that with agents
    # the carry, the observation and the action lead with [A].
    act: Callable[..., Any]
    initial_carry: Callable[[State], Any]  # the memory that an episode of one environment begins with
    # The state without what only learning needs, such as a replay: what `act` and `initial_carry` read is left as it is.
    acting_state: Callable[[State], State] = lambda state: state


def population(algorithm: Algorithm) -> Algorithm:
    """Many runs at once: every leaf of the state, the key and the config leads with an axis of members.

    Members are begun one after the other: a batch of orthogonal decompositions, which networks are made of, can wait for
    itself without end on a CPU with few cores (jaxlib 0.10.2: two such calls at once each hold a thread that the other needs).
    """
    return Algorithm(
        init=lambda keys, configs: jax.lax.map(lambda member: algorithm.init(*member), (keys, configs)),
        step=jax.vmap(algorithm.step),
        act=jax.vmap(algorithm.act, in_axes=(0, 0, 0, 0, None)),
        initial_carry=jax.vmap(algorithm.initial_carry),
        acting_state=jax.vmap(algorithm.acting_state),
    )


def segment(algorithm: Algorithm, capacity: int) -> Callable[[State, jax.Array], tuple[State, Metrics]]:
    """`(state, n) -> (state, metrics [capacity, ...])`: n <= capacity updates in one call; rows from n on are zero.

    n is data, so segments of any length run the same compiled program, and cutting a run differently changes no bit of it.
    """

    def run(state: State, num_updates: jax.Array) -> tuple[State, Metrics]:
        shapes = jax.eval_shape(algorithm.step, state)[1]
        rows = jax.tree.map(lambda m: jnp.zeros((capacity, *m.shape), m.dtype), shapes)

        def body(i: jax.Array, carry: tuple[State, Metrics]) -> tuple[State, Metrics]:
            state, rows = carry
            state, metrics = algorithm.step(state)
            return state, jax.tree.map(lambda row, m: row.at[i].set(m), rows, metrics)

        return jax.lax.fori_loop(0, num_updates, body, (state, rows))

    return run
