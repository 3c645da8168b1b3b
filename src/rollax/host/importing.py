"""Modules of the user's own, which register what a run or a study names."""

import contextlib
import importlib
import os
import sys

from rollax.errors import UsageError

IMPORT = "--import"  # what a command is given them by


def import_module(name: str) -> None:
    """Imports a module from the current folder or from what is installed. What it prints goes to standard error.

    Raises UsageError when there is no such module, or when importing it fails.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        meant = os.path.basename(name).removesuffix(".py")
        remedy = f": try {meant}, from its folder" if meant.isidentifier() else ""
        raise UsageError(f"{IMPORT} takes the name of a module, as Python's import does, not {name!r}{remedy}")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):  # another module, which this one needs
            raise UsageError(f"{IMPORT} {name}: it needs the module {error.name}, which is not there") from error
        raise UsageError(f"{IMPORT} {name}: there is no such module in {here} or among what is installed") from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise UsageError(f"{IMPORT} {name}: importing it fails with {type(error).__name__}: {error}") from error
