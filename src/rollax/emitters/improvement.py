"""Emitters that use CMA-ES to maximize the improvement of the archive (CMA-ME, CMA-MAE).

Fontaine et al. 2020, arXiv:1912.02400, and Fontaine and Nikolaidis 2023, arXiv:2205.10752. Several
searches run in parallel. Each search ranks the solutions that it created, adapts its distribution,
and restarts from an elite of the archive according to its restart rule (`SearchRules.restart`).
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from rollax import tree
from rollax.archives.archive import Archive, InsertionResult, ScoredSolutions
from rollax.emitters import cma
from rollax.emitters.emitter import Emitter, EvaluatedBatch, check_floats, compute_share
from rollax.emitters.ranking import SearchRules, rank_generation, should_restart, start_searches
from rollax.errors import UsageError
from rollax.types import PyTree, Scalar, Solution, State

MAX_SOLUTION_SIZE = 4000  # maximum number of parameters of a solution


class SearchesState(NamedTuple):
    """State of E searches. Every leaf except `example_solution` has the leading axis `[E]`.

    Attributes:
        search: Search distributions.
        direction: Random direction in descriptor space used for ranking, float32 `[E, K]`.
        num_restarts: Number of restarts, int32 `[E]`.
        example_solution: One solution, which defines the structure of flattened solutions.
    """

    search: cma.SearchDistribution
    direction: jax.Array
    num_restarts: jax.Array
    example_solution: Any


def cma_es_emitter(
    archive: Archive, num_emitters: int, sigma: Scalar, rules: SearchRules
) -> Emitter:
    """Build an emitter that runs several CMA-ES searches in parallel.

    Args:
        archive: Archive that provides elites for restarts.
        num_emitters: Number of searches.
        sigma: Initial standard deviation of each search.
        rules: Rules of ranking, selection and restart.

    Returns:
        The emitter. Its `init` raises a `UsageError` in these cases: The batch size is not a
        multiple of the number of searches. A search would have fewer than 2 solutions. Solutions
        contain values that are not floats. Solutions have more than `MAX_SOLUTION_SIZE` parameters.
    """

    def init(key: jax.Array, solutions: Solution) -> SearchesState:
        check_floats(solutions, "CMA-ES")
        share = compute_share(solutions, num_emitters, 2)
        size = sum(x[0].size for x in jax.tree.leaves(solutions))
        if size > MAX_SOLUTION_SIZE:
            raise UsageError(
                f"CMA-ES supports solutions of at most {MAX_SOLUTION_SIZE:,} parameters, got "
                f"{size:,}, because it learns a full covariance matrix. Use smaller networks "
                "(--network.hidden 16), or map_elites or me_es."
            )
        means = flatten_solutions(jax.tree.map(lambda x: x[::share], solutions))
        started = start_searches(archive, sigma, means, key)
        return SearchesState(
            search=started.search,
            direction=started.direction,
            num_restarts=jnp.zeros(num_emitters, jnp.int32),
            example_solution=jax.tree.map(lambda x: x[0], solutions),
        )

    def ask(
        state: SearchesState, archive_state: State, key: jax.Array, batch_size: int
    ) -> tuple[SearchesState, Any]:
        def sample(search, key):
            return cma.sample_points(search, key, batch_size // num_emitters)

        points = jax.vmap(sample)(state.search, jax.random.split(key, num_emitters))
        return state, jax.vmap(ravel_pytree(state.example_solution)[1])(
            points.reshape(batch_size, -1)
        )

    def tell(
        state: SearchesState, archive_state: State, evaluated: EvaluatedBatch, key: jax.Array
    ) -> SearchesState:
        member_key, start_key = jax.random.split(key)
        search, must_restart = update_searches(rules, state, evaluated)
        must_restart &= archive.num_elites(archive_state) > 0
        elites = archive.sample(archive_state, member_key, num_emitters).solution
        started = start_searches(archive, sigma, flatten_solutions(elites), start_key)
        return state._replace(
            search=tree.where(must_restart, started.search, search),
            direction=tree.where(must_restart, started.direction, state.direction),
            num_restarts=tree.where(must_restart, state.num_restarts + 1, state.num_restarts),
        )

    def metrics(state: SearchesState) -> dict[str, jax.Array]:
        return {
            "sigma": jnp.mean(state.search.sigma),
            "restarts": jnp.sum(state.num_restarts).astype(jnp.float32),
        }

    def refresh(state: SearchesState) -> SearchesState:
        return state._replace(search=jax.vmap(cma.decompose)(state.search))

    return Emitter(init=init, ask=ask, tell=tell, metrics=metrics, refresh=refresh)


def flatten_solutions(solutions: Solution) -> jax.Array:
    """Return solutions `[B, ...]` as flat vectors, `[B, D]`."""
    return jax.vmap(lambda x: ravel_pytree(x)[0])(solutions)


def update_searches(
    rules: SearchRules, state: SearchesState, evaluated: EvaluatedBatch
) -> tuple[cma.SearchDistribution, jax.Array]:
    """Update every search with the scores of its share of the batch.

    Args:
        rules: Rules of ranking, selection and restart.
        state: State of the searches.
        evaluated: Evaluated batch `[B]`.

    Returns:
        The updated search distributions, and whether each search must restart, bool `[E]`.
    """
    num_emitters = state.num_restarts.shape[0]

    def split_by_search(values: PyTree) -> Any:
        return jax.tree.map(lambda x: x.reshape(num_emitters, -1, *x.shape[1:]), values)

    return jax.vmap(functools.partial(update_search, rules))(
        state.search,
        state.direction,
        split_by_search(flatten_solutions(evaluated.solutions.solution)),
        split_by_search(evaluated.solutions),
        split_by_search(evaluated.insertion),
    )


def update_search(
    rules: SearchRules,
    search: cma.SearchDistribution,
    direction: jax.Array,
    points: jax.Array,
    scored: ScoredSolutions,
    insertion: InsertionResult,
) -> tuple[cma.SearchDistribution, jax.Array]:
    """Update one search with the scores of its generation.

    Args:
        rules: Rules of ranking, selection and restart.
        search: Search distribution.
        direction: Random direction in descriptor space used for ranking, `[K]`.
        points: Flattened solutions of the generation, `[B, D]`.
        scored: Scored solutions of the generation, `[B, ...]`.
        insertion: Insertion result of each solution, `[B]`.

    Returns:
        The updated search distribution, and whether the search must restart, bool `[]`.
    """
    ranked = rank_generation(rules, direction, scored, insertion)
    after = cma.adapt(search, points[ranked.order], jnp.maximum(ranked.num_parents, 1))
    after = tree.where(ranked.num_parents > 0, after, search)
    after = cma.update_stall_count(after, ranked.values[0, -1], ranked.num_accepted > 0)
    return after, should_restart(rules, after, ranked) | ~tree.all_finite(after)
