"""Import of user modules that register environments or algorithms of a run or study.

A folder may come from another person, so modules that it names are imported only if the user trusts
the folder.
"""

import contextlib
import contextvars
import functools
import importlib
import importlib.machinery
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import ParamSpec, TypeVar

from rollax.coercion import coerce
from rollax.environments import registry
from rollax.errors import UsageError, describe_error

P = ParamSpec("P")
R = TypeVar("R")

IMPORT_OPTION = "--import"  # command-line option that names a module
TRUST_OPTION = "--trust"

_is_trusted: contextvars.ContextVar[bool] = contextvars.ContextVar("is_trusted", default=False)


@contextlib.contextmanager
def trust_folders(trust: bool) -> Iterator[None]:
    """Return a context manager that permits modules and databases named in folders.

    If `trust` is True, modules that a run or study folder names may be imported, and databases that
    it names may be opened. If `trust` is False, the enclosing context applies.
    """
    token = _is_trusted.set(_is_trusted.get() or trust)
    try:
        yield
    finally:
        _is_trusted.reset(token)


def accept_trust_keyword(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function with a keyword `trust`, so that it runs inside `trust_folders(trust)`."""

    @functools.wraps(function)
    def run(*arguments: P.args, **keywords: P.kwargs) -> R:
        with trust_folders(coerce("trust", keywords.get("trust", False), bool)):
            return function(*arguments, **keywords)

    return run


def is_trusted() -> bool:
    """Return whether the user trusts the folders that are being read."""
    return _is_trusted.get()


def import_trusted_modules(imports: object, environment: object) -> None:
    """Import the modules that a folder names, if the user trusts the folder.

    Args:
        imports: Names of modules, as read from the folder.
        environment: Id of the environment, which may name a module, as read from the folder.

    Raises:
        UsageError: If a module cannot be imported.
    """
    if not is_trusted():
        return
    names = [
        *(imports if isinstance(imports, list | tuple) else ()),
        *registry.parse_packages(environment),
    ]
    for name in names:
        if isinstance(name, str):
            import_user_module(name)


def list_missing_modules(names: Iterable[str]) -> list[str]:
    """Return the names of modules that this process has not imported."""
    return [name for name in dict.fromkeys(names) if name not in sys.modules]


def _check_unique_module(name: str, here: str) -> None:
    """Raise UsageError if the current folder has a module with the name of an installed one."""
    local, installed = (
        importlib.machinery.PathFinder.find_spec(name, path) for path in ([here], None)
    )
    if local is None or local.origin is None:  # no module, or a folder without one
        return
    if name in sys.stdlib_module_names or (
        installed is not None and installed.origin not in (None, local.origin)
    ):
        raise UsageError(
            f"{IMPORT_OPTION} {name}: the name must be unique, got a module in {here} and an "
            "installed one. Rename yours."
        )


def import_user_module(name: str) -> None:
    """Import a module from the current folder or from the installed packages.

    Output of the module goes to standard error.

    Args:
        name: Dotted name of the module.

    Raises:
        UsageError: If the module does not exist, its name is ambiguous, or importing it fails.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        meant = os.path.basename(name).removesuffix(".py")
        remedy = f" Use {meant}, from its folder." if meant.isidentifier() else ""
        raise UsageError(
            f"{IMPORT_OPTION} must be the dotted name of a module, got {name!r}.{remedy}"
        )
    here = os.getcwd()
    if name not in sys.modules and here not in sys.path:
        _check_unique_module(name.partition(".")[0], here)
        # At the end, so that files in this folder never shadow installed modules.
        sys.path.append(here)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):  # a module that this one imports is missing
            raise UsageError(
                f"{IMPORT_OPTION} {name}: the module imports {error.name}, which is not installed."
            ) from error
        raise UsageError(
            f"{IMPORT_OPTION} {name}: there is no such module in {here} or among installed "
            "packages."
        ) from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise UsageError(
            f"{IMPORT_OPTION} {name}: importing it failed with {describe_error(error)}"
        ) from error
