"""Evolution strategy that maximizes fitness and novelty in alternation (ME-ES).

Colas et al. 2020, arXiv:2003.01825. Gradients are estimated from antithetic pairs of solutions
around a parent, as in Salimans et al. 2017, arXiv:1703.03864.
"""

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from rollax import tree
from rollax.archives.archive import STATUS_REJECTED, Archive, Elites, ScoredSolutions
from rollax.emitters.emitter import Emitter, EvaluatedBatch, check_floats
from rollax.errors import UsageError
from rollax.learning.train_state import apply_gradients
from rollax.types import Scalar, Solution, State

Objective = Literal["both", "fitness", "novelty"]
NUM_FITTEST, NUM_LATEST = (
    2,
    5,
)  # Numbers of parent candidates, and of recorded offspring among which candidates are selected.
NUM_MOST_NOVEL = 5


class StrategySettings(NamedTuple):
    """Traced settings of an evolution strategy.

    Attributes:
        sigma: Standard deviation of the perturbations around the parent.
        learning_rate: Learning rate (Adam).
        weight_decay: Weight decay coefficient. This multiple of the parent is subtracted from the
            gradient.
        num_optim_gens: Number of generations until the next restart from an elite.
    """

    sigma: Any
    learning_rate: Any
    weight_decay: Any
    num_optim_gens: Any


class StrategyState(NamedTuple):
    """State of an evolution strategy for solutions with D parameters.

    Attributes:
        parent: Current parent, a solution.
        offspring: Result of the last gradient step, a solution. It is scored in the next
            generation.
        optimizer: State of Adam.
        generation: Number of generations, int32 `[]`.
        latest_accepted: The last `NUM_LATEST` offspring that the archive accepted, `[NUM_LATEST,
            ...]`, newest last. Empty entries have fitness -inf.
        past_descriptors: Descriptors of the last N offspring, float32 `[N, K]`.
        num_past_descriptors: Number of descriptors recorded since the start, int32 `[]`.
    """

    parent: Any
    offspring: Any
    optimizer: Any
    generation: jax.Array
    latest_accepted: ScoredSolutions
    past_descriptors: jax.Array
    num_past_descriptors: jax.Array


