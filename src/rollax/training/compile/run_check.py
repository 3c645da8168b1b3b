"""Compatibility checks of environment, network, settings and devices, before compilation."""

import jax
import jax.extend.core

from rollax.acting.episode_metrics import validate_reductions
from rollax.algorithm import Algorithm
from rollax.checks.environment_check import check_contract, check_spaces, check_values
from rollax.distributed import processes
from rollax.environments.capabilities import is_on_host
from rollax.environments.environment import Environment
from rollax.environments.registry import is_suite_environment
from rollax.errors import UsageError
from rollax.populations.evolution import EPISODE_RETURN
from rollax.training.compile import cache, memory_estimate
from rollax.training.compile import program as programs
from rollax.training.compile.evaluators import make_run_evaluator
from rollax.training.compile.placement import make_device_mesh, mesh_context_fn, with_shardings
from rollax.training.options import COMPILED_EVAL_EPISODES
from rollax.training.presets import explain_preset_arguments
from rollax.training.simulators.requirements import check_rollouts, check_workers
from rollax.training.simulators.runner import SimulatorRunner
from rollax.training.spec import Spec, check_step_counts
from rollax.types import NetworkFn, State


def check_run_environment(spec: Spec, environment: Environment | None) -> None:
    """Check that the environment of a run implements the interface `Environment` correctly.

    Args:
        spec: Specification of the run.
        environment: Environment object, or None if the environment is made from its id.

    Raises:
        UsageError: If a method returns values with wrong shapes, types or ranges.
    """
    made = programs.make_environment(spec) if environment is None else environment
    if is_on_host(made):
        return check_spaces(made)  # gymnasium's contract was checked when it was made
    with cache.enable_for_checks():
        is_tested = environment is None and is_suite_environment(spec.environment)
        check_contract(made, is_tested)
        if not is_tested:
            check_values(made)


def check_run(
    spec: Spec, environment: Environment | None = None, make_network: NetworkFn | None = None
) -> None:
    """Check that algorithm, environment, network, sizes and devices of a run are compatible.

    Functions are traced, but no training program is compiled.

    Args:
        spec: Specification of the run.
        environment: Environment object, or None if the environment is made from its id.
        make_network: Function that maps a random key to a network, or None if settings describe the
            network.

    Raises:
        UsageError: If they are incompatible, or the run does not fit into memory.
    """
    with explain_preset_arguments(spec, make_network):
        _check_run(spec, environment, make_network)


def _check_run(spec: Spec, environment: Environment | None, make_network: NetworkFn | None) -> None:
    check_step_counts(spec)
    has_user_objects = environment is not None or make_network is not None
    is_population = spec.num_members > 1
    mesh = make_device_mesh(spec, is_population)
    with (
        cache.enable_for_checks(),
        memory_estimate.explain_tracing_errors(has_user_objects, "the network and the first state"),
        mesh_context_fn(mesh, is_population)(),
    ):
        algorithm, environment = programs.build_algorithm_and_environment(
            spec, environment, make_network
        )
        eval_environment = programs.evaluation_environment(spec, environment)
        check_workers(environment, spec.options.env_workers, spec.options.env_restarts)
        if processes.num_processes() > 1:
            memory_estimate.check_distributed_run(spec, is_on_host(environment))
        if is_on_host(environment):
            check_rollouts(
                spec.algorithm,
                algorithm,
                environment,
                int(spec.options.devices),
                spec.acts_in_training,
            )
            # For compiled environments, tracing an evaluation includes this check.
            validate_reductions(eval_environment, spec.options.info)
        member_state = programs.abstract_member_state(spec, algorithm)
    memory_estimate.check_state_memory(spec, member_state, algorithm)
    if spec.evolve:
        with (
            cache.enable_for_checks(),
            memory_estimate.explain_tracing_errors(has_user_objects, "an update of the population"),
        ):
            _check_evolution(spec, algorithm, member_state, (environment, eval_environment))
    if is_on_host(environment):
        return
    if not is_population:
        with_shardings(algorithm, member_state, mesh, is_population)
    memory_estimate.check_update_memory(
        spec, algorithm, member_state, environment, has_user_objects
    )
    memory_estimate.check_evaluation_memory(
        make_run_evaluator(spec, algorithm, eval_environment),
        member_state,
        eval_environment,
        spec.options.eval_episodes or COMPILED_EVAL_EPISODES,
        spec.num_members,
        has_user_objects,
    )


def _check_evolution(
    spec: Spec,
    algorithm: Algorithm,
    member_state: State,
    environments: tuple[Environment, Environment],
) -> None:
    """Raise UsageError if the algorithm does not report the metric that selects members.

    `environments` are those of training and evaluation.
    """
    metric = spec.evolve_metric
    on_host = is_on_host(environments[0]) and spec.acts_in_training
    if metric == EPISODE_RETURN:
        # Training in simulators on the host always reports episodes.
        if on_host or has_episode_metrics(algorithm, member_state):
            return
        known = ", ".join(jax.eval_shape(algorithm.step, member_state)[1].values) or "none"
        raise UsageError(
            f"evolve_metric must be a metric that {spec.algorithm} reports, got {metric}, but "
            f"{spec.algorithm} does not report episodes. Set --evolve-metric to one of its "
            f"metrics: {known}."
        )
    parts = programs.population_functions(spec, algorithm, environments[1])
    # Both raise UnknownNameError for an unknown metric.
    if on_host:
        runner = SimulatorRunner(
            spec, algorithm, parts.algorithm, environments, parts.abstract_state
        )
        jax.eval_shape(runner.learn, parts.abstract_state, runner.abstract_recording)
    else:
        jax.eval_shape(parts.algorithm.step, parts.abstract_state)


def has_episode_metrics(algorithm: Algorithm, state: State) -> bool:
    """Return whether an update reports the number of completed episodes.

    If this number is a constant in the traced program, the algorithm does not count episodes.
    """
    program, shapes = jax.make_jaxpr(algorithm.step, return_shape=True)(state)
    metrics = jax.tree.unflatten(jax.tree.structure(shapes), program.jaxpr.outvars)[1]
    return not isinstance(metrics.episodes.number, jax.extend.core.Literal)
