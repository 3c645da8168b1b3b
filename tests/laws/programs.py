"""The programs of each row of the table, compiled once for all laws, and what laws compare with."""

import contextlib
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
# A row compiled as a run is, so that laws meet such a program as well. At night all are (nightly.yml).
OPTIMIZED = ("sac",)


class Programs(NamedTuple):
    init: Callable[[jax.Array], Any]  # key -> state
    step: Callable[[Any], Any]  # state -> (state, metrics)
    segment: Callable[[Any, int], Any]  # (state, n) -> (state, metrics [CAPACITY])


@cache
def programs(name: str) -> Programs:
    """The row's programs in the environment of its laws; compiled at the first call."""
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
    """The same values with new key objects: a law may run a state twice, which the check against reuse of keys forbids."""

    def renew(leaf: Any) -> Any:
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return jax.random.wrap_key_data(jax.random.key_data(leaf)) if is_key else leaf

    return jax.tree.map(renew, tree)


@cache
def begun(name: str) -> Any:
    """A state of the row after three updates, in the middle of episodes."""
    state = programs(name).init(jax.random.key(3))
    for _ in range(3):
        state, _ = programs(name).step(state)
    return state


def plain(tree: Any) -> Any:
    """Every leaf as a numpy array; keys as their numbers."""

    def convert(leaf: Any) -> np.ndarray:
        is_key = jnp.issubdtype(jnp.asarray(leaf).dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if is_key else leaf)

    return jax.tree.map(convert, tree)


def assert_equal(left: Any, right: Any) -> None:
    """The same structure, and the same bits."""
    jax.tree.map(np.testing.assert_array_equal, plain(left), plain(right))


def assert_close(left: Any, right: Any, tolerance: float = 1e-5) -> None:
    """The same structure, and numbers within `tolerance`, absolute and relative; whole numbers and keys equal."""
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance),
        plain(left),
        plain(right),
    )


def differs(left: Any, right: Any) -> bool:
    """Whether any leaf differs in any bit."""
    pairs = zip(jax.tree.leaves(plain(left)), jax.tree.leaves(plain(right)), strict=True)
    return any(not np.array_equal(a, b) for a, b in pairs)


def network_of(state: Any) -> Any:
    """The network of a state, or of the states of all members; by group where there are several."""
    learner = state.train if "train" in state._fields else state.agent
    return (
        {name: one.network for name, one in learner.items()}
        if isinstance(learner, dict)
        else learner.network
    )


def gradient_steps(state: Any) -> dict[str, int]:
    """How many gradient steps each optimizer of the state has taken, by Adam's own count."""

    def is_adam(node: Any) -> bool:
        return isinstance(node, optax.ScaleByAdamState)

    def count(optimizer: Any) -> int:
        return next(
            int(node.count) for node in jax.tree.leaves(optimizer, is_leaf=is_adam) if is_adam(node)
        )

    return {name: count(optimizer) for name, optimizer in state.train.optimizer.items()}