def me_es_emitter(
    archive: Archive,
    settings: StrategySettings,
    objective: Objective,
    num_evaluations: int,
    num_neighbors: int,
    memory: int,
    adds_pairs: bool = False,
) -> Emitter:
    """Build the emitter of ME-ES.

    A batch consists of the last offspring, repeated `num_evaluations` times, and pairs of perturbed
    solutions, parent +- sigma eps. The offspring is inserted into the archive once, with the mean
    of its scores. In every generation, Adam takes a step along g - weight_decay * parent, where g
    is the result of `estimate_gradient` with the ranks of fitness or novelty, scaled to [-1/2,
    1/2], as utilities. The solution after this step is the next offspring and the next parent.
    After `num_optim_gens` generations, the emitter selects a new parent (`next_parent`). If it
    maximizes both fitness and novelty, it then switches the objective.

    Args:
        archive: Archive into which the solutions are inserted.
        settings: Traced settings, which may be swept.
        objective: "fitness", "novelty", or "both" to alternate between them.
        num_evaluations: Number of evaluations of each offspring.
        num_neighbors: Number of nearest neighbors in the novelty score.
        memory: Number of past descriptors against which novelty is measured.
        adds_pairs: Whether to also insert the perturbed solutions into the archive.

    Returns:
        The emitter. Its `init` raises a `UsageError` if the batch is too small for pairs, or if
        solutions contain values that are not floats.
    """
    optimizer = optax.adam(settings.learning_rate)
    period = jnp.maximum(jnp.round(settings.num_optim_gens), 1).astype(jnp.int32)

    def init(key: jax.Array, solutions: Solution) -> StrategyState:
        check_floats(solutions, "the evolution strategy")
        check_pairs(jax.tree.leaves(solutions)[0].shape[0], num_evaluations)
        first = jax.tree.map(lambda x: x[0], solutions)
        return init_strategy(
            first, optimizer.init(ravel_pytree(first)[0]), len(archive.low), memory
        )

    def ask(
        state: StrategyState, archive_state: State, key: jax.Array, batch_size: int
    ) -> tuple[StrategyState, Any]:
        row, unravel = ravel_pytree(state.parent)
        noise = settings.sigma * jax.random.normal(
            key, ((batch_size - num_evaluations) // 2, row.shape[0]), row.dtype
        )
        pairs = jax.vmap(unravel)(jnp.concatenate([row[None] + noise, row[None] - noise]))
        repeated = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (num_evaluations, *x.shape)), state.offspring
        )
        return state, jax.tree.map(lambda *parts: jnp.concatenate(parts), repeated, pairs)

    def tell(
        state: StrategyState, archive_state: State, evaluated: EvaluatedBatch, key: jax.Array
    ) -> StrategyState:
        exploring = is_exploring(objective, state.generation // period)
        state = record_offspring(state, evaluated, num_evaluations)
        pairs = jax.tree.map(lambda x: x[num_evaluations:], evaluated.solutions)

        def compute_novelty():
            return novelty_scores(
                state.past_descriptors, state.num_past_descriptors, pairs.descriptor, num_neighbors
            )

        utility = centered_ranks(jax.lax.cond(exploring, compute_novelty, lambda: pairs.fitness))
        advanced = take_step(optimizer, settings, state, pairs.solution, utility)
        generation = advanced.generation
        draws = jax.random.uniform(key, (2,))

        def restart_from_parent() -> StrategyState:
            exploring = is_exploring(objective, generation // period)
            parent = next_parent(archive, archive_state, advanced, exploring, num_neighbors, draws)
            return advanced._replace(
                parent=parent, optimizer=optimizer.init(ravel_pytree(parent)[0])
            )

        should_restart = (generation % period == 0) & (archive.num_elites(archive_state) > 0)
        return jax.lax.cond(should_restart, restart_from_parent, lambda: advanced)

    def metrics(state: StrategyState) -> dict[str, jax.Array]:
        return {
            "exploring": is_exploring(objective, state.generation // period).astype(jnp.float32)
        }

    select_insertions_fn = functools.partial(select_insertions, num_evaluations, adds_pairs)
    return Emitter(init, ask, tell, metrics, select_insertions=select_insertions_fn)


def init_strategy(
    first: Solution, optimizer: State, num_descriptors: int, memory: int
) -> StrategyState:
    """Return the state before the first generation.

    Args:
        first: Initial solution, which is the first parent and the first offspring.
        optimizer: Initial state of Adam.
        num_descriptors: Dimension K of the descriptors.
        memory: Number of past descriptors to store.

    Returns:
        The state.
    """
    zero = jnp.zeros((), jnp.int32)
    rows = jax.tree.map(lambda x: jnp.zeros((NUM_LATEST, *x.shape), x.dtype), first)
    return StrategyState(
        parent=first,
        offspring=first,
        optimizer=optimizer,
        generation=zero,
        latest_accepted=ScoredSolutions(
            rows, jnp.full(NUM_LATEST, -jnp.inf), jnp.zeros((NUM_LATEST, num_descriptors))
        ),
        past_descriptors=jnp.zeros((memory, num_descriptors)),
        num_past_descriptors=zero,
    )


def take_step(
    optimizer: optax.GradientTransformation,
    settings: StrategySettings,
    state: StrategyState,
    pairs: Solution,
    utility: jax.Array,
) -> StrategyState:
    """Return the state after one Adam step along the estimated gradient minus the weight decay.

    Args:
        optimizer: Adam optimizer.
        settings: Settings with `sigma` and `weight_decay`.
        state: State of the strategy.
        pairs: Perturbed solutions, `[n, ...]`.
        utility: Utility of each perturbed solution, `[n]`.

    Returns:
        The updated state.
    """
    row, unravel = ravel_pytree(state.parent)
    gradient = estimate_gradient(
        jax.vmap(lambda x: ravel_pytree(x)[0])(pairs), utility, settings.sigma
    )
    descent = settings.weight_decay * row - gradient
    after, optimizer_state = apply_gradients(optimizer, state.optimizer, row, descent)
    offspring = unravel(after)
    return state._replace(
        parent=offspring,
        offspring=offspring,
        optimizer=optimizer_state,
        generation=state.generation + 1,
    )


def select_insertions(
    num_evaluations: int, adds_pairs: bool, batch: ScoredSolutions
) -> ScoredSolutions:
    """Return the solutions to insert: the offspring with its mean scores, and optionally the pairs.

    Args:
        num_evaluations: Number of evaluations of the offspring.
        adds_pairs: Whether to include the perturbed solutions.
        batch: Scored batch.

    Returns:
        The solutions, `[1, ...]`, or `[1 + n, ...]` with n perturbed solutions.
    """
    offspring = average_repeats(batch, num_evaluations)
    if not adds_pairs:
        return offspring
    return jax.tree.map(
        lambda mean, all: jnp.concatenate([mean, all[num_evaluations:]]), offspring, batch
    )


def check_pairs(batch_size: int, num_evaluations: int) -> None:
    """Raise UsageError if `batch_size - num_evaluations` is not a positive even number."""
    num_remaining = batch_size - num_evaluations
    if num_remaining < 2 or num_remaining % 2:
        near = max(2, num_remaining + num_remaining % 2) + num_evaluations
        raise UsageError(
            f"batch_size less mean_evaluations ({num_evaluations}) must be even and at least 2, "
            f"got {num_remaining}. Set batch_size to {near}."
        )


def is_exploring(objective: Objective, phase: jax.Array) -> jax.Array:
    """Return whether a phase maximizes novelty, bool `[]`.

    A phase consists of the generations between two restarts from an elite. With "both", phases with
    an even index maximize fitness.
    """
    return {"both": phase % 2 == 1, "fitness": jnp.zeros((), bool), "novelty": jnp.ones((), bool)}[
        objective
    ]


def centered_ranks(values: jax.Array) -> jax.Array:
    """Return the ranks of the values `[n]`, scaled to [-1/2, 1/2].

    Equal values have equal ranks. Non-finite values have the lowest rank.
    """
    values = jnp.where(jnp.isfinite(values), values, -jnp.inf)
    ordered = jnp.sort(values)
    ranks = (
        jnp.searchsorted(ordered, values, side="left")
        + jnp.searchsorted(ordered, values, side="right")
        - 1
    ) / 2
    return ranks / (values.shape[0] - 1) - 0.5


def estimate_gradient(points: jax.Array, utility: jax.Array, sigma: Scalar) -> jax.Array:
    """Estimate the gradient of the utility from antithetic pairs of solutions around a parent.

    The gradient is g = mean((u(x + sigma eps) - u(x - sigma eps)) eps) over all pairs, where u is
    the utility. The sum is divided by the number of pairs, not of solutions, as in the reference
    implementation of ME-ES. This determines the size of the gradient relative to the weight decay.

    Args:
        points: Flattened solutions, `[n, D]`: x + sigma eps of all pairs, followed by x - sigma eps
            of all pairs in the same order.
        utility: Utility of each solution, `[n]`.
        sigma: Standard deviation of the solutions around the parent.

    Returns:
        The gradient, `[D]`.
    """
    above, below = jnp.split(points, 2)
    better, worse = jnp.split(utility, 2)
    noise = (above - below) / (2 * jnp.maximum(sigma, jnp.finfo(jnp.float32).tiny))
    return (better - worse) @ noise / noise.shape[0]


def novelty_scores(
    past: jax.Array, num_past: jax.Array, descriptor: jax.Array, num_neighbors: int
) -> jax.Array:
    """Return the mean distance of each descriptor to its nearest past descriptors, float32 `[B]`.

    Args:
        past: Past descriptors, `[N, K]`.
        num_past: Number of descriptors recorded so far. Only the first `num_past` entries of `past`
            are used.
        descriptor: Descriptors, `[B, K]`.
        num_neighbors: Number of nearest neighbors, at most the number of past descriptors.

    Returns:
        The novelty. It is NaN if the descriptor is not finite or there are no past descriptors.
    """
    squares = jnp.sum((descriptor[:, None] - past[None]) ** 2, axis=-1)
    is_filled = (jnp.arange(past.shape[0]) < num_past)[None]
    nearest = -jax.lax.top_k(
        jnp.where(is_filled, -jnp.sqrt(squares), -jnp.inf), min(num_neighbors, past.shape[0])
    )[0]
    num_nearest = jnp.minimum(num_past, nearest.shape[1])
    return (
        jnp.sum(jnp.where(jnp.arange(nearest.shape[1])[None] < num_nearest, nearest, 0.0), axis=1)
        / num_nearest
    )


def average_repeats(batch: ScoredSolutions, num_repeats: int) -> ScoredSolutions:
    """Return the first solution, `[1, ...]`, with the mean scores of its `num_repeats` copies.

    The copies are the first `num_repeats` solutions of the batch.
    """
    first = jax.tree.map(lambda x: x[:1], batch)
    mean_scores = jax.tree.map(
        lambda x: jnp.mean(x[:num_repeats], axis=0, keepdims=True),
        (batch.fitness, batch.descriptor, batch.extras),
    )
    return ScoredSolutions(first.solution, *mean_scores)


def record_offspring(
    state: StrategyState, evaluated: EvaluatedBatch, num_evaluations: int
) -> StrategyState:
    """Record the descriptor of the offspring, and the offspring if the archive accepted it.

    The offspring is the first of the inserted solutions. If its scores are finite, its descriptor
    replaces the oldest one in `past_descriptors`. If the archive accepted the offspring, the
    offspring replaces the oldest one in `latest_accepted`.

    Args:
        state: State of the strategy.
        evaluated: Evaluated batch.
        num_evaluations: Number of evaluations of the offspring.

    Returns:
        The updated state.
    """
    mean = jax.tree.map(lambda x: x[0], average_repeats(evaluated.solutions, num_evaluations))
    is_finite = jnp.isfinite(mean.fitness) & jnp.all(jnp.isfinite(mean.descriptor))
    row = jnp.where(
        is_finite,
        state.num_past_descriptors % state.past_descriptors.shape[0],
        state.past_descriptors.shape[0],
    )
    past_descriptors = state.past_descriptors.at[row].set(mean.descriptor, mode="drop")
    is_accepted = is_finite & (evaluated.insertion.status[0] > STATUS_REJECTED)
    offspring = ScoredSolutions(mean.solution, mean.fitness, mean.descriptor)
    latest = jax.tree.map(
        lambda rows, x: jnp.concatenate([rows[1:], x[None]]), state.latest_accepted, offspring
    )
    latest = tree.where(jnp.broadcast_to(is_accepted, (NUM_LATEST,)), latest, state.latest_accepted)
    return state._replace(
        past_descriptors=past_descriptors,
        num_past_descriptors=state.num_past_descriptors + is_finite.astype(jnp.int32),
        latest_accepted=latest,
    )


def next_parent(
    archive: Archive,
    archive_state: State,
    state: StrategyState,
    is_novelty_phase: jax.Array,
    num_neighbors: int,
    draws: jax.Array,
) -> Any:
    """Select the parent at the start of the next phase.

    To maximize fitness, it is one of the 2 fittest elites of the archive or, with probability 1/2,
    one of the 2 fittest of the last 5 accepted offspring. To maximize novelty, it is one of the 5
    most novel elites.

    Args:
        archive: Archive.
        archive_state: State of the archive.
        state: State of the strategy.
        is_novelty_phase: Whether the phase maximizes novelty, bool `[]`.
        num_neighbors: Number of nearest neighbors in the novelty score.
        draws: Two uniform random numbers in [0, 1).

    Returns:
        The parent, a solution.
    """
    elites: Elites = archive.elites(archive_state)

    def compute_novelty():
        return novelty_scores(
            state.past_descriptors,
            state.num_past_descriptors,
            elites.solutions.descriptor,
            num_neighbors,
        )

    value = jax.lax.cond(is_novelty_phase, compute_novelty, lambda: elites.solutions.fitness)
    value = jnp.where(elites.mask & jnp.isfinite(value), value, -jnp.inf)
    count = jnp.where(is_novelty_phase, NUM_MOST_NOVEL, NUM_FITTEST)
    elite_index = sample_best_index(value, count, draws[0])
    latest_index = sample_best_index(
        state.latest_accepted.fitness, jnp.asarray(NUM_FITTEST), draws[0]
    )
    uses_latest = (
        ~is_novelty_phase & (draws[1] < 0.5) & jnp.any(state.latest_accepted.fitness > -jnp.inf)
    )
    solutions = elites.solutions.solution, state.latest_accepted.solution
    return jax.tree.map(
        lambda x, y: jnp.where(uses_latest, y[latest_index], x[elite_index]), *solutions
    )


def sample_best_index(values: jax.Array, count: jax.Array, draw: jax.Array) -> jax.Array:
    """Return a random index among the indices of the `count` highest values above -inf.

    Args:
        values: Values, `[n]`, -inf for excluded indices.
        count: Maximum number of candidates.
        draw: Uniform random number in [0, 1).

    Returns:
        The index, int32 `[]`.
    """
    max_candidates = min(max(NUM_FITTEST, NUM_MOST_NOVEL), values.shape[0])
    highest, index = jax.lax.top_k(values, max_candidates)
    num_candidates = jnp.clip(jnp.sum(highest > -jnp.inf), 1, jnp.minimum(count, max_candidates))
    return index[jnp.minimum((draw * num_candidates).astype(jnp.int32), num_candidates - 1)]
