"""Environments: the contract, the registry, and the check for one's own."""

from rollax.environments.check import check_contract, check_environment
from rollax.environments.core import (
    AgentsEnvironment,
    DescribedEnvironment,
    Environment,
    Streams,
    StreamState,
    TimeStep,
    Transition,
)
from rollax.environments.registry import arguments, list_environments, make, register

__all__ = [
    "AgentsEnvironment",
    "DescribedEnvironment",
    "Environment",
    "StreamState",
    "Streams",
    "TimeStep",
    "Transition",
    "arguments",
    "check_contract",
    "check_environment",
    "list_environments",
    "make",
    "register",
]
