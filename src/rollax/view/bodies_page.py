"""A page in HTML in which the bodies of brax and of MuJoCo Playground move: to turn, to zoom and to stop. It loads nothing."""

from typing import Any

import numpy as np

from rollax.version import __version__
from rollax.view import bodies, page

_DECIMALS = 4


def document(environment: Any, states: list[Any], fps: int | None, stride: int) -> str:
    """The page with every `stride`-th state, by default as fast as time went by."""
    model = bodies.poses(environment, states[0])[0]
    frames = [np.concatenate(bodies.poses(environment, state)[1:], axis=1) for state in states]
    data = {
        "shapes": shapes(model),
        "frames": [np.round(each, _DECIMALS).tolist() for each in frames],
        "targets": np.round(bodies.cameras(environment, states), _DECIMALS).tolist(),
        "steps": [stride * number for number in range(len(states))],
        "seconds": float(environment.dynamics.dt * stride if fps is None else 1 / fps),
        **_views(environment),
    }
    name = page.text(environment.name)
    speeds = "".join(
        f'<option value="{value}"{" selected" * (value == 1)}>{label} x</option>'
        for value, label in ((0.1, "1/10"), (0.25, "1/4"), (0.5, "1/2"), (1, "1"), (2, "2"), (4, "4"))
    )
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{page.POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta name="generator" content="rollax {page.text(__version__)}">',
        f"<title>{name}</title>\n<style>\n{page.resource('bodies.css')}</style>\n</head>\n<body>",
        f'<canvas role="img" aria-label="{name}"></canvas>',
        f'<footer><strong>{name}</strong><button type="button">Pause</button>',
        f'<input type="range" min="0" max="{len(states) - 1}" value="0" aria-label="step"><output></output>',
        f'<select aria-label="speed">{speeds}</select><small>drag to turn, wheel to zoom, double click: as before</small>',
        "</footer>\n<noscript><p>This page needs JavaScript, which is part of the page.</p></noscript>",
        f'<script type="application/json" id="data">{page.as_json(data)}</script>',
        f"<script>\n{page.inert(page.resource('bodies.js'))}</script>\n</body>\n</html>",
    ]
    return "\n".join(parts)


def shapes(model: Any) -> list[dict[str, Any]]:
    """Rods by both ends and a radius, boxes by eight corners, in the coordinates of their body; -1 is the world."""
    found = []
    for geom, body, color in bodies.solids(model):
        size = np.asarray(geom.size, float)
        shape = {"body": body - 1, "color": "#{:02x}{:02x}{:02x}".format(*color)}
        if int(geom.type[0]) == bodies.BOX:
            signs = np.asarray([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
            points = [geom.pos + bodies.rotated(geom.quat, size * sign) for sign in signs]
        else:
            along, half, shape["radius"] = bodies.rod(int(geom.type[0]), size)
            axis = half * bodies.rotated(geom.quat, along)
            points = [geom.pos - axis, geom.pos + axis]
        found.append({**shape, "points": np.round(points, _DECIMALS).tolist()})
    return found


def _views(environment: Any) -> dict[str, Any]:
    """From where the bodies are seen at first: as in a picture, a little from above where that is from the side."""
    view, across, below, _ = bodies.view_of(environment)
    angles = (0.0, 0.12) if view is bodies.SIDE else (0.0, np.pi / 2) if view is bodies.ABOVE else (0.35, 0.45)
    height = below * across * 0.7
    first = {"azimuth": angles[0], "elevation": angles[1], "across": 1.2 * across, "distance": 3.0 * across, "height": height}
    return {"view": first, "square": 1.0 if across > 2 else 0.1}
