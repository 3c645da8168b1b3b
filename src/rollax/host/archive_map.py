"""A small map of an archive for the terminal: where elites are, shaded by fitness."""

from typing import Any

import jax
import numpy as np
from rich.text import Text

from rollax.archives.core import Elites
from rollax.host.elites import best_of_cells, is_population

COLUMNS, ROWS = 32, 16
SHADES = "░▒▓█"  # by quarters of the blocks, the fittest last
COLORS = ("#3b528b", "#21918c", "#5ec962", "#fde725")  # of viridis, without its darkest
MOST_CELLS = 20_000  # Voronoi cells beyond which blocks are so much larger that hardly one is between elites


def map_of(algorithm: Any, state: Any, config: Any, frames: int) -> Text | None:
    """The map of a run's archive; None where there is no archive of two descriptors and one fitness, or it is empty."""
    if algorithm.archived is None:
        return None
    archive, archive_state = algorithm.archived.archive(state)
    found = archive.elites(archive_state)
    if found.center.shape[1:] != (2,) or found.scored.fitness.ndim != 1:
        return None
    looks = found._replace(scored=found.scored._replace(solution=(), extras=()))  # solutions stay where they are
    looks = best_of_cells(jax.device_get(looks))
    if not looks.mask.any():
        return None
    values = blocks(looks, config.grid if looks.is_grid else None, np.asarray(archive.low), np.asarray(archive.high))
    return drawn(values, f"archive at {frames:,} evaluations: descriptor 0 to the right, 1 upwards")


def blocks(
    found: Elites, shape: tuple[int, ...] | None, low: np.ndarray, high: np.ndarray, most: tuple[int, int] = (COLUMNS, ROWS)
) -> np.ndarray:
    """The best fitness in every block of the map, `[upwards, to the right]`, NaN where there is none; `most` to the right and
    upwards.

    Blocks are of whole cells of a grid `shape`, else equal parts of the bounds.
    """
    if shape is not None:
        per_block = [-(-n // most) for n, most in zip(shape, most, strict=True)]
        size = [-(-n // each) for n, each in zip(shape, per_block, strict=True)]
        block = np.stack(np.unravel_index(np.flatnonzero(found.mask), shape), axis=1) // per_block
    else:
        size = list(most)
        share = (found.scored.descriptor[found.mask] - low) / (high - low)
        block = np.clip(np.floor(share * size), 0, np.array(size) - 1).astype(int)
    best = np.full(size, -np.inf)
    np.maximum.at(best, tuple(block.T), found.scored.fitness[found.mask])
    if shape is None and not is_population(found) and len(found.mask) <= MOST_CELLS:
        best = np.where(best == -np.inf, _in_the_middle(found, low, high, most), best)
    return np.where(best == -np.inf, np.nan, best).T


def _in_the_middle(found: Elites, low: np.ndarray, high: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The fitness of the Voronoi cell that the middle of every block is in, `[*size]`."""
    x, y = ((np.arange(n) + 0.5) / n for n in size)
    center = (found.center - low) / (high - low)
    away = (x[:, None, None] - center[:, 0]) ** 2 + (y[None, :, None] - center[:, 1]) ** 2
    return np.asarray(found.scored.fitness)[np.argmin(away, axis=-1)]


def drawn(values: np.ndarray, title: str) -> Text:
    """The map in characters, the second descriptor upwards: a title, rows, and what the shades mean."""
    filled = values[np.isfinite(values)]
    quarters = np.quantile(filled, (0.25, 0.5, 0.75))
    text = Text(f"{title}\n", no_wrap=True, overflow="crop")
    for row in values[::-1]:
        text.append("  ")
        for value in row:
            level = int(np.sum(value > quarters))
            text.append(" " if np.isnan(value) else SHADES[level], "" if np.isnan(value) else COLORS[level])
        text.append("\n")
    bounds = (filled.min(), *quarters, filled.max())
    text.append("  fitness ")
    for level, shade in enumerate(SHADES):
        text.append(shade, COLORS[level]).append(f" {bounds[level]:.4g} to {bounds[level + 1] + 0.0:.4g}  ")
    return text
