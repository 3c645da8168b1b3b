"""Matplotlib styles and axis formatting of figures."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import matplotlib.axes

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
    "text.parse_math": False,  # names of folders and metrics may contain dollar signs
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # TrueType, because many publishers reject the default (Type 3)
}
# Style for print. In an unscaled figure, text is as large as that of a caption.
PAPER_STYLE: Any = STYLE | {
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


def format_count(value: float) -> str:
    """Format a count with the suffix k, M or B, for example 500, 10k, 1.5M or 2B."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.6g}{unit}"
    return f"{value:.6g}"


def escape_mathtext(text: str) -> str:
    """Escape dollar signs in a label. Matplotlib would parse them as the start of a formula."""
    return text.replace("$", r"\$")


def set_step_ticks(axes: "matplotlib.axes.Axes", num_ticks: int) -> None:
    """Set about `num_ticks` round ticks on the x-axis."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(num_ticks, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: format_count(value))
