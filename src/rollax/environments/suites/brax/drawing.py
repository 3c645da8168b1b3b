"""Drawings of brax bodies."""

from typing import TYPE_CHECKING

from rollax.canvas.bodies import (
    OBLIQUE_VIEW,
    SIDE_VIEW,
    TOP_VIEW,
    BodyPoses,
    BodyView,
    make_bodies_drawing,
    make_body_poses,
)
from rollax.canvas.drawing import Drawing
from rollax.types import State

if TYPE_CHECKING:
    import rollax.environments.suites.brax.adapter

_VIEWS = {
    "ant": BodyView(OBLIQUE_VIEW, 5.0, 0.12, True),
    "halfcheetah": BodyView(SIDE_VIEW, 4.0, 0.38, True),
    "hopper": BodyView(SIDE_VIEW, 3.6, 0.38, True),
    "humanoid": BodyView(OBLIQUE_VIEW, 4.6, 0.25, True),
    "humanoidstandup": BodyView(OBLIQUE_VIEW, 4.6, 0.25, True),
    "inverted_pendulum": BodyView(SIDE_VIEW, 2.6, 0.12, False),
    "inverted_double_pendulum": BodyView(SIDE_VIEW, 4.0, 0.12, False),
    "pusher": BodyView(TOP_VIEW, 2.4, 0.0, False),
    "reacher": BodyView(TOP_VIEW, 0.7, 0.0, False),
    "swimmer": BodyView(TOP_VIEW, 5.0, 0.0, True),
    "walker2d": BodyView(SIDE_VIEW, 3.6, 0.38, True),
}


def find_view(environment: "rollax.environments.suites.brax.adapter.Brax") -> BodyView:
    """Return the view of an environment. Unknown environments have the same view as the ant."""
    return _VIEWS.get(environment.name.split("/")[1], _VIEWS["ant"])


def body_poses(
    environment: "rollax.environments.suites.brax.adapter.Brax", state: State
) -> BodyPoses:
    """Return the poses of all bodies except the world."""
    links = state.suite_state.pipeline_state.x
    return make_body_poses(environment.dynamics.sys.mj_model, links.pos, links.rot)


DRAWINGS: dict[str, Drawing] = {
    # Hopper and walker2d use steps of 0.008 seconds.
    "hopper": make_bodies_drawing(find_view, body_poses, 60),
    "walker2d": make_bodies_drawing(find_view, body_poses, 60),
    "*": make_bodies_drawing(find_view, body_poses, 20),
}
