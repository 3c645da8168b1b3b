"""Layout of a run folder: its files, its specification and its lock.

Files are written once or appended. Only files that the run wrote are ever deleted.
"""

import contextlib
import dataclasses
import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
import yaml

from rollax.config import CUSTOM, UserFunction
from rollax.distributed import processes
from rollax.environments.suites.table import list_suite_packages
from rollax.errors import UsageError
from rollax.runtime.installation import version_command
from rollax.runtime.printing import mask_address
from rollax.runtime.shell import format_command_line
from rollax.training import user_imports
from rollax.training.compile import cache
from rollax.training.options import RunOptions, check_path
from rollax.training.run_folder.files import (
    MAX_SMALL_FILE_BYTES,
    check_not_symlink,
    open_regular_file,
    read_regular_file,
    write_atomically,
)
from rollax.training.spec import Spec
from rollax.training.spec_file import parse_spec, read_yaml_document
from rollax.user_input.coercion import format_value
from rollax.version import __version__

FORMAT_VERSION = 3
CONFIG_FILE, ENVIRONMENT_FILE, METRICS_FILE, EVALUATIONS_FILE = (
    "config.yaml",
    "environment.json",
    "metrics.jsonl",
    "evaluations.npz",
)
FINGERPRINT_KEY = "environment"  # key in environment.json: fingerprint of the run's environment
LINEAGE_FILE = "lineage.jsonl"  # generations of an evolving population
STUDY_FILE = "study.yaml"  # specification in the folder of a study
JOURNAL_FILE = "journal.log"  # trials of a study
DEMONSTRATIONS_FILE = "demonstrations.npz"  # copy of the demonstrations that the run learns from
LOCK_FILE = ".lock"
CHECKPOINTS_FOLDER = "checkpoints"
FIGURES_FOLDER = "figures"
TENSORBOARD_FOLDER, WANDB_FOLDER = "tensorboard", "wandb"
# Options that change the result of training. They cannot change when a run is resumed.
_PERSISTENT_OPTIONS = (
    "seed",
    "seeds",
    "sweep_paired",
    "curriculum_returns",
    *(f.name for f in dataclasses.fields(RunOptions) if f.name.startswith("evolve_")),
)


class UnwritableFolderError(UsageError):
    """Error for a run folder that cannot be written, for example on a full disk.

    The settings are valid. The cause is an OSError.
    """


class FolderLockedError(UsageError):
    """Error for a folder that another process has locked. The caller may wait and retry."""


def read_environment_fingerprint(folder: Path) -> dict[str, Any]:
    """Return the recorded fingerprint of the environment, or an empty dictionary if unreadable."""
    try:
        record = json.loads(
            read_regular_file(Path(folder) / ENVIRONMENT_FILE, MAX_SMALL_FILE_BYTES)
        )
    except (OSError, ValueError, RecursionError, UsageError):
        return {}
    fingerprint = record.get(FINGERPRINT_KEY) if isinstance(record, dict) else None
    return fingerprint if isinstance(fingerprint, dict) else {}


def environment_folder_name(environment: str) -> str:
    """Convert an environment id to a folder name, without slashes and colons."""
    return environment.replace("/", "-").replace(":", "-")


def write_spec(folder: Path, spec: Spec) -> None:
    """Write the specification of a run as plain values to config.yaml."""
    document = {"rollax": __version__, "format": FORMAT_VERSION, **_spec_to_dictionary(spec)}
    write_atomically(folder / CONFIG_FILE, yaml.safe_dump(document, sort_keys=False).encode())


def spec_to_text(spec: Spec) -> str:
    """Convert a specification to text. Equal specifications have equal texts."""
    return yaml.safe_dump(_spec_to_dictionary(spec))


def persistent_settings(spec: Spec) -> dict[str, Any]:
    """Return the settings that cannot change after a run was created, as JSON values.

    Checkpoints also store these settings, so that a resume can detect changes in config.yaml.
    """
    document = _spec_to_dictionary(spec)
    options = {name: document["options"][name] for name in _PERSISTENT_OPTIONS}
    return json.loads(json.dumps(document | {"options": options}))


def _spec_to_dictionary(spec: Spec) -> dict[str, Any]:
    options = dataclasses.asdict(spec.options)
    options["run_dir"] = None  # the folder may be moved
    parts = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    network = CUSTOM if spec.network == CUSTOM else dataclasses.asdict(spec.network)
    sections = {
        "config": dataclasses.asdict(spec.config),
        "network": network,
        "options": options,
        "phases": [dataclasses.asdict(phase) for phase in spec.phases],
        "demonstrations": {"sha256": spec.demonstrations.sha256}
        if spec.demonstrations.sha256
        else {},
    }
    return _to_plain_values(parts | sections)


