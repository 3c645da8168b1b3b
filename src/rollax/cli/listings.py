"""The commands that list what there is: envs, algorithms, doctor."""

import dataclasses
import json
from typing import Any

import tyro

from rollax.cli.shared import Shared
from rollax.cli.words import parse, single, take
from rollax.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Environments:
    """Lists the environments, or shows one; with --env.NAME VALUE its tasks in words, where it has several.

    On a terminal they stand by suite; elsewhere there is one id a line.
    """

    suite: tyro.conf.Positional[str | None] = None
    """A suite (gymnax), a word that ids hold (cartpole), or an environment (gymnax/CartPole-v1) to see what it is."""
    json: bool = False
    """As JSON."""


def envs(arguments: list[str], shared: Shared) -> int:
    from rollax import environments
    from rollax.cli import catalogue

    rest, env = take(arguments, "--env.")
    given = parse(Environments, rest, "rollax envs")
    if env:
        describe = getattr(environments.make(given.suite or "", **single(env)), "describe", None)
        if describe is None:
            raise UsageError(f"{given.suite} has no tasks to put in words: leave --env. out to list its arguments")
        found: Any = describe()
        lines = [found]
    elif given.suite is not None and "/" in given.suite:
        found = catalogue.in_detail(given.suite)
        lines = [catalogue.shown(found)]
    else:
        found = catalogue.found(given.suite)
        lines = [catalogue.by_suite(found)] if catalogue.is_read_by_a_person() else found
    print(json.dumps(found, default=str) if given.json else "\n".join(lines))
    return 0


@dataclasses.dataclass(frozen=True)
class Algorithms:
    """Lists the algorithms."""

    json: bool = False
    """As JSON."""


def algorithms(arguments: list[str], shared: Shared) -> int:
    from rollax.algorithms import list_algorithms

    given = parse(Algorithms, arguments, "rollax algorithms")
    found = {name: kinds.summary for name, kinds in list_algorithms().items()}
    print(json.dumps(found) if given.json else "\n".join(f"{name:<8} {summary}" for name, summary in found.items()))
    return 0


@dataclasses.dataclass(frozen=True)
class Doctor:
    """Says what this machine has for rollax, and what it lacks."""

    json: bool = False
    """As JSON."""


def doctor(arguments: list[str], shared: Shared) -> int:
    from rollax.cli import doctor as machine

    given = parse(Doctor, arguments, "rollax doctor")
    found = machine.report()
    print(json.dumps(found) if given.json else machine.shown(found))
    return 0
