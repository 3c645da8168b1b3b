"""How a search ranks its own solutions by what the archive made of them, who its parents are, and when it begins again."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax.archives.core import REJECTED, Added, Archive, Scored
from rollax.emitters import cma

Ranking = Literal["improvement", "two_stage_improvement", "random_direction", "two_stage_random_direction", "objective"]
Selection = Literal["filter", "mu"]
Restart = Literal["no_improvement", "basic"]


class Rules(NamedTuple):
    """What distinguishes the searches of CMA-ME, CMA-MAE and their kin.

    `ranking`: what is best: how much a solution improves the archive, how far it is in a random direction of descriptors, or
    its fitness; "two_stage" puts new elites before better ones, and these before the rest. `selection`: parents are the best,
    as many as the archive took ("filter"), or the better half ("mu"). `restart`: when a generation improves nothing, or only
    when CMA-ES has converged ("basic").
    """

    ranking: Ranking = "two_stage_improvement"
    selection: Selection = "filter"
    restart: Restart = "no_improvement"


class Ranked(NamedTuple):
    """One generation of one search."""

    order: jax.Array  # int32 [B]: the best first
    parents: jax.Array  # int32 []: how many of these count; may be 0
    values: jax.Array  # float32 [B, 1 or 2]: what they were ranked by, in that order
    taken: jax.Array  # int32 []: how many the archive took


def rank(rules: Rules, direction: jax.Array, scored: Scored, added: Added) -> Ranked:
    """A generation `[B]` in order; `direction` `[K]` is that of rankings by one. What is not finite comes last."""
    if rules.ranking == "objective":
        values = [scored.fitness]
    elif rules.ranking.endswith("random_direction"):
        values = [scored.descriptor @ direction]
    else:
        values = [added.improvement]
    if rules.ranking.startswith("two_stage"):
        values.insert(0, added.status.astype(jnp.float32))
    is_finite = jnp.isfinite(scored.fitness) & jnp.all(jnp.isfinite(scored.descriptor), axis=-1)
    values = [jnp.where(is_finite & jnp.isfinite(value), value, np.finfo(np.float32).min) for value in values]
    order = jnp.lexsort([-value for value in reversed(values)])
    taken = jnp.sum(added.status > REJECTED, dtype=jnp.int32)
    parents = taken if rules.selection == "filter" else jnp.asarray(order.shape[0] // 2, jnp.int32)
    return Ranked(order, parents, jnp.stack(values, axis=-1)[order], taken)


def is_over(rules: Rules, search: cma.Search, ranked: Ranked) -> jax.Array:
    """Whether a search has to begin again after this generation, bool []."""
    has_converged = cma.has_converged(search, ranked.values[0], ranked.values[-1])
    return has_converged | (ranked.taken == 0) if rules.restart == "no_improvement" else has_converged


def random_direction(archive: Archive, key: jax.Array) -> jax.Array:
    """A random direction of descriptors, in units of their bounds, float32 [K]."""
    span = jnp.asarray(archive.high) - jnp.asarray(archive.low)
    return jax.random.normal(key, span.shape) * span
