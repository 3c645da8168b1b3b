"""Ruleset files of rollax and benchmark files of xminigrid.

Benchmark files are pickles of arrays. They are read without executing their content.
"""

import bz2
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rollax.environments.suites.xminigrid.pickled_arrays import ArraysUnpickler, PickledArray
from rollax.environments.suites.xminigrid.rulesets import (
    COLOR_NAMES,
    GOAL_NAMES,
    RECIPES,
    RULE_NAMES,
    TILE_NAMES,
    Rulesets,
)
from rollax.errors import UsageError
from rollax.types import Setting

_ROW_WIDTHS = {"goals": 5, "rules": 7, "init_tiles": 2}


def save_rulesets(rulesets: Rulesets, path: str | os.PathLike[str]) -> None:
    """Write rulesets to a compressed .npz file that `load_rulesets` reads.

    Args:
        rulesets: Rulesets to write.
        path: Path of the file, with any extension.
    """
    path = Path(path).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez_compressed(file, **rulesets._asdict())


def resolve_arguments(arguments: Mapping[str, Setting]) -> dict[str, Any]:
    """Return a copy of the arguments with an absolute path of the ruleset file."""
    resolved = dict(arguments)
    source = resolved.get("rulesets")
    if isinstance(source, str) and source not in RECIPES and Path(source).expanduser().is_file():
        resolved["rulesets"] = str(Path(source).expanduser().absolute())
    return resolved


def get_file_stamp(path: str | os.PathLike[str]) -> tuple[str, int, int] | None:
    """Return the absolute path, modification time (ns) and size of a file, or None if missing."""
    path = Path(path).expanduser().absolute()
    return (str(path), path.stat().st_mtime_ns, path.stat().st_size) if path.is_file() else None


def load_rulesets(path: str | os.PathLike[str]) -> Rulesets:
    """Load rulesets from a file that `save_rulesets` wrote, or from an xminigrid benchmark file.

    No code in the file is executed.

    Args:
        path: Path of the file.

    Returns:
        The rulesets.

    Raises:
        UsageError: If the file does not exist, is damaged or has another format.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise UsageError(
            f"rulesets ({str(path)!r}) must be a recipe ({', '.join(RECIPES)}) or an existing "
            "file. Nothing is downloaded: download a benchmark file of xminigrid, or write a file "
            "with rollax.environments.suites.xminigrid.ruleset_files.save_rulesets."
        )
    with path.open("rb") as file:
        start = file.read(3)
    readers = {b"PK\x03": _read_arrays, b"BZh": _read_benchmark}
    if start not in readers:
        raise UsageError(
            f"rulesets {str(path)!r} must be an .npz file by rollax or a benchmark file of "
            "xminigrid."
        )
    try:
        content = readers[start](path)
    except UsageError:
        raise
    except Exception as error:  # a damaged file may raise any exception
        raise UsageError(
            f"Cannot read the rulesets {str(path)!r}, which may be damaged ({error}). Download or "
            "write the file again."
        ) from error
    return _validate_rulesets(path, content)


def _validate_rulesets(path: Path, content: object) -> Rulesets:
    """Convert the arrays of a file to rulesets, or raise UsageError if they are invalid."""
    arrays = content if isinstance(content, dict) else {}
    missing = [key for key in _ROW_WIDTHS if key not in arrays]
    if missing:
        raise UsageError(
            f"rulesets {str(path)!r} must have {', '.join(missing)}, got "
            f"{', '.join(map(str, arrays)) or 'nothing'}. Use a file by "
            "rollax.environments.suites.xminigrid.ruleset_files.save_rulesets or a benchmark file "
            "of xminigrid."
        )
    rulesets = Rulesets(*(_validate_array(path, key, arrays[key]) for key in _ROW_WIDTHS))
    if len({len(part) for part in rulesets}) > 1:
        shapes = ", ".join(
            f"{key} {list(part.shape)}" for key, part in zip(_ROW_WIDTHS, rulesets, strict=True)
        )
        raise UsageError(
            f"rulesets {str(path)!r} must have arrays of the same number of rulesets, got {shapes}."
        )
    goals, rules, tiles = rulesets
    is_position_goal = np.isin(
        goals[:, 0], [GOAL_NAMES.index("TileOnPosition"), GOAL_NAMES.index("AgentOnPosition")]
    )
    limits = [
        (goals[:, 0], len(GOAL_NAMES), "goal"),
        (rules[..., 0], len(RULE_NAMES), "rule"),
        *(
            (part[..., 0::2], len(TILE_NAMES), "tile")
            for part in (goals[~is_position_goal, 1:], rules[..., 1:], tiles)
        ),
        *(
            (part[..., 1::2], len(COLOR_NAMES), "color")
            for part in (goals[~is_position_goal, 1:], rules[..., 1:], tiles)
        ),
    ]
    for numbers, limit, kind in limits:
        if numbers.max(initial=0) >= limit:
            raise UsageError(
                f"rulesets {str(path)!r}: the number of a {kind} must be at most {limit - 1}, got "
                f"{numbers.max()}."
            )
    return rulesets


def _validate_array(path: Path, key: str, value: object) -> np.ndarray:
    """Check an array from a file and convert it to uint8. xminigrid stores other integer dtypes."""
    value = value.array if isinstance(value, PickledArray) else value
    leading = ["N"] if key == "goals" else ["N", "R" if key == "rules" else "M"]
    expected = f"an array of integers [{', '.join(leading)}, {_ROW_WIDTHS[key]}]"
    if not isinstance(value, np.ndarray):
        raise UsageError(
            f"rulesets {str(path)!r}: {key} must be {expected}, got an object of "
            f"{type(value).__name__}."
        )
    is_valid = (
        value.dtype.kind in "ui"
        and value.ndim == len(leading) + 1
        and value.shape[-1] == _ROW_WIDTHS[key]
        and value.size
    )
    if not is_valid or value.min() < 0 or value.max() > 255:
        received = f"{value.dtype}{list(value.shape)}"
        raise UsageError(
            f"rulesets {str(path)!r}: {key} must be {expected} from 0 to 255, got {received}."
        )
    return value.astype(np.uint8)


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    # If NumPy opened the file itself, it would not close a damaged file.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return {key: arrays[key] for key in arrays.files}


def _read_benchmark(path: Path) -> Any:
    """Read a bz2-compressed pickle of a dictionary of NumPy or JAX arrays."""
    with bz2.open(path, "rb") as file:
        return ArraysUnpickler(file, f"rulesets {str(path)!r}").load()
