"""A run's folder: what is in it, written once or appended, never anything deleted that the run did not write."""

import contextlib
import dataclasses
import datetime
import json
import os
import platform
import secrets
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
import yaml

from rollax.errors import UsageError
from rollax.host import compilation_cache
from rollax.host.files import sync, write_atomically
from rollax.host.options import RunOptions, check_path
from rollax.host.settings import CUSTOM, Spec
from rollax.host.spec_file import document_of, spec_of
from rollax.scale import processes
from rollax.typed import shown
from rollax.version import __version__

FORMAT = 2
CONFIG, ENVIRONMENT, METRICS, EVALUATIONS = "config.yaml", "environment.json", "metrics.jsonl", "evaluations.npz"
LINEAGE = "lineage.jsonl"  # of a population that evolves
STUDY = "study.yaml"  # of the folder of a study, which has its runs in folders below
LOCK = ".lock"
CHECKPOINTS = "checkpoints"
# Options that change what is learnt. A run keeps them, as it keeps everything that is no option.
_LASTING = ("seed", "seeds", "sweep_paired", *(f.name for f in dataclasses.fields(RunOptions) if f.name.startswith("evolve_")))
MOST_TRIES = 100


class Unwritable(UsageError):
    """A run folder that cannot be made, as on a full disk: nothing is wrong with the settings. Its cause is an OSError."""


class Held(UsageError):
    """A folder that another process has: this one may wait for it."""


def create(spec: Spec) -> Path:
    """A new folder for the run, with its specification and a record of the machine.

    Raises UsageError when the folder is there already, Unwritable when it cannot be written.
    """
    given = spec.options.run_dir
    folder = _new_folder(spec) if given is None else Path(given)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(_taken(folder))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOCK).open("x").close()  # of two runs that begin here together, one is refused
        sync(folder.parent)
        write_spec(folder, spec)
        write_atomically(folder / ENVIRONMENT, json.dumps(machine(), indent=2).encode())
    except FileExistsError as error:
        raise UsageError(_taken(folder)) from error
    except OSError as error:
        raise _unwritable(folder, error) from error
    return folder


def _taken(folder: Path) -> str:
    """What to do about a folder that holds something, which is often a run to go on with."""
    from rollax.host import listing

    message = f"{folder} exists and is not empty: choose another --run-dir"
    run = listing.of_run(folder) if (folder / CONFIG).exists() else {"status": "unreadable"}
    if run["status"] == "unreadable":
        return message
    more = f" --total-steps {2 * run['total_steps']}" if run["status"] == "done" else ""
    return f"{message}, or go on with: rollax resume {folder}{more}"


def _unwritable(folder: Path, error: OSError) -> Unwritable:
    return Unwritable(f"the run folder {folder} cannot be written ({error}): choose another --run-dir")


def _new_folder(spec: Spec) -> Path:
    """Makes a folder of a name that no other run has, however many begin at the same moment."""
    for _ in range(MOST_TRIES):
        folder = _default_folder(spec)
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue
        except OSError as error:
            raise _unwritable(folder, error) from error
    raise UsageError(f"{_default_folder(spec).parent} has no name left for another run: choose a --run-dir")


def _default_folder(spec: Spec) -> Path:
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / folder_name(spec.environment) / f"{spec.algorithm}-{now}-{secrets.token_hex(2)}"


def folder_name(environment: str) -> str:
    """An id as the name of a folder: without a slash, and without a colon, which not every system allows."""
    return environment.replace("/", "-").replace(":", "-")


def write_spec(folder: Path, spec: Spec) -> None:
    """config.yaml: plain values only."""
    document = {"rollax": __version__, "format": FORMAT, **_document(spec)}
    write_atomically(folder / CONFIG, yaml.safe_dump(document, sort_keys=False).encode())


def text_of(spec: Spec) -> str:
    """The whole specification in plain words, equal for equal ones."""
    return yaml.safe_dump(_document(spec))


