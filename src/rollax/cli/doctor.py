"""What a machine has for rollax, and what it lacks."""

import os
from pathlib import Path
from typing import Any

from rollax.environments.suites.table import SUITES
from rollax.host.run_folder import installed, machine

# Packages that are asked for by name, and the extra that installs each.
OPTIONAL = {name: name for name in ("wandb", "trackio")} | {"flax": "linen"}
OPTIONAL |= {entry.extra: entry.extra for entry in SUITES.values() if entry.extra}


def report() -> dict[str, Any]:
    """Versions, processors, devices, what is installed, and whether runs can be written to the current folder."""
    found = machine()
    found["optional"] = {package: installed(package) for package in OPTIONAL}
    found["runs_writable"] = os.access(Path.cwd(), os.W_OK)
    return found


def shown(found: dict[str, Any]) -> str:
    """A report in lines."""
    lines = [
        f"python    {found['python']} on {found['platform']}, {found['processors']} processors",
        "packages  " + ", ".join(f"{name} {version}" for name, version in found["packages"].items()),
        "devices   " + ", ".join(found["devices"]),
    ]
    for package, extra in OPTIONAL.items():
        version = found["optional"][package]
        lines.append(f"{package:<9} {version}" if version else f'{package:<9} not installed: pip install "rollax[{extra}]"')
    writable = "can" if found["runs_writable"] else "CANNOT"
    return "\n".join([*lines, f"runs      {writable} be written to {Path.cwd() / 'runs'}"])
