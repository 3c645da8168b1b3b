"""Type `Drawing`, which defines how environments are rendered."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from PIL import Image
from rich.text import Text

from rollax.canvas.scene import Color, LegendEntry

# (environment, state, observation) -> RGB picture; with `cameras`, a fourth argument is the camera
DrawFn = Callable[..., Image.Image]


class Drawing(NamedTuple):
    """Functions and settings to render an environment.

    Unless stated otherwise, functions take the innermost environment, its state and its
    observation.

    Attributes:
        draw: Function that renders a state as an image.
        fps: Number of steps shown per second.
        text: Function that renders a state as text, or None.
        notes: Function that returns lines of text to show below the image, or None.
        action_names: Names of the discrete actions.
        palette: Function without arguments that returns colors to preserve in GIFs, even if they
            cover few pixels.
        legend: Function that returns the legend. It is called with the first state of an episode.
        describe_action_fn: Function from (environment, agent, action) to a description of the
            action.
        cameras: Function from (environment, states of an episode) to one camera per state, which
            avoids abrupt motion of the camera.
        page_data_fn: Function from (environment, every n-th state, frames per second or None, n)
            to the data of an HTML page that plays the episode (`rollax.canvas.bodies.page_data`).
    """

    draw: DrawFn
    fps: int
    text: Callable[[Any, Any, Any], Text] | None = None
    notes: Callable[[Any, Any, Any], list[str]] | None = None
    action_names: tuple[str, ...] = ()
    palette: Callable[[], Sequence[Color]] = tuple
    legend: Callable[[Any, Any, Any], list[LegendEntry]] | None = None
    describe_action_fn: Callable[[Any, int, Any], str] | None = None
    cameras: Callable[[Any, list[Any]], list[Any]] | None = None
    page_data_fn: Callable[[Any, list[Any], int | None, int], dict[str, Any]] | None = None
