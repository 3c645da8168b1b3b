"""Pictures of JaxMARL's worlds in the plane: the particles of MPE and the battles of SMAX."""

import re
from typing import Any, Literal

import numpy as np
from PIL import Image

from rollax.view.scene import BLUE, GREEN, INK, LIGHT, ORANGE, RED, Camera, Color, Scene, Sign, framing

_OPPOSED = ("adversary", "eve")
_MOVES = 5  # actions before these move or stop


def particles(environment: Any, state: Any, obs: Any, camera: Camera | None = None) -> Image.Image:
    """Landmarks in the suite's colors, goals ringed, adversaries red and all others blue, each with a line where it moves."""
    dynamics, places = environment.dynamics, np.nan_to_num(np.asarray(state.p_pos))
    radii, num_agents = np.asarray(dynamics.rad), environment.num_agents
    scene = Scene(*(camera or particle_cameras(environment, [state])[0]))
    scene.line([(x, y) for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1))], LIGHT)
    goals = set() if state.goal is None else set(np.ravel(state.goal).tolist())
    for index in sorted(range(num_agents, len(places)), key=lambda i: -radii[i]):
        if index - num_agents in goals:
            scene.disc(places[index], float(radii[index]) + 0.05, ORANGE)
        scene.disc(places[index], float(radii[index]), _color(dynamics.colour[index]), INK)
    for index, agent_type in enumerate(environment.agent_types):
        place, velocity = places[index], np.nan_to_num(np.asarray(state.p_vel))[index]
        color, _, outline = _of_type(environment, agent_type)
        scene.disc(place, float(radii[index]), color, outline)
        scene.line([place, place + 0.3 * velocity], INK)
    return scene.picture()


def particle_cameras(environment: Any, states: list[Any]) -> list[Camera]:
    """One for all states: it shows every particle at all times, and the square within which they begin."""
    places = np.nan_to_num(np.asarray([state.p_pos for state in states], float)).reshape(-1, 2)
    radius = float(np.max(environment.dynamics.rad))
    low, high = np.minimum(places.min(axis=0) - radius, -1), np.maximum(places.max(axis=0) + radius, 1)
    return [framing(low, high)] * len(states)


def particle_signs(environment: Any, state: Any, obs: Any) -> list[Sign]:
    """The types of agents and of landmarks, by the suite's names."""
    types = dict.fromkeys(environment.agent_types)
    signs = [Sign(agent_type, *_of_type(environment, agent_type)) for agent_type in types]
    names = [re.sub(r"[ _]*\d+$", "", str(name)) for name in environment.dynamics.landmarks]
    colors = [_color(color) for color in environment.dynamics.colour[environment.num_agents :]]
    signs += [Sign(name, color, outline=INK) for name, color in dict.fromkeys(zip(names, colors, strict=False))]
    goal = [] if state.goal is None else [Sign("goal", ORANGE, "ring")]
    return [*signs, *goal, Sign("velocity", INK, "line")]


def _of_type(environment: Any, agent_type: str) -> tuple[Color, Literal["disc"], Color | None]:
    """Color, shape and outline of a type of agents."""
    is_lead, is_opposed = agent_type.startswith("lead"), agent_type.endswith(_OPPOSED)
    # Without adversaries agents may bump into each other, so that those of several types differ too.
    color = RED if is_opposed else (BLUE, GREEN)[_own_types(environment).index(agent_type) % 2]
    return color, "disc", INK if is_lead else None


def _own_types(environment: Any) -> list[str]:
    """The types of agents that are no adversaries, in their order."""
    return [name for name in dict.fromkeys(environment.agent_types) if not name.endswith(_OPPOSED)]


def _color(levels: Any) -> Color:
    red, green, blue = (int(level) for level in np.asarray(levels)[:3])
    return red, green, blue


