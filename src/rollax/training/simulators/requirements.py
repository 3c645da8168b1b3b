"""Checks of the algorithm and the options of a run with host simulators."""

import importlib.util

from rollax.algorithm import Algorithm
from rollax.environments.capabilities import is_on_host
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.runtime.installation import install_command
from rollax.training.options import parse_workers


def check_rollouts(
    name: str, algorithm: Algorithm, environment: Environment, devices: int, acts_in_training: bool
) -> None:
    """Check that an algorithm can train with host simulators.

    Args:
        name: Name of the algorithm.
        algorithm: Algorithm of one member.
        environment: Host environment.
        devices: Number of devices.
        acts_in_training: Whether the algorithm acts in environments to learn.

    Raises:
        UsageError: If the algorithm does not support host simulators, or if `devices` is not 1.
    """
    if acts_in_training and (algorithm.rollouts is None or algorithm.learn is None):
        raise UsageError(
            f"{environment.name} runs on the host, which {name} does not support. Choose ppo, "
            "ppo_rnd, impala, pqn, td3, sac, dqn, bc, or a custom algorithm with "
            "Algorithm.rollouts and Algorithm.learn."
        )
    if devices > 1:
        raise UsageError(
            f"devices must be 1 for {environment.name}, which runs on the host, got {devices}."
        )


def check_workers(environment: Environment, workers: int | str, max_restarts: int = 0) -> None:
    """Check that the options `env_workers` and `env_restarts` have an effect.

    Args:
        environment: Environment of the run.
        workers: Number of worker processes, or "ray:N".
        max_restarts: Maximum number of consecutive restarts of a simulator. 0 disables restarts.

    Raises:
        UsageError: If an option is not 0 and the environment does not use it, or if Ray is not
            installed.
    """
    if max_restarts and not (is_on_host(environment) and environment.make_pool is None):
        kind = "uses the threads of EnvPool" if is_on_host(environment) else "is compiled"
        raise UsageError(
            f"env_restarts ({max_restarts}) requires simulators on the host that step separately, "
            f"but {environment.name} {kind}. Remove env_restarts."
        )
    placement = parse_workers(workers)
    if not placement.number:
        return
    if not is_on_host(environment):
        raise UsageError(
            f"env_workers ({workers}) requires a host simulator, but {environment.name} is "
            "compiled. Remove env_workers, or use --devices to parallelize over devices."
        )
    if environment.make_pool is not None:
        raise UsageError(
            f"env_workers ({workers}) has no effect in {environment.name}, whose simulators use "
            f"the threads of EnvPool. Use --env.num-threads {placement.number} instead."
        )
    if placement.is_on_ray and importlib.util.find_spec("ray") is None:
        raise UsageError(
            f"The package ray is not installed, and env_workers ({workers}) needs it. Run: "
            f"{install_command('ray')}"
        )
