"""The suite `probe`: minimal tasks with known solutions, which test algorithms."""

from collections.abc import Callable

from rollax.environments.environment import Environment
from rollax.environments.native.probe.probes import (
    ActionObservation,
    ActionReward,
    ContinuousAction,
    MaskedActions,
    Memory,
    OneAction,
    Truncation,
    TwoAgents,
    TwoChoices,
    TwoObservations,
    TwoSteps,
)
from rollax.environments.native.suite_functions import make_suite_functions

_PROBES: dict[str, Callable[..., Environment]] = {
    "one-action": OneAction,
    "two-observations": TwoObservations,
    "two-steps": TwoSteps,
    "action-reward": ActionReward,
    "action-observation": ActionObservation,
    "memory": Memory,
    "two-agents": TwoAgents,
    "truncation": Truncation,
    "continuous": ContinuousAction,
    "multi-discrete": TwoChoices,
    "masked": MaskedActions,
}

make, default_arguments = make_suite_functions("probe", _PROBES)
