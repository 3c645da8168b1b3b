"""Emitters that vary elites of the archive: noise, lines between two elites, and polynomial mutation with crossover."""

from collections.abc import Callable
from typing import Any

import jax

from rollax.archives.core import Archive
from rollax.emitters.core import Emitter, check_floats, parents


def varying(archive: Archive, vary: Callable[[Any, Any, jax.Array], Any], name: str) -> Emitter:
    """An emitter of `vary(parent, other parent, key)`, a function of two elites of the archive and their child.

    `init` raises UsageError when solutions are not all floats.
    """

    def init(key: jax.Array, solutions: Any) -> Any:
        check_floats(solutions, name)
        return solutions

    def ask(state: Any, archive_state: Any, key: jax.Array, number: int) -> tuple[Any, Any]:
        first_key, second_key, vary_key = jax.random.split(key, 3)
        first = parents(archive, archive_state, state, first_key, number)
        second = parents(archive, archive_state, state, second_key, number)
        return state, vary(first, second, vary_key)

    return Emitter(init, ask, lambda state, archive_state, told, key: state)


def gaussian(archive: Archive, sigma: Any) -> Emitter:
    """x' = x + sigma N(0, I) of an elite x."""

    def vary(first: Any, second: Any, key: jax.Array) -> Any:
        return jax.tree.map(lambda x, noise: x + sigma * noise, first, noise_like(first, key))

    return varying(archive, vary, "the Gaussian emitter")


def iso_line(archive: Archive, iso_sigma: Any, line_sigma: Any) -> Emitter:
    """x' = x + iso_sigma N(0, I) + line_sigma N(0, 1) (y - x) of elites x and y.

    The operator Iso+LineDD, Vassiliades and Mouret 2018, arXiv:1804.03906, equation 2.
    """

    def vary(first: Any, second: Any, key: jax.Array) -> Any:
        iso_key, line_key = jax.random.split(key)
        along = line_sigma * jax.random.normal(line_key, (batch_size(first),))

        def child(x: jax.Array, y: jax.Array, noise: jax.Array) -> jax.Array:
            return x + iso_sigma * noise + along.reshape(-1, *(1,) * (x.ndim - 1)) * (y - x)

        return jax.tree.map(child, first, second, noise_like(first, iso_key))

    return varying(archive, vary, "the iso+line emitter")


def noise_like(solutions: Any, key: jax.Array) -> Any:
    """Standard normal numbers of the shapes and types of a tree."""
    leaves, structure = jax.tree.flatten(solutions)
    keys = jax.random.split(key, len(leaves))
    return structure.unflatten([jax.random.normal(k, x.shape, x.dtype) for k, x in zip(keys, leaves, strict=True)])


def batch_size(solutions: Any) -> int:
    return jax.tree.leaves(solutions)[0].shape[0]
