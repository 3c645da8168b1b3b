"""An evolution strategy that climbs fitness and novelty by turns (ME-ES).

Colas et al. 2020, arXiv:2003.01825; the strategy is that of Salimans et al. 2017, arXiv:1703.03864: a step up a gradient
that is estimated from pairs of solutions on opposite sides of a parent.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from rollax import tree
from rollax.archives.core import REJECTED, Archive, Elites, Scored
from rollax.archives.means import mean_of_first
from rollax.emitters.core import Emitter, Told, check_floats
from rollax.errors import UsageError
from rollax.learning.train_state import apply_gradients

Objective = Literal["both", "fitness", "novelty"]
HIGHEST, LATEST = 2, 5  # of how many cells the parent is one: of highest fitness, of those that were found last
MOST_NOVEL = 5


class Strategy(NamedTuple):
    """What an evolution strategy has besides its sizes; all are data."""

    sigma: Any  # deviation of the solutions around the parent
    learning_rate: Any  # Adam's step size
    weight_decay: Any  # share of the parent that is subtracted from its gradient
    num_optim_gens: Any  # generations before another parent is taken


class StrategyState(NamedTuple):
    """D numbers a solution, N descriptors that are remembered."""

    parent: Any  # a solution
    offspring: Any  # a solution: the parent after its last step, to be scored in the next generation
    optimizer: Any  # Adam's, of D numbers
    generation: jax.Array  # int32 []
    latest: Scored  # [LATEST]: those that the archive took last; fitness -inf where there is none
    seen: jax.Array  # float32 [N, K]: descriptors of all offspring, the last N
    num_seen: jax.Array  # int32 []: of all time


def strategy(
    archive: Archive, settings: Strategy, objective: Objective, num_evaluations: int, num_neighbors: int, memory: int
) -> Emitter:
    """A batch is the last offspring, `num_evaluations` times over, and pairs x = parent +- sigma eps.

    Every generation: g = mean over these of u eps, u ranks of fitness or of novelty in -1/2 ... 1/2, and a step of
    Adam along g - weight_decay * parent makes the offspring, from which the next generation goes on; after `num_optim_gens` the
    other objective follows, from an elite (`next_parent`). `memory`: how many descriptors novelty is measured by.

    `init` raises UsageError for a batch that leaves no pairs, and for solutions that are not all floats.
    """
    optimizer = optax.adam(settings.learning_rate)
    period = jnp.maximum(jnp.round(settings.num_optim_gens), 1).astype(jnp.int32)

    def init(key: jax.Array, solutions: Any) -> StrategyState:
        check_floats(solutions, "the evolution strategy")
        check_pairs(jax.tree.leaves(solutions)[0].shape[0], num_evaluations)
        first, zero, size = jax.tree.map(lambda x: x[0], solutions), jnp.zeros((), jnp.int32), len(archive.low)
        rows = jax.tree.map(lambda x: jnp.zeros((LATEST, *x.shape), x.dtype), first)
        latest = Scored(rows, jnp.full(LATEST, -jnp.inf), jnp.zeros((LATEST, size)))
        state = optimizer.init(ravel_pytree(first)[0])
        return StrategyState(first, first, state, zero, latest, jnp.zeros((memory, size)), zero)

    def ask(state: StrategyState, archive_state: Any, key: jax.Array, number: int) -> tuple[StrategyState, Any]:
        row, unravel = ravel_pytree(state.parent)
        noise = settings.sigma * jax.random.normal(key, ((number - num_evaluations) // 2, row.shape[0]), row.dtype)
        pairs = jax.vmap(unravel)(jnp.concatenate([row[None] + noise, row[None] - noise]))
        again = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_evaluations, *x.shape)), state.offspring)
        return state, jax.tree.map(lambda *parts: jnp.concatenate(parts), again, pairs)

    def tell(state: StrategyState, archive_state: Any, told: Told, key: jax.Array) -> StrategyState:
        explores = is_exploring(objective, state.generation // period)
        state = remembered(state, told, num_evaluations)
        pairs = jax.tree.map(lambda x: x[num_evaluations:], told.scored)
        measure = lambda: novelty(state.seen, state.num_seen, pairs.descriptor, num_neighbors)  # noqa: E731
        utility = centered_ranks(jax.lax.cond(explores, measure, lambda: pairs.fitness))
        row, unravel = ravel_pytree(state.parent)
        gradient = estimate(jax.vmap(lambda x: ravel_pytree(x)[0])(pairs.solution), utility, settings.sigma)
        down = settings.weight_decay * row - gradient
        after, optimizer_state = apply_gradients(optimizer, state.optimizer, row, down)
        offspring = unravel(after)
        generation = state.generation + 1
        on = state._replace(parent=offspring, offspring=offspring, optimizer=optimizer_state, generation=generation)
        draws = jax.random.uniform(key, (2,))

        def anew() -> StrategyState:
            explores = is_exploring(objective, generation // period)
            parent = next_parent(archive, archive_state, on, explores, num_neighbors, draws)
            return on._replace(parent=parent, optimizer=optimizer.init(row))

        is_over = (generation % period == 0) & (archive.num_elites(archive_state) > 0)
        return jax.lax.cond(is_over, anew, lambda: on)

    def metrics(state: StrategyState) -> dict[str, jax.Array]:
        return {"exploring": is_exploring(objective, state.generation // period).astype(jnp.float32)}

    return Emitter(init, ask, tell, metrics)


def check_pairs(batch_size: int, num_evaluations: int) -> None:
    """Raises UsageError when `batch_size` less `num_evaluations` is not a positive number of pairs."""
    rest = batch_size - num_evaluations
    if rest < 2 or rest % 2:
        near = max(2, rest + rest % 2) + num_evaluations
        raise UsageError(
            f"batch_size ({batch_size}) less mean_evaluations ({num_evaluations}) must be an even number, 2 or more, of "
            f"solutions in pairs: try batch_size {near}"
        )


def is_exploring(objective: Objective, phase: jax.Array) -> jax.Array:
    """Whether novelty is climbed in a phase, bool []: by turns, fitness first, or always, or never."""
    return {"both": phase % 2 == 1, "fitness": jnp.zeros((), bool), "novelty": jnp.ones((), bool)}[objective]


def centered_ranks(values: jax.Array) -> jax.Array:
    """The ranks of values `[n]` in -1/2 ... 1/2, equal ones alike; what is not finite counts as least."""
    values = jnp.where(jnp.isfinite(values), values, -jnp.inf)
    ordered = jnp.sort(values)
    ranks = (jnp.searchsorted(ordered, values, side="left") + jnp.searchsorted(ordered, values, side="right") - 1) / 2
    return ranks / (values.shape[0] - 1) - 0.5


def estimate(points: jax.Array, utility: jax.Array, sigma: Any) -> jax.Array:
    """The gradient `[D]`: mean of u eps over all solutions. `points`: `[n, D]`, those at +eps before those at -eps."""
    above, below = jnp.split(points, 2)
    better, worse = jnp.split(utility, 2)
    noise = (above - below) / (2 * jnp.maximum(sigma, jnp.finfo(jnp.float32).tiny))
    return (better - worse) @ noise / points.shape[0]


def novelty(seen: jax.Array, num_seen: jax.Array, descriptor: jax.Array, num_neighbors: int) -> jax.Array:
    """The mean distance of each descriptor `[B, K]` to the k nearest of those seen, of all if fewer, float32 [B].

    `seen`: `[N, K]`, of which `num_seen` are filled. NaN where the descriptor is not finite, or nothing was seen.
    """
    squares = jnp.sum((descriptor[:, None] - seen[None]) ** 2, axis=-1)
    is_there = (jnp.arange(seen.shape[0]) < num_seen)[None]
    nearest = -jax.lax.top_k(jnp.where(is_there, -jnp.sqrt(squares), -jnp.inf), min(num_neighbors, seen.shape[0]))[0]
    number = jnp.minimum(num_seen, nearest.shape[1])
    return jnp.sum(jnp.where(jnp.arange(nearest.shape[1])[None] < number, nearest, 0.0), axis=1) / number


def remembered(state: StrategyState, told: Told, num_evaluations: int) -> StrategyState:
    """The state that has seen the offspring, and remembers it if the archive took it."""
    mean = jax.tree.map(lambda x: x[0], mean_of_first(told.scored, num_evaluations))
    is_finite = jnp.isfinite(mean.fitness) & jnp.all(jnp.isfinite(mean.descriptor))
    at = jnp.where(is_finite, state.num_seen % state.seen.shape[0], state.seen.shape[0])
    seen = state.seen.at[at].set(mean.descriptor, mode="drop")
    is_taken = is_finite & (jnp.max(told.added.status[:num_evaluations]) > REJECTED)
    mine = Scored(mean.solution, mean.fitness, mean.descriptor)
    latest = jax.tree.map(lambda rows, x: jnp.concatenate([rows[1:], x[None]]), state.latest, mine)
    latest = tree.where(jnp.broadcast_to(is_taken, (LATEST,)), latest, state.latest)
    return state._replace(seen=seen, num_seen=state.num_seen + is_finite.astype(jnp.int32), latest=latest)


def next_parent(
    archive: Archive, archive_state: Any, state: StrategyState, explores: jax.Array, num_neighbors: int, draws: jax.Array
) -> Any:
    """The elite that a phase begins with, a solution; `draws`: two uniform numbers.

    Of fitness: one of the 2 fittest of the archive, or, half of the time, of the 2 fittest of the last 5 that the archive took.
    Of novelty: one of the 5 most novel of the archive.
    """
    elites: Elites = archive.elites(archive_state)
    measure = lambda: novelty(state.seen, state.num_seen, elites.scored.descriptor, num_neighbors)  # noqa: E731
    value = jax.lax.cond(explores, measure, lambda: elites.scored.fitness)
    value = jnp.where(elites.mask & jnp.isfinite(value), value, -jnp.inf)
    count = jnp.where(explores, MOST_NOVEL, HIGHEST)
    place = one_of_best(value, count, draws[0])
    of_latest = one_of_best(state.latest.fitness, jnp.asarray(HIGHEST), draws[0])
    from_latest = ~explores & (draws[1] < 0.5) & jnp.any(state.latest.fitness > -jnp.inf)
    both = elites.scored.solution, state.latest.solution
    return jax.tree.map(lambda x, y: jnp.where(from_latest, y[of_latest], x[place]), *both)


def one_of_best(values: jax.Array, count: jax.Array, draw: jax.Array) -> jax.Array:
    """The index of one of the `count` highest of values `[n]`, of those above -inf, by a uniform number, int32 []."""
    most = min(max(HIGHEST, MOST_NOVEL), values.shape[0])
    highest, index = jax.lax.top_k(values, most)
    number = jnp.clip(jnp.sum(highest > -jnp.inf), 1, jnp.minimum(count, most))
    return index[jnp.minimum((draw * number).astype(jnp.int32), number - 1)]
