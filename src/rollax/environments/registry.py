"""Registry of environments. An environment has an id "suite/Name".

A suite is imported only when one of its environments is requested.
"""

import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from rollax.environments.conversion import convert_arguments, name_fault, signature_defaults
from rollax.environments.environment import Environment
from rollax.environments.suites.table import SUITES, missing_python_version
from rollax.errors import UnknownNameError, UsageError, describe_error, find_similar_names
from rollax.runtime.installation import install_command
from rollax.runtime.numerics import standard_numerics
from rollax.runtime.user_modules import import_user_module
from rollax.types import Setting
from rollax.user_input.arguments import coerce_arguments
from rollax.user_input.coercion import format_value

ENTRY_POINT_GROUP = "rollax.environments"

_registered_factories: dict[str, Callable[..., Environment]] = {}


@standard_numerics()
@coerce_arguments(id=str)
def make(id: str, /, **arguments: Setting) -> Environment:
    """Make an environment from its id, for example `make("gymnax/CartPole-v1", gravity=5)`.

    >>> make("probe/memory", delay=5).time_limit
    6

    Args:
        id: Id of the environment, "suite/Name".
        **arguments: Arguments of the environment (see `default_arguments`). Strings and integers
            are converted to the type of the default.

    Returns:
        The environment.

    Raises:
        UnknownNameError: If the environment or an argument does not exist. The message suggests
            similar names.
        UsageError: If a value cannot be converted, or a suite is not installed.
    """
    import_package(id)
    return make_without_import(id, arguments)


def make_without_import(id: str, arguments: Mapping[str, Setting]) -> Environment:
    """Make an environment from its id without importing the package in the id.

    Use this instead of `make` for ids from a run folder, which may come from another person.

    Args:
        id: Id of the environment.
        arguments: Arguments of the environment, keyed by name.

    Returns:
        The environment.

    Raises:
        UnknownNameError: If the environment or an argument does not exist.
        UsageError: If a value cannot be converted, a suite is not installed, or a package is not
            imported.
    """
    _check_file_arguments(id, arguments)
    factory = _find_factory(id)
    if factory is not None:
        return factory(**convert_arguments(id, dict(arguments), signature_defaults(factory)))
    suite, name = id.split("/", 1)
    module = _import_suite(suite)
    try:
        return module.make(name, dict(arguments))
    except (UsageError, ImportError):
        raise
    except Exception as error:  # suites raise any error for values that they do not check
        if not arguments:
            raise
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        raise UsageError(f"Making {id} with {given} fails with {describe_error(error)}.") from error


def _check_file_arguments(id: str, arguments: Mapping[str, Setting]) -> None:
    """Check that no argument is the path of a pipe, socket or device, which could block on reading.

    Raises:
        UsageError: If an argument names a special file.
    """
    for name, value in arguments.items():
        if isinstance(value, str) and _is_special_file(Path(value)):
            raise UsageError(
                f"{id}: {name} must not name a pipe, a socket or a device, got {value!r}. "
                "Name a file."
            )


def _is_special_file(path: Path) -> bool:
    """Return whether the path exists and is neither a file nor a folder."""
    try:
        return path.exists() and not path.is_file() and not path.is_dir()
    except (OSError, ValueError):  # not a valid path on any file system
        return False


@coerce_arguments(id=str)
def register(id: str, factory: Callable[..., Environment]) -> None:
    """Register an environment under an id.

    A later registration of the same id replaces the earlier one.

    Args:
        id: Id of the environment, "suite/Name".
        factory: Function that makes the environment. `make` passes its arguments to it.

    Raises:
        UsageError: If the factory is not callable, or the id has no suite, uses a suite of rollax,
            or cannot name a run folder.
    """
    if not callable(factory):
        raise UsageError(
            f"factory ({format_value(factory)}) must be a function that makes the environment {id}."
        )
    suite, slash, name = id.partition("/")
    if not (slash and suite and name):
        raise UsageError(
            f'id must be like "suite/Name", got {id!r}. '
            f'Write for example "mine/{id.strip("/") or "Name"}".'
        )
    if suite in SUITES:
        raise UsageError(
            f'The suite "{suite}" is part of rollax, so {id!r} cannot be registered. '
            f'Use another suite, for example "mine/{name}".'
        )
    fault = name_fault(id)
    if fault is not None:
        raise UsageError(f"{id!r} cannot be registered: {fault}")
    _registered_factories[id] = factory


