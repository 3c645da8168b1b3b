"""Summary file of a checkpoint, which can be read without the arrays.

It contains descriptions of the arrays, checksums, metrics and settings.
"""

import json
import math
import os
import shutil
import stat
import zlib
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from rollax.errors import UsageError
from rollax.training.run_folder.files import (
    MAX_SMALL_FILE_BYTES,
    fsync_path,
    open_regular_file,
    read_regular_file,
)
from rollax.training.run_folder.phases import count_phases, undo_phases


class DamagedCheckpointError(UsageError):
    """Error for a checkpoint on disk that is damaged or incomplete."""


class LeafRecord(NamedTuple):
    """Description of a leaf (an array of the state) without its data.

    Attributes:
        path: Path of the leaf in the state.
        shape: Shape of the leaf.
        dtype: Name of the data type.
        random: Random number generator of a typed key, else None.
        checksum: CRC-32 of the data.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    random: str | None = None
    checksum: int = 0


class MemberScores(NamedTuple):
    """Best metric of each member of a population at its last evaluation.

    A copied member has the score of its parent.

    Attributes:
        metric: Name of the metric.
        step: Environment steps at the evaluation.
        num_generations: Generations between the evaluation and the checkpoint.
        values: Metric of each of P members, or None for a nonfinite value.
    """

    metric: str
    step: int
    num_generations: int
    values: list[float | None]


class CheckpointSummary(NamedTuple):
    """Description of a checkpoint without its arrays.

    Attributes:
        step: Environment steps at the checkpoint.
        metrics: Metrics of the evaluation at this step. Nonfinite values are None.
        leaves: Descriptions of the leaves.
        files: CRC-32 of each file, keyed by its path relative to the checkpoint folder.
        settings: Settings of the run, as in config.yaml.
        scores: Best metric of each member, or None for a single run.
    """

    step: int
    metrics: dict[str, float | None]
    leaves: list[LeafRecord]
    files: dict[str, int]
    settings: dict[str, Any]
    scores: MemberScores | None


def nonfinite_to_none(metrics: dict[str, float]) -> dict[str, float | None]:
    """Return the metrics as floats, with None in place of nonfinite values."""
    return {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}


def write_summary(path: Path, summary: CheckpointSummary) -> None:
    """Write the summary atomically to the folder `path`, and sync it to disk."""
    body = summary._asdict()
    unfinished = path / "summary.json.writing"
    unfinished.write_text(
        json.dumps({"checksum": json_checksum(body), "body": body}), encoding="utf-8"
    )
    fsync_path(unfinished)
    unfinished.replace(path / "summary.json")
    fsync_path(path)


def read_summary(path: Path) -> CheckpointSummary:
    """Read the summary in the folder of a checkpoint.

    Args:
        path: Folder of the checkpoint.

    Returns:
        The summary.

    Raises:
        DamagedCheckpointError: If the summary cannot be read, its checksum does not match, or a
            value has the wrong type.
    """
    try:
        document = json.loads(read_regular_file(path / "summary.json", MAX_SMALL_FILE_BYTES))
        body = document["body"]
        if document["checksum"] != json_checksum(body):
            raise DamagedCheckpointError(f"{path} is damaged: the checksum of its summary is wrong")
        leaves = [LeafRecord(name, tuple(shape), *rest) for name, shape, *rest in body["leaves"]]
        scores = None if body["scores"] is None else MemberScores(*body["scores"])
        return _validate_summary(
            CheckpointSummary(
                body["step"], body["metrics"], leaves, body["files"], body["settings"], scores
            )
        )
    except DamagedCheckpointError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedCheckpointError(
            f"{path} is damaged: its summary cannot be read ({type(error).__name__})"
        ) from error


def delete_checkpoint(path: Path) -> None:
    """Delete the folder of a checkpoint. The target of a symbolic link is not deleted."""
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path)


def deletion_warnings(steps: list[int], loaded_step: int) -> list[str]:
    """Return a warning that checkpoints were deleted during reading, or an empty list.

    Args:
        steps: Steps of the deleted checkpoints.
        loaded_step: Step of the loaded checkpoint.
    """
    if not steps:
        return []
    return [
        f"The run deleted the checkpoint of step {', '.join(map(str, steps))} while it was read. "
        f"Step {loaded_step} was loaded"
    ]


def _validate_summary(summary: CheckpointSummary) -> CheckpointSummary:
    """Return the summary, or raise ValueError if a value has the wrong type or range."""
    values = [
        *summary.metrics.values(),
        *(() if summary.scores is None else summary.scores.values),
    ]
    counts = [
        summary.step,
        *summary.files.values(),
        *(size for leaf in summary.leaves for size in leaf.shape),
    ]
    texts = [
        *summary.files,
        *(text for leaf in summary.leaves for text in (leaf.path, leaf.dtype, leaf.random or "")),
    ]
    if summary.scores is not None:
        counts += [summary.scores.step, summary.scores.num_generations]
    are_valid = [
        all(value is None or isinstance(value, int | float) for value in values),
        all(isinstance(value, int) and 0 <= value < 2**62 for value in counts),
        all(isinstance(text, str) for text in texts),
        isinstance(summary.settings, dict),
    ]
    if not all(are_valid):
        raise ValueError("a value has the wrong type")
    return summary


def is_same_run(first: CheckpointSummary | None, second: CheckpointSummary | None) -> bool:
    """Return whether two checkpoints were made with the same settings.

    Changes by phases of the run that began between the two checkpoints are not a difference.
    Environment arguments may differ, because users can correct them by hand. Settings that only
    one checkpoint has are ignored, because versions of rollax have different settings.

    Args:
        first: Summary of a checkpoint, or None if it cannot be read.
        second: Summary of a later checkpoint, or None.
    """
    if first is None or second is None:
        return False
    later = undo_phases(second.settings, count_phases(first.settings))
    names = first.settings.keys() & later.keys() - {"arguments", "eval_arguments"}
    return not any(_is_different(first.settings[name], later[name]) for name in names)


def _is_different(first: object, second: object) -> bool:
    """Return whether two values differ. Dictionaries are compared by their common keys."""
    if isinstance(first, dict) and isinstance(second, dict):
        return any(_is_different(first[key], second[key]) for key in first.keys() & second.keys())
    return first != second


def list_files(folder: Path) -> list[Path]:
    """Return the files in a folder and its subfolders, sorted by path."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def check_file_checksums(path: Path, checksums: dict[str, int]) -> None:
    """Check that the files of a checkpoint match their checksums.

    Args:
        path: Folder of the checkpoint.
        checksums: CRC-32 of each file, keyed by its path relative to the folder.

    Raises:
        DamagedCheckpointError: If a checksum does not match, a file cannot be read, a path lies
            outside the folder, or the folder contains a link, a pipe or a device.
    """
    for root, folders, names in os.walk(path):
        for each in (Path(root) / name for name in (*folders, *names)):
            if not stat.S_ISREG(mode := each.lstat().st_mode) and not stat.S_ISDIR(mode):
                raise DamagedCheckpointError(
                    f"{path} is damaged: {each.relative_to(path)} is a link, a pipe or a device"
                )
    for name in checksums:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise DamagedCheckpointError(f"{path} is damaged: {name!r} lies outside of it")
    for name, checksum in checksums.items():
        try:
            same = file_checksum(path / name) == checksum
        except (OSError, UsageError) as error:
            raise DamagedCheckpointError(
                f"{path} is damaged: {name} cannot be read ({type(error).__name__})"
            ) from error
        if not same:
            raise DamagedCheckpointError(f"{path} is damaged: the checksum of {name} is wrong")


def array_checksum(array: np.ndarray) -> int:
    """Return the CRC-32 of the type, the shape and the data of an array."""
    start = zlib.crc32(f"{array.dtype}{array.shape}".encode())
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, start)


def json_checksum(body: object) -> int:
    """Return the CRC-32 of a JSON value with sorted keys."""
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())


def file_checksum(path: Path) -> int:
    """Return the CRC-32 of a file."""
    checksum = 0
    with open_regular_file(path) as file:
        while chunk := file.read(1 << 24):
            checksum = zlib.crc32(chunk, checksum)
    return checksum
