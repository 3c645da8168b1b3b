"""Import of a module that the user named, from the current folder or from installed packages."""

import contextlib
import importlib
import importlib.machinery
import os
import sys

from rollax.errors import UsageError, describe_error

IMPORT_OPTION = "--import"  # command-line option that names a module
_added_folders: set[str] = set()  # folders that this module has added to the path


def import_user_module(name: str, source: str | None = None) -> None:
    """Import a module from the current folder or from the installed packages.

    Call this function only for names that the user wrote, or that come from a folder read with
    `trust=True`, because importing a module runs its code.
    Output of the module goes to standard error.

    Args:
        name: Dotted name of the module.
        source: Text at the start of error messages, or None for the option `--import`.

    Raises:
        UsageError: If the module does not exist, its name is ambiguous, or importing it fails.
    """
    is_from_id = source is not None
    source = f"{IMPORT_OPTION} {name}" if source is None else source
    if not all(part.isidentifier() for part in name.split(".")):
        meant = os.path.basename(name).removesuffix(".py")
        remedy = f" Use {meant}, from its folder." if meant.isidentifier() else ""
        raise UsageError(
            f"{source}: {name!r} must be the dotted name of a module.{remedy}"
            if is_from_id
            else f"{IMPORT_OPTION} must be the dotted name of a module, got {name!r}.{remedy}"
        )
    current_folder = os.getcwd()
    if name not in sys.modules and (
        current_folder not in sys.path or current_folder in _added_folders
    ):
        _check_unique_module(name.partition(".")[0], current_folder, source)
        if current_folder not in sys.path:
            # At the end, so that files in this folder never shadow installed modules.
            sys.path.append(current_folder)
            _added_folders.add(current_folder)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):  # a module that this one imports is missing
            raise UsageError(
                f"{source}: the module imports {error.name}, which is not installed."
            ) from error
        raise UsageError(
            f"{source}: there is no such module in {current_folder} or among installed packages."
        ) from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise UsageError(f"{source}: importing it failed with {describe_error(error)}") from error


def _check_unique_module(name: str, current_folder: str, source: str) -> None:
    """Raise UsageError for a module that exists both in the current folder and installed."""
    local, installed = (
        importlib.machinery.PathFinder.find_spec(name, path) for path in ([current_folder], None)
    )
    if local is None or local.origin is None:  # no module, or a folder without one
        return
    if name in sys.stdlib_module_names or (
        installed is not None and installed.origin not in (None, local.origin)
    ):
        raise UsageError(
            f"{source}: the name must be unique, got a module in {current_folder} and an installed "
            "one. Rename yours."
        )