@coerce_arguments(suite=str | None)
def list_environments(suite: str | None = None) -> list[str]:
    """Return the ids of all environments or of one suite, without importing any suite.

    Args:
        suite: Name of the suite, or a part of ids, ignoring case. None returns all ids.

    Returns:
        Ids "suite/Name".

    Raises:
        UnknownNameError: If no id matches.
    """
    ids = [f"{name}/{environment}" for name, entry in SUITES.items() for environment in entry.names]
    ids += sorted((set(_registered_factories) | set(_find_entry_points())) - set(ids))
    if suite is None:
        return ids
    matches = [id for id in ids if id.startswith(f"{suite}/")] or [
        id for id in ids if suite.lower() in id.lower()
    ]
    if matches:
        return matches
    suites = list(dict.fromkeys(id.split("/", 1)[0] for id in ids))
    is_like_id = find_similar_names(suite, ids) and not find_similar_names(suite, suites)
    raise UnknownNameError("suite of environments", suite, ids if is_like_id else suites)


def parse_packages(id: object) -> tuple[str, ...]:
    """Return the package in an id such as "gymnasium/PACKAGE:NAME".

    Returns:
        The name of the package in a tuple, or an empty tuple if the id has no package.
    """
    suite, _, name = id.partition("/") if isinstance(id, str) else ("", "", "")
    package = name.rpartition(":")[0]
    return (
        (package,)
        if package and suite in SUITES and SUITES[suite].is_open and id not in _registered_factories
        else ()
    )


def import_package(id: str) -> tuple[str, ...]:
    """Import the package in an id such as "gymnasium/PACKAGE:NAME".

    The package is a module of the current folder or an installed one. Call this function only for
    ids that the user wrote, because importing a module that a run folder names runs its code.

    Args:
        id: Id of the environment.

    Returns:
        The name of the package in a tuple, or an empty tuple if the id has no package.

    Raises:
        UsageError: If the package cannot be imported.
    """
    packages = parse_packages(id)
    for package in packages:
        import_user_module(package, source=f"{id} (module {package})")
    return packages


@standard_numerics()
@coerce_arguments(id=str)
def default_arguments(id: str) -> dict[str, Any]:
    """Return the names and defaults of the arguments that `make` accepts for an environment.

    This may import the suite.

    Args:
        id: Id of the environment.

    Returns:
        Defaults, keyed by argument name. A required argument has the default
        `inspect.Parameter.empty`.

    Raises:
        UnknownNameError: If the environment does not exist.
        UsageError: If the suite is not installed.
    """
    factory = _find_factory(id)
    if factory is not None:
        return signature_defaults(factory)
    suite, name = id.split("/", 1)
    return _import_suite(suite).default_arguments(name)


def argument_choices(id: str) -> dict[str, tuple[str, ...]]:
    """Return the accepted values of arguments with a fixed list of values, keyed by argument name.

    This may import the suite.
    """
    known: Any = _get_suite_member(id, "CHOICES") or {}
    if callable(known):
        known = known(id.split("/", 1)[1])
    return {name: tuple(values) for name, values in known.items() if name in default_arguments(id)}


def evaluation_arguments(id: str) -> dict[str, Any]:
    """Return the arguments that evaluations override by default, keyed by argument name."""
    suite, _, name = id.partition("/")
    patterns = SUITES[suite].evaluation if suite in SUITES and name in SUITES[suite].names else {}
    return {
        key: value
        for pattern, given in patterns.items()
        if fnmatchcase(name, pattern)
        for key, value in given.items()
    }


def best_metric(id: str) -> str:
    """Return the name of the evaluation metric that selects the best checkpoint by default."""
    suite, _, name = id.partition("/")
    return (
        SUITES[suite].best_metric
        if suite in SUITES and name in SUITES[suite].names
        else "return_mean"
    )


def describe_environment(id: str) -> str:
    """Return the one-line description of an environment in the catalogue of its suite, or ""."""
    suite, _, name = id.partition("/")
    lines = SUITES[suite].descriptions if suite in SUITES else {}
    return next((line for pattern, line in lines.items() if fnmatchcase(name, pattern)), "")


