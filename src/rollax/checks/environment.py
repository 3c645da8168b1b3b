"""Checks that an environment keeps the contract, and says of every fault what is wrong and how to mend it."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax.checks import play
from rollax.checks.faults import attempt
from rollax.checks.members import leaf_faults, member_faults, space_faults
from rollax.checks.steps import step_faults
from rollax.environments.convert import name_fault
from rollax.environments.core import Environment, is_on_host
from rollax.errors import UsageError


class FaultyEnvironmentError(UsageError):
    """An environment breaks its contract. `faults` lists how; the message numbers them."""

    def __init__(self, name: str, faults: list[str]) -> None:
        lines = [f"{i}. {fault}" for i, fault in enumerate(faults, start=1)]
        ways = "1 way" if len(faults) == 1 else f"{len(faults)} ways"
        ValueError.__init__(self, "\n".join([f"{name} breaks the contract of environments in {ways}:", *lines]))
        self.faults = faults


class Report(NamedTuple):
    """The result of a check that found no fault."""

    name: str
    steps: int  # taken in all
    episodes: int  # ended
    notes: tuple[str, ...]  # allowed, but perhaps not meant

    def __str__(self) -> str:
        head = f"{self.name} keeps the contract ({self.steps} random steps, {self.episodes} episodes ended)."
        return "\n".join([head, *(f"- {note}" for note in self.notes)])


def check_contract(env: Environment, is_tested: bool = False) -> None:
    """The part of `check_environment` that compiles and runs nothing: members, spaces, and a reset and a step, traced twice.

    It takes a tenth of a second for a small environment. `is_tested`: an environment of a suite of rollax, of which tests know
    that it has no side effects; it is traced once.

    Raises: FaultyEnvironmentError, one error that lists every fault found.
    """
    name = _name(env)
    if is_on_host(env):
        raise UsageError(
            f"{name} runs on the host: gymnasium.utils.env_checker.check_env says whether it keeps gymnasium's contract"
        )
    faults = member_faults(env)
    _raise_if_any(name, faults)
    # What is wrong with spaces and leaves makes what follows fail in many ways.
    attempt(faults, "reading the spaces", lambda: faults.extend(space_faults(env)))
    attempt(faults, "reading the leaves of the environment", lambda: faults.extend(leaf_faults(env, "the environment")))
    if not faults:
        # One key for several traces is meant here.
        with jax.debug_key_reuse(False):
            attempt(faults, "tracing a reset and a step", lambda: faults.extend(step_faults(env, is_tested)))
    _raise_if_any(name, faults)


def check_spaces(env: Environment) -> None:
    """The part of `check_contract` that needs no step, for simulators on the host. Raises FaultyEnvironmentError."""
    _raise_if_any(_name(env), space_faults(env))


def check_environment(env: Environment, steps: int = 200, key: jax.Array | None = None) -> Report:
    """Acts at random, `steps` steps in each of 4 copies, and compares everything with the contract.

    Raises: FaultyEnvironmentError, one error that lists every fault found; UsageError for fewer steps than 1.
    """
    if not isinstance(steps, int) or steps < 1:
        raise UsageError(f"check_environment: steps ({steps!r}) must be a whole number, at least 1.")
    check_contract(env)
    # Results of one key are compared.
    with jax.debug_key_reuse(False):
        return _check_play(env, steps, jax.random.key(0) if key is None else key)


def _check_play(env: Environment, steps: int, key: jax.Array) -> Report:
    rollout_key, starts_key = jax.random.split(key)
    faults: list[str] = []
    visits = attempt(faults, "acting in a vmapped scan", lambda: play.rollout(env, rollout_key, steps))
    starts = attempt(faults, "vmapping reset", lambda: play.starts(env, starts_key))
    _raise_if_any(_name(env), faults)
    for what, found in (
        ("a reset and a step by themselves", lambda: play.compiled_as_alone(env, visits, starts_key, starts)),
        ("comparing values with the spaces", lambda: play.values(env, visits, starts)),
        ("comparing the ends of episodes", lambda: play.ends(env, visits, starts)),
    ):
        attempt(faults, what, lambda found=found: faults.extend(found()))
    _raise_if_any(_name(env), faults)
    return Report(_name(env), steps * play.COPIES, int(jnp.sum(visits.ended)), play.notes(visits, starts, steps))


def _name(env: Any) -> str:
    """What an environment is called in messages, whatever its name is."""
    kind = env if isinstance(env, type) else type(env)
    try:
        return env.name if isinstance(env.name, str) and name_fault(env.name) is None else kind.__name__
    except Exception:  # a property of the user's may raise anything
        return kind.__name__


def _raise_if_any(name: str, faults: list[str]) -> None:
    if faults:
        raise FaultyEnvironmentError(name, list(dict.fromkeys(faults)))
