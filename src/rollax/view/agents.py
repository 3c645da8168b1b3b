"""Pictures of JaxMARL's worlds in the plane: the particles of MPE and the battles of SMAX."""

import math
from typing import Any

import numpy as np
from PIL import Image

from rollax.view.scene import BLUE, GREEN, HEIGHT, INK, LIGHT, ORANGE, RED, Scene

_NEAR = 1.45  # what is shown of MPE's plane on each side; particles begin within 1
_OPPOSED = ("adversary", "eve")
_MOVES = 5  # actions before these move or stop


def particles(environment: Any, state: Any, obs: Any) -> Image.Image:
    """Landmarks in the suite's colors, goals ringed, adversaries red and all others blue, each with a line where it moves.

    Where a particle leaves the picture, it shows twice as much of the plane, or four times.
    """
    dynamics, places = environment.dynamics, np.asarray(state.p_pos)
    radii, num_agents = np.asarray(dynamics.rad), environment.num_agents
    reach = float(np.nan_to_num(np.abs(places).max()))
    scale = 2.0 ** max(0, math.ceil(math.log2(max(reach, _NEAR) / _NEAR)))
    scene = Scene(HEIGHT / (2 * _NEAR * scale))
    edge = _NEAR * scale
    scene.line([(x, y) for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1))], LIGHT)
    scene.line([(-edge, -edge), (-edge, edge)], LIGHT)
    scene.line([(edge, -edge), (edge, edge)], LIGHT)
    goals = set() if state.goal is None else set(np.ravel(state.goal).tolist())
    for index in sorted(range(num_agents, len(places)), key=lambda i: -radii[i]):
        if index - num_agents in goals:
            scene.disc(places[index], float(radii[index]) + 0.05, ORANGE)
        scene.disc(places[index], float(radii[index]), _color(dynamics.colour[index]), INK)
    for index, agent_type in enumerate(environment.agent_types):
        place, velocity = places[index], np.asarray(state.p_vel)[index]
        is_lead, is_opposed = agent_type.startswith("lead"), agent_type.endswith(_OPPOSED)
        # Without adversaries agents may bump into each other, so that those of several types differ too.
        color = RED if is_opposed else (BLUE, GREEN)[_own_types(environment).index(agent_type) % 2]
        scene.disc(place, float(radii[index]), color, INK if is_lead else None)
        scene.line([place, place + 0.3 * velocity], INK)
    return scene.picture()


def _own_types(environment: Any) -> list[str]:
    """The types of agents that are no adversaries, in their order."""
    return [name for name in dict.fromkeys(environment.agent_types) if not name.endswith(_OPPOSED)]


def _color(levels: Any) -> tuple[int, int, int]:
    red, green, blue = (int(level) for level in np.asarray(levels))
    return red, green, blue


def battle(environment: Any, state: Any, obs: Any) -> Image.Image:
    """Allies blue and enemies red with their health above them, shots as lines, and the places of the fallen."""
    dynamics, units = environment.dynamics, _units(state)
    width, height, allies = float(dynamics.map_width), float(dynamics.map_height), int(dynamics.num_allies)
    side, center = _window(np.asarray(units.unit_positions), max(width, height))
    scene = Scene(HEIGHT / side, center)
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


def _window(places: np.ndarray, largest: float) -> tuple[float, tuple[float, float]]:
    """The side and the center of the square that is shown: the whole map or as few of its eighths as hold all units."""
    low, high = places.min(axis=0), places.max(axis=0)
    eighth = largest / 8
    side = eighth * min(8, math.ceil((float((high - low).max()) + 3) / eighth) + 1)
    # In steps as well, so that the picture stands still while the units move.
    center = np.full(2, largest / 2) if side == largest else np.round((low + high) / eighth) * eighth / 2
    return side, (float(center[0]), float(center[1]))


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
