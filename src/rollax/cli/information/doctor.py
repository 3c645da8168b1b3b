"""Report of versions, devices and optional dependencies for `rollax doctor`."""

import os
import re
import shutil
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import jax

from rollax.environments.suites.table import SUITES, missing_python_version
from rollax.runtime.installation import install_command, package_command
from rollax.training.run_folder.layout import describe_machine, installed_version
from rollax.types import Record

DEVELOPER_EXTRAS = ("test", "dev", "docs")
EXTRA_PATTERN = re.compile(r"""([A-Za-z0-9._-]+).*;.*extra == ['"]([^'"]+)['"]""")
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
NVIDIA_DEVICE = Path("/dev/nvidiactl")
TPU_DEVICE = Path("/dev/accel0")
TPU_VARIABLES = ("TPU_NAME", "TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES", "COLAB_TPU_ADDR")
CUDA_13_DRIVER = 580  # first driver branch that runs CUDA 13


class UnusedAccelerator(NamedTuple):
    """Accelerator that is visible to the system while JAX computes on the CPU.

    Attributes:
        name: "NVIDIA GPU" or "TPU".
        evidence: File, program or environment variable that indicates the accelerator.
        remedy: Instruction, as one imperative sentence.
    """

    name: str
    evidence: str
    remedy: str


def unused_accelerators(
    environ: Mapping[str, str] = os.environ,
    exists: Callable[[Path], bool] = Path.exists,
    find_program_fn: Callable[[str], str | None] = shutil.which,
) -> list[UnusedAccelerator]:
    """Return the accelerators that JAX does not use, with a remedy for each.

    Args:
        environ: Environment variables.
        exists: Function that returns whether a file exists.
        find_program_fn: Function that returns the path of a program on PATH, or None, such as
            `shutil.which`.

    Returns:
        One entry per kind of accelerator. Empty if the default backend of JAX is not the CPU.
    """
    if jax.default_backend() != "cpu":
        return []
    found = []
    nvidia = next((str(path) for path in (NVIDIA_DRIVER, NVIDIA_DEVICE) if exists(path)), None)
    nvidia = nvidia or find_program_fn("nvidia-smi")
    if nvidia is not None:
        cuda = f"cuda{cuda_version()}"
        plugins = ("jax-cuda12-plugin", "jax-cuda13-plugin")
        found.append(UnusedAccelerator("NVIDIA GPU", nvidia, _remedy(cuda, plugins, environ)))
    tpu = next((name for name in TPU_VARIABLES if environ.get(name)), None)
    tpu = str(TPU_DEVICE) if tpu is None and exists(TPU_DEVICE) else tpu
    if tpu is not None:
        found.append(UnusedAccelerator("TPU", tpu, _remedy("tpu", ("libtpu",), environ)))
    return found


def cuda_version(driver: Path = NVIDIA_DRIVER) -> int:
    """Return the highest major version of CUDA that both JAX and the NVIDIA driver support.

    The result is 13 if the version of the driver cannot be read from the file `driver`.
    """
    try:
        match = re.search(r"\b(\d{3})\.\d+", driver.read_text())
    except OSError:
        match = None
    return 12 if match is not None and int(match[1]) < CUDA_13_DRIVER else 13


def _remedy(extra: str, plugins: tuple[str, ...], environ: Mapping[str, str]) -> str:
    platforms = environ.get("JAX_PLATFORMS", "")
    if platforms.split(",")[0] == "cpu":
        return "Unset JAX_PLATFORMS, which selects the CPU."
    if any(installed_version(plugin) for plugin in plugins):
        backend = "tpu" if extra == "tpu" else "cuda"
        command = f"python -c \"import jax; jax.devices('{backend}')\""
        return f"Run: {command} (the plugin is installed and does not start)."
    return f"Run: {package_command(f'jax[{extra}]=={jax.__version__}')}"


def list_extras() -> dict[str, list[str]]:
    """Return the packages of each extra, keyed by extra, without the extras for developers."""
    found: dict[str, list[str]] = {}
    for text in metadata.requires("rollax") or []:
        match = EXTRA_PATTERN.match(text)
        if match is not None and match[2] not in DEVELOPER_EXTRAS:
            found.setdefault(match[2], []).append(match[1])
    return found


def collect_report() -> Record:
    """Collect versions, processors, devices, unused accelerators, extras, and write access."""
    found = describe_machine()
    found["unused_accelerators"] = [entry._asdict() for entry in unused_accelerators()]
    found["extras"] = {
        extra: {name: installed_version(name) for name in packages}
        for extra, packages in list_extras().items()
    }
    found["runs_writable"] = os.access(Path.cwd(), os.W_OK)
    return found


def format_report(report: Record) -> str:
    """Format a report as lines of text."""
    lines = [
        f"python    {report['python']} on {report['platform']}, {report['processors']} processors",
        "packages  "
        + ", ".join(f"{name} {version}" for name, version in report["packages"].items()),
        "devices   " + ", ".join(report["devices"]),
    ]
    lines += [
        f"WARNING   {entry['name']} present ({entry['evidence']}) but JAX uses the CPU. "
        f"{entry['remedy']}"
        for entry in report["unused_accelerators"]
    ]
    lines += [_extra_line(extra, packages) for extra, packages in report["extras"].items()]
    writable = "can" if report["runs_writable"] else "CANNOT"
    return "\n".join(
        [
            *lines,
            f"runs      {writable} be written to {Path.cwd() / 'runs'}",
            f"Install an extra, named in the first column, with: {install_command('EXTRA')}",
        ]
    )


def _extra_line(extra: str, packages: dict[str, str | None]) -> str:
    """Format one line with the installed and missing packages of an extra."""
    present = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    absent = [name for name, version in packages.items() if not version]
    needed = next(
        (missing_python_version(entry) for entry in SUITES.values() if entry.extra == extra), ""
    )
    missing = f"missing {', '.join(absent)}" if absent else ""
    if missing and needed:
        missing += f" (needs Python {needed} or newer)"
    return f"{extra:<9} {'; '.join(filter(None, [present, missing]))}"
