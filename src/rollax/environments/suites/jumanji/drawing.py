"""Drawing of Jumanji environments with the viewers of Jumanji."""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from rollax.canvas.drawing import Drawing
from rollax.types import Observation, State

if TYPE_CHECKING:
    import rollax.environments.suites.jumanji.adapter

if TYPE_CHECKING:
    import matplotlib.figure

_MAX_SIZE = 400  # maximum width and height in pixels


MOVE_NAMES = ("up", "right", "down", "left")


def draw_jumanji(
    environment: "rollax.environments.suites.jumanji.adapter.Jumanji",
    state: State,
    obs: Observation,
) -> Image.Image:
    """Draw a Jumanji environment with its matplotlib viewer."""
    from jumanji.viewer import MatplotlibViewer

    pictures: list[np.ndarray] = []

    # Some viewers do not return what they display, and none may open a window.
    def save_picture(figure: "matplotlib.figure.Figure") -> None:
        for axes in figure.axes:
            if (
                axes.name == "rectilinear"
                and axes.get_autoscale_on()
                and not np.isfinite(axes.dataLim.max).all()
            ):  # MMST has infinite data limits
                axes.set(xlim=(-0.1, 1.1), ylim=(-0.1, 1.1))
        pictures.append(np.array(viewer._display_rgb_array(figure)))

    (viewer,) = (
        part for part in vars(environment.dynamics).values() if isinstance(part, MatplotlibViewer)
    )
    viewer._display = save_picture
    environment.dynamics.render(jax.tree.map(jnp.asarray, state.suite_state))
    viewer.close()  # otherwise, the figure of every environment stays open
    picture = Image.fromarray(pictures[-1][..., :3].astype(np.uint8))
    picture.thumbnail((_MAX_SIZE, _MAX_SIZE))
    return picture


DRAWINGS: dict[str, Drawing] = {
    "Game2048-*": Drawing(draw_jumanji, 4, action_names=MOVE_NAMES),
    "Snake-*": Drawing(draw_jumanji, 8, action_names=MOVE_NAMES),
    "Maze-*": Drawing(draw_jumanji, 5, action_names=MOVE_NAMES),
    "SlidingTilePuzzle-*": Drawing(draw_jumanji, 4, action_names=MOVE_NAMES),
    "*": Drawing(draw_jumanji, 4),
}
