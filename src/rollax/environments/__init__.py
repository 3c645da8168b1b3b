"""Environments: the contract and the registry (`rollax.check_environment` checks one's own)."""

from rollax.environments.core import (
    AgentsEnvironment,
    DescribedEnvironment,
    Environment,
    InformedEnvironment,
    ListedTasksEnvironment,
    Transition,
)
from rollax.environments.registry import arguments, list_environments, make, register

__all__ = [
    "AgentsEnvironment",
    "DescribedEnvironment",
    "Environment",
    "InformedEnvironment",
    "ListedTasksEnvironment",
    "Transition",
    "arguments",
    "list_environments",
    "make",
    "register",
]
