"""Import of user modules that register environments or algorithms of a run or study.

A folder may come from another person, and importing a module runs its code. Modules that a folder
names are therefore imported only inside `trust_folders(True)`, which the option `--trust` and the
keyword `trust=True` enter.
"""

import contextlib
import contextvars
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import ParamSpec, TypeVar

from rollax.environments import registry
from rollax.runtime.user_modules import import_user_module
from rollax.user_input.coercion import coerce

P = ParamSpec("P")
R = TypeVar("R")

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
    """Return whether the code runs inside `trust_folders(True)`."""
    return _is_trusted.get()


def import_trusted_modules(imports: object, environment: object) -> None:
    """Import the modules that a run or study folder names, or do nothing unless `is_trusted()`.

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