def battle(environment: Any, state: Any, obs: Any, camera: Camera | None = None) -> Image.Image:
    """Allies blue and enemies red with their health above them, shots as lines, and the places of the fallen."""
    dynamics, units = environment.dynamics, _units(state)
    width, height, allies = float(dynamics.map_width), float(dynamics.map_height), int(dynamics.num_allies)
    scene = Scene(*(camera or battle_cameras(environment, [state])[0]))
    scene.line([(0, 0), (width, 0), (width, height), (0, height), (0, 0)], LIGHT)
    places, types = np.asarray(units.unit_positions), np.asarray(units.unit_types)
    alive, radii = np.asarray(units.unit_alive), np.asarray(dynamics.unit_type_radiuses)[types]
    health = np.asarray(units.unit_health) / np.asarray(dynamics.unit_type_health)[types]
    for index in np.flatnonzero(~alive):
        scene.disc(places[index], float(radii[index]), LIGHT)
    for shooter, target in _shots(dynamics, units):
        scene.line([places[shooter], places[target]], ORANGE, 1.5)
    for index in np.flatnonzero(alive):
        (x, y), radius = places[index].tolist(), float(radii[index])
        scene.disc((x, y), radius, BLUE if index < allies else RED)
        share, long, above = float(health[index]), 1.4, y + radius + 0.45
        scene.line([(x - long / 2, above), (x + long / 2, above)], LIGHT, 3)
        scene.line([(x - long / 2, above), (x - long / 2 + share * long, above)], GREEN, 3)
    return scene.picture()


def battle_cameras(environment: Any, states: list[Any]) -> list[Camera]:
    """One for all states: it shows every unit at all times, or the whole map where they are all over it."""
    places = np.asarray([_units(state).unit_positions for state in states], float).reshape(-1, 2)
    size = np.asarray([float(environment.dynamics.map_width), float(environment.dynamics.map_height)])
    low, high = np.maximum(places.min(axis=0) - 1.5, 0), np.minimum(places.max(axis=0) + 1.5, size)
    return [framing(np.minimum(low, high), np.maximum(low, high))] * len(states)


def battle_signs(environment: Any, state: Any, obs: Any) -> list[Sign]:
    """The two sides, and what is drawn of them."""
    health = Sign("health", GREEN, "line")
    return [Sign("ally", BLUE), Sign("enemy", RED), Sign("fallen", LIGHT), health, Sign("shot", ORANGE, "line")]


def forces(environment: Any, state: Any, obs: Any) -> list[str]:
    """How many of each side are alive, and of which types they are."""
    dynamics, units = environment.dynamics, _units(state)
    alive, types = np.asarray(units.unit_alive), np.asarray(units.unit_types)
    lines = []
    for side, members in (("allies", slice(None, dynamics.num_allies)), ("enemies", slice(dynamics.num_allies, None))):
        names = [dynamics.unit_type_names[i] for i in types[members][alive[members]]]
        counted = ", ".join(f"{names.count(name)} {name}{'s' * (names.count(name) > 1)}" for name in dict.fromkeys(names))
        lines.append(f"{side}: {counted or 'none'} of {len(alive[members])}")
    return lines


def _units(state: Any) -> Any:
    """SMAX's own state, also beneath that of an enemy's policy."""
    fields = type(state).__dataclass_fields__
    return state.state if "enemy_policy_state" in fields else state


def _shots(dynamics: Any, units: Any) -> list[tuple[int, int]]:
    """(shooter, target) of the last step, as far as both are alive and within the shooter's range."""
    alive, places = np.asarray(units.unit_alive), np.asarray(units.unit_positions)
    ranges = np.asarray(dynamics.unit_type_attack_ranges)[np.asarray(units.unit_types)]
    allies, found = int(dynamics.num_allies), []
    for shooter, action in enumerate(np.asarray(units.prev_attack_actions).astype(int).tolist()):
        aim = action - _MOVES
        target = allies + aim if shooter < allies else allies - 1 - aim  # enemies count their targets backwards
        if aim < 0 or not 0 <= target < len(alive):
            continue
        near = np.linalg.norm(places[shooter] - places[target]) < ranges[shooter]
        if near and alive[shooter] and alive[target]:
            found.append((shooter, target))
    return found
