"""Check that an environment implements the `Environment` interface correctly."""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax.checks import random_play
from rollax.checks.declarations import batch_faults, leaf_faults, member_faults, space_faults
from rollax.checks.faults import attempt, out_of_space_faults
from rollax.checks.gymnasium_check import check_simulator, is_gymnasium
from rollax.checks.traced_steps import step_faults
from rollax.environments.capabilities import is_on_host
from rollax.environments.conversion import name_fault
from rollax.environments.environment import Environment
from rollax.environments.suites.pettingzoo_detection import PETTINGZOO_MESSAGE, is_pettingzoo
from rollax.errors import UsageError
from rollax.runtime.numerics import standard_numerics, to_single_precision
from rollax.user_input.arguments import coerce_arguments
from rollax.user_input.coercion import format_value


class FaultyEnvironmentError(UsageError):
    """Error for an environment that violates the `Environment` interface.

    The attribute `faults` is a list with one message per violation.
    """

    def __init__(self, name: str, faults: list[str], notes: Sequence[str] = ()) -> None:
        lines = [f"{i}. {fault}" for i, fault in enumerate(faults, start=1)]
        lines += [f"- {note}" for note in notes]
        ways_text = "1 way" if len(faults) == 1 else f"{len(faults)} ways"
        ValueError.__init__(
            self, "\n".join([f"{name} breaks the contract of environments in {ways_text}:", *lines])
        )
        self.faults = faults


class EnvironmentReport(NamedTuple):
    """Report of a passed check.

    Attributes:
        name: Name of the environment.
        steps: Number of random steps.
        episodes: Number of episodes that ended.
        notes: Messages about behavior that is allowed but may be unintended.
    """

    name: str
    steps: int
    episodes: int
    notes: tuple[str, ...]

    def __str__(self) -> str:
        head = (
            f"{self.name} keeps the contract ({self.steps} random steps, "
            f"{self.episodes} episodes ended)."
        )
        return "\n".join([head, *(f"- {note}" for note in self.notes)])


@standard_numerics()
def check_contract(env: Environment, is_tested: bool = False) -> None:
    """Check the attributes and spaces of an environment, and trace a reset and a step.

    `check_environment` includes this check. Nothing is compiled, so the check takes about 0.1 s for
    a small environment.

    Args:
        env: The environment.
        is_tested: Whether tests ensure that the environment has no side effects, as for the suites
            of rollax. Such an environment is traced once instead of twice.

    Raises:
        FaultyEnvironmentError: If the interface is violated. The error lists all violations.
        UsageError: If the environment runs on the host.
    """
    name = _display_name(env)
    if is_on_host(env) or is_gymnasium(env):
        raise UsageError(
            f"{name} runs on the host, where nothing is traced. Call rollax.check_environment."
        )
    faults = member_faults(env)
    _raise_faults(name, faults)
    # Faults in spaces or leaves would cause many errors in the later checks.
    attempt(faults, "reading the spaces", lambda: faults.extend(space_faults(env)))
    attempt(
        faults,
        "reading the leaves of the environment",
        lambda: faults.extend(leaf_faults(env, "the environment")),
    )
    if not faults:
        # Several traces use the same key on purpose.
        with jax.debug_key_reuse(False):
            attempt(
                faults,
                "tracing a reset and a step",
                lambda: faults.extend(step_faults(env, is_tested)),
            )
    _raise_faults(name, [*batch_faults(env), *faults] if faults else faults)


def check_values(env: Environment, steps: int = 8) -> None:
    """Compare the observations of a reset and a few random steps with the observation space.

    The reset and the steps are compiled and run. Integers and booleans outside of their space cause
    an error, because encoders would misinterpret them. Floats outside of their bounds cause a
    warning.

    Args:
        env: The environment.
        steps: Number of random steps.

    Raises:
        FaultyEnvironmentError: If an integer or boolean is outside of its space, or a mask allows
            no action before the task has terminated.
    """
    name, axes = _display_name(env), 1 if env.num_agents is None else 2
    faults: list[str] = []
    with jax.debug_key_reuse(False), quick_compilation():
        episodes = attempt(
            faults,
            "a reset and a few steps",
            lambda: random_play.collect_first_episodes(env, jax.random.key(0), steps),
        )
        _raise_faults(name, faults)
        start, next_obs, terminated = episodes
        samples = {
            "after reset, obs": start,
            "after step, obs": jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), next_obs),
        }
        integer_faults, float_faults = (
            [
                fault
                for description, obs in samples.items()
                for fault in out_of_space_faults(
                    obs, env.observation_space, axes, description, is_exact
                )
            ]
            for is_exact in (True, False)
        )
        _raise_faults(
            name, [*integer_faults, *random_play.mask_faults(env, start, next_obs, terminated)]
        )
    for fault in dict.fromkeys(float_faults):
        warnings.warn(f"{name}: {fault}", RuntimeWarning, stacklevel=2)


