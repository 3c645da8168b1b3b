"""An HTML page of sections with charts that one can zoom: one file, which loads nothing from elsewhere."""

import html
import importlib.resources
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rollax.host.logging import missing
from rollax.version import __version__
from rollax.view.style import STYLE

SHORT = 24  # letters in a cell of a table that is not broken
BUTTONS = 300  # pixels of height from which a chart has a row of buttons above it
DIGITS = 7  # of numbers in charts, as many as a float32 has
# What the browser may do: run what is in the page, and load nothing.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; media-src data:"
_AXIS = {
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
TEMPLATE: dict[str, Any] = {
    "layout": {
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif", "size": 12, "color": "#444444"},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "height": BUTTONS,
        "margin": {"l": 50, "r": 20, "t": 10, "b": 40},
        "hovermode": "closest",
        "hoverlabel": {"namelength": -1},
        "showlegend": False,
        "xaxis": _AXIS,
        "yaxis": {**_AXIS, "hoverformat": ".5~g", "exponentformat": "e"},  # 0.0005 is not 500µ
    }
}


class Chart(NamedTuple):
    """A chart of plotly's, as plain values."""

    title: str
    data: list[dict[str, Any]]  # a trace each; `meta` names the groups by which a legend hides it
    layout: dict[str, Any]
    note: str = ""
    height: int = 210
    is_wide: bool = False


class Name(NamedTuple):
    """A name in a legend."""

    group: str
    label: str
    color: str
    dash: str = "solid"  # of CSS


class Section(NamedTuple):
    """A heading, and what is beneath it: HTML, or charts side by side."""

    title: str
    parts: Sequence[str | list[Chart]]


def plotly() -> str:
    """The script of plotly.js. Raises UsageError when plotly is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise missing("plotly", "report") from error
    return get_plotlyjs()


def document(title: str, subtitle: str, sections: Iterable[Section], notes: Sequence[str] = ()) -> str:
    """The whole page. What comes from a run is escaped wherever it is put."""
    shown, charts = list(sections), dict[str, Chart]()
    bodies = [_body(section, number, charts) for number, section in enumerate(shown)]
    links = "".join(f'<a href="#part-{number}">{text(section.title)}</a>' for number, section in enumerate(shown))
    told = f'<div class="notes"><ul>{"".join(f"<li>{text(note)}</li>" for note in notes)}</ul></div>' if notes else ""
    drawn = {name: {"data": chart.data, "layout": _layout(chart)} for name, chart in charts.items()}
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta name="generator" content="rollax {text(__version__)}">',
        f"<title>{text(title)}</title>\n<style>\n{resource('page.css')}</style>\n</head>\n<body>",
        f'<header><h1>{text(title)}</h1><p class="subtitle">{text(subtitle)}</p></header>',
        f"<nav>{links}</nav>{told}",
        "<noscript><p>The charts of this page need JavaScript, which is part of the page.</p></noscript>",
        *bodies,
        f"<footer>Made by rollax {text(__version__)}. The page is one file and loads nothing from elsewhere.</footer>",
        f'<script type="application/json" id="data">{as_json({"template": TEMPLATE, "charts": drawn})}</script>',
        f"<script>{inert(plotly())}</script>\n<script>\n{inert(resource('page.js'))}</script>\n</body>\n</html>\n",
    ]
    return "\n".join(parts)


def _layout(chart: Chart) -> dict[str, Any]:
    margin = {"margin": {**TEMPLATE["layout"]["margin"], "t": 30}} if chart.height >= BUTTONS else {}
    return {"height": chart.height, **margin, **chart.layout}


def _body(section: Section, number: int, charts: dict[str, Chart]) -> str:
    """A section as HTML; its charts come into `charts` by their ids."""
    inner = []
    for part in section.parts:
        if isinstance(part, str):
            inner.append(part)
            continue
        figures = []
        for chart in part:
            name = f"chart-{len(charts)}"
            charts[name] = chart
            figures.append(_figure(name, chart))
        kind = "charts" if any(chart.is_wide or chart.height < 300 for chart in part) else "charts halves"
        inner.append(f'<div class="{kind}">{"".join(figures)}</div>')
    return f'<section id="part-{number}"><h2>{text(section.title)}</h2>\n{"".join(inner)}</section>'


def _figure(name: str, chart: Chart) -> str:
    note = f"<span>{text(chart.note)}</span>" if chart.note else ""
    words = f"<figcaption>{text(chart.title)}{note}</figcaption>"
    kind = "wide" if chart.is_wide else "small"
    return f'<figure class="{kind}">{words}<div id="{name}" style="height:{chart.height}px"></div></figure>'


def resource(name: str) -> str:
    return importlib.resources.files("rollax.view").joinpath(name).read_text(encoding="utf-8")


def as_json(value: Any) -> str:
    """JSON in which nothing ends the element that it is in."""
    found = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return found.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def inert(script: str) -> str:
    """A script that does not end the element that it is in."""
    return script.replace("</script", "<\\/script")


def text(value: Any) -> str:
    """Any text as HTML, also in attributes; and as plotly has it, which reads a part of HTML in labels."""
    return html.escape(str(value))


def paragraph(words: str) -> str:
    return f'<p class="note">{text(words)}</p>'


def heading(words: str) -> str:
    return f"<h3>{text(words)}</h3>"


def code(lines: str) -> str:
    return f"<pre>{text(lines)}</pre>"


def facts(rows: dict[str, str]) -> str:
    """Names and what they are."""
    return f"<dl>{''.join(f'<dt>{text(name)}</dt><dd>{text(value)}</dd>' for name, value in rows.items())}</dl>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], strong: int | None = None) -> str:
    """A table that scrolls where it is too wide. `strong`: the column that a reader looks for."""
    lines = "".join(f"<tr>{''.join(_cell(value, column == strong) for column, value in enumerate(row))}</tr>" for row in rows)
    top = "".join(f"<th>{text(name)}</th>" for name in head)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>'


def _cell(value: str, is_strong: bool) -> str:
    kinds = ["strong"] * is_strong + ["short"] * (len(value) <= SHORT)
    return f'<td class="{" ".join(kinds)}">{text(value)}</td>' if kinds else f"<td>{text(value)}</td>"


def legend(names: Sequence[Name]) -> str:
    """Names that hide and show what is theirs in every chart."""
    buttons = [
        f'<button type="button" aria-pressed="true" data-group="{text(name.group)}">'
        f'<i style="color:{text(name.color)};border-top-style:{text(name.dash)}"></i>{text(name.label)}</button>'
        for name in names
    ]
    return f'<div class="chips">{"".join(buttons)}</div>'


def media(content: str, kind: str, title: str, note: str) -> str:
    """A picture or a video, in base64."""
    source = f'src="data:{kind};base64,{content}"'
    shown = (
        f"<video {source} controls loop muted></video>" if kind.startswith("video/") else f'<img {source} alt="{text(title)}">'
    )
    return f"<figure>{shown}<figcaption>{text(title)}<span>{text(note)}</span></figcaption></figure>"


def numbers(values: Any) -> list[Any]:
    """An array of one axis or two as lists, with as many digits as count; None where there is no finite number."""
    array = np.asarray(values)
    if array.ndim == 2:
        return [numbers(row) for row in array]
    if array.dtype.kind in "iub":
        return array.tolist()
    return [float(f"{x:.{DIGITS}g}") if math.isfinite(x) else None for x in array.tolist()]
