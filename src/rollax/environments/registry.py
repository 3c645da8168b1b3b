"""Environments by name: "suite/Name". A suite is imported only when one of its environments is asked for."""

import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from types import ModuleType
from typing import Any

from rollax.environments.convert import convert_all, name_fault, signature_defaults
from rollax.environments.core import Environment
from rollax.environments.suites.table import SUITES, missing_python
from rollax.errors import UnknownNameError, UsageError, near

ENTRY_POINTS = "rollax.environments"

_registered: dict[str, Callable[..., Environment]] = {}


def make(id: str, /, **arguments: Any) -> Environment:
    """The environment of that id, for example `make("gymnax/CartPole-v1", gravity=5)`.

    Arguments are the environment's own (see `arguments(id)`); texts and whole numbers become the type of the default.

    >>> make("probe/memory", delay=5).time_limit
    6

    Raises:
        UnknownNameError: no such environment or argument; the message names those near it.
        UsageError: a value that does not fit, or a suite that is not installed.
    """
    factory = _factory(id)
    if factory is not None:
        return factory(**convert_all(id, arguments, signature_defaults(factory)))
    suite, name = id.split("/", 1)
    module = _suite_module(suite)
    try:
        return module.make(name, arguments)
    except (UsageError, ImportError):
        raise
    except Exception as error:  # whatever a suite makes of sizes and texts that it does not check
        if not arguments:
            raise
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        told = f"{type(error).__name__}: {error}".rstrip(": ")
        raise UsageError(f"making {id} with {given} fails with {told}") from error


def register(id: str, factory: Callable[..., Environment]) -> None:
    """Makes `factory(**arguments)` known as `id`, which reads "suite/Name". The last registration of an id counts.

    Raises: UsageError when the id has no suite or belongs to one of rollax.
    """
    suite, slash, name = id.partition("/")
    if not (slash and suite and name):
        raise UsageError(f'an environment is registered as "suite/Name", not {id!r}: try "mine/{id.strip("/") or "Name"}".')
    if suite in SUITES:
        raise UsageError(f'the suite "{suite}" is part of rollax: register {id!r} under another, such as "mine/{name}".')
    fault = name_fault(id)
    if fault is not None:
        raise UsageError(f"an environment cannot be registered as {id!r}: its {fault}")
    _registered[id] = factory


def list_environments(suite: str | None = None) -> list[str]:
    """The ids of all environments, or of one suite, without importing any suite.

    Raises: UnknownNameError when there is no such suite.
    """
    ids = [f"{name}/{environment}" for name, entry in SUITES.items() for environment in entry.names]
    ids += sorted((set(_registered) | set(_entry_points())) - set(ids))
    if suite is None:
        return ids
    suites = list(dict.fromkeys(id.split("/", 1)[0] for id in ids))
    if suite not in suites:
        raise UnknownNameError("suite of environments", suite, suites)
    return [id for id in ids if id.startswith(f"{suite}/")]


def arguments(id: str) -> dict[str, Any]:
    """What `make` accepts for this environment: names and defaults. It may import the suite."""
    factory = _factory(id)
    if factory is not None:
        return signature_defaults(factory)
    suite, name = id.split("/", 1)
    return _suite_module(suite).arguments(name)


def choices(id: str) -> dict[str, tuple[str, ...]]:
    """The words that those arguments take which take one of a few; {} where none does. It may import the suite."""
    known: Any = _optional(id, "CHOICES") or {}
    if callable(known):
        known = known(id.split("/", 1)[1])
    return {name: tuple(words) for name, words in known.items() if name in arguments(id)}


def evaluation_arguments(id: str) -> dict[str, Any]:
    """The arguments that evaluations have other values of, by the suite of the environment; {} where there are none."""
    suite, _, name = id.partition("/")
    patterns = SUITES[suite].evaluation if suite in SUITES and name in SUITES[suite].names else {}
    return {key: value for pattern, given in patterns.items() if fnmatchcase(name, pattern) for key, value in given.items()}


def best_metric(id: str) -> str:
    """The number of an evaluation that the best checkpoint is best by, unless a run says otherwise."""
    suite, _, name = id.partition("/")
    return SUITES[suite].best_metric if suite in SUITES and name in SUITES[suite].names else "return_mean"


def runs_on_host(id: str) -> bool:
    """Whether simulators of that suite run on the host."""
    suite = id.partition("/")[0]
    return suite in SUITES and SUITES[suite].on_host


def resolve_arguments(id: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with paths made absolute, so that they mean the same in another folder. It may import the suite."""
    resolve = _optional(id, "resolve_arguments") if arguments else None
    return dict(arguments) if resolve is None else resolve(arguments)


def check_evaluation(id: str, training: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Checks evaluations that have the arguments `other` over those of training. It may import the suite.

    Raises: UsageError where they would not measure what they claim, such as returns on tasks that training has not seen.
    """
    check = _optional(id, "check_evaluation") if other else None
    if check is not None:
        check(id, dict(training), dict(other))


def check_known(id: str) -> None:
    """Raises UnknownNameError, or UsageError, for an id that nothing makes. No suite is imported for what is listed."""
    _factory(id)


def is_of_suite(id: str) -> bool:
    """Whether a suite of rollax lists this environment: no factory makes it, nor did another package add it to a suite."""
    suite, _, name = id.partition("/")
    return id not in _registered and suite in SUITES and name in SUITES[suite].names


def _optional(id: str, member: str) -> Any:
    """What the module of a suite may have; None where it has not, and for environments of no suite."""
    suite, _, name = id.partition("/")
    is_listed = suite in SUITES and name in SUITES[suite].names
    return getattr(_suite_module(suite), member, None) if is_listed else None


def _factory(id: str) -> Callable[..., Environment] | None:
    """The function behind a user's or third party's id; None when a suite of rollax makes it."""
    if id in _registered:
        return _registered[id]
    suite, _, name = id.partition("/")
    if suite in SUITES:
        if name in SUITES[suite].names:
            return None
        if name in SUITES[suite].absent:
            raise UsageError(f"{id} is not offered: {SUITES[suite].absent[name]}.")
    entry_points = _entry_points()
    if id in entry_points:
        return entry_points[id].load()
    is_open = suite in SUITES and SUITES[suite].is_open
    if is_open and _suite_module(suite).knows(name):
        return None
    more = f" One of another package is {suite}/PACKAGE:NAME." if is_open else ""
    ids = list_environments()
    if not near(id, ids):  # all of them are too many to read
        ids = [x for x in ids if x.startswith(f"{suite}/")] or list(dict.fromkeys(f"{x.partition('/')[0]}/..." for x in ids))
    raise UnknownNameError("environment", id, ids, more)


@cache
def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    """Environments of other installed packages. The entry point's name is the id and its object the factory."""
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=ENTRY_POINTS) if "/" in entry.name}


def _suite_module(suite: str) -> ModuleType:
    entry = SUITES[suite]
    needed = missing_python(entry)
    if needed:
        found = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise UsageError(
            f"the {suite} environments need Python {needed} or newer, and this is Python {found}: make a virtual environment "
            f'with a newer one, and in it pip install "rollax[{entry.extra}]"'
        )
    try:
        return importlib.import_module(entry.module)
    except ModuleNotFoundError as error:
        if entry.extra is None or (error.name or "").startswith("rollax"):
            raise
        remedy = f'pip install "rollax[{entry.extra}]"'
        raise UsageError(f"the {suite} environments need the package {error.name}, which is not installed: {remedy}") from error
