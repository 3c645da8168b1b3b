"""Programs of each row of the table, compiled once for all tests, and comparisons of results."""

import contextlib
import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from configuration import configured
from laws.table import BY_NAME
from rollax.training.compile.segments import segment

CAPACITY = 8  # updates of the longest segment
# Rows that are compiled with all optimizations, as a run is. The nightly tests do so for all rows.
OPTIMIZED = ("sac",)


class Programs(NamedTuple):
    init: Callable[[jax.Array], Any]  # key -> state
    step: Callable[[Any], Any]  # state -> (state, metrics)
    segment: Callable[[Any, int], Any]  # (state, n) -> (state, metrics [CAPACITY])


@cache
def programs(name: str) -> Programs:
    """Return the row's programs in its environment. They are compiled at the first call."""
    row = BY_NAME[name]
    algorithm = row.make(row.environment)
    init = jax.jit(lambda key: algorithm.init(key, row.config))
    step, run = jax.jit(algorithm.step), jax.jit(segment(algorithm, CAPACITY))

    def with_care(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(state: Any, *arguments: Any) -> Any:
            with (
                configured(jax_disable_most_optimizations=False)
                if name in OPTIMIZED
                else contextlib.nullcontext()
            ):
                return function(fresh(state), *arguments)

        return call

    return Programs(init, with_care(step), with_care(lambda state, n: run(state, jnp.int32(n))))


def fresh(tree: Any) -> Any:
    """Return the same values with new key objects.

    A test may run a state twice, which JAX's check against key reuse would forbid.
    """

    def renew(leaf: Any) -> Any:
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return jax.random.wrap_key_data(jax.random.key_data(leaf)) if is_key else leaf

    return jax.tree.map(renew, tree)


@cache
def begun(name: str) -> Any:
    """Return the row's state after three updates, in the middle of episodes."""
    state = programs(name).init(jax.random.key(3))
    for _ in range(3):
        state, _ = programs(name).step(state)
    return state


def with_one_iteration(name: str, state: Any) -> Any:
    """Return the state with one batch per update if the row has an archive.

    Rounding affects which of two nearly equal solutions wins a cell, and thus all later batches.
    """
    if BY_NAME[name].family != "archive":
        return state
    return state._replace(config=dataclasses.replace(state.config, num_iterations=1))


def plain(tree: Any) -> Any:
    """Convert every leaf to a NumPy array. Keys become their data."""

    def convert(leaf: Any) -> np.ndarray:
        is_key = jnp.issubdtype(jnp.asarray(leaf).dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if is_key else leaf)

    return jax.tree.map(convert, tree)


def assert_equal(left: Any, right: Any) -> None:
    """Assert that both trees have the same structure and the same bits."""
    jax.tree.map(np.testing.assert_array_equal, plain(left), plain(right))


def assert_close(left: Any, right: Any, tolerance: float = 1e-5) -> None:
    """Assert that both trees have the same structure, and numbers within `tolerance`.

    The tolerance is absolute and relative. Integers and keys have to be equal.
    """
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance),
        plain(left),
        plain(right),
    )


def differs(left: Any, right: Any) -> bool:
    """Return whether any leaf differs in any bit."""
    pairs = zip(jax.tree.leaves(plain(left)), jax.tree.leaves(plain(right)), strict=True)
    return any(not np.array_equal(a, b) for a, b in pairs)


def network_of(state: Any) -> Any:
    """Return the network of a state, or of the states of all members.

    The result is a dictionary if there are several parameter groups.
    """
    learner = state.train if "train" in state._fields else state.agent
    return (
        {name: one.network for name, one in learner.items()}
        if isinstance(learner, dict)
        else learner.network
    )


def gradient_steps(state: Any) -> dict[str, int]:
    """Return the number of gradient steps of each optimizer in the state, as counted by Adam."""

    def is_adam(node: Any) -> bool:
        return isinstance(node, optax.ScaleByAdamState)

    def count(optimizer: Any) -> int:
        return next(
            int(node.count) for node in jax.tree.leaves(optimizer, is_leaf=is_adam) if is_adam(node)
        )

    return {name: count(optimizer) for name, optimizer in state.train.optimizer.items()}
