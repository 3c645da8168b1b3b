"""Commands `rollax envs`, `rollax algorithms` and `rollax doctor`."""

import dataclasses
import json
from typing import Any

import tyro

from rollax import environments
from rollax.algorithms.registry import list_algorithms
from rollax.cli.information import doctor as machine
from rollax.cli.information import environment_table
from rollax.cli.parsing.dynamic_options import (
    parse_options,
    take_prefixed_options,
    unwrap_single_values,
)
from rollax.cli.parsing.shared_options import SharedOptions
from rollax.errors import UsageError
from rollax.runtime.printing import print_line


@dataclasses.dataclass(frozen=True)
class EnvironmentsOptions:
    """List environments or describe one. With --env.NAME VALUE, describe its tasks.

    On a terminal, environments are grouped by suite. Otherwise each line has one id.
    """

    suite: tyro.conf.Positional[str | None] = None
    """Suite (gymnax), part of an id (cartpole), or full id to describe (gymnax/CartPole-v1)."""
    json: bool = False
    """Print JSON."""


def envs(arguments: list[str], shared: SharedOptions) -> int:
    """Run `rollax envs` and return its exit code."""
    rest, env = take_prefixed_options(arguments, "--env.")
    options = parse_options(EnvironmentsOptions, rest, "rollax envs")
    if env:
        describe = getattr(
            environments.make(options.suite or "", **unwrap_single_values(env)), "describe", None
        )
        if describe is None:
            raise UsageError(
                f"{options.suite} has no task descriptions. "
                "Remove the --env. options to list its arguments."
            )
        found: Any = describe()
        lines = [found]
    elif options.suite is not None and "/" in options.suite:
        found = environment_table.collect_environment_facts(options.suite)
        lines = [environment_table.format_environment(found)]
    else:
        found = environments.list_environments(options.suite)
        lines = (
            [environment_table.format_suites(found)]
            if environment_table.is_stdout_terminal()
            else found
        )
    print_line(json.dumps(found, default=str) if options.json else "\n".join(lines))
    return 0


@dataclasses.dataclass(frozen=True)
class AlgorithmsOptions:
    """List the algorithms."""

    json: bool = False
    """Print JSON."""


def algorithms(arguments: list[str], shared: SharedOptions) -> int:
    """Run `rollax algorithms` and return its exit code."""
    options = parse_options(AlgorithmsOptions, arguments, "rollax algorithms")
    found = {name: kinds.summary for name, kinds in list_algorithms().items()}
    print_line(
        json.dumps(found)
        if options.json
        else "\n".join(f"{name:<8} {summary}" for name, summary in found.items())
    )
    return 0


@dataclasses.dataclass(frozen=True)
class DoctorOptions:
    """Show versions, devices, unused accelerators, and which extras are installed."""

    json: bool = False
    """Print JSON."""


def doctor(arguments: list[str], shared: SharedOptions) -> int:
    """Run `rollax doctor` and return its exit code."""
    options = parse_options(DoctorOptions, arguments, "rollax doctor")
    found = machine.collect_report()
    print_line(json.dumps(found) if options.json else machine.format_report(found))
    return 0
