"""Emitters that vary elites of the archive: noise, lines between two elites, and polynomial mutation with crossover."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

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


Crossover = Literal["uniform", "simulated_binary"]


def polynomial(
    archive: Archive, bounds: tuple[Any, Any], eta: Any, mutation_fraction: Any, crossover_fraction: Any, crossover: Crossover
) -> Emitter:
    """A child of two elites by crossover of some of its numbers, some of which are then mutated; all stay within `bounds`.

    `bounds`: the lowest and the highest value, numbers or of the shape of a solution's arrays; what lies beyond them counts as
    at the border. `eta`: the distribution index of mutation and of simulated binary crossover, larger ones change less. The
    fractions are probabilities of every number by itself.
    """

    def vary(first: Any, second: Any, key: jax.Array) -> Any:
        leaves, structure = jax.tree.flatten(first)
        keys = jax.random.split(key, len(leaves))
        children = [child(x, y, k) for x, y, k in zip(leaves, jax.tree.leaves(second), keys, strict=True)]
        return structure.unflatten(children)

    def child(x: jax.Array, y: jax.Array, key: jax.Array) -> jax.Array:
        low, high = (jnp.broadcast_to(jnp.asarray(bound, x.dtype), x.shape[1:])[None] for bound in bounds)
        x, y = jnp.clip(x, low, high), jnp.clip(y, low, high)
        cross, mutate, cross_at, mutate_at = (jax.random.uniform(k, x.shape, x.dtype) for k in jax.random.split(key, 4))
        crossed = y if crossover == "uniform" else jnp.clip(simulated_binary_crossover(x, y, eta, cross), low, high)
        x = jnp.where(cross_at < crossover_fraction, crossed, x)
        return jnp.where(mutate_at < mutation_fraction, polynomial_mutation(x, low, high, eta, mutate), x)

    return varying(archive, vary, "the polynomial emitter")


def polynomial_mutation(x: jax.Array, low: jax.Array, high: jax.Array, eta: Any, uniform: jax.Array) -> jax.Array:
    """x + (high - low) delta, by uniform numbers in 0 ... 1; of a density like (1 - |delta|)^eta, half of it on either side.

    Deb and Agrawal 1999, "A niched-penalty approach for constraint handling in genetic algorithms", in the form with bounds
    of NSGA-II (Deb et al. 2002, doi:10.1109/4235.996017): each side ends at its bound.
    """
    span, power = high - low, eta + 1
    below, above = ((1 - part / span) ** power for part in (x - low, high - x))
    down = (2 * uniform + (1 - 2 * uniform) * below) ** (1 / power) - 1
    up = 1 - (2 * (1 - uniform) + (2 * uniform - 1) * above) ** (1 / power)
    return jnp.clip(x + span * jnp.where(uniform < 0.5, down, up), low, high)


def simulated_binary_crossover(x: jax.Array, y: jax.Array, eta: Any, uniform: jax.Array) -> jax.Array:
    """The child (x + y) / 2 + beta (x - y) / 2, by uniform numbers in 0 ... 1. Parents in other order give the second.

    Deb and Agrawal 1995, "Simulated binary crossover for continuous search space", Complex Systems 9: the density of beta is
    (eta + 1) beta^eta / 2 up to 1 and (eta + 1) / (2 beta^(eta + 2)) beyond.
    """
    beta = jnp.where(uniform < 0.5, 2 * uniform, 1 / (2 * (1 - uniform))) ** (1 / (eta + 1))
    return (x + y) / 2 + beta * (x - y) / 2


def noise_like(solutions: Any, key: jax.Array) -> Any:
    """Standard normal numbers of the shapes and types of a tree."""
    leaves, structure = jax.tree.flatten(solutions)
    keys = jax.random.split(key, len(leaves))
    return structure.unflatten([jax.random.normal(k, x.shape, x.dtype) for k, x in zip(keys, leaves, strict=True)])


def batch_size(solutions: Any) -> int:
    return jax.tree.leaves(solutions)[0].shape[0]
