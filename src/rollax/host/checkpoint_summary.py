"""The file beside a checkpoint's arrays: what they are, checksums of all, and the metrics. It is read without reading them."""

import json
import math
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rollax.errors import UsageError
from rollax.host.files import sync


class DamagedCheckpoint(UsageError):
    """The bytes on disk are not those that were saved."""


class LeafRecord(NamedTuple):
    """What is known of a leaf without its data."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    random: str | None = None  # the generator of a typed key
    checksum: int = 0


class MemberScores(NamedTuple):
    """The best metric of each member of a population as last evaluated; a copy has the score of its parent."""

    metric: str
    step: int  # of that evaluation
    generations: int  # of population-based training between it and the checkpoint
    values: list[float | None]  # [P], None where it is not a finite number


class Summary(NamedTuple):
    """What is known of a checkpoint without its arrays."""

    step: int
    metrics: dict[str, float | None]
    leaves: list[LeafRecord]
    files: dict[str, int]
    settings: dict[str, Any]  # what the run was made with, as in config.yaml
    scores: MemberScores | None  # None for a single run


def finite(metrics: dict[str, float]) -> dict[str, float | None]:
    return {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}


def write_summary(path: Path, summary: Summary) -> None:
    """Whole or not at all, and on disk when this returns."""
    body = summary._asdict()
    unfinished = path / "summary.json.writing"
    unfinished.write_text(json.dumps({"checksum": checksum_of_json(body), "body": body}), encoding="utf-8")
    sync(unfinished)
    unfinished.replace(path / "summary.json")
    sync(path)


def read_summary(path: Path) -> Summary:
    try:
        document = json.loads((path / "summary.json").read_bytes())
        body = document["body"]
        if document["checksum"] != checksum_of_json(body):
            raise DamagedCheckpoint(f"{path} is damaged: the checksum of its summary is wrong")
        leaves = [LeafRecord(name, tuple(shape), *rest) for name, shape, *rest in body["leaves"]]
        scores = None if body["scores"] is None else MemberScores(*body["scores"])
        return Summary(body["step"], body["metrics"], leaves, body["files"], body["settings"], scores)
    except DamagedCheckpoint:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedCheckpoint(f"{path} is damaged: its summary cannot be read ({type(error).__name__})") from error


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def check_files(path: Path, checksums: dict[str, int]) -> None:
    for name, checksum in checksums.items():
        try:
            same = checksum_of_file(path / name) == checksum
        except OSError as error:
            raise DamagedCheckpoint(f"{path} is damaged: {name} cannot be read ({type(error).__name__})") from error
        if not same:
            raise DamagedCheckpoint(f"{path} is damaged: the checksum of {name} is wrong")


def checksum_of(array: np.ndarray) -> int:
    """Of the type, the shape and the bytes."""
    start = zlib.crc32(f"{array.dtype}{array.shape}".encode())
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, start)


def checksum_of_json(body: Any) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())


def checksum_of_file(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 24):
            checksum = zlib.crc32(chunk, checksum)
    return checksum
