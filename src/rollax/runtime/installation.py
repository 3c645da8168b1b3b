"""Commands that install rollax with optional dependencies, as printed in error messages.

The command depends on how rollax was installed: from a package index, from a folder, or from a
repository.
"""

import json
import shutil
import sys
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from rollax.runtime.shell import format_command_line

PROJECT = "rollax"


def install_command(extra: str) -> str:
    """Return the command that installs an extra, for example `pip install "rollax[brax]"`.

    Args:
        extra: Name of an extra in pyproject.toml.

    Returns:
        A command line. For an editable installation it contains the path of the checkout. For other
        installations from a folder or repository, it contains the path or URL.
    """
    checkout = source_checkout()
    if checkout is not None:
        return f"{pip()} install -e {_quote(f'{_shorten(checkout)}[{extra}]')}"
    record = _direct_url()
    address = str(record.get("url", ""))
    if "vcs_info" in record:
        vcs, commit = record["vcs_info"]["vcs"], record["vcs_info"]["commit_id"]
        return f"{pip()} install {_quote(f'{PROJECT}[{extra}] @ {vcs}+{address}@{commit}')}"
    folder = Path(url2pathname(urlsplit(address).path)) if "dir_info" in record else None
    if folder is not None and (folder / "pyproject.toml").is_file():
        return f"{pip()} install {_quote(f'{_shorten(folder)}[{extra}]')}"
    return f"{pip()} install {_quote(f'{PROJECT}[{extra}]')}"


def version_command(version: str) -> str:
    """Return the command that installs a specific version of rollax."""
    checkout = source_checkout()
    if checkout is not None:
        return format_command_line("git", "-C", _shorten(checkout), "checkout", f"v{version}")
    return f"{pip()} install {_quote(f'{PROJECT}=={version}')}"


def package_command(requirement: str) -> str:
    """Return the command that installs or upgrades a package."""
    return f"{pip()} install --upgrade {_quote(requirement)}"


def source_checkout() -> Path | None:
    """Return the path of the source repository if rollax is imported from it, otherwise None."""
    source = Path(__file__).resolve().parents[2]
    root = source.parent
    is_checkout = source.name == "src" and (root / "pyproject.toml").is_file()
    return root if is_checkout else None


def pip() -> str:
    """Return the command of this interpreter's pip.

    It is "pip" if the first pip on PATH belongs to this interpreter, else "PYTHON -m pip".
    """
    found = shutil.which("pip")
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return "pip"
    return format_command_line(_shorten(Path(sys.executable)), "-m", "pip")


def _direct_url() -> dict:
    """Return the content of direct_url.json (PEP 610), or `{}` for installations from an index."""
    try:
        text = metadata.distribution(PROJECT).read_text("direct_url.json")
        record = json.loads(text or "{}")
    except (metadata.PackageNotFoundError, OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _shorten(path: Path) -> str:
    """Return a path inside of the current folder as a relative path, and others unchanged."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def _quote(argument: str) -> str:
    """Quote a word with double quotes, or with POSIX rules if it contains special characters."""
    return format_command_line(argument) if set(argument) & set('"$`!\\\n') else f'"{argument}"'
