"""Construction of archives with descriptor cells from the settings of an algorithm."""

from typing import Any, Protocol, runtime_checkable

import numpy as np

from rollax.archives.archive import Archive
from rollax.archives.cells import AcceptanceThreshold, Cells, cells_archive
from rollax.archives.grid import grid_cells
from rollax.archives.voronoi import voronoi_cells
from rollax.environments.capabilities import capabilities
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.spaces import Bound


@runtime_checkable
class CellsConfig(Protocol):
    """Settings of the cells of an archive."""

    @property
    def grid(self) -> tuple[int, ...]: ...
    @property
    def cvt_cells(self) -> int: ...


@runtime_checkable
class DescriptorConfig(Protocol):
    """Settings of the descriptor bounds. `()` selects the bounds of the environment."""

    @property
    def descriptor_low(self) -> tuple[float, ...]: ...
    @property
    def descriptor_high(self) -> tuple[float, ...]: ...


def make_cells_archive(
    config: CellsConfig,
    low: tuple[float, ...],
    high: tuple[float, ...],
    threshold: AcceptanceThreshold | None = None,
) -> Archive:
    """Build an archive with one solution per cell.

    Args:
        config: Settings of the cells.
        low: Lower bounds of descriptors.
        high: Upper bounds of descriptors.
        threshold: Settings of acceptance thresholds. If None, a cell accepts a solution if it is
            empty or the fitness of the solution exceeds that of its elite.

    Returns:
        The archive.
    """
    return cells_archive(make_cells(config, low, high), threshold)


def make_cells(config: CellsConfig, low: tuple[float, ...], high: tuple[float, ...]) -> Cells:
    """Build Voronoi cells if `config.cvt_cells` is not 0, else the cells of a grid.

    Raises:
        UsageError: If the settings do not fit the bounds.
    """
    return (
        voronoi_cells(config.cvt_cells, low, high)
        if config.cvt_cells
        else grid_cells(config.grid, low, high)
    )


def descriptor_bounds(
    environment: Environment, config: DescriptorConfig
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the descriptor bounds from the settings, or from the environment if they are `()`.

    Args:
        environment: Environment with K descriptor dimensions.
        config: Settings of the descriptor bounds.

    Returns:
        Lower and upper bounds, K numbers each.

    Raises:
        UsageError: If the number of bounds is not K, a lower bound is not below its upper bound, or
            neither the settings nor the environment define finite bounds.
    """
    space: Any = capabilities(environment).descriptor_space
    size, name = space.shape[0], environment.name

    def side(end: str, bounds: tuple[float, ...], default_bounds: Bound) -> tuple[float, ...]:
        if bounds and len(bounds) != size:
            raise UsageError(
                f"descriptor_{end} must have {size} numbers, as many as descriptors of {name}, "
                f"got {format_bounds(bounds)}."
            )
        if not bounds and not np.all(np.abs(default_bounds) < 1e30):  # as in `Box.is_bounded`
            raise UsageError(
                f"Descriptors of {name} have no finite bounds, which the archive requires. Set "
                f"config.descriptor_{end} to {size} numbers (--config.descriptor-{end})."
            )
        return tuple(map(float, bounds or np.broadcast_to(default_bounds, space.shape)))

    low = side("low", config.descriptor_low, space.low)
    high = side("high", config.descriptor_high, space.high)
    if not all(lower < upper for lower, upper in zip(low, high, strict=True)):
        raise UsageError(
            f"descriptor_low must be below descriptor_high in every dimension, got "
            f"{format_bounds(low)} and {format_bounds(high)}."
        )
    return low, high


def format_bounds(bounds: tuple[float, ...]) -> str:
    """Format bounds for an error message, separated by spaces."""
    return " ".join(f"{bound:g}" for bound in bounds)
