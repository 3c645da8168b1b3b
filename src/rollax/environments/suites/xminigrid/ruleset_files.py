"""Files of rulesets: those written here, and xminigrid's benchmark files, which are pickles of arrays. None is executed."""

import bz2
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rollax.environments.suites.xminigrid.pickled_arrays import ArraysUnpickler, PickledArray
from rollax.environments.suites.xminigrid.rulesets import COLORS, GOALS, RECIPES, RULES, TILES, Rulesets
from rollax.errors import UsageError

_WIDTHS = {"goals": 5, "rules": 7, "init_tiles": 2}


def save(rulesets: Rulesets, path: str | os.PathLike[str]) -> None:
    """Writes the rulesets to a file that `load` reads: an `.npz`, whatever its name ends in."""
    path = Path(path).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez_compressed(file, **rulesets._asdict())


def resolve_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an environment with its file of rulesets, where there is one, by the absolute path."""
    resolved = dict(arguments)
    source = resolved.get("rulesets")
    if isinstance(source, str) and source not in RECIPES and Path(source).expanduser().is_file():
        resolved["rulesets"] = str(Path(source).expanduser().absolute())
    return resolved


def stamp(path: str | os.PathLike[str]) -> tuple[str, int, int] | None:
    """What tells a file from what it was before: its absolute path, the ns of its last change, its bytes; None for no file."""
    path = Path(path).expanduser().absolute()
    return (str(path), path.stat().st_mtime_ns, path.stat().st_size) if path.is_file() else None


def load(path: str | os.PathLike[str]) -> Rulesets:
    """The rulesets of a file by `save`, or of one of xminigrid's benchmark files. Nothing in the file is executed.

    Raises: UsageError when there is no such file, or one that is anything else.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise UsageError(
            f"rulesets {str(path)!r}: neither a recipe ({', '.join(RECIPES)}) nor a file that is there. "
            "Nothing is downloaded: fetch xminigrid's benchmark file, or write one with rollax.environments.ruleset_files.save."
        )
    with path.open("rb") as file:
        start = file.read(3)
    readers = {b"PK\x03": _read_arrays, b"BZh": _read_benchmark}
    if start not in readers:
        raise UsageError(f"rulesets {str(path)!r}: neither an .npz by rollax nor one of xminigrid's benchmark files.")
    try:
        content = readers[start](path)
    except UsageError:
        raise
    # What a damaged file leads to can be of any kind.
    except Exception as error:
        raise UsageError(
            f"rulesets {str(path)!r}: it cannot be read, and may be damaged: fetch or write it again ({error})."
        ) from error
    return _checked(path, content)


def _checked(path: Path, content: Any) -> Rulesets:
    """The arrays as rulesets. Raises UsageError for those that are none."""
    keys = list(content) if isinstance(content, dict) else []
    missing = [key for key in _WIDTHS if key not in keys]
    if missing:
        raise UsageError(
            f"rulesets {str(path)!r}: it has no {', '.join(missing)} (it has: {', '.join(map(str, keys)) or 'nothing'}). "
            "Wanted is a file by rollax.environments.ruleset_files.save, or one of xminigrid's benchmark files."
        )
    found = Rulesets(*(_numbers(path, key, content[key]) for key in _WIDTHS))
    if len({len(part) for part in found}) > 1:
        shapes = ", ".join(f"{key} {list(part.shape)}" for key, part in zip(_WIDTHS, found, strict=True))
        raise UsageError(f"rulesets {str(path)!r}: its arrays are of different numbers of rulesets: {shapes}.")
    goals, rules, tiles = found
    placed = np.isin(goals[:, 0], [GOALS.index("TileOnPosition"), GOALS.index("AgentOnPosition")])
    limits = [
        (goals[:, 0], len(GOALS), "goal"),
        (rules[..., 0], len(RULES), "rule"),
        *((part[..., 0::2], len(TILES), "tile") for part in (goals[~placed, 1:], rules[..., 1:], tiles)),
        *((part[..., 1::2], len(COLORS), "color") for part in (goals[~placed, 1:], rules[..., 1:], tiles)),
    ]
    for numbers, limit, kind in limits:
        if numbers.max(initial=0) >= limit:
            raise UsageError(f"rulesets {str(path)!r}: there is no {kind} of number {numbers.max()}: they end at {limit - 1}.")
    return found


def _numbers(path: Path, key: str, value: Any) -> np.ndarray:
    """An array of a file as uint8, which upstream's goals are not."""
    value = value.array if isinstance(value, PickledArray) else value
    leading = ["N"] if key == "goals" else ["N", "R" if key == "rules" else "M"]
    wanted = f"an array of whole numbers [{', '.join(leading)}, {_WIDTHS[key]}]"
    if not isinstance(value, np.ndarray):
        raise UsageError(f"rulesets {str(path)!r}: its {key} must be {wanted}, and are none ({type(value).__name__}).")
    fits = value.dtype.kind in "ui" and value.ndim == len(leading) + 1 and value.shape[-1] == _WIDTHS[key] and value.size
    if not fits or value.min() < 0 or value.max() > 255:
        shown = f"{value.dtype}{list(value.shape)}"
        raise UsageError(f"rulesets {str(path)!r}: its {key} must be {wanted}, each 0 to 255, and are {shown}.")
    return value.astype(np.uint8)


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    # numpy leaves a damaged file open where it has opened it itself.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return {key: arrays[key] for key in arrays.files}


def _read_benchmark(path: Path) -> Any:
    """A pickle of a dictionary of arrays, of numpy or of jax, compressed with bz2."""
    with bz2.open(path, "rb") as file:
        return ArraysUnpickler(file, f"rulesets {str(path)!r}").load()
