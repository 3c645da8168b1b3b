"""Environment interfaces and the environment registry.

Use `rollax.check_environment` to check a custom environment against these interfaces.
"""

from rollax.environments.environment import (
    DescriptorEnvironment,
    Environment,
    FiniteTaskEnvironment,
    InfoReductionsEnvironment,
    MultiAgentEnvironment,
    Transition,
)
from rollax.environments.registry import default_arguments, list_environments, make, register

__all__ = [
    "MultiAgentEnvironment",
    "DescriptorEnvironment",
    "Environment",
    "InfoReductionsEnvironment",
    "FiniteTaskEnvironment",
    "Transition",
    "default_arguments",
    "list_environments",
    "make",
    "register",
]
