"""Emitters that vary elites: Gaussian noise, Iso+LineDD, and crossover with polynomial mutation."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rollax.archives.archive import Archive
from rollax.emitters.emitter import Emitter, check_floats, ignore_evaluation, sample_parents
from rollax.types import Scalar, Solution, State


def variation_emitter(
    archive: Archive, vary: Callable[[Solution, Solution, jax.Array], Solution], name: str
) -> Emitter:
    """Build an emitter that applies a variation operator to pairs of random elites.

    Args:
        archive: Archive with the parents.
        vary: Function `(parents, other_parents, key)` from two batches of parents `[n, ...]` to
            offspring `[n, ...]`, one for each pair of parents.
        name: Name of the emitter in messages.

    Returns:
        The emitter. Its `init` raises a `UsageError` if solutions contain values that are not
        floats.
    """

    def init(key: jax.Array, solutions: Solution) -> Any:
        check_floats(solutions, name)
        return solutions

    def ask(state: State, archive_state: State, key: jax.Array, batch_size: int) -> tuple[Any, Any]:
        first_key, second_key, vary_key = jax.random.split(key, 3)
        first = sample_parents(archive, archive_state, state, first_key, batch_size)
        second = sample_parents(archive, archive_state, state, second_key, batch_size)
        return state, vary(first, second, vary_key)

    return Emitter(init=init, ask=ask, tell=ignore_evaluation)


def gaussian_emitter(archive: Archive, sigma: Scalar) -> Emitter:
    """Build an emitter of offspring x' = x + sigma N(0, I) of random elites x."""

    def vary(first: Solution, second: Solution, key: jax.Array) -> Any:
        return jax.tree.map(lambda x, noise: x + sigma * noise, first, noise_like(first, key))

    return variation_emitter(archive, vary, "the Gaussian emitter")


def iso_line_emitter(archive: Archive, iso_sigma: Scalar, line_sigma: Scalar) -> Emitter:
    """Build an emitter that applies the operator Iso+LineDD to random elites x and y.

    The offspring is x' = x + iso_sigma N(0, I) + line_sigma N(0, 1) (y - x) (Vassiliades and Mouret
    2018, arXiv:1804.03906, eq. 2).

    Args:
        archive: Archive with the parents.
        iso_sigma: Standard deviation of the isotropic noise.
        line_sigma: Standard deviation of the step along the line, relative to the distance between
            x and y.

    Returns:
        The emitter.
    """

    def vary(first: Solution, second: Solution, key: jax.Array) -> Any:
        iso_key, line_key = jax.random.split(key)
        line_steps = line_sigma * jax.random.normal(line_key, (num_solutions(first),))

        def make_child(x: jax.Array, y: jax.Array, noise: jax.Array) -> jax.Array:
            return x + iso_sigma * noise + line_steps.reshape(-1, *(1,) * (x.ndim - 1)) * (y - x)

        return jax.tree.map(make_child, first, second, noise_like(first, iso_key))

    return variation_emitter(archive, vary, "the iso+line emitter")


Crossover = Literal["uniform", "simulated_binary"]


