"""The suite `memory`: tasks that require memory of earlier observations.

The tasks are repetitions of symbols, card games, and control tasks without velocities. They follow
Morad et al. 2023, "POPGym: Benchmarking Partially Observable Reinforcement Learning"
(arXiv:2303.01859).
"""

from typing import Any

from rollax.environments import registry
from rollax.environments.conversion import convert_arguments, signature_defaults
from rollax.environments.environment import Environment
from rollax.environments.native.memory import cards
from rollax.environments.native.memory.partial_observation import PartialObservation
from rollax.environments.native.memory.repetition import RepeatPrevious
from rollax.types import Setting

GAMES: dict[str, type] = {"repeat-previous": RepeatPrevious, **cards.GAMES}

# Entries of the gymnax environment's observation that are positions and not velocities.
_POSITION_INDICES: dict[str, tuple[int, ...]] = {
    "CartPole-v1": (0, 2),  # of [position, velocity, pole angle, angular velocity]
    "Pendulum-v1": (0, 1),  # of [cosine, sine, angular velocity]
    "MountainCarContinuous-v0": (0,),  # of [position, velocity]
}


def make(name: str, arguments: dict[str, Setting]) -> Environment:
    """Make a memory task.

    Args:
        name: Name in the suite `memory`.
        arguments: Environment arguments, keyed by name.

    Returns:
        The environment.

    Raises:
        UsageError: If a value cannot be converted, or the task needs gymnax and it is not
            installed.
        UnknownNameError: If an argument is unknown.
    """
    id = f"memory/{name}"
    if name in _POSITION_INDICES:
        return PartialObservation(
            registry.make(f"gymnax/{name}", **arguments), _POSITION_INDICES[name], id
        )
    return GAMES[name](**convert_arguments(id, arguments, signature_defaults(GAMES[name])))


def default_arguments(name: str) -> dict[str, Any]:
    """Return the defaults of the arguments of the task, keyed by argument name.

    A task that wraps a gymnax environment has the arguments of that environment.
    """
    if name in _POSITION_INDICES:
        return registry.default_arguments(f"gymnax/{name}")
    return signature_defaults(GAMES[name])
