"""Emitters of evolution strategies that climb what is new and better in an archive (CMA-ME, CMA-MAE).

Fontaine et al. 2020, arXiv:1912.02400, and Fontaine and Nikolaidis 2023, arXiv:2205.10752. Several searches run side by side;
each is told of its own solutions, ranks them, adapts, and when it is at its end begins again at an elite of the archive.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from rollax import tree
from rollax.archives.core import Added, Archive, Scored
from rollax.emitters import cma
from rollax.emitters.core import Emitter, Told, check_floats, check_shares
from rollax.emitters.ranking import Rules, is_over, random_direction, rank
from rollax.errors import UsageError

MOST_NUMBERS = 4000  # of a solution


class Searches(NamedTuple):
    """E searches; every leaf but `example` leads with `[E]`."""

    search: cma.Search
    direction: jax.Array  # float32 [E, K]: that random directions rank by
    restarts: jax.Array  # int32 [E]
    example: Any  # one solution, which says what their numbers mean


def evolution(archive: Archive, num_emitters: int, sigma: Any, rules: Rules) -> Emitter:
    """`num_emitters` searches by CMA-ES, each of which begins with deviation `sigma`.

    `init` raises UsageError when the batch does not divide among the searches, or solutions are not floats, or too many.
    """

    def begun(means: jax.Array, key: jax.Array) -> tuple[cma.Search, jax.Array]:
        search = jax.vmap(lambda mean: cma.begin(mean, sigma))(means)
        return search, jax.vmap(lambda key: random_direction(archive, key))(jax.random.split(key, num_emitters))

    def init(key: jax.Array, solutions: Any) -> Searches:
        check_floats(solutions, "CMA-ES")
        share = check_shares(solutions, num_emitters, 2)
        size = sum(x[0].size for x in jax.tree.leaves(solutions))
        if size > MOST_NUMBERS:
            raise UsageError(
                f"CMA-ES learns a covariance of {size:,} x {size:,} for each of {num_emitters} searches, which takes too long "
                f"beyond {MOST_NUMBERS:,}: take smaller networks (--network.hidden 16), or map_elites or me_es"
            )
        search, directions = begun(flat(jax.tree.map(lambda x: x[::share], solutions)), key)
        example = jax.tree.map(lambda x: x[0], solutions)
        return Searches(search, directions, jnp.zeros(num_emitters, jnp.int32), example)

    def ask(state: Searches, archive_state: Any, key: jax.Array, number: int) -> tuple[Searches, Any]:
        sample = lambda search, key: cma.sample(search, key, number // num_emitters)  # noqa: E731
        points = jax.vmap(sample)(state.search, jax.random.split(key, num_emitters))
        return state, jax.vmap(ravel_pytree(state.example)[1])(points.reshape(number, -1))

    def tell(state: Searches, archive_state: Any, told: Told, key: jax.Array) -> Searches:
        member_key, begin_key = jax.random.split(key)
        each = flat(told.scored.solution), told.scored, told.added
        each = jax.tree.map(lambda x: x.reshape(num_emitters, -1, *x.shape[1:]), each)
        search, over = jax.vmap(lambda *mine: generation(rules, *mine))(state.search, state.direction, *each)
        over &= archive.num_elites(archive_state) > 0
        elites = flat(archive.sample(archive_state, member_key, num_emitters).solution)
        again = *begun(elites, begin_key), state.restarts + 1
        return Searches(*tree.where(over, again, (search, state.direction, state.restarts)), state.example)

    def metrics(state: Searches) -> dict[str, jax.Array]:
        return {"sigma": jnp.mean(state.search.sigma), "restarts": jnp.sum(state.restarts).astype(jnp.float32)}

    def refresh(state: Searches) -> Searches:
        return state._replace(search=jax.vmap(cma.decompose)(state.search))

    return Emitter(init, ask, tell, metrics, refresh)


def flat(solutions: Any) -> jax.Array:
    """Solutions `[B, ...]` as rows of numbers, `[B, D]`."""
    return jax.vmap(lambda x: ravel_pytree(x)[0])(solutions)


def generation(
    rules: Rules, search: cma.Search, direction: jax.Array, points: jax.Array, scored: Scored, added: Added
) -> tuple[cma.Search, jax.Array]:
    """A search after its generation `points` `[B, D]`, and whether it has to begin again."""
    ranked = rank(rules, direction, scored, added)
    after = cma.adapt(search, points[ranked.order], jnp.maximum(ranked.parents, 1))
    after = tree.where(ranked.parents > 0, after, search)
    return after, is_over(rules, after, ranked) | ~tree.all_finite(after)
