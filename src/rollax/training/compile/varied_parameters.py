"""Environments whose parameters are sampled or change in training, and are fixed in evaluations."""

from collections.abc import Callable, Collection

import jax
import numpy as np

from rollax.algorithm import Algorithm
from rollax.algorithms.curriculum import Curriculum, fixed_parameters, with_curriculum
from rollax.environments import registry
from rollax.environments.capabilities import is_on_host
from rollax.environments.environment import Environment
from rollax.environments.randomization import DomainRandomization, find_parameters
from rollax.environments.trace_cache import ObjectCache
from rollax.environments.wrappers import AgentId
from rollax.errors import UnknownNameError, UsageError
from rollax.training.spec import Spec
from rollax.types import State
from rollax.user_input.coercion import format_value

PHASE_REMEDY = "Start a phase instead: rollax.resume(RUN, arguments={NAME: VALUE})."

_environments_by_spec = ObjectCache()


def randomize_episodes(spec: Spec, environment: Environment) -> Environment:
    """Return the environment of training, which samples the parameters in `spec.randomize`."""
    if not spec.randomize:
        return environment
    if is_on_host(environment):
        raise UsageError(
            f"randomize must be used with a compiled environment, and {environment.name} is a "
            "simulator on the host. Sample its parameters in its reset method."
        )
    return DomainRandomization(environment, spec.randomize)


def fixed_environment(spec: Spec, environment: Environment) -> Environment:
    """Return the environment of training with fixed parameters, without `spec.randomize`.

    Parameters that follow a curriculum have their last values.

    Args:
        spec: Specification of the run.
        environment: Environment of training, or the environment object that the user passed.
    """
    return with_last_parameters(spec, _without_randomization(spec, environment))


def with_last_parameters(
    spec: Spec, environment: Environment, except_names: Collection[str] = ()
) -> Environment:
    """Return the environment with the last values of its curriculum, except some parameters.

    Args:
        spec: Specification of the run.
        environment: Environment or wrapper.
        except_names: Names of parameters that keep their values.
    """
    names = [name for name in spec.curriculum if _argument_name(name) not in except_names]
    if not names or is_on_host(environment):
        return environment
    curriculum = Curriculum({name: spec.curriculum[name] for name in names})
    # The cache holds the environment, so that its id is not reused.
    return _environments_by_spec.get_or_make(
        spec,
        ("last", id(environment), *names),
        lambda: (fixed_parameters(environment, curriculum), environment),
    )[0]


def _argument_name(parameter: str) -> str:
    """Return the last part of the path of a parameter, which names its argument."""
    return parameter.rpartition(".")[2]


def check_arguments_have_effect(spec: Spec, names: Collection[str]) -> None:
    """Check that no argument has only the effect that a curriculum replaces.

    Args:
        spec: Specification of a run whose environment is made from its id.
        names: Names of the arguments that the user passed.

    Raises:
        UsageError: If the environment would be the same without an argument.
    """
    for name in {_argument_name(parameter) for parameter in spec.curriculum} & set(names):
        others = {key: value for key, value in spec.arguments.items() if key != name}
        made = [registry.make(spec.environment, **values) for values in (spec.arguments, others)]
        curriculum = Curriculum(spec.curriculum)
        try:
            fixed = [fixed_parameters(environment, curriculum) for environment in made]
        except UsageError:  # raised again with a remedy when the curriculum is built
            return
        leaves, structures = zip(*map(jax.tree.flatten, fixed), strict=True)
        if structures[0] == structures[1] and all(map(np.array_equal, *leaves)):
            raise UsageError(
                f"the argument {name} ({format_value(spec.arguments[name])}) has no effect, "
                f"because the curriculum changes {name}. Remove one of them, or set the value in "
                f"evaluations: --eval-env.{name} VALUE."
            )


def _without_randomization(spec: Spec, environment: Environment) -> Environment:
    has_agent_ids = isinstance(environment, AgentId)
    randomized = environment.env if has_agent_ids else environment
    if not spec.randomize or not isinstance(randomized, DomainRandomization):
        return environment
    return AgentId(randomized.env) if has_agent_ids else randomized.env


def follow_curriculum(
    spec: Spec, make: Callable[[Environment], Algorithm], environment: Environment
) -> Algorithm:
    """Return the algorithm of one member, with the curriculum of the run if it has one.

    Args:
        spec: Specification of the run.
        make: Function from an environment to the algorithm.
        environment: Environment of training.

    Raises:
        UsageError: If the environment is a simulator on the host, or a parameter is not a leaf.
    """
    if not spec.curriculum:
        return make(environment)
    if is_on_host(environment):
        raise UsageError(
            f"curriculum must be used with a compiled environment, and {environment.name} is a "
            f"simulator on the host. {PHASE_REMEDY}"
        )
    try:
        if spec.randomize:
            find_parameters(
                _without_randomization(spec, environment), [*spec.curriculum, *spec.randomize]
            )
        return with_curriculum(make, environment, spec.curriculum_values)
    except UnknownNameError as error:
        raise UsageError(
            f"curriculum: {error} A curriculum changes numbers that are leaves of the environment. "
            f"{PHASE_REMEDY}"
        ) from error


def check_traced_parameters(spec: Spec, algorithm: Algorithm, state: State) -> None:
    """Check that an update can be traced while the parameters of the environment change.

    Args:
        spec: Specification of the run.
        algorithm: Algorithm of one member, with the curriculum of the run.
        state: Shapes and types of its state.

    Raises:
        UsageError: If the environment uses a parameter to determine shapes or Python branches.
    """
    try:
        jax.eval_shape(algorithm.step, state)
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
        raise UsageError(
            f"curriculum must contain parameters that may change in a compiled program, but "
            f"{spec.environment} uses {', '.join(spec.curriculum)} to determine shapes or Python "
            f"branches. {PHASE_REMEDY}"
        ) from error
