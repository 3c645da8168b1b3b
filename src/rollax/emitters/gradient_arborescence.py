"""Emitters that move solutions along the gradients of fitness and descriptors.

Fontaine and Nikolaidis 2021, arXiv:2106.03894. Each gradient is normalized to length 1.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from rollax import tree
from rollax.archives.archive import Archive, InsertionResult, ScoredSolutions
from rollax.emitters import cma
from rollax.emitters.emitter import (
    Emitter,
    EvaluatedBatch,
    check_floats,
    compute_share,
    ignore_evaluation,
    sample_parents,
)
from rollax.emitters.ranking import (
    SearchRules,
    StartedSearches,
    rank_generation,
    should_restart,
    start_searches,
)
from rollax.emitters.variation import noise_like
from rollax.errors import UsageError
from rollax.types import PyTree, Scalar, Solution, State

# Function from a solution to the gradients of fitness and K descriptors: a pytree with the
# structure of the solution and leaves `[1 + K, ...]`.
GradientsFn = Callable[[Any], Any]


def normalized_gradients(gradients: GradientsFn, solution: Solution) -> jax.Array:
    """Return the flattened gradients of a solution, scaled to length 1, `[1 + K, D]`.

    Gradients of 0 remain 0.
    """
    rows = jax.vmap(lambda x: ravel_pytree(x)[0])(gradients(solution))
    return rows / (jnp.linalg.norm(rows, axis=1, keepdims=True) + 1e-8)


def gradient_operator_emitter(
    archive: Archive, gradients: GradientsFn, sigma: Scalar, gradient_sigma: Scalar
) -> Emitter:
    """Build the emitter of OMG-MEGA (algorithm 1).

    The first half of a batch consists of elites x with added noise. The second half consists of the
    offspring x' = x + |c_0| grad f + sum_k c_k grad d_k of the first half, where f is the fitness,
    d_k is descriptor k, and c ~ N(0, gradient_sigma^2 I).

    Args:
        archive: Archive with the parents.
        gradients: Function from a solution to the gradients of its fitness and descriptors.
        sigma: Standard deviation of the noise.
        gradient_sigma: Standard deviation of the coefficients c.

    Returns:
        The emitter. Its `init` raises a `UsageError` if the batch size is odd, or if solutions
        contain values that are not floats.
    """

    def init(key: jax.Array, solutions: Solution) -> Any:
        check_floats(solutions, "the gradient operator")
        batch_size = jax.tree.leaves(solutions)[0].shape[0]
        if batch_size % 2:
            raise UsageError(
                f"batch_size must be even, got {batch_size}. Half of the batch are elites and half "
                "are their offspring."
            )
        return solutions

    def make_child(solution: Solution, key: jax.Array) -> Any:
        flat, unravel = ravel_pytree(solution)
        rows = normalized_gradients(gradients, solution)
        coefficients = gradient_sigma * jax.random.normal(key, (rows.shape[0],))
        return unravel(flat + coefficients.at[0].set(jnp.abs(coefficients[0])) @ rows)

    def ask(state: State, archive_state: State, key: jax.Array, batch_size: int) -> tuple[Any, Any]:
        parent_key, noise_key, child_key = jax.random.split(key, 3)
        parents = sample_parents(archive, archive_state, state, parent_key, batch_size // 2)
        parents = jax.tree.map(
            lambda x, noise: x + sigma * noise, parents, noise_like(parents, noise_key)
        )
        children = jax.vmap(make_child)(parents, jax.random.split(child_key, batch_size // 2))
        return state, jax.tree.map(lambda *both: jnp.concatenate(both), parents, children)

    return Emitter(init=init, ask=ask, tell=ignore_evaluation)


class ArborescencesState(NamedTuple):
    """State of E searches. Every leaf has the leading axis `[E]`.

    Attributes:
        point: Current solution of each search.
        search: Distribution of the gradient coefficients in 1 + K dimensions.
        coefficients: Gradient coefficients of the branches in the last batch, float32 `[E, n - 1, 1
            + K]`, where n is the number of solutions per search.
        direction: Random direction in descriptor space used for ranking, float32 `[E, K]`.
        num_restarts: Number of restarts, int32 `[E]`.
    """

    point: Any
    search: cma.SearchDistribution
    coefficients: jax.Array
    direction: jax.Array
    num_restarts: jax.Array


def gradient_arborescence_emitter(
    archive: Archive,
    gradients: GradientsFn,
    num_emitters: int,
    sigma: Scalar,
    learning_rate: Scalar,
    rules: SearchRules,
) -> Emitter:
    """Build the emitter of CMA-MEGA (algorithm 2).

    Each search has a point x and branches x + c_0 grad f + sum_k c_k grad d_k, where f is the
    fitness, d_k is descriptor k, and gradients are taken at x. CMA-ES adapts the distribution of
    the coefficients c. The first solution of a search in a batch is the point, and all other
    solutions are branches. The point moves toward the weighted mean of the best branches.

    Args:
        archive: Archive that provides elites for restarts.
        gradients: Function from a solution to the gradients of its fitness and descriptors.
        num_emitters: Number of searches.
        sigma: Initial standard deviation of the coefficients.
        learning_rate: Step size of the point toward the mean of the best branches.
        rules: Rules of ranking, selection and restart.

    Returns:
        The emitter. Its `init` raises a `UsageError` if the batch size is not a multiple of the
        number of searches, if a search would have fewer than 3 solutions, or if solutions contain
        values that are not floats.
    """
    size = len(archive.low) + 1

    def start(key: jax.Array) -> StartedSearches:
        return start_searches(archive, sigma, jnp.zeros((num_emitters, size)), key)

    def init(key: jax.Array, solutions: Solution) -> ArborescencesState:
        check_floats(solutions, "gradient arborescence")
        share = compute_share(solutions, num_emitters, 3)
        started = start(key)
        return ArborescencesState(
            point=jax.tree.map(lambda x: x[::share], solutions),
            search=started.search,
            coefficients=jnp.zeros((num_emitters, share - 1, size)),
            direction=started.direction,
            num_restarts=jnp.zeros(num_emitters, jnp.int32),
        )

    def ask(
        state: ArborescencesState, archive_state: State, key: jax.Array, batch_size: int
    ) -> tuple[ArborescencesState, Any]:
        sample_fn = functools.partial(sample_branches, gradients, batch_size // num_emitters - 1)
        keys = jax.random.split(key, num_emitters)
        branches = jax.vmap(sample_fn)(state.point, state.search, keys)
        solutions = jax.tree.map(lambda x: x.reshape(batch_size, *x.shape[2:]), branches.solutions)
        state = state._replace(search=branches.search, coefficients=branches.coefficients)
        return state, solutions

    def tell(
        state: ArborescencesState, archive_state: State, evaluated: EvaluatedBatch, key: jax.Array
    ) -> ArborescencesState:
        member_key, start_key = jax.random.split(key)

        def split_by_search(values: PyTree) -> Any:  # without the point, which is the first
            return jax.tree.map(lambda x: x.reshape(num_emitters, -1, *x.shape[1:])[:, 1:], values)

        update = functools.partial(update_arborescence, rules, learning_rate)
        moved, must_restart = jax.vmap(update)(
            state, split_by_search(evaluated.solutions), split_by_search(evaluated.insertion)
        )
        must_restart &= archive.num_elites(archive_state) > 0
        elites = archive.sample(archive_state, member_key, num_emitters).solution
        started = start(start_key)
        restarted = ArborescencesState(
            point=elites,
            search=started.search,
            coefficients=state.coefficients,
            direction=started.direction,
            num_restarts=state.num_restarts + 1,
        )
        return tree.where(must_restart, restarted, moved)

    def metrics(state: ArborescencesState) -> dict[str, jax.Array]:
        return {
            "sigma": jnp.mean(state.search.sigma),
            "restarts": jnp.sum(state.num_restarts).astype(jnp.float32),
        }

    return Emitter(init=init, ask=ask, tell=tell, metrics=metrics)


class Branches(NamedTuple):
    """Branches of the point of one search.

    Attributes:
        search: Distribution of the gradient coefficients, after `cma.decompose`.
        coefficients: Gradient coefficients of n branches, float32 `[n, 1 + K]`.
        solutions: The point, followed by its branches, `[1 + n, ...]`.
    """

    search: cma.SearchDistribution
    coefficients: jax.Array
    solutions: Any


def sample_branches(
    gradients: GradientsFn,
    num_branches: int,
    point: PyTree,
    search: cma.SearchDistribution,
    key: jax.Array,
) -> Branches:
    """Sample the branches of a point.

    Args:
        gradients: Function from a solution to the gradients of its fitness and descriptors.
        num_branches: Number of branches n.
        point: Point of the search, a solution.
        search: Distribution of the gradient coefficients.
        key: Random key.

    Returns:
        The point, its branches and their coefficients.
    """
    search = cma.decompose(search)
    coefficients = cma.sample_points(search, key, num_branches)
    row, unravel = ravel_pytree(point)
    rows = row[None] + coefficients @ normalized_gradients(gradients, point)
    solutions = jax.vmap(unravel)(jnp.concatenate([row[None], rows]))
    return Branches(search=search, coefficients=coefficients, solutions=solutions)


def update_arborescence(
    rules: SearchRules,
    learning_rate: Scalar,
    state: ArborescencesState,
    scored: ScoredSolutions,
    insertion: InsertionResult,
) -> tuple[ArborescencesState, jax.Array]:
    """Update one search with the scores of its branches.

    Args:
        rules: Rules of ranking, selection and restart.
        learning_rate: Step size of the point toward the weighted mean of the best branches.
        state: State of one search, without the axis `[E]`.
        scored: Scored branches, `[n, ...]`, without the point.
        insertion: Insertion results of the branches, `[n]`.

    Returns:
        The updated state of the search, and whether the search must restart, bool `[]`.
    """
    ranked = rank_generation(rules, state.direction, scored, insertion)
    order, count = ranked.order, jnp.maximum(ranked.num_parents, 1)
    search = cma.adapt(state.search, state.coefficients[order], count)
    weights = cma.compute_parameters(order.shape[0], count, state.search.mean.shape[0]).weights
    goal = jax.tree.map(lambda x: jnp.tensordot(weights, x[order], 1), scored.solution)
    point = jax.tree.map(lambda x, y: x + learning_rate * (y - x), state.point, goal)
    search = cma.update_stall_count(search, ranked.values[0, -1], ranked.num_accepted > 0)
    unmoved = state._replace(
        search=cma.update_stall_count(state.search, ranked.values[0, -1], ranked.num_accepted > 0)
    )
    moved = tree.where(ranked.num_parents > 0, state._replace(point=point, search=search), unmoved)
    return moved, should_restart(rules, search, ranked) | ~tree.all_finite((point, search))