def has_host_suite(id: str) -> bool:
    """Return whether the suite of an id runs simulators on the host."""
    suite = id.partition("/")[0]
    return suite in SUITES and SUITES[suite].is_on_host


def resolve_arguments(id: str, arguments: Mapping[str, Setting]) -> dict[str, Any]:
    """Return a copy of the arguments with absolute instead of relative file paths.

    This may import the suite.
    """
    resolve = _get_suite_member(id, "resolve_arguments") if arguments else None
    return dict(arguments) if resolve is None else resolve(arguments)


def check_evaluation(
    id: str, training: Mapping[str, Setting], changes: Mapping[str, Setting]
) -> None:
    """Check that changed arguments in evaluations do not give misleading results.

    This may import the suite.

    Args:
        id: Id of the environment.
        training: Arguments in training.
        changes: Arguments that replace training arguments in evaluations.

    Raises:
        UsageError: If results would be misleading, for example if the evaluation of unseen tasks
            uses tasks of training.
    """
    check = _get_suite_member(id, "check_evaluation") if changes else None
    if check is not None:
        check(id, dict(training), dict(changes))


def check_environment_id(id: str) -> None:
    """Check that an id names an environment.

    A suite is imported only if it does not list the id. A package in the id is imported, so pass
    only ids that the user wrote.

    Args:
        id: Id of the environment.

    Raises:
        UnknownNameError: If the environment does not exist.
        UsageError: If a package cannot be imported.
    """
    import_package(id)
    _find_factory(id)


def is_suite_environment(id: str) -> bool:
    """Return whether the catalogue of a suite lists the id.

    The result is False for registered factories and for environments that other packages add to a
    suite.
    """
    suite, _, name = id.partition("/")
    return id not in _registered_factories and suite in SUITES and name in SUITES[suite].names


def _get_suite_member(id: str, member: str) -> Any:
    """Return the attribute `member` of the adapter module of the suite that lists `id`.

    The result is None if no suite lists `id`, or if the module does not define the attribute.
    """
    suite, _, name = id.partition("/")
    is_listed = suite in SUITES and name in SUITES[suite].names
    return getattr(_import_suite(suite), member, None) if is_listed else None


def _find_factory(id: str) -> Callable[..., Environment] | None:
    """Return the factory of a registered or third-party id, or None for an id of a suite.

    Raises:
        UnknownNameError: If no environment has the id.
        UsageError: If the suite does not support the environment.
    """
    if id in _registered_factories:
        return _registered_factories[id]
    suite, _, name = id.partition("/")
    if suite in SUITES:
        if name in SUITES[suite].names:
            return None
        if name in SUITES[suite].unavailable_reasons:
            raise UsageError(f"{id} is not offered: {SUITES[suite].unavailable_reasons[name]}.")
    entry_points = _find_entry_points()
    if id in entry_points:
        return entry_points[id].load()
    is_open = suite in SUITES and SUITES[suite].is_open
    if is_open and _import_suite(suite).is_registered(name):
        return None
    hint = f" Write {suite}/PACKAGE:NAME for an environment of another package." if is_open else ""
    ids = list_environments()
    if not find_similar_names(id, ids):  # the list of all ids is too long for a message
        ids = [x for x in ids if x.startswith(f"{suite}/")] or list(
            dict.fromkeys(f"{x.partition('/')[0]}/..." for x in ids)
        )
    raise UnknownNameError("environment", id, ids, hint)


@cache
def _find_entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    """Return the entry points for environments of other installed packages, keyed by id.

    An entry point refers to the factory of an environment.
    """
    return {
        entry.name: entry
        for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
        if "/" in entry.name
    }


def _import_suite(suite: str) -> ModuleType:
    entry = SUITES[suite]
    required_version = missing_python_version(entry)
    if required_version:
        installed_version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise UsageError(
            f"The {suite} environments need Python {required_version} or newer, and this is Python "
            f"{installed_version}. Create a virtual environment with a newer Python, and install "
            f"the extra {entry.extra} in it."
        )
    try:
        return importlib.import_module(entry.adapter)
    except ModuleNotFoundError as error:
        if entry.extra is None or (error.name or "").startswith("rollax"):
            raise
        raise UsageError(
            f"The package {error.name} is not installed, and the {suite} environments need it. "
            f"Run: {install_command(entry.extra)}"
        ) from error
