"""Self-contained HTML pages that animate the bodies of MuJoCo models in 3D."""

from rollax.types import Record
from rollax.version import __version__
from rollax.visualization.report import html_page


def build_bodies_page(name: str, data: Record) -> str:
    """Build an HTML page that animates an episode, with controls to rotate, zoom and pause.

    Args:
        name: Name of the environment.
        data: Data of the page (`rollax.canvas.bodies.page_data`).

    Returns:
        The HTML source. The page loads no other files.
    """
    name = html_page.escape_html(name)
    speeds = "".join(
        f'<option value="{value}"{" selected" * (value == 1)}>{label} x</option>'
        for value, label in (
            (0.1, "1/10"),
            (0.25, "1/4"),
            (0.5, "1/2"),
            (1, "1"),
            (2, "2"),
            (4, "4"),
        )
    )
    package = "rollax.visualization.render"
    style = html_page.read_resource("bodies.css", package)
    script = html_page.read_resource("bodies.js", package)
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta http-equiv="Content-Security-Policy" '
        f'content="{html_page.CONTENT_SECURITY_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta name="generator" content="rollax {html_page.escape_html(__version__)}">',
        f"<title>{name}</title>\n<style>\n{style}</style>\n</head>\n<body>",
        f'<canvas role="img" aria-label="{name}"></canvas>',
        f'<footer><strong>{name}</strong><button type="button">Pause</button>',
        f'<input type="range" min="0" max="{len(data["frames"]) - 1}" value="0" aria-label="step">'
        "<output></output>",
        f'<select aria-label="speed">{speeds}</select>'
        "<small>drag to rotate, scroll to zoom, double-click to reset</small>",
        "</footer>\n<noscript><p>This page requires JavaScript.</p></noscript>",
        f'<script type="application/json" id="data">{html_page.encode_script_json(data)}</script>',
        f"<script>\n{html_page.escape_script(script)}</script>\n</body>\n</html>",
    ]
    return "\n".join(parts)
