"""Table of suites. It does not import any suite."""

import importlib
import sys

from rollax.environments.suites.suite import Suite

# Folders of the suites in rollax.environments, by the first part of their ids.
_FOLDERS = {
    "gymnax": "suites.gymnax",
    "gymnasium": "suites.gymnasium",
    "envpool": "suites.envpool",
    "pettingzoo": "suites.pettingzoo",
    "probe": "native.probe",
    "memory": "native.memory",
    "hunting": "native.hunting",
    "matrix": "native.matrix",
    "control": "native.control",
    "task": "native.task",
    "granular": "native.granular",
    "xminigrid": "suites.xminigrid",
    "rl2": "suites.rl2",
    "brax": "suites.brax",
    "craftax": "suites.craftax",
    "jumanji": "suites.jumanji",
    "navix": "suites.navix",
    "pgx": "suites.pgx",
    "playground": "suites.playground",
    "jaxmarl": "suites.jaxmarl",
}

SUITES: dict[str, Suite] = {
    suite: importlib.import_module(f"rollax.environments.{folder}.catalogue").SUITE
    for suite, folder in _FOLDERS.items()
}


def missing_python_version(entry: Suite) -> str:
    """Return the minimum Python version of a suite if this Python is older, otherwise ""."""
    return ".".join(map(str, entry.min_python)) if sys.version_info < entry.min_python else ""


def find_suite_of_module(module: str) -> str | None:
    """Return the name of the suite whose package provides a module.

    Only suites of other packages are considered.

    Args:
        module: Top-level module of another package.

    Returns:
        Name of the suite, or None if no suite uses the module.
    """
    return next(
        (
            name
            for name, entry in SUITES.items()
            if entry.module == module and entry.extra is not None
        ),
        None,
    )


def list_suite_packages() -> list[str]:
    """Return the sorted names of all packages whose versions are recorded with a run."""
    return sorted({package for entry in SUITES.values() for package in entry.packages})


def list_compiled_modules() -> dict[str, str]:
    """Return the package of each suite module that runs in compiled programs, keyed by module."""
    return {
        entry.module: entry.packages[0]
        for entry in SUITES.values()
        if entry.module is not None and not entry.is_on_host
    }
