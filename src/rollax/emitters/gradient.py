"""Emitters for scores that can be differentiated: steps along gradients of fitness and descriptors.

Fontaine and Nikolaidis 2021, arXiv:2106.03894. Gradients are normalized, each by its own length.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from rollax import tree
from rollax.archives.core import Added, Archive, Scored
from rollax.emitters import cma
from rollax.emitters.core import Emitter, Told, check_floats, check_shares, parents
from rollax.emitters.ranking import Rules, is_over, random_direction, rank
from rollax.emitters.variation import noise_like
from rollax.errors import UsageError

# A solution to the gradients of its fitness and of each descriptor: a tree of its structure whose leaves lead with [1 + K].
Gradients = Callable[[Any], Any]


def flat_gradients(gradients: Gradients, solution: Any) -> jax.Array:
    """Gradients as rows of length 1, `[1 + K, D]`; a gradient of 0 stays 0."""
    rows = jax.vmap(lambda x: ravel_pytree(x)[0])(gradients(solution))
    return rows / (jnp.linalg.norm(rows, axis=1, keepdims=True) + 1e-8)


def gradient_operator(archive: Archive, gradients: Gradients, sigma: Any, gradient_sigma: Any) -> Emitter:
    """OMG-MEGA: half of the batch are elites with noise of `sigma`; each has a child in the other half, by its gradients.

    x' = x + |c_0| grad f + sum_k c_k grad d_k, c ~ N(0, gradient_sigma I): algorithm 1.
    """

    def init(key: jax.Array, solutions: Any) -> Any:
        check_floats(solutions, "the gradient operator")
        number = jax.tree.leaves(solutions)[0].shape[0]
        if number % 2:
            raise UsageError(f"batch_size ({number}) must be even: half of it are elites, half their children")
        return solutions

    def child(solution: Any, key: jax.Array) -> Any:
        flat, unravel = ravel_pytree(solution)
        rows = flat_gradients(gradients, solution)
        coefficients = gradient_sigma * jax.random.normal(key, (rows.shape[0],))
        return unravel(flat + coefficients.at[0].set(jnp.abs(coefficients[0])) @ rows)

    def ask(state: Any, archive_state: Any, key: jax.Array, number: int) -> tuple[Any, Any]:
        parent_key, noise_key, child_key = jax.random.split(key, 3)
        found = parents(archive, archive_state, state, parent_key, number // 2)
        found = jax.tree.map(lambda x, noise: x + sigma * noise, found, noise_like(found, noise_key))
        children = jax.vmap(child)(found, jax.random.split(child_key, number // 2))
        return state, jax.tree.map(lambda *both: jnp.concatenate(both), found, children)

    return Emitter(init, ask, lambda state, archive_state, told, key: state)


class Arborescences(NamedTuple):
    """E searches; every leaf leads with `[E]`."""

    point: Any  # the solution that a search is at
    search: cma.Search  # over coefficients of gradients, 1 + K dimensions
    coefficients: jax.Array  # float32 [E, n - 1, 1 + K]: of the solutions asked for last
    direction: jax.Array  # float32 [E, K]
    restarts: jax.Array  # int32 [E]


def gradient_arborescence(
    archive: Archive, gradients: Gradients, num_emitters: int, sigma: Any, learning_rate: Any, rules: Rules
) -> Emitter:
    """`num_emitters` searches, each at one solution, that branch into x + c [grad f, grad d] with c adapted by CMA-ES.

    CMA-MEGA, algorithm 2. The first solution of each is the point itself, whose gradients are taken; the others are branches,
    and the point moves by `learning_rate` towards the weighted mean of the best.
    """
    size = len(archive.low) + 1

    def begun(key: jax.Array) -> tuple[cma.Search, jax.Array]:
        search = jax.vmap(lambda mean: cma.begin(mean, sigma))(jnp.zeros((num_emitters, size)))
        return search, jax.vmap(lambda key: random_direction(archive, key))(jax.random.split(key, num_emitters))

    def init(key: jax.Array, solutions: Any) -> Arborescences:
        check_floats(solutions, "gradient arborescence")
        share = check_shares(solutions, num_emitters, 3)
        search, directions = begun(key)
        coefficients = jnp.zeros((num_emitters, share - 1, size))
        points = jax.tree.map(lambda x: x[::share], solutions)
        return Arborescences(points, search, coefficients, directions, jnp.zeros(num_emitters, jnp.int32))

    def ask(state: Arborescences, archive_state: Any, key: jax.Array, number: int) -> tuple[Arborescences, Any]:
        grow = lambda *mine: branches(gradients, number // num_emitters - 1, *mine)  # noqa: E731
        keys = jax.random.split(key, num_emitters)
        search, coefficients, solutions = jax.vmap(grow)(state.point, state.search, keys)
        solutions = jax.tree.map(lambda x: x.reshape(number, *x.shape[2:]), solutions)
        return state._replace(search=search, coefficients=coefficients), solutions

    def tell(state: Arborescences, archive_state: Any, told: Told, key: jax.Array) -> Arborescences:
        member_key, begin_key = jax.random.split(key)
        each = jax.tree.map(lambda x: x.reshape(num_emitters, -1, *x.shape[1:])[:, 1:], (told.scored, told.added))
        moved, over = jax.vmap(lambda *mine: generation(rules, learning_rate, *mine))(state, *each)
        over &= archive.num_elites(archive_state) > 0
        elites = archive.sample(archive_state, member_key, num_emitters).solution
        search, directions = begun(begin_key)
        again = Arborescences(elites, search, state.coefficients, directions, state.restarts + 1)
        return tree.where(over, again, moved)

    def metrics(state: Arborescences) -> dict[str, jax.Array]:
        return {"sigma": jnp.mean(state.search.sigma), "restarts": jnp.sum(state.restarts).astype(jnp.float32)}

    return Emitter(init, ask, tell, metrics)


def branches(
    gradients: Gradients, number: int, point: Any, search: cma.Search, key: jax.Array
) -> tuple[cma.Search, jax.Array, Any]:
    """The search as it was sampled, coefficients `[n, 1 + K]`, and solutions `[1 + n]`: the point and its branches."""
    search = cma.decompose(search)
    coefficients = cma.sample(search, key, number)
    row, unravel = ravel_pytree(point)
    rows = row[None] + coefficients @ flat_gradients(gradients, point)
    return search, coefficients, jax.vmap(unravel)(jnp.concatenate([row[None], rows]))


def generation(
    rules: Rules, learning_rate: Any, state: Arborescences, scored: Scored, added: Added
) -> tuple[Arborescences, jax.Array]:
    """One search after its branches, and whether it has to begin again."""
    ranked = rank(rules, state.direction, scored, added)
    order, count = ranked.order, jnp.maximum(ranked.parents, 1)
    search = cma.adapt(state.search, state.coefficients[order], count)
    weights = cma.rates(order.shape[0], count, state.search.mean.shape[0]).weights
    goal = jax.tree.map(lambda x: jnp.tensordot(weights, x[order], 1), scored.solution)
    point = jax.tree.map(lambda x, y: x + learning_rate * (y - x), state.point, goal)
    moved = tree.where(ranked.parents > 0, state._replace(point=point, search=search), state)
    return moved, is_over(rules, search, ranked) | ~tree.all_finite((point, search))