def made_with(spec: Spec) -> dict[str, Any]:
    """What a run keeps as long as it lives, as it is in config.yaml; checkpoints have it too, to be compared."""
    document = _document(spec)
    options = {name: document["options"][name] for name in _LASTING}
    return json.loads(json.dumps(document | {"options": options}))


def _document(spec: Spec) -> dict[str, Any]:
    options = dataclasses.asdict(spec.options)
    options["run_dir"] = None  # the folder may be moved
    parts = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    network = CUSTOM if spec.network == CUSTOM else dataclasses.asdict(spec.network)
    return _plain({**parts, "config": dataclasses.asdict(spec.config), "network": network, "options": options})


def read_spec(folder: Path) -> Spec:
    """The specification of a run. Raises UsageError when there is none, when it is of another format or damaged."""
    path = Path(folder) / CONFIG
    check_path("the folder", path)
    if not path.is_file():
        raise UsageError(no_run(Path(folder), f"is not a run: it has no {CONFIG}"))
    document = document_of(path)
    version = shown(document.get("rollax", "unknown")).strip("'")
    if document.get("format") != FORMAT:
        raise UsageError(
            f"{folder} was written by rollax {version} in another format than this version's ({__version__}, format "
            f'{FORMAT}): install that version to go on with it: pip install "rollax=={version}"'
        )
    try:
        return spec_of(document)
    except UsageError as error:
        raise UsageError(f"{path}, written by rollax {version}: {error}") from error


def no_run(folder: Path, what: str) -> str:
    """The words of an error: what a folder is, and what to do about it."""
    if (folder / STUDY).is_file():
        return (
            f"{folder} is a study, which is many runs: `rollax sweep {folder}` goes on with it, its runs are "
            f"{folder}/batches/*/run*"
        )
    return f"{folder} {what}; give the folder that `rollax train` named"


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keeps a second process from writing to the same run; the lock ends with the process, however it ends.

    Raises Held when another process has it, UsageError where the folder cannot be locked. Where the system has no such locks,
    nothing is kept.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Held(f"{folder} is being written by another process: wait for it, or stop it first") from error
        except OSError as error:  # a file system without locks, such as some over a network
            raise UsageError(f"{folder} cannot be locked ({error}): choose a folder on a file system that has flock") from error
        yield


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """As `alone`, by the first of a run's processes, which watch each other from then on."""
    with contextlib.ExitStack() as stack:
        if processes.count() > 1:
            compilation_cache.settled()  # one that is ended by the end of another did not crash by a program of the cache
        processes.together(lambda: stack.enter_context(alone(folder)) if processes.is_first() else None)
        stack.enter_context(processes.watching(folder, compilation_cache.settled))
        yield


def is_held(folder: Path) -> bool:
    """Whether a process is writing to the run, as far as the system has locks to tell."""
    try:
        import fcntl
    except ImportError:
        return False
    if not (folder / LOCK).is_file():
        return False
    with (folder / LOCK).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # `alone` says why it cannot be locked
            return False
    return False


PACKAGES = ("jax", "jaxlib", "equinox", "optax", "orbax-checkpoint", "numpy")
# Of environments: those that are installed.
PACKAGES += ("ale-py", "box2d", "box2d-py", "brax", "craftax", "envpool", "gymnasium", "gymnax", "jaxmarl", "jumanji", "mujoco")
PACKAGES += ("mujoco-mjx", "navix", "pgx", "playground", "xminigrid")


def machine() -> dict[str, Any]:
    """What a run depends on besides its specification: versions, devices, flags, commit."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": sys.version.split()[0],
        "packages": {"rollax": __version__} | {name: version for name in PACKAGES if (version := installed(name))},
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "devices": [str(device) for device in jax.devices()],
        "flags": {name: os.environ[name] for name in ("XLA_FLAGS", "JAX_PLATFORMS") if name in os.environ},
        "command": sys.argv,
        "commit": _commit(),
    }


def installed(package: str) -> str | None:
    """The version of a package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the working folder, marked when it has changes; None outside a repository."""
    try:
        git = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return git.stdout.strip() or None


def _plain(value: Any) -> Any:
    """Values as YAML knows them."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    return value
