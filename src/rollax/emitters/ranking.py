"""Ranking, parent selection and restart rules of quality-diversity searches."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from rollax.archives.archive import STATUS_REJECTED, Archive, InsertionResult, ScoredSolutions
from rollax.emitters import cma
from rollax.types import Scalar

Ranking = Literal[
    "improvement",
    "two_stage_improvement",
    "random_direction",
    "two_stage_random_direction",
    "objective",
]
Selection = Literal["filter", "mu"]
RestartRule = Literal["no_improvement", "basic"]


class SearchRules(NamedTuple):
    """Rules that distinguish the searches of CMA-ME, CMA-MAE and related algorithms.

    Attributes:
        ranking: Ranking criterion: improvement of the archive, distance along a random direction in
            descriptor space, or fitness ("objective"). The "two_stage" variants rank new elites
            first, then improved elites, then rejected solutions.
        selection: Parents of the next generation: all solutions that the archive accepted
            ("filter"), or the better half of the solutions ("mu").
        restart: Restart criterion: after a generation without accepted solutions
            ("no_improvement"), or only when CMA-ES has converged or stagnated ("basic").
    """

    ranking: Ranking = "two_stage_improvement"
    selection: Selection = "filter"
    restart: RestartRule = "no_improvement"


class RankedGeneration(NamedTuple):
    """Ranked solutions of one generation of a search.

    Attributes:
        order: Indices of the solutions, best first, int32 `[B]`.
        num_parents: Number of parents, which may be 0, int32 `[]`.
        values: Ranking values of the solutions, best first, float32 `[B, 1]`, or `[B, 2]` with
            two-stage ranking.
        num_accepted: Number of solutions that the archive accepted, int32 `[]`.
    """

    order: jax.Array
    num_parents: jax.Array
    values: jax.Array
    num_accepted: jax.Array


def rank_generation(
    rules: SearchRules, direction: jax.Array, scored: ScoredSolutions, insertion: InsertionResult
) -> RankedGeneration:
    """Rank the solutions of a generation `[B]`.

    Solutions with non-finite scores come last.

    Args:
        rules: Rules of ranking and selection.
        direction: Random direction in descriptor space used for ranking, `[K]`.
        scored: Scored solutions, `[B, ...]`.
        insertion: Insertion result of each solution, `[B]`.

    Returns:
        The ranked generation.
    """
    if rules.ranking == "objective":
        values = [scored.fitness]
    elif rules.ranking.endswith("random_direction"):
        values = [scored.descriptor @ direction]
    else:
        values = [insertion.improvement]
    if rules.ranking.startswith("two_stage"):
        values.insert(0, insertion.status.astype(jnp.float32))
    is_finite = jnp.isfinite(scored.fitness) & jnp.all(jnp.isfinite(scored.descriptor), axis=-1)
    values = [
        jnp.where(is_finite & jnp.isfinite(value), value, cma.LOWEST_VALUE) for value in values
    ]
    order = jnp.lexsort([-value for value in reversed(values)])
    num_accepted = jnp.sum(insertion.status > STATUS_REJECTED, dtype=jnp.int32)
    num_parents = (
        num_accepted if rules.selection == "filter" else jnp.asarray(order.shape[0] // 2, jnp.int32)
    )
    return RankedGeneration(order, num_parents, jnp.stack(values, axis=-1)[order], num_accepted)


def should_restart(
    rules: SearchRules, search: cma.SearchDistribution, ranked: RankedGeneration
) -> jax.Array:
    """Return whether a search must restart after a generation.

    Args:
        rules: Rules with the restart criterion.
        search: Search after the generation.
        ranked: The ranked generation.

    Returns:
        Whether the search must restart, bool `[]`.
    """
    is_finished = cma.has_converged(search, ranked.values[0], ranked.values[-1])
    is_finished |= cma.has_stagnated(search, ranked.order.shape[0])
    return (
        is_finished | (ranked.num_accepted == 0)
        if rules.restart == "no_improvement"
        else is_finished
    )


def random_direction(archive: Archive, key: jax.Array) -> jax.Array:
    """Return a random direction in descriptor space, float32 `[K]`.

    Each component is a normal random number times the range of the descriptor dimension.
    """
    span = jnp.asarray(archive.high) - jnp.asarray(archive.low)
    return jax.random.normal(key, span.shape) * span


class StartedSearches(NamedTuple):
    """Searches before their first generation. Every leaf has the leading axis `[E]`.

    Attributes:
        search: Search distributions.
        direction: Random direction in descriptor space used for ranking, float32 `[E, K]`.
    """

    search: cma.SearchDistribution
    direction: jax.Array


def start_searches(
    archive: Archive, sigma: Scalar, means: jax.Array, key: jax.Array
) -> StartedSearches:
    """Start one search per mean.

    Args:
        archive: Archive, whose bounds scale the random directions.
        sigma: Initial standard deviation of each search.
        means: Means of the distributions, `[E, D]`.
        key: Random key of the directions.

    Returns:
        The searches.
    """
    keys = jax.random.split(key, means.shape[0])
    return StartedSearches(
        search=jax.vmap(lambda mean: cma.init_search(mean, sigma))(means),
        direction=jax.vmap(lambda key: random_direction(archive, key))(keys),
    )