def polynomial_emitter(
    archive: Archive,
    bounds: tuple[Scalar | np.ndarray, Scalar | np.ndarray],
    eta: Scalar,
    mutation_fraction: Scalar,
    crossover_fraction: Scalar,
    crossover: Crossover,
) -> Emitter:
    """Build an emitter that applies crossover and polynomial mutation to two random elites.

    Args:
        archive: Archive with the parents.
        bounds: Lower and upper bounds, which are scalars or broadcast to the shape of each array of
            a solution. All numbers of a solution are clipped to the bounds.
        eta: Distribution index of polynomial mutation and simulated binary crossover. The changes
            are smaller for larger values.
        mutation_fraction: Probability of mutation of each number.
        crossover_fraction: Probability of crossover of each number.
        crossover: "uniform" replaces a number by that of the second elite.
            "simulated_binary" applies `simulated_binary_crossover`.

    Returns:
        The emitter.
    """

    def vary(first: Solution, second: Solution, key: jax.Array) -> Any:
        leaves, structure = jax.tree.flatten(first)
        keys = jax.random.split(key, len(leaves))
        children = [
            make_child(x, y, k)
            for x, y, k in zip(leaves, jax.tree.leaves(second), keys, strict=True)
        ]
        return structure.unflatten(children)

    def make_child(x: jax.Array, y: jax.Array, key: jax.Array) -> jax.Array:
        low, high = (
            jnp.broadcast_to(jnp.asarray(bound, x.dtype), x.shape[1:])[None] for bound in bounds
        )
        x, y = jnp.clip(x, low, high), jnp.clip(y, low, high)
        crossover_draw, mutation_draw, crossover_mask_draw, mutation_mask_draw = (
            jax.random.uniform(k, x.shape, x.dtype) for k in jax.random.split(key, 4)
        )
        recombined = (
            y
            if crossover == "uniform"
            else jnp.clip(simulated_binary_crossover(x, y, eta, crossover_draw), low, high)
        )
        x = jnp.where(crossover_mask_draw < crossover_fraction, recombined, x)
        return jnp.where(
            mutation_mask_draw < mutation_fraction,
            polynomial_mutation(x, low, high, eta, mutation_draw),
            x,
        )

    return variation_emitter(archive, vary, "the polynomial emitter")


def polynomial_mutation(
    x: jax.Array, low: jax.Array, high: jax.Array, eta: Scalar, uniform: jax.Array
) -> jax.Array:
    """Apply polynomial mutation to values within bounds.

    The result is x + (high - low) delta, where |delta| has a density proportional to
    (1 - |delta|)^eta (Deb and Agrawal 1999, "A niched-penalty approach for constraint handling in
    genetic algorithms"). The density is truncated at the bounds, and both directions have
    probability 1/2, as in NSGA-II (Deb et al. 2002, doi:10.1109/4235.996017).

    Args:
        x: Values.
        low: Lower bounds.
        high: Upper bounds.
        eta: Distribution index.
        uniform: Uniform random numbers in [0, 1].

    Returns:
        The mutated values.
    """
    span, power = high - low, eta + 1
    below, above = ((1 - part / span) ** power for part in (x - low, high - x))
    decrease = (2 * uniform + (1 - 2 * uniform) * below) ** (1 / power) - 1
    increase = 1 - (2 * (1 - uniform) + (2 * uniform - 1) * above) ** (1 / power)
    return jnp.clip(x + span * jnp.where(uniform < 0.5, decrease, increase), low, high)


def simulated_binary_crossover(
    x: jax.Array, y: jax.Array, eta: Scalar, uniform: jax.Array
) -> jax.Array:
    """Return one child of the simulated binary crossover of two parents.

    The child is (x + y) / 2 + beta (x - y) / 2. Exchange the parents to compute the second child.
    The density of beta is (eta + 1) beta^eta / 2 for beta <= 1, and (eta + 1) / (2 beta^(eta + 2))
    for beta > 1 (Deb and Agrawal 1995, "Simulated binary crossover for continuous search space",
    Complex Systems 9).

    Args:
        x: Values of the first parent.
        y: Values of the second parent.
        eta: Distribution index.
        uniform: Uniform random numbers in [0, 1].

    Returns:
        The values of the child.
    """
    beta = jnp.where(uniform < 0.5, 2 * uniform, 1 / (2 * (1 - uniform))) ** (1 / (eta + 1))
    return (x + y) / 2 + beta * (x - y) / 2


def noise_like(solutions: Solution, key: jax.Array) -> Any:
    """Sample standard normal noise with the structure, shapes and dtypes of `solutions`."""
    leaves, structure = jax.tree.flatten(solutions)
    keys = jax.random.split(key, len(leaves))
    return structure.unflatten(
        [jax.random.normal(k, x.shape, x.dtype) for k, x in zip(keys, leaves, strict=True)]
    )


def num_solutions(solutions: Solution) -> int:
    return jax.tree.leaves(solutions)[0].shape[0]
