"""Loading and saving of demonstrations in files, and of recorded data in common formats."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from rollax.errors import UsageError
from rollax.replay.demonstrations import (
    ACTIONS,
    EPISODE_LENGTHS,
    FINAL_OBSERVATIONS,
    OBSERVATIONS,
    REWARDS,
    TERMINATED,
    TRUNCATED,
    Demonstrations,
)
from rollax.training.datasets.minari_datasets import is_minari_id, load_minari
from rollax.training.datasets.npz_files import NpzContent, read_npz, write_npz
from rollax.training.options import check_path
from rollax.user_input.arguments import coerce_arguments
from rollax.user_input.coercion import coerce, format_value

# Arrays of D4RL that are read, in addition to those of rollax. All others are ignored.
_NEXT_OBSERVATIONS, _TERMINALS, _TIMEOUTS = "next_observations", "terminals", "timeouts"


def load_demonstrations(source: str | os.PathLike[str]) -> Demonstrations:
    """Load demonstrations from a file.

    Args:
        source: A .npz file of `rollax.record`, or a .npz file with the arrays "observations",
            "actions", "rewards", "terminals" and, optionally, "timeouts" and "next_observations",
            as in D4RL. Also the id of a local data set of Minari (extra `minari`), such as
            "mujoco/hopper/expert-v0".

    Returns:
        The demonstrations.

    Raises:
        UsageError: If the file does not exist, cannot be read, or is not valid.
    """
    path = coerce("source", source, Path)
    check_path("source", path)
    if not path.exists() and is_minari_id(str(path)):
        return load_minari(str(path))
    if not path.exists():
        raise UsageError(f"{path} does not exist. Record episodes: `rollax record RUN -o FILE`.")
    content = read_npz(path.resolve())
    try:
        if EPISODE_LENGTHS in content.arrays:
            return Demonstrations(content.arrays, content.metadata)
        return _from_d4rl(content)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


@coerce_arguments(path=Path)
def save_demonstrations(demonstrations: Demonstrations, path: str | os.PathLike[str]) -> Path:
    """Write demonstrations to a new .npz file, which is never overwritten.

    Args:
        demonstrations: The demonstrations.
        path: Path of the file, which ends in .npz.

    Returns:
        The path.

    Raises:
        UsageError: If the file exists, or cannot be written.
    """
    if not isinstance(demonstrations, Demonstrations):
        raise UsageError(
            f"demonstrations must be Demonstrations, got {format_value(demonstrations)}. Use "
            "rollax.record or rollax.load_demonstrations."
        )
    check_path("path", Path(path))
    return write_npz(Path(path), demonstrations.arrays, demonstrations.metadata)


def _from_d4rl(content: NpzContent) -> Demonstrations:
    """Convert the arrays of D4RL, whose steps have no observation after an episode.

    Without "next_observations", the last observation of an episode that did not terminate becomes
    its final observation, so the episode is one step shorter.
    """
    arrays = content.arrays
    missing = [name for name in (OBSERVATIONS, ACTIONS, REWARDS, _TERMINALS) if name not in arrays]
    if missing:
        raise UsageError(
            f"The file must have the arrays observations, actions, rewards and terminals, got no "
            f"{missing[0]} among {', '.join(sorted(arrays)[:20]) or 'none'}."
        )
    terminated = _to_flags(_TERMINALS, arrays[_TERMINALS])
    truncated = _to_flags(_TIMEOUTS, arrays.get(_TIMEOUTS, np.zeros_like(terminated)))
    if truncated.shape != terminated.shape or not len(terminated):
        raise UsageError(
            f"timeouts must have the shape of terminals, {list(terminated.shape)}, and at least "
            f"one step, got {list(truncated.shape)}."
        )
    optional = (_NEXT_OBSERVATIONS,) if _NEXT_OBSERVATIONS in arrays else ()
    for name in (OBSERVATIONS, ACTIONS, REWARDS, *optional):
        if arrays[name].ndim < 1 or len(arrays[name]) != len(terminated):
            raise UsageError(
                f"{name} must have {len(terminated)} rows, as many as terminals, got the shape "
                f"{list(arrays[name].shape)}."
            )
    truncated[-1] |= ~terminated[-1]
    ends = np.flatnonzero(terminated | truncated)
    return _cut_episodes(content, ends, terminated, truncated)


def _cut_episodes(
    content: NpzContent, ends: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
) -> Demonstrations:
    """Return the episodes of D4RL's arrays that end at the steps `ends`."""
    arrays = content.arrays
    starts = np.concatenate([[0], ends[:-1] + 1])
    final = arrays.get(_NEXT_OBSERVATIONS)
    is_kept = np.ones(len(terminated), bool)
    truncated = truncated & ~terminated
    if final is None:
        final = arrays[OBSERVATIONS]
        is_kept[ends[~terminated[ends]]] = False
        shortened = ends[~terminated[ends] & (ends > starts)]
        truncated[shortened - 1] = True
    lengths = np.add.reduceat(is_kept.astype(np.int64), starts)
    has_steps = lengths > 0
    if not has_steps.any():
        raise UsageError("The file must have an episode with more than one step, got none.")
    values: dict[str, Any] = {name: arrays[name][is_kept] for name in (OBSERVATIONS, ACTIONS)}
    return Demonstrations(
        values
        | {
            REWARDS: arrays[REWARDS][is_kept],
            TERMINATED: terminated[is_kept],
            TRUNCATED: truncated[is_kept],
            EPISODE_LENGTHS: lengths[has_steps],
            FINAL_OBSERVATIONS: final[ends][has_steps],
        },
        content.metadata,
    )


def _to_flags(name: str, values: np.ndarray) -> np.ndarray:
    """Convert an array of 0 and 1 `[N]` or `[N, 1]` to bools `[N]`."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or not np.all((values == 0) | (values == 1)):
        raise UsageError(f"{name} must be a list of 0 and 1, got the shape {list(values.shape)}.")
    return values.astype(bool)
