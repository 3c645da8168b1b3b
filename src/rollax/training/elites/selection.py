"""Tables of the elites of an archive, and selection of one elite as the policy."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from rollax.algorithm import ArchiveFunctions
from rollax.algorithms.derived_settings import ArchiveSettings
from rollax.archives.archive import Archive, Elites
from rollax.errors import UsageError
from rollax.types import ArchiveState
from rollax.user_input.coercion import coerce

if TYPE_CHECKING:
    import rollax.policy


def archive_functions(policy: "rollax.policy.Policy") -> ArchiveFunctions:
    """Return the archive functions of a policy's algorithm.

    Args:
        policy: Policy of a run.

    Raises:
        UsageError: If the algorithm has no archive.
    """
    if policy.algorithm.archived is None:
        raise UsageError(
            f"{policy.spec.algorithm} has no archive. Train map_elites or another "
            "quality-diversity algorithm."
        )
    return policy.algorithm.archived


def archive_settings(policy: "rollax.policy.Policy") -> ArchiveSettings:
    """Return the settings of the archive of a policy's run.

    Args:
        policy: Policy of a run with an archive.

    Raises:
        UsageError: If `AlgorithmEntry.derive_settings` of the algorithm returns no archive
            settings.
    """
    settings = policy.spec.derived_settings.archive
    if settings is None:
        raise UsageError(
            f"The entry of {policy.spec.algorithm} must derive the settings of its archive. Set "
            "AlgorithmEntry.derive_settings."
        )
    return settings


def objective_names(policy: "rollax.policy.Policy") -> tuple[str, ...]:
    """Return the names of the objectives of a policy's run. Empty for a single fitness."""
    settings = policy.spec.derived_settings.archive
    return () if settings is None else settings.objectives


def get_archive(policy: "rollax.policy.Policy") -> tuple[Archive, ArchiveState]:
    """Return the archive of a policy's run and its state.

    Args:
        policy: Policy of a run.

    Raises:
        UsageError: If the algorithm has no archive.
    """
    return archive_functions(policy).archive(policy.state)


def get_elites(policy: "rollax.policy.Policy") -> Elites:
    """Return all entries of the archive of a policy's run as NumPy arrays.

    Args:
        policy: Policy of a run with an archive.

    Raises:
        UsageError: If the algorithm has no archive, or the archive is empty.
    """
    archive, state = get_archive(policy)
    elites = jax.device_get(jax.jit(archive.elites)(state))
    if not elites.mask.any():
        if policy.step == 0:
            raise UsageError(
                "The archive is empty at step 0, before the first evaluation of solutions. Load a "
                "later checkpoint."
            )
        raise UsageError(
            f"The archive is empty at step {policy.step:,} because no solution had a finite "
            "fitness and descriptor. Check the rewards and descriptors of "
            f"{policy.spec.environment} for NaN and infinity."
        )
    return elites


def has_no_cells(elites: Elites) -> bool:
    """Return whether the archive has no cells, so that each elite's descriptor is its center."""
    return not elites.is_grid and np.array_equal(elites.center, elites.solutions.descriptor)


def best_per_cell(elites: Elites) -> Elites:
    """Reduce an archive with several elites per cell to the best elite of each cell."""
    per_cell = int(elites.num_per_cell)
    if per_cell == 1:
        return elites
    fitness = np.where(elites.mask, elites.solutions.fitness, -np.inf).reshape(-1, per_cell)
    places = np.arange(len(fitness)) * per_cell + np.argmax(fitness, axis=1)
    solutions, mask, center = jax.tree.map(
        lambda x: np.asarray(x)[places], (elites.solutions, elites.mask, elites.center)
    )
    return Elites(solutions=solutions, mask=mask, center=center, is_grid=elites.is_grid)


def elite_table(policy: "rollax.policy.Policy") -> dict[str, np.ndarray]:
    """Return the elites of a policy's archive as columns, best first.

    Args:
        policy: Policy of a run with an archive.

    Returns:
        The columns of `elite_columns`, and one column for each objective.

    Raises:
        UsageError: If the algorithm has no archive, or the archive is empty.
    """
    elites = get_elites(policy)
    table, objectives = elite_columns(elites), objective_names(policy)
    return table | {
        name: np.asarray(elites.solutions.extras)[table["place"], k]
        for k, name in enumerate(objectives)
    }