def read_spec(folder: Path) -> Spec:
    """Read the specification of a run.

    Args:
        folder: Run folder.

    Returns:
        The specification.

    Raises:
        UsageError: If config.yaml is missing or damaged, or has a different format version.
    """
    path = Path(folder) / CONFIG_FILE
    check_path("the folder", path)
    if not path.exists():
        raise UsageError(
            not_a_run_message(Path(folder), f"is not a run, because it has no {CONFIG_FILE}")
        )
    document = read_yaml_document(path)
    user_imports.import_trusted_modules(document.get("imports"), document.get("environment"))
    version = format_value(document.get("rollax", "unknown")).strip("'")
    if document.get("format") != FORMAT_VERSION:
        raise UsageError(
            f"{folder} was written by rollax {version} in another format "
            f"({format_value(document.get('format'))}); rollax "
            f"{__version__} reads format {FORMAT_VERSION}. Continue it with that version: "
            f"{version_command(version)}"
        )
    try:
        return parse_spec(document)
    except UsageError as error:
        raise UsageError(f"{path}, written by rollax {version}: {error}") from error


def figures_folder(folder: Path) -> Path:
    """Return the path of the figures of a run, which may not exist yet.

    Args:
        folder: Run folder.

    Returns:
        The path.

    Raises:
        UsageError: If the path is a symbolic link, so that figures would be written elsewhere.
    """
    check_not_symlink(folder / FIGURES_FOLDER)
    return folder / FIGURES_FOLDER


def not_a_run_message(folder: Path, problem: str) -> str:
    """Return an error message for a folder that is not a run.

    Args:
        folder: Folder without a run.
        problem: Text after the folder name, for example `is not a run`.

    Returns:
        The message with a remedy. For the folder of a study, it contains the command that continues
        the study.
    """
    if (folder / STUDY_FILE).is_file():
        return (
            f"{folder} is a study of many runs. "
            f"`{format_command_line('rollax', 'sweep', folder)}` continues it. "
            f"Its runs are in {format_command_line(folder)}/batches/*/run*"
        )
    return f"{folder} {problem}. Use a folder that `rollax train` printed."


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Return a context manager that holds an exclusive lock on a folder.

    The operating system releases the lock if the process dies. On systems without `fcntl`, nothing
    is locked.

    Args:
        folder: Run folder.

    Raises:
        FolderLockedError: If another process holds the lock.
        UsageError: If the file system does not support locks.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    # The file is not truncated, because it may be a hard link.
    with open_regular_file(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FolderLockedError(
                f"{folder} is in use by another process. Wait for it, or stop it first."
            ) from error
        except OSError as error:  # for example on some network file systems
            raise UsageError(
                f"{folder} cannot be locked ({error}). Choose a file system that supports flock."
            ) from error
        yield


@contextlib.contextmanager
def lock_run_folder(folder: Path) -> Iterator[None]:
    """Return a context manager that locks a run folder and monitors the other processes.

    In a distributed run, only the first process locks the folder.
    """
    with contextlib.ExitStack() as stack:
        if processes.num_processes() > 1:
            # A process that ends because another one ended must not count as a cache crash.
            cache.confirm_start()
        processes.run_on_all(
            lambda: (
                stack.enter_context(lock_folder(folder)) if processes.is_first_process() else None
            )
        )
        stack.enter_context(processes.monitor_processes(folder, cache.confirm_start))
        yield


def is_folder_locked(folder: Path) -> bool:
    """Return whether another process holds a folder's lock. False on systems without `fcntl`."""
    try:
        import fcntl
    except ImportError:
        return False
    try:
        with open_regular_file(folder / LOCK_FILE) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (UsageError, OSError):  # `lock_folder` raises an error with the reason
        return False
    return False


CORE_PACKAGES = ("jax", "jaxlib", "equinox", "optax", "orbax-checkpoint", "numpy")


def describe_machine() -> dict[str, Any]:
    """Return a record of versions, devices, XLA flags, command and git commit, as JSON values."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": sys.version.split()[0],
        "packages": {"rollax": __version__}
        | {
            name: version
            for name in (*CORE_PACKAGES, *list_suite_packages())
            if (version := installed_version(name))
        },
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "devices": [str(device) for device in jax.devices()],
        "flags": {
            name: os.environ[name] for name in ("XLA_FLAGS", "JAX_PLATFORMS") if name in os.environ
        },
        "command": [mask_address(word) for word in sys.argv],
        "commit": _git_commit(),
    }


def installed_version(package: str) -> str | None:
    """Return the version of a package, or None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """Return the git commit of the working folder, or None outside a repository.

    The suffix "-dirty" marks uncommitted changes. A repository's configuration can name programs
    that git runs, so repositories inside the folders of runs and studies are ignored.
    """
    current_folder = Path.cwd()
    for folder in (current_folder, *current_folder.parents):
        if any(
            all((folder / name).exists() for name in names)
            for names in ((CONFIG_FILE, METRICS_FILE), (STUDY_FILE, JOURNAL_FILE))
        ):
            return None
        if (folder / ".git").exists():
            break
    try:
        commit = _run_git("describe", "--always", "--abbrev=40")
        changes = _run_git(
            "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all"
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return f"{commit}-dirty" if commit and changes else commit or None


def _run_git(*arguments: str) -> str:
    """Return the output of a git command that takes no lock and runs no program of the repository.

    `git describe --dirty` would take a lock, which remains if the command is killed at its timeout.
    """
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    return done.stdout.strip()


def _to_plain_values(value: object) -> Any:
    """Convert a value to types that YAML supports."""
    if isinstance(value, dict):
        return {str(k): _to_plain_values(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain_values(v) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path | UserFunction):
        return str(value)
    return value
