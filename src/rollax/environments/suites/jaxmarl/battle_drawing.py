"""Drawing of SMAX battles."""

from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from rollax.canvas.scene import (
    BLUE,
    GREEN,
    LIGHT_GRAY,
    ORANGE,
    RED,
    Camera,
    LegendEntry,
    Scene,
    fit_camera,
)
from rollax.environments.suites.suite import SuiteEnvironment
from rollax.types import Observation, State

if TYPE_CHECKING:
    import rollax.environments.suites.jaxmarl.adapter

_NUM_MOVE_ACTIONS = 5  # the first actions move or stop; the others attack


def draw_battle(
    environment: "rollax.environments.suites.jaxmarl.adapter.JaxMARL",
    state: State,
    obs: Observation,
    camera: Camera | None = None,
) -> Image.Image:
    """Draw a SMAX battle: allies blue, enemies red, health bars, shots, and fallen units in gray.

    Args:
        environment: Innermost environment.
        state: State of the environment.
        obs: Observation (unused).
        camera: Camera, by default one that shows all units.

    Returns:
        RGB image.
    """
    dynamics, units = environment.dynamics, _smax_state(state)
    width, height, allies = (
        float(dynamics.map_width),
        float(dynamics.map_height),
        int(dynamics.num_allies),
    )
    scene = Scene(*(camera or battle_cameras(environment, [state])[0]))
    scene.line([(0, 0), (width, 0), (width, height), (0, height), (0, 0)], LIGHT_GRAY)
    positions, types = np.asarray(units.unit_positions), np.asarray(units.unit_types)
    alive, radii = np.asarray(units.unit_alive), np.asarray(dynamics.unit_type_radiuses)[types]
    health = np.asarray(units.unit_health) / np.asarray(dynamics.unit_type_health)[types]
    for index in np.flatnonzero(~alive):
        scene.disc(positions[index], float(radii[index]), LIGHT_GRAY)
    for shooter, target in _find_shots(dynamics, units):
        scene.line([positions[shooter], positions[target]], ORANGE, 1.5)
    for index in np.flatnonzero(alive):
        (x, y), radius = positions[index].tolist(), float(radii[index])
        scene.disc((x, y), radius, BLUE if index < allies else RED)
        share, bar_length, above = float(health[index]), 1.4, y + radius + 0.45
        scene.line([(x - bar_length / 2, above), (x + bar_length / 2, above)], LIGHT_GRAY, 3)
        scene.line(
            [(x - bar_length / 2, above), (x - bar_length / 2 + share * bar_length, above)],
            GREEN,
            3,
        )
    return scene.picture()


def battle_cameras(
    environment: "rollax.environments.suites.jaxmarl.adapter.JaxMARL", states: list[State]
) -> list[Camera]:
    """Return the same camera for every state. It shows all units within the map."""
    positions = np.asarray([_smax_state(state).unit_positions for state in states], float).reshape(
        -1, 2
    )
    size = np.asarray(
        [float(environment.dynamics.map_width), float(environment.dynamics.map_height)]
    )
    low, high = (
        np.maximum(positions.min(axis=0) - 1.5, 0),
        np.minimum(positions.max(axis=0) + 1.5, size),
    )
    return [fit_camera(np.minimum(low, high), np.maximum(low, high))] * len(states)


def battle_legend(
    environment: "rollax.environments.suites.jaxmarl.adapter.JaxMARL",
    state: State,
    obs: Observation,
) -> list[LegendEntry]:
    """Return the legend of `draw_battle`."""
    health = LegendEntry("health", GREEN, "line")
    return [
        LegendEntry("ally", BLUE),
        LegendEntry("enemy", RED),
        LegendEntry("fallen", LIGHT_GRAY),
        health,
        LegendEntry("shot", ORANGE, "line"),
    ]


def battle_notes(
    environment: "rollax.environments.suites.jaxmarl.adapter.JaxMARL",
    state: State,
    obs: Observation,
) -> list[str]:
    """Return lines of text with the number and types of living units of each side."""
    dynamics, units = environment.dynamics, _smax_state(state)
    alive, types = np.asarray(units.unit_alive), np.asarray(units.unit_types)
    lines = []
    for side, members in (
        ("allies", slice(None, dynamics.num_allies)),
        ("enemies", slice(dynamics.num_allies, None)),
    ):
        names = [dynamics.unit_type_names[i] for i in types[members][alive[members]]]
        counted = ", ".join(
            f"{names.count(name)} {name}{'s' * (names.count(name) > 1)}"
            for name in dict.fromkeys(names)
        )
        lines.append(f"{side}: {counted or 'none'} of {len(alive[members])}")
    return lines


def _smax_state(state: State) -> Any:
    """Return the SMAX state, which environments with an enemy policy wrap in another state."""
    fields = type(state).__dataclass_fields__
    return state.state if "enemy_policy_state" in fields else state


def _find_shots(dynamics: SuiteEnvironment, units: State) -> list[tuple[int, int]]:
    """Return the indices (shooter, target) of each shot between living units within range."""
    alive, positions = np.asarray(units.unit_alive), np.asarray(units.unit_positions)
    ranges = np.asarray(dynamics.unit_type_attack_ranges)[np.asarray(units.unit_types)]
    allies, shots = int(dynamics.num_allies), []
    for shooter, action in enumerate(np.asarray(units.prev_attack_actions).astype(int).tolist()):
        target_index = action - _NUM_MOVE_ACTIONS
        # Enemies count their targets backwards.
        target = allies + target_index if shooter < allies else allies - 1 - target_index
        if target_index < 0 or not 0 <= target < len(alive):
            continue
        near = np.linalg.norm(positions[shooter] - positions[target]) < ranges[shooter]
        if near and alive[shooter] and alive[target]:
            shots.append((shooter, target))
    return shots
