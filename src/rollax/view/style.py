"""How figures look, and their axes."""

from typing import Any

STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # TrueType, which every publisher takes; the default is Type 3, which many refuse
}
# In print: letters as large as those of a caption, on a figure that is not scaled.
PAPER: Any = STYLE | {
    "font.size": 7,
    "axes.titlesize": 8,
    "axes.labelsize": 7,
    "axes.linewidth": 0.6,
    "axes.titlepad": 3,
    "axes.labelpad": 2,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.major.pad": 2,
    "ytick.major.pad": 2,
    "legend.fontsize": 7,
    "legend.borderaxespad": 0.2,
    "legend.borderpad": 0.2,
    "lines.linewidth": 1.2,
    "grid.linewidth": 0.4,
}


def frames(value: float) -> str:
    """A number of frames in few characters: 0, 500, 10k, 1.5M, 2B."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.6g}{unit}"
    return f"{value:.6g}"


def ticks_of_steps(axis: Any, number: int) -> None:
    """Few round numbers along the axis of steps or of time."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(number, steps=[1, 2, 2.5, 5, 10]))
    axis.xaxis.set_major_formatter(lambda value, _: frames(value))
