"""Self-contained HTML pages with sections of interactive charts."""

import html
import importlib.resources
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rollax.runtime.printing import escape_control_characters
from rollax.training.run_folder.metric_sinks import missing_package_error
from rollax.version import __version__
from rollax.visualization.plots.style import STYLE

MAX_UNBROKEN_LENGTH = 24  # characters of a table cell that is not wrapped
MIN_HEIGHT_WITH_BUTTONS = 300  # pixels. Lower charts have no row of buttons.
SIGNIFICANT_DIGITS = 7  # of numbers in charts, sufficient for float32
# Allows scripts of the page and forbids loading other files.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; media-src data:"
)
_AXIS_STYLE = {
    "gridcolor": STYLE["grid.color"],
    "linecolor": STYLE["axes.edgecolor"],
    "tickcolor": STYLE["axes.edgecolor"],
    "ticks": "outside",
    "zeroline": False,
    "showline": True,
    "automargin": True,
    "exponentformat": "B",  # 10k, 1.5M, 2B
    "nticks": 7,
    "title": {"standoff": 6},
}
# Settings, traces and layouts of plotly, which are written as JSON.
PlotlyValues = dict[str, Any]

PLOTLY_TEMPLATE: PlotlyValues = {
    "layout": {
        "font": {
            "family": "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif",
            "size": 12,
            "color": "#444444",
        },
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "height": MIN_HEIGHT_WITH_BUTTONS,
        "margin": {"l": 50, "r": 20, "t": 10, "b": 40},
        "hovermode": "closest",
        "hoverlabel": {"namelength": -1},
        "showlegend": False,
        "xaxis": _AXIS_STYLE,
        "yaxis": {
            **_AXIS_STYLE,
            "hoverformat": ".5~g",
            "exponentformat": "e",
        },  # without SI prefixes, which would write 0.0005 as 500µ
    }
}


class Chart(NamedTuple):
    """Plotly chart as JSON values.

    Attributes:
        title: Title above the chart.
        data: Plotly traces. The key `meta` of a trace lists the legend groups that can hide it.
        layout: Plotly layout.
        note: Text below the title.
        height: Height in pixels.
        is_wide: Whether the chart has the full width of the page.
    """

    title: str
    data: list[PlotlyValues]
    layout: PlotlyValues
    note: str = ""
    height: int = 210
    is_wide: bool = False


class LegendButton(NamedTuple):
    """Legend button that hides and shows the traces of a legend group.

    Attributes:
        group: Name of the legend group (see `Chart.data`).
        label: Label of the button.
        color: CSS color.
        line_style: CSS line style.
    """

    group: str
    label: str
    color: str
    line_style: str = "solid"


# Part of a section: an HTML string, or charts in one row.
SectionPart = str | list[Chart]


class Section(NamedTuple):
    """Section of a page with a title and parts. A part is an HTML string or a row of charts."""

    title: str
    parts: Sequence[SectionPart]


def load_plotly_script() -> str:
    """Return the source of plotly.js.

    Raises:
        UsageError: If plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise missing_package_error("plotly", "report") from error
    return get_plotlyjs()


def build_page(
    title: str, subtitle: str, sections: Iterable[Section], notes: Sequence[str] = ()
) -> str:
    """Build an HTML page. Text is escaped, except for HTML parts of sections.

    Args:
        title: Title of the page.
        subtitle: Text below the title.
        sections: Sections of the page.
        notes: Notes at the top of the page.

    Returns:
        The HTML source. The page loads no other files.

    Raises:
        UsageError: If plotly is not installed.
    """
    charts: dict[str, Chart] = {}
    bodies, links = [], []
    for index, section in enumerate(sections):
        bodies.append(_section_html(section, index, charts))
        links.append(f'<a href="#part-{index}">{escape_html(section.title)}</a>')
    items = "".join(f"<li>{escape_html(note)}</li>" for note in notes)
    notes_html = f'<div class="notes"><ul>{items}</ul></div>' if notes else ""
    plotly_charts = {
        name: {"data": chart.data, "layout": _chart_layout(chart)} for name, chart in charts.items()
    }
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_SECURITY_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta name="generator" content="rollax {escape_html(__version__)}">',
        f"<title>{escape_html(title)}</title>\n<style>\n{read_resource('page.css')}</style>\n"
        "</head>\n<body>",
        f"<header><h1>{escape_html(title)}</h1>"
        f'<p class="subtitle">{escape_html(subtitle)}</p></header>',
        f"<nav>{''.join(links)}</nav>{notes_html}",
        "<noscript><p>The charts of this page require JavaScript.</p></noscript>",
        *bodies,
        f"<footer>Made by rollax {escape_html(__version__)}. "
        "The page is a single file and loads no other files.</footer>",
        '<script type="application/json" id="data">'
        f"{encode_script_json({'template': PLOTLY_TEMPLATE, 'charts': plotly_charts})}</script>",
        f"<script>{escape_script(load_plotly_script())}</script>\n<script>\n"
        f"{escape_script(read_resource('page.js'))}</script>\n</body>\n</html>\n",
    ]
    return "\n".join(parts)


def _chart_layout(chart: Chart) -> PlotlyValues:
    margin = (
        {"margin": {**PLOTLY_TEMPLATE["layout"]["margin"], "t": 30}}
        if chart.height >= MIN_HEIGHT_WITH_BUTTONS
        else {}
    )
    return {"height": chart.height, **margin, **chart.layout}


def _section_html(section: Section, index: int, charts: dict[str, Chart]) -> str:
    """Return a section as HTML, and add its charts to the dictionary `charts`, keyed by HTML id."""
    contents = []
    for part in section.parts:
        if isinstance(part, str):
            contents.append(part)
            continue
        figures = []
        for chart in part:
            name = f"chart-{len(charts)}"
            charts[name] = chart
            figures.append(_figure_html(name, chart))
        row_class = (
            "charts"
            if any(chart.is_wide or chart.height < 300 for chart in part)
            else "charts halves"
        )
        contents.append(f'<div class="{row_class}">{"".join(figures)}</div>')
    return (
        f'<section id="part-{index}"><h2>{escape_html(section.title)}</h2>\n'
        f"{''.join(contents)}</section>"
    )


def _figure_html(name: str, chart: Chart) -> str:
    note = f"<span>{escape_html(chart.note)}</span>" if chart.note else ""
    caption = f"<figcaption>{escape_html(chart.title)}{note}</figcaption>"
    width = "wide" if chart.is_wide else "small"
    return (
        f'<figure class="{width}">{caption}'
        f'<div id="{name}" style="height:{chart.height}px"></div></figure>'
    )


def read_resource(name: str, package: str = "rollax.visualization.report") -> str:
    """Return the text of a resource file in a package, for example `page.css`."""
    return importlib.resources.files(package).joinpath(name).read_text(encoding="utf-8")


def encode_script_json(value: PlotlyValues) -> str:
    """Encode a value as JSON for a script element. `<`, `>` and `&` are escaped."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def escape_script(script: str) -> str:
    """Escape `</script` in a script, so that it does not end the script element."""
    return script.replace("</script", "<\\/script")


