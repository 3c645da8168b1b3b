"""Which version of a suite is installed."""

import importlib.metadata

from rollax.errors import UsageError


def require(package: str, least: str) -> None:
    """Checks that a package is installed, in the version `least` ("1.6") or a newer one.

    Raises: ModuleNotFoundError when it is not there, UsageError when it is older.
    """
    try:
        found = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError as error:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package) from error
    needed = tuple(map(int, least.split(".")))
    if tuple(map(int, found.split(".")[: len(needed)])) < needed:
        raise UsageError(
            f'rollax needs {package} {least} or newer and found {found}: pip install --upgrade "{package}>={least}"'
        )