def elite_columns(elites: Elites) -> dict[str, np.ndarray]:
    """Return the place, fitness and descriptors of all elites as columns, best first.

    Args:
        elites: Entries of an archive.

    Returns:
        Columns with shape [N]: `place` (index of the archive entry), `fitness`, `descriptor_0`,
        `descriptor_1` and so on.
    """
    places = np.flatnonzero(elites.mask)
    places = places[np.argsort(-elites.solutions.fitness[places], kind="stable")]
    descriptor = np.asarray(elites.solutions.descriptor)[places]
    return {
        "place": places,
        "fitness": np.asarray(elites.solutions.fitness)[places],
        **{f"descriptor_{k}": descriptor[:, k] for k in range(descriptor.shape[1])},
    }


def select_elite(
    policy: "rollax.policy.Policy",
    descriptor: Sequence[float] | None,
    cell: Sequence[int] | None,
) -> "rollax.policy.Policy":
    """Return a policy that acts with the selected elite of its archive.

    Args:
        policy: Policy of a run with an archive.
        descriptor: Descriptor, [K]. The nearest elite is selected. None if `cell` is passed.
        cell: Indices of a grid cell, [K]. The fittest elite in the cell is selected. None if
            `descriptor` is passed.

    Raises:
        UsageError: If not exactly one of `descriptor` and `cell` is passed, or no elite is found.
    """
    if (descriptor is None) == (cell is None):
        raise UsageError(
            "An elite must be selected by either descriptor or cell. Pass exactly one of them."
        )
    elites = get_elites(policy)
    index = (
        find_nearest_elite(elites, descriptor)
        if descriptor is not None
        else find_elite_in_cell(policy, elites, cell)
    )
    values = ", ".join(f"{x:.3g}" for x in elites.solutions.descriptor[index])
    note = f"the elite at descriptor ({values}) has fitness {elites.solutions.fitness[index]:.4g}"
    return dataclasses.replace(with_elite(policy, index), warnings=[*policy.warnings, note])


def with_elite(policy: "rollax.policy.Policy", index: int) -> "rollax.policy.Policy":
    """Return a policy that acts with the archive entry at index `index`."""
    archive, archive_state = get_archive(policy)
    archive_state = archive.with_best(archive_state, index)
    state = archive_functions(policy).with_archive(policy.state, archive_state)
    return dataclasses.replace(policy, state=state)


def find_nearest_elite(elites: Elites, descriptor: Sequence[float] | np.ndarray) -> int:
    """Return the index of the elite nearest to a descriptor.

    The Euclidean distance is measured after each dimension is divided by the range of the
    archive's cell centers.

    Args:
        elites: Entries of an archive.
        descriptor: Descriptor, [K].

    Raises:
        UsageError: If the descriptor has another number of dimensions or is not finite.
    """
    size = elites.center.shape[1]
    target = np.asarray(coerce("descriptor", descriptor, tuple[float, ...]))
    if target.shape != (size,) or not np.isfinite(target).all():
        raise UsageError(
            f"descriptor must be {size} finite numbers, got {' '.join(map(str, target))}."
        )
    span = np.ptp(elites.center, axis=0)
    difference = (elites.solutions.descriptor - target) / np.where(span > 0, span, 1.0)
    distance = np.sum(difference**2, axis=1)
    return int(np.argmin(np.where(elites.mask, distance, np.inf)))


def find_elite_in_cell(
    policy: "rollax.policy.Policy", elites: Elites, cell: Sequence[int] | None
) -> int:
    """Return the index of the fittest elite in a cell of the grid.

    Args:
        policy: Policy of the run.
        elites: Entries of the policy's archive.
        cell: Indices of the cell, [K].

    Raises:
        UsageError: If the archive has no grid, the cell is outside the grid, or the cell is empty.
    """
    if not elites.is_grid:
        raise UsageError("The archive has no grid. Select an elite by --descriptor.")
    shape = archive_settings(policy).grid
    index = coerce("cell", cell, tuple[int, ...])
    if len(index) != len(shape) or not all(0 <= i < n for i, n in zip(index, shape, strict=True)):
        bounds = " x ".join(f"0 ... {n - 1}" for n in shape)
        raise UsageError(f"cell must be within {bounds}, got {' '.join(map(str, index))}.")
    per_cell = int(elites.num_per_cell)
    first = int(np.ravel_multi_index(index, shape)) * per_cell
    fitness = np.where(elites.mask, elites.solutions.fitness, -np.inf)
    elite = first + int(np.argmax(fitness[first : first + per_cell]))
    if not elites.mask[elite]:
        nearest_place = find_nearest_elite(elites, np.asarray(elites.center[elite]))
        nearest_cell = np.unravel_index(nearest_place // per_cell, shape)
        raise UsageError(
            f"Cell {' '.join(map(str, index))} is empty. The nearest elite is in cell "
            f"{' '.join(map(str, nearest_cell))}."
        )
    return elite
