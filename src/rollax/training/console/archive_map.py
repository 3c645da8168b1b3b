"""Map of an archive for the terminal: cells with elites, shaded by fitness."""

import jax
import numpy as np
from rich.text import Text

from rollax.algorithm import Algorithm, State
from rollax.algorithms.derived_settings import ArchiveSettings
from rollax.archives.archive import Elites
from rollax.training.elites.selection import best_per_cell, has_no_cells

MAP_COLUMNS, MAP_ROWS = 32, 16
SHADES = "░▒▓█"  # by fitness quartile, highest last
SHADE_COLORS = ("#3b528b", "#21918c", "#5ec962", "#fde725")  # viridis without its darkest colors
# With more Voronoi cells, map blocks are much larger than cells, so hardly any block lies between
# elites.
MAX_VORONOI_CELLS = 20_000


def render_archive_map(
    algorithm: Algorithm, state: State, settings: ArchiveSettings | None, num_frames: int
) -> Text | None:
    """Return a map of a run's archive.

    Args:
        algorithm: Algorithm of the run.
        state: State of the run.
        settings: Settings of the archive.
        num_frames: Number of evaluated solutions, for the title.

    Returns:
        The map. None if the archive is empty, has more than one objective, or does not have a
        descriptor of two dimensions.
    """
    if algorithm.archived is None or settings is None:
        return None
    archive, archive_state = algorithm.archived.archive(state)
    elites = archive.elites(archive_state)
    if elites.center.shape[1:] != (2,) or elites.solutions.fitness.ndim != 1:
        return None
    # Solutions are not copied from the device.
    elites = elites._replace(solutions=elites.solutions._replace(solution=(), extras=()))
    elites = best_per_cell(jax.device_get(elites))
    if not elites.mask.any():
        return None
    values = compute_block_fitness(
        elites,
        settings.grid if elites.is_grid else None,
        np.asarray(archive.low),
        np.asarray(archive.high),
    )
    return draw_map(
        values,
        f"archive at {num_frames:,} evaluations: descriptor 0 to the right, descriptor 1 upward",
    )


def compute_block_fitness(
    elites: Elites,
    shape: tuple[int, ...] | None,
    low: np.ndarray,
    high: np.ndarray,
    max_size: tuple[int, int] = (MAP_COLUMNS, MAP_ROWS),
) -> np.ndarray:
    """Return the best fitness in each block of the map.

    A block consists of whole grid cells. Without a grid, blocks divide the descriptor range
    equally.

    Args:
        elites: Elites of the archive.
        shape: Shape of the grid, or None for an archive without a grid.
        low: Lower bounds of the descriptors, [2].
        high: Upper bounds of the descriptors, [2].
        max_size: Maximum number of columns and rows.

    Returns:
        Fitness with shape [rows, columns], with the first row at the bottom. A block without elites
        is NaN. In an archive with at most `MAX_VORONOI_CELLS` Voronoi cells, it instead has the
        fitness of the cell at its center.
    """
    if shape is not None:
        cells_per_block = [-(-n // limit) for n, limit in zip(shape, max_size, strict=True)]
        size = [-(-n // number) for n, number in zip(shape, cells_per_block, strict=True)]
        cells = np.stack(np.unravel_index(np.flatnonzero(elites.mask), shape), axis=1)
        block = cells // cells_per_block
    else:
        size = list(max_size)
        share = (elites.solutions.descriptor[elites.mask] - low) / (high - low)
        block = np.clip(np.floor(share * size), 0, np.array(size) - 1).astype(int)
    best = np.full(size, -np.inf)
    np.maximum.at(best, tuple(block.T), elites.solutions.fitness[elites.mask])
    if shape is None and not has_no_cells(elites) and len(elites.mask) <= MAX_VORONOI_CELLS:
        at_centers = _fitness_at_block_centers(elites, low, high, max_size)
        best = np.where(best == -np.inf, at_centers, best)
    return np.where(best == -np.inf, np.nan, best).T


def _fitness_at_block_centers(
    elites: Elites, low: np.ndarray, high: np.ndarray, size: tuple[int, int]
) -> np.ndarray:
    """Return the fitness of the Voronoi cell at the center of each block, [columns, rows]."""
    x, y = ((np.arange(n) + 0.5) / n for n in size)
    center = (elites.center - low) / (high - low)
    distance = (x[:, None, None] - center[:, 0]) ** 2 + (y[None, :, None] - center[:, 1]) ** 2
    return np.asarray(elites.solutions.fitness)[np.argmin(distance, axis=-1)]


def draw_map(values: np.ndarray, title: str) -> Text:
    """Draw the map in characters, with a title and a legend.

    Args:
        values: Fitness with shape [rows, columns], with the first row at the bottom. NaN for empty
            blocks.
        title: Title of the map.
    """
    filled = values[np.isfinite(values)]
    quarters = np.quantile(filled, (0.25, 0.5, 0.75))
    text = Text(f"{title}\n", no_wrap=True, overflow="crop")
    for row in values[::-1]:
        text.append("  ")
        for value in row:
            level = int(np.sum(value > quarters))
            text.append(
                " " if np.isnan(value) else SHADES[level],
                "" if np.isnan(value) else SHADE_COLORS[level],
            )
        text.append("\n")
    bounds = (filled.min(), *quarters, filled.max())
    text.append("  fitness ")
    for level, shade in enumerate(SHADES):
        text.append(shade, SHADE_COLORS[level]).append(
            f" {bounds[level]:.4g} to {bounds[level + 1] + 0.0:.4g}  "
        )
    return text
