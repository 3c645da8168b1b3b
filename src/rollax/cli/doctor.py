"""What a machine has for rollax, and what it lacks."""

import os
import re
from importlib import metadata
from pathlib import Path
from typing import Any

from rollax.environments.suites.table import SUITES, missing_python
from rollax.host.run_folder import installed, machine

FOR_DEVELOPERS = ("test", "dev", "docs")
EXTRA = re.compile(r"""([A-Za-z0-9._-]+).*;.*extra == ['"]([^'"]+)['"]""")


def optional() -> dict[str, list[str]]:
    """The packages that each extra of rollax installs, but those for developers."""
    found: dict[str, list[str]] = {}
    for text in metadata.requires("rollax") or []:
        match = EXTRA.match(text)
        if match is not None and match[2] not in FOR_DEVELOPERS:
            found.setdefault(match[2], []).append(match[1])
    return found


def report() -> dict[str, Any]:
    """Versions, processors, devices, what is installed, and whether runs can be written to the current folder."""
    found = machine()
    found["extras"] = {extra: {name: installed(name) for name in packages} for extra, packages in optional().items()}
    found["runs_writable"] = os.access(Path.cwd(), os.W_OK)
    return found


def shown(found: dict[str, Any]) -> str:
    """A report in lines."""
    lines = [
        f"python    {found['python']} on {found['platform']}, {found['processors']} processors",
        "packages  " + ", ".join(f"{name} {version}" for name, version in found["packages"].items()),
        "devices   " + ", ".join(found["devices"]),
    ]
    for extra, packages in found["extras"].items():
        there = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
        absent = [name for name, version in packages.items() if not version]
        needed = next((missing_python(entry) for entry in SUITES.values() if entry.extra == extra), "")
        remedy = f"needs Python {needed} or newer" if needed else f'pip install "rollax[{extra}]"'
        remedy = f"without {', '.join(absent)}: {remedy}" if absent else ""
        lines.append(f"{extra:<9} {'; '.join(filter(None, [there, remedy]))}")
    writable = "can" if found["runs_writable"] else "CANNOT"
    return "\n".join([*lines, f"runs      {writable} be written to {Path.cwd() / 'runs'}"])
