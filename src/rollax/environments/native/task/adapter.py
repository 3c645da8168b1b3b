"""The suite `task`: differentiable benchmark functions for quality-diversity algorithms."""

from collections.abc import Callable

from rollax.environments.environment import Environment
from rollax.environments.native.suite_functions import make_suite_functions
from rollax.environments.native.task.benchmarks import arm, rastrigin, rastrigin_multi, sphere

_ENVIRONMENTS: dict[str, Callable[..., Environment]] = {
    "sphere": sphere,
    "rastrigin": rastrigin,
    "rastrigin-multi": rastrigin_multi,
    "arm": arm,
}

make, default_arguments = make_suite_functions("task", _ENVIRONMENTS)
