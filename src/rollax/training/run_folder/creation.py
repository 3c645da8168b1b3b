"""Creation of run folders, each with a unique name by default."""

import datetime
import json
import secrets
from pathlib import Path

from rollax.errors import UsageError
from rollax.runtime.shell import format_command_line
from rollax.training.options import check_path
from rollax.training.run_folder import layout, run_summary
from rollax.training.run_folder.files import fsync_path, write_atomically
from rollax.training.spec import Spec
from rollax.types import Record

MAX_FOLDER_ATTEMPTS = 100


def create_run_folder(spec: Spec, environment: Record | None = None) -> Path:
    """Create the folder of a run with its specification and a description of the machine.

    Args:
        spec: Specification of the run.
        environment: Fingerprint of the environment (`rollax.training.checkpoints.fingerprints`), or
            None to omit it.

    Returns:
        The folder.

    Raises:
        UsageError: If the folder exists and is not empty.
        UnwritableFolderError: If the folder cannot be written.
    """
    if spec.options.run_dir is None:
        check_path("the current folder", Path.cwd())
        folder = _make_unique_folder(spec)
    else:
        check_path("run_dir", spec.options.run_dir)
        folder = spec.options.run_dir
    record = layout.describe_machine() | (
        {} if environment is None else {layout.FINGERPRINT_KEY: dict(environment)}
    )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(_existing_folder_message(folder))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # If two runs start here at the same time, the second one fails.
        (folder / layout.LOCK_FILE).open("x").close()
        fsync_path(folder.parent)
        layout.write_spec(folder, spec)
        write_atomically(folder / layout.ENVIRONMENT_FILE, json.dumps(record, indent=2).encode())
    except FileExistsError as error:
        raise UsageError(_existing_folder_message(folder)) from error
    except OSError as error:
        raise _unwritable_folder_error(folder, error) from error
    return folder


def _existing_folder_message(folder: Path) -> str:
    """Return the error message for a non-empty folder.

    If the folder contains a run, the message includes the command that resumes it.
    """
    message = f"{folder} exists and is not empty. Choose another --run-dir"
    if not (folder / layout.CONFIG_FILE).exists():
        return message
    run = run_summary.summarize_run(folder)
    if run["status"] == "unreadable":
        return message
    options = ("--total-steps", 2 * run["total_steps"]) if run["status"] == "done" else ()
    command = format_command_line("rollax", "resume", folder, *options)
    return f"{message}, or continue that run with: {command}"


def _unwritable_folder_error(folder: Path, error: OSError) -> layout.UnwritableFolderError:
    return layout.UnwritableFolderError(
        f"The run folder {folder} cannot be written ({error}). Choose another --run-dir."
    )


def _make_unique_folder(spec: Spec) -> Path:
    """Create a folder with a unique name, even if several runs start at the same time."""
    for _ in range(MAX_FOLDER_ATTEMPTS):
        folder = _default_folder_path(spec)
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue
        except OSError as error:
            raise _unwritable_folder_error(folder, error) from error
    raise UsageError(
        f"{_default_folder_path(spec).parent} has no free name for another run. Choose a --run-dir."
    )


def _default_folder_path(spec: Spec) -> Path:
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return (
        Path("runs")
        / layout.environment_folder_name(spec.environment)
        / f"{spec.algorithm}-{now}-{secrets.token_hex(2)}"
    )