@contextlib.contextmanager
def quick_compilation() -> Iterator[None]:
    """Disable most compiler optimizations within the context, to reduce compilation time."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def check_spaces(env: Environment) -> None:
    """Check only the spaces of an environment, for environments with host simulators.

    Args:
        env: The environment.

    Raises:
        FaultyEnvironmentError: If a space is invalid. The error lists all violations.
    """
    _raise_faults(_display_name(env), space_faults(env))


@standard_numerics()
@coerce_arguments(steps=int)
def check_environment(
    env: Environment, steps: int = 200, key: jax.Array | None = None
) -> EnvironmentReport:
    """Check that an environment implements the `Environment` interface, and run random steps in it.

    For gymnasium environments and the results of `rollax.from_gymnasium`, the check also runs
    gymnasium's checker. Errors of this checker are listed as violations, and warnings as notes.

    Args:
        env: The environment.
        steps: Number of random steps. Compiled environments run this number in each of 4 parallel
            copies.
        key: Random key of the steps in a compiled environment. None uses a fixed key.

    Returns:
        Report of the passed check.

    Raises:
        FaultyEnvironmentError: If the interface is violated. The error lists all violations.
        UsageError: If `steps` is not a positive integer, or if `env` is a PettingZoo environment.
    """
    if steps < 1:
        raise UsageError(f"steps must be a positive integer, got {format_value(steps)}.")
    if is_pettingzoo(env):
        raise UsageError(PETTINGZOO_MESSAGE)
    if is_on_host(env) or is_gymnasium(env):
        findings = check_simulator(env, _display_name(env), steps)
        _raise_faults(_display_name(env), findings.faults, findings.notes)
        return EnvironmentReport(
            _display_name(env), findings.steps, findings.episodes, tuple(findings.notes)
        )
    env = to_single_precision(env)
    check_contract(env)
    # The checks compare results of the same key.
    with jax.debug_key_reuse(False):
        return _check_random_steps(env, steps, jax.random.key(0) if key is None else key)


def _check_random_steps(env: Environment, steps: int, key: jax.Array) -> EnvironmentReport:
    """Check resets, random steps and episode ends of a compiled environment."""
    rollout_key, starts_key = jax.random.split(key)
    faults: list[str] = []
    random_steps = attempt(
        faults,
        "acting in a vmapped scan",
        lambda: random_play.collect_random_steps(env, rollout_key, steps),
    )
    starts = attempt(faults, "vmapping reset", lambda: random_play.sample_starts(env, starts_key))
    _raise_faults(_display_name(env), faults)
    for description, find_faults in (
        (
            "a reset and a step by themselves",
            lambda: random_play.compilation_faults(env, random_steps, starts_key, starts),
        ),
        (
            "comparing values with the spaces",
            lambda: random_play.value_faults(env, random_steps, starts),
        ),
        (
            "comparing the ends of episodes",
            lambda: random_play.episode_end_faults(env, random_steps, starts),
        ),
    ):
        attempt(faults, description, lambda find_faults=find_faults: faults.extend(find_faults()))
    _raise_faults(_display_name(env), faults)
    return EnvironmentReport(
        _display_name(env),
        steps * random_play.NUM_COPIES,
        int(jnp.sum(random_steps.is_episode_end)),
        random_play.collect_notes(random_steps, starts, steps),
    )


def _display_name(env: Any) -> str:
    """Return the name of an environment for messages, or its class name if `name` is invalid."""
    kind = env if isinstance(env, type) else type(env)
    if is_gymnasium(env) and not is_on_host(env):
        spec = getattr(env, "spec", None)
        return type(env.unwrapped).__name__ if spec is None else str(spec.id)
    try:
        return (
            env.name
            if isinstance(env.name, str) and name_fault(env.name) is None
            else kind.__name__
        )
    except Exception:  # A property of user code may raise any error.
        return kind.__name__


def _raise_faults(name: str, faults: list[str], notes: Sequence[str] = ()) -> None:
    if faults:
        raise FaultyEnvironmentError(name, list(dict.fromkeys(faults)), notes)
