"""Re-evaluation of an archive under noise.

Noisy scores favor lucky solutions, so the fitness in an archive is too high, and its descriptors
differ from the behavior of its elites. To build the corrected archive, the elites are inserted into
an empty archive with the same cells, with their mean fitness and descriptor over new episodes.

References:
    Flageat and Cully 2020, arXiv:2006.14253.
    Flageat and Cully 2023, arXiv:2302.00463, corrected QD score.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax.archives.archive import Archive, ScoredSolutions
from rollax.environments.capabilities import capabilities, has_closed_form
from rollax.errors import UsageError
from rollax.training.compile import background, device_memory, keys
from rollax.training.elites import selection
from rollax.types import ArchiveState, MetricValues

if TYPE_CHECKING:
    import rollax.policy

Solutions = Any  # a pytree of arrays

DEFAULT_NUM_EPISODES = 16  # per elite
MAX_PARALLEL_EPISODES = 4096
MAX_SOLUTION_BYTES = 1 << 28  # of the solutions in parallel episodes


def can_be_corrected(policy: "rollax.policy.Policy") -> bool:
    """Return whether the archive of a policy's run can be re-evaluated.

    The archive must have cells and elites, and its descriptor must have the same dimensions as the
    descriptor of the policy's environment.

    Args:
        policy: Policy of a run.
    """
    space = capabilities(policy.environment).descriptor_space
    if policy.algorithm.archived is None or space is None:
        return False
    archive, state = selection.get_archive(policy)
    has_cells = archive.empty is not None and archive.cell_of is not None
    return has_cells and space.shape == (len(archive.low),) and int(archive.num_elites(state)) > 0


def get_archive_with_cells(policy: "rollax.policy.Policy") -> tuple[Archive, ArchiveState]:
    """Return the archive of a policy's run and its state.

    Args:
        policy: Policy of a run.

    Raises:
        UsageError: If the algorithm has no archive, or its archive has no cells.
    """
    archive, state = selection.get_archive(policy)
    if archive.empty is None or archive.cell_of is None:
        raise UsageError(
            f"The archive of {policy.spec.algorithm} must have cells to insert solutions again. "
            "Use a run of another algorithm."
        )
    return archive, state


def correct_archive(
    policy: "rollax.policy.Policy", num_episodes: int, key: jax.Array
) -> "tuple[MetricValues, rollax.policy.Policy]":
    """Re-evaluate the elites of a policy's archive and insert them into an empty archive.

    Args:
        policy: Policy of a run with an archive.
        num_episodes: Number of episodes per elite.
        key: Random key.

    Returns:
        Metrics of the corrected archive, keyed by name, and the policy with the corrected archive.

    Raises:
        UsageError: If the archive has no cells or is empty, or the environment's descriptor has
            different dimensions.
    """
    archive, state = get_archive_with_cells(policy)
    elites = selection.get_elites(policy)
    indices = np.flatnonzero(elites.mask)
    old_solutions = jax.tree.map(lambda x: x[indices], elites.solutions)
    scores = re_evaluate_solutions(policy, old_solutions.solution, num_episodes, key)
    if scores.descriptor.shape != old_solutions.descriptor.shape:
        raise UsageError(
            f"The archive and {policy.environment.name} must have descriptors with the same "
            f"dimensions, got {old_solutions.descriptor.shape[1]} and "
            f"{scores.descriptor.shape[1]}. Use the environment of the run."
        )
    after = old_solutions._replace(
        fitness=scores.fitness, descriptor=scores.descriptor, extras=scores.extras
    )
    with_archive = selection.archive_functions(policy).with_archive
    corrected_archive = insert_elites(archive, state, after, elite_thresholds(policy))
    corrected_state = with_archive(policy.state, corrected_archive)
    metrics = policy.algorithm.state_metrics(corrected_state)
    is_finite = np.isfinite(scores.fitness) & np.isfinite(scores.descriptor).all(axis=1)
    old_cells, new_cells = (
        find_cells(archive, state, np.where(is_finite[:, None], descriptor, 0.0))
        for descriptor in (old_solutions.descriptor, scores.descriptor)
    )
    losses = (old_solutions.fitness - scores.fitness)[is_finite]
    # `elites_finite` counts elites with finite fitness and descriptor. `fitness_loss` is the mean
    # over these elites.
    values = {
        "elites": len(indices),
        "episodes_per_elite": scores.num_episodes,
        "elites_finite": int(is_finite.sum()),
        **{f"corrected_{name}": float(value) for name, value in metrics.items()},
        "fitness_loss": float(np.mean(losses)) if losses.size else float("nan"),
        "kept_cell": float(np.mean(is_finite & (old_cells == new_cells))),
    }
    return values, dataclasses.replace(policy, state=corrected_state)


def insert_elites(
    archive: Archive,
    state: ArchiveState,
    batch: ScoredSolutions,
    thresholds: np.ndarray | None = None,
) -> ArchiveState:
    """Insert N elites in one batch into an empty archive with the same cells.

    Args:
        archive: Functions of the archive.
        state: State of the archive that determines the cells.
        batch: Elites, [N, ...].
        thresholds: Acceptance threshold of each elite's former cell, [N]. Each cell gets the
            largest threshold of its new elites. If None, thresholds result from the insertion.

    Returns:
        The new state of the archive.
    """
    assert archive.empty is not None and archive.cell_of is not None
    empty = archive.empty(state)
    new_state = jax.jit(lambda empty, batch: archive.add(empty, batch)[0])(
        empty, jax.tree.map(jnp.asarray, batch)
    )
    if archive.thresholds is None or archive.with_thresholds is None or thresholds is None:
        return new_state
    is_finite = np.isfinite(batch.fitness) & np.isfinite(batch.descriptor).all(axis=1)
    cells, values = (
        find_cells(archive, state, batch.descriptor[is_finite]),
        np.array(archive.thresholds(empty)),
    )
    np.maximum.at(values, cells, thresholds[is_finite])
    return archive.with_thresholds(new_state, jnp.asarray(values))


def elite_thresholds(policy: "rollax.policy.Policy") -> np.ndarray:
    """Return the acceptance threshold of each elite's cell, float32 [N]. Without thresholds: -inf.

    Args:
        policy: Policy of a run with an archive.
    """
    archive, state = selection.get_archive(policy)
    mask = np.asarray(selection.get_elites(policy).mask)
    if archive.thresholds is None:
        return np.full(int(mask.sum()), -np.inf, np.float32)
    return np.asarray(archive.thresholds(state))[mask]


def find_cells(
    archive: Archive, state: ArchiveState, descriptor: np.ndarray | jax.Array
) -> np.ndarray:
    """Return the cell index of each descriptor.

    Args:
        archive: Functions of the archive.
        state: State of the archive.
        descriptor: Descriptors, [N, K].

    Returns:
        Cell indices, int32 [N].
    """
    assert archive.cell_of is not None
    return np.asarray(jax.jit(archive.cell_of)(state, jnp.asarray(descriptor, jnp.float32)))


class MeanScores(NamedTuple):
    """Mean scores of N solutions over several episodes per solution.

    Attributes:
        fitness: Mean fitness, float32 [N].
        descriptor: Mean descriptor, float32 [N, K].
        extras: Mean extras, [N, ...].
        num_episodes: Number of episodes per solution.
    """

    fitness: np.ndarray
    descriptor: np.ndarray
    extras: Any
    num_episodes: int


def re_evaluate_solutions(
    policy: "rollax.policy.Policy", solutions: Solutions, num_episodes: int, key: jax.Array
) -> MeanScores:
    """Evaluate solutions in new episodes and return their mean scores.

    Tasks without episodes (`task/...`) are deterministic and evaluated once. Episodes run in
    blocks, so memory use does not grow with the archive.

    Args:
        policy: Policy of the run.
        solutions: Solutions, [N, ...].
        num_episodes: Number of episodes per solution.
        key: Random key.

    Returns:
        The mean scores.
    """
    per_solution = 1 if has_closed_form(policy.environment) else num_episodes
    num_solutions = jax.tree.leaves(solutions)[0].shape[0]
    total, size = num_solutions * per_solution, device_memory.tree_bytes(solutions) // num_solutions
    block = min(total, MAX_PARALLEL_EPISODES, max(1, MAX_SOLUTION_BYTES // max(size, 1)))
    score_fn = selection.archive_functions(policy).score

    def play_block(solutions: Solutions, key: jax.Array) -> tuple[jax.Array, jax.Array, Any]:
        score = score_fn(policy.state, solutions, key)
        return score.fitness, score.descriptor, score.extras

    jitted, compiled = jax.jit(play_block), None
    key, blocks_of_scores = keys.elite_evaluation_key(key), []
    for index in range(-(-total // block)):
        # The last block wraps around to the first solutions.
        rows = np.arange(index * block, (index + 1) * block) % total // per_solution
        arguments = (
            jax.tree.map(lambda x, rows=rows: x[rows], solutions),
            jax.random.fold_in(key, index),
        )
        compiled = compiled or background.compile_for_arguments(jitted, *arguments)
        blocks_of_scores.append(jax.device_get(background.execute(compiled, *arguments)))

    def mean(*blocks: np.ndarray) -> np.ndarray:
        episodes = np.concatenate(blocks)[:total]
        per_episode = episodes.reshape(num_solutions, per_solution, *episodes.shape[1:])
        return per_episode.mean(axis=1, dtype=np.float64).astype(np.float32)

    fitness, descriptor, extras = jax.tree.map(mean, *blocks_of_scores)
    return MeanScores(fitness, descriptor, extras, per_solution)