def escape_html(text: str) -> str:
    """Escape text for HTML content, HTML attributes and plotly labels."""
    return html.escape(escape_control_characters(text))


def paragraph_html(text: str) -> str:
    """Return text as an HTML paragraph."""
    return f'<p class="note">{escape_html(text)}</p>'


def heading_html(text: str) -> str:
    """Return text as an HTML heading within a section."""
    return f"<h3>{escape_html(text)}</h3>"


def code_html(lines: str) -> str:
    """Return text as an HTML code block."""
    return f"<pre>{escape_html(lines)}</pre>"


def description_list_html(rows: dict[str, str]) -> str:
    """Return a dictionary as an HTML description list of names and values."""
    items = "".join(
        f"<dt>{escape_html(name)}</dt><dd>{escape_html(value)}</dd>" for name, value in rows.items()
    )
    return f"<dl>{items}</dl>"


def table_html(
    head: Sequence[str], rows: Iterable[Sequence[str]], strong_column: int | None = None
) -> str:
    """Return an HTML table that scrolls horizontally if it is too wide.

    Args:
        head: Column headings.
        rows: Cells of each row.
        strong_column: Index of a column to emphasize, or None.
    """
    lines = "".join(f"<tr>{_row_html(row, strong_column)}</tr>" for row in rows)
    top = "".join(f"<th>{escape_html(name)}</th>" for name in head)
    return (
        f'<div class="scroll"><table><thead><tr>{top}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _row_html(row: Sequence[str], strong_column: int | None) -> str:
    return "".join(_cell_html(value, column == strong_column) for column, value in enumerate(row))


def _cell_html(value: str, is_strong: bool) -> str:
    classes = ["strong"] * is_strong + ["short"] * (len(value) <= MAX_UNBROKEN_LENGTH)
    attribute = f' class="{" ".join(classes)}"' if classes else ""
    return f"<td{attribute}>{escape_html(value)}</td>"


def legend_html(names: Sequence[LegendButton]) -> str:
    """Return HTML buttons that hide and show legend groups in all charts."""
    buttons = [
        f'<button type="button" aria-pressed="true" data-group="{escape_html(name.group)}">'
        f'<i style="color:{escape_html(name.color)};'
        f'border-top-style:{escape_html(name.line_style)}"></i>{escape_html(name.label)}</button>'
        for name in names
    ]
    return f'<div class="chips">{"".join(buttons)}</div>'


def media_html(content: str, media_type: str, title: str, note: str) -> str:
    """Return an HTML figure with an image or a video.

    Args:
        content: Base64-encoded file.
        media_type: Media type, such as "image/gif".
        title: Title of the figure.
        note: Text below the title.
    """
    source = f'src="data:{media_type};base64,{content}"'
    media = (
        f"<video {source} controls loop muted></video>"
        if media_type.startswith("video/")
        else f'<img {source} alt="{escape_html(title)}">'
    )
    return (
        f"<figure>{media}<figcaption>{escape_html(title)}"
        f"<span>{escape_html(note)}</span></figcaption></figure>"
    )


def to_json_numbers(values: ArrayLike) -> list[Any]:
    """Convert an array of one or two axes to lists for JSON.

    Args:
        values: Array `[N]` or `[N, M]`.

    Returns:
        Lists of numbers. Floats are rounded to `SIGNIFICANT_DIGITS`, and non-finite values are
        None.
    """
    array = np.asarray(values)
    if array.ndim == 2:
        return [to_json_numbers(row) for row in array]
    if array.dtype.kind in "iub":
        return array.tolist()
    return [
        float(f"{x:.{SIGNIFICANT_DIGITS}g}") if math.isfinite(x) else None for x in array.tolist()
    ]
