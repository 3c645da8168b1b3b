"""Drawings of MuJoCo Playground bodies."""

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
    import rollax.environments.suites.playground.adapter

_DEFAULT_VIEW = BodyView(OBLIQUE_VIEW, 5.0, 0.12, True)
# Keys are prefixes of task names.
_VIEWS = {
    "Acrobot": BodyView(SIDE_VIEW, 8.0, -0.3, False),
    "BallInCup": BodyView(SIDE_VIEW, 1.4, 0.2, False),
    # The cart is one meter above the ground, and the pole is one meter long.
    "Cartpole": BodyView(SIDE_VIEW, 5.0, 0.29, False),
    "Cheetah": BodyView(SIDE_VIEW, 4.0, 0.38, True),
    "Finger": BodyView(SIDE_VIEW, 1.2, -0.3, False),
    "Fish": BodyView(TOP_VIEW, 1.4, 0.0, False),
    "Hopper": BodyView(SIDE_VIEW, 3.6, 0.38, True),
    "Humanoid": BodyView(OBLIQUE_VIEW, 4.6, 0.25, True),
    "Pendulum": BodyView(SIDE_VIEW, 2.4, 0.0, False),
    "PointMass": BodyView(TOP_VIEW, 0.8, 0.0, False),
    "Reacher": BodyView(TOP_VIEW, 0.7, 0.0, False),
    "Swimmer": BodyView(TOP_VIEW, 5.0, 0.0, True),
    "Walker": BodyView(SIDE_VIEW, 3.6, 0.38, True),
}


def find_view(environment: "rollax.environments.suites.playground.adapter.Playground") -> BodyView:
    """Return the view of an environment."""
    name = environment.name.split("/")[1]
    return next((view for start, view in _VIEWS.items() if name.startswith(start)), _DEFAULT_VIEW)


def body_poses(
    environment: "rollax.environments.suites.playground.adapter.Playground", state: State
) -> BodyPoses:
    """Return the poses of all bodies except the world."""
    data = state.suite_state.data
    return make_body_poses(environment.dynamics.mj_model, data.xpos[1:], data.xquat[1:])


DRAWINGS: dict[str, Drawing] = {"*": make_bodies_drawing(find_view, body_poses, 40)}
