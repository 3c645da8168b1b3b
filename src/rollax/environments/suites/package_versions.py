"""Check of the installed version of a package."""

import importlib.metadata

from rollax.errors import UsageError
from rollax.runtime.installation import package_command


def require_version(package: str, least: str) -> None:
    """Check that a package is installed in a minimum version.

    Args:
        package: Name of the package.
        least: Lowest supported version, such as "1.6".

    Raises:
        ModuleNotFoundError: If the package is not installed.
        UsageError: If the installed version is older.
    """
    try:
        found = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError as error:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package) from error
    needed = tuple(map(int, least.split(".")))
    if tuple(map(int, found.split(".")[: len(needed)])) < needed:
        raise UsageError(
            f"{package} must be version {least} or newer, got {found}. Run: "
            f"{package_command(f'{package}>={least}')}"
        )
