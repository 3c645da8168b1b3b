"""Options of figures of runs."""

import dataclasses
from typing import Literal

from rollax.errors import UsageError


@dataclasses.dataclass(frozen=True)
class FigureOptions:
    """Content and layout of a figure."""

    only: tuple[str, ...] = ()
    """Metrics to draw in one panel each: return (of evaluations), length, or any logged metric."""
    columns: Literal[1, 2] | None = None
    """Figure width in columns of a two-column page: 1 (3.3 inches) or 2 (6.9 inches)."""
    label: tuple[str, ...] = ()
    """Labels in the legend, in its order."""
    x: Literal["steps", "time"] = "steps"
    """Horizontal axis: environment steps, or wall time since the start of the run."""
    smooth: int = 1
    """Number of neighboring points to average; 1 disables smoothing."""
    aggregate: bool = False
    """Compare over all environments: interquartile means, performance profiles, improvement."""
    normalize: tuple[str, ...] = ()
    """ENVIRONMENT=LOW,HIGH...: returns that map to 0 and 1. Default: lowest and highest reached."""
    csv: bool = False
    """Write the values of all lines to a .csv file next to the figure."""

    @property
    def is_for_paper(self) -> bool:
        """Whether the figure has print size, because `only`, `columns` or `aggregate` is set."""
        return bool(self.only or self.columns or self.aggregate)

    def check(self) -> None:
        """Check that the options are valid together.

        Raises:
            UsageError: If `columns` or `smooth` is out of range, or `normalize` is set without
                `aggregate`.
        """
        if self.columns not in (1, 2, None):
            raise UsageError(f"columns must be 1, 2 or None, got {self.columns}.")
        if not 1 <= self.smooth <= 10**6:
            raise UsageError(f"smooth must be between 1 and {10**6}, got {self.smooth}.")
        if self.normalize and not self.aggregate:
            raise UsageError("normalize requires aggregate. Add aggregate, or leave normalize out.")
