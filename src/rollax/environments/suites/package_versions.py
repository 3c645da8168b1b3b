"""Check of the installed version of a package."""

import importlib.metadata

from rollax.errors import UsageError
from rollax.runtime.installation import package_command


def require_version(package: str, minimum: str) -> None:
    """Check that a package is installed in a minimum version.

    Args:
        package: Name of the package.
        minimum: Lowest supported version, such as "1.6".

    Raises:
        ModuleNotFoundError: If the package is not installed.
        UsageError: If the installed version is older.
    """
    try:
        installed = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError as error:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package) from error
    required = tuple(map(int, minimum.split(".")))
    if tuple(map(int, installed.split(".")[: len(required)])) < required:
        raise UsageError(
            f"{package} must be version {minimum} or newer, got {installed}. Run: "
            f"{package_command(f'{package}>={minimum}')}"
        )
