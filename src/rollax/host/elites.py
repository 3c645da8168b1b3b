"""The archive of a run: its elites as a table, and one of them as the policy."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from rollax.archives.core import Archive, Elites
from rollax.errors import UsageError
from rollax.typed import typed


def archive_of(policy: Any) -> tuple[Archive, Any]:
    """The archive of a policy's run and its state. Raises UsageError when it has none."""
    if policy.algorithm.archived is None:
        raise UsageError(f"{policy.spec.algorithm} keeps no archive: train map_elites or another quality-diversity algorithm")
    return policy.algorithm.archived.archive(policy.state)


def of_policy(policy: Any) -> Elites:
    """All places of the archive of a policy's run, as NumPy arrays. Raises UsageError when it has none, or it is empty."""
    archive, state = archive_of(policy)
    found = jax.device_get(jax.jit(archive.elites)(state))
    if not found.mask.any():
        raise UsageError(f"the archive is empty at step {policy.step:,}: take a later checkpoint")
    return found


def is_population(found: Elites) -> bool:
    """Whether there are no cells: every place is where its elite is."""
    return not found.is_grid and np.array_equal(found.center, found.scored.descriptor)


def best_of_cells(found: Elites) -> Elites:
    """The archive with the best elite of every cell alone, where cells hold several."""
    each = int(found.per_cell)
    if each == 1:
        return found
    best = np.argmax(np.where(found.mask, found.scored.fitness, -np.inf).reshape(-1, each), axis=1)
    places = np.arange(len(best)) * each + best
    scored, mask, center = jax.tree.map(lambda x: np.asarray(x)[places], (found.scored, found.mask, found.center))
    return Elites(scored, mask, center, found.is_grid)


def table(policy: Any) -> dict[str, np.ndarray]:
    """Place, fitness and descriptors of all elites, the best first; and objectives where there are several."""
    found = of_policy(policy)
    table, names = columns(found), getattr(policy.spec.config, "objectives", ())
    return table | {name: np.asarray(found.scored.extras)[table["place"], k] for k, name in enumerate(names)}


def columns(found: Elites) -> dict[str, np.ndarray]:
    """Place, fitness and descriptors of all elites, the best first."""
    places = np.flatnonzero(found.mask)
    places = places[np.argsort(-found.scored.fitness[places], kind="stable")]
    descriptor = np.asarray(found.scored.descriptor)[places]
    each = {f"descriptor_{k}": descriptor[:, k] for k in range(descriptor.shape[1])}
    return {"place": places, "fitness": np.asarray(found.scored.fitness)[places], **each}


def chosen(policy: Any, descriptor: Sequence[float] | None, cell: Sequence[int] | None) -> Any:
    """The policy with an elite of the archive in place of the best, as for `Policy.elite`."""
    if (descriptor is None) == (cell is None):
        raise UsageError("an elite is chosen by its descriptor or by its cell: give one of the two")
    found = of_policy(policy)
    place = nearest(found, descriptor) if descriptor is not None else in_cell(policy, found, cell)
    shown = ", ".join(f"{x:.3g}" for x in found.scored.descriptor[place])
    note = f"the elite at descriptor ({shown}) has fitness {found.scored.fitness[place]:.4g}"
    return dataclasses.replace(with_elite(policy, place), warnings=[*policy.warnings, note])


def with_elite(policy: Any, place: int) -> Any:
    """The policy that plays the elite at a place of its archive."""
    archive, state = archive_of(policy)
    state = policy.algorithm.archived.with_archive(policy.state, archive.with_best(state, place))
    return dataclasses.replace(policy, state=state)


def nearest(found: Elites, descriptor: Any) -> int:
    """The place of the elite nearest to a descriptor, in units of how far descriptors reach."""
    size = found.center.shape[1]
    wanted = np.asarray(typed("descriptor", descriptor, tuple[float, ...]))
    if wanted.shape != (size,) or not np.isfinite(wanted).all():
        raise UsageError(f"descriptor ({' '.join(map(str, wanted))}) must be {size} finite numbers")
    span = np.ptp(found.center, axis=0)
    away = np.sum(((found.scored.descriptor - wanted) / np.where(span > 0, span, 1.0)) ** 2, axis=1)
    return int(np.argmin(np.where(found.mask, away, np.inf)))


def in_cell(policy: Any, found: Elites, cell: Any) -> int:
    """The place of the elite in a cell of the grid; of several there the fittest."""
    shape = policy.spec.config.grid
    if not found.is_grid:
        raise UsageError("the archive has no grid: choose by --descriptor")
    wanted = typed("cell", cell, tuple[int, ...])
    if len(wanted) != len(shape) or not all(0 <= i < n for i, n in zip(wanted, shape, strict=True)):
        reach = " x ".join(f"0 ... {n - 1}" for n in shape)
        raise UsageError(f"cell ({' '.join(map(str, wanted))}) must be within {reach}")
    each = int(found.per_cell)
    first = int(np.ravel_multi_index(wanted, shape)) * each
    fitness = np.where(found.mask, found.scored.fitness, -np.inf)
    place = first + int(np.argmax(fitness[first : first + each]))
    if not found.mask[place]:
        near = np.unravel_index(nearest(found, found.center[place]) // each, shape)
        raise UsageError(f"cell {' '.join(map(str, wanted))} is empty: the nearest elite is in cell {' '.join(map(str, near))}")
    return place
