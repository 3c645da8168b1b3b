"""Figures of runs as files."""

from pathlib import Path
from typing import Any

from rollax.visualization.plots.figure import write_figure


def plot(*arguments: Any, **keywords: Any) -> Path:
    """Write a figure and return its path."""
    return write_figure(*arguments, **keywords)[0]
