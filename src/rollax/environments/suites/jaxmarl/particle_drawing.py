"""Drawing of MPE particles."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import jax
import numpy as np
from PIL import Image

from rollax.canvas.scene import (
    BLUE,
    DARK_GRAY,
    GREEN,
    LIGHT_GRAY,
    ORANGE,
    RED,
    Camera,
    Color,
    LegendEntry,
    Scene,
    fit_camera,
)
from rollax.types import Observation, State

if TYPE_CHECKING:
    import rollax.environments.suites.jaxmarl.adapter

_ADVERSARY_SUFFIXES = ("adversary", "eve")


def draw_particles(
    environment: "rollax.environments.suites.jaxmarl.adapter.JaxMARL",
    state: State,
    obs: Observation,
    camera: Camera | None = None,
) -> Image.Image:
    """Draw an MPE environment.

    Landmarks have the colors of JaxMARL, and goals have rings. Adversaries are red, other agents
    are blue or green by type, and lines show velocities.

    Args:
        environment: Innermost environment.
        state: State of the environment.
        obs: Observation (unused).
        camera: Camera, by default one that shows all particles.

    Returns:
        RGB image.
    """
    dynamics, positions = environment.dynamics, np.nan_to_num(np.asarray(state.p_pos))
    radii, num_agents = np.asarray(dynamics.rad), environment.num_agents
    scene = Scene(*(camera or particle_cameras(environment, [state])[0]))
    scene.line([(x, y) for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1))], LIGHT_GRAY)
    goals = set() if state.goal is None else set(np.ravel(state.goal).tolist())
    for index in sorted(range(num_agents, len(positions)), key=lambda i: -radii[i]):
        if index - num_agents in goals:
            scene.disc(positions[index], float(radii[index]) + 0.05, ORANGE)
        scene.disc(
            positions[index], float(radii[index]), _to_color(dynamics.colour[index]), DARK_GRAY
        )
    for index, agent_type in enumerate(environment.agent_types):
        place, velocity = positions[index], np.nan_to_num(np.asarray(state.p_vel))[index]
        color, _, outline = _agent_type_style(environment, agent_type)
        scene.disc(place, float(radii[index]), color, outline)
        scene.line([place, place + 0.3 * velocity], DARK_GRAY)
    return scene.picture()


def particle_cameras(
    environment: "rollax.environments.suites.jaxmarl.adapter.JaxMARL", states: list[State]
) -> list[Camera]:
    """Return the same camera for every state. It shows all particles and the initial square."""
    places = np.nan_to_num(np.asarray([state.p_pos for state in states], float)).reshape(-1, 2)
    radius = float(np.max(environment.dynamics.rad))
    low, high = (
        np.minimum(places.min(axis=0) - radius, -1),
        np.maximum(places.max(axis=0) + radius, 1),
    )
    return [fit_camera(low, high)] * len(states)


def particle_legend(
    environment: "rollax.environments.suites.jaxmarl.adapter.JaxMARL",
    state: State,
    obs: Observation,
) -> list[LegendEntry]:
    """Return the legend of the types of agents and landmarks, with the names in JaxMARL."""
    types = dict.fromkeys(environment.agent_types)
    entries = [
        LegendEntry(agent_type, *_agent_type_style(environment, agent_type)) for agent_type in types
    ]
    names = [re.sub(r"[ _]*\d+$", "", str(name)) for name in environment.dynamics.landmarks]
    colors = [_to_color(color) for color in environment.dynamics.colour[environment.num_agents :]]
    entries += [
        LegendEntry(name, color, outline=DARK_GRAY)
        for name, color in dict.fromkeys(zip(names, colors, strict=False))
    ]
    goal = [] if state.goal is None else [LegendEntry("goal", ORANGE, "ring")]
    return [*entries, *goal, LegendEntry("velocity", DARK_GRAY, "line")]


def _agent_type_style(
    environment: "rollax.environments.suites.jaxmarl.adapter.JaxMARL", agent_type: str
) -> tuple[Color, Literal["disc"], Color | None]:
    """Return the color, shape and outline of a type of agents."""
    is_lead, is_opposed = agent_type.startswith("lead"), agent_type.endswith(_ADVERSARY_SUFFIXES)
    # Several types of non-adversaries get different colors, because their agents may collide.
    color = (
        RED
        if is_opposed
        else (BLUE, GREEN)[_non_adversary_types(environment).index(agent_type) % 2]
    )
    return color, "disc", DARK_GRAY if is_lead else None


def _non_adversary_types(
    environment: "rollax.environments.suites.jaxmarl.adapter.JaxMARL",
) -> list[str]:
    """Return the types of agents that are not adversaries, in order."""
    return [
        name
        for name in dict.fromkeys(environment.agent_types)
        if not name.endswith(_ADVERSARY_SUFFIXES)
    ]


def _to_color(levels: Sequence[float] | np.ndarray | jax.Array) -> Color:
    red, green, blue = (int(level) for level in np.asarray(levels)[:3])
    return red, green, blue
