"""Curves of evaluation metrics other than the return: episode metrics and user metrics."""

import math
from collections.abc import Mapping

import numpy as np

from rollax.training.evaluation.metrics import user_metric_names
from rollax.types import Record

# Per-episode arrays with more elements, such as the returns within a trial, are not drawn.
MAX_ARRAY_ELEMENTS = 32


def episode_metrics(arrays: Mapping[str, np.ndarray], num_members: int) -> dict[str, np.ndarray]:
    """Return the episode metrics in evaluations.npz, keyed by name, float `[K, P, N]` each.

    If a value of an episode is an array, each element is a separate metric (`<name>/0`, ...).

    Args:
        arrays: Arrays of evaluations.npz with K evaluations of N episodes.
        num_members: Number P of members.
    """
    length = arrays["length"]
    metrics: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if (
            name == "returns"
            or array.dtype.kind not in "fiub"
            or array.shape[: length.ndim] != length.shape
        ):
            continue
        flat = array.astype(float).reshape(len(length), num_members, length.shape[-1], -1)
        if array.ndim == length.ndim:
            metrics[name] = flat[..., 0]
        elif flat.shape[-1] <= MAX_ARRAY_ELEMENTS:
            metrics |= {f"{name}/{index}": flat[..., index] for index in range(flat.shape[-1])}
    return metrics


def user_metrics(
    records: list[Record], steps: np.ndarray, num_members: int
) -> dict[str, np.ndarray]:
    """Return the metrics of the user's `metrics` function, keyed by name, float `[K, P, 1]` each.

    Missing values are NaN. A list with one number per member is split by member, and a single
    number is repeated for all members. A metric with a list of any other length is omitted.

    Args:
        records: Lines of metrics.jsonl.
        steps: Steps of the K evaluations, `[K]`.
        num_members: Number P of members.
    """
    lines = {record["step"]: record for record in records if record.get("event") == "evaluation"}
    names = dict.fromkeys(name for line in lines.values() for name in user_metric_names(line))
    metrics: dict[str, np.ndarray] = {}
    for name in names:
        values = [lines.get(int(step), {}).get(name) for step in steps]
        if any(isinstance(value, list) and len(value) != num_members for value in values):
            continue
        rows = [value if isinstance(value, list) else [value] * num_members for value in values]
        metrics[name] = np.array(
            [[math.nan if x is None else float(x) for x in row] for row in rows], float
        )[..., None]
    return metrics


def finite_mean(values: np.ndarray, axis: int) -> np.ndarray:
    """Return the mean of the finite values over an axis, or NaN without finite values."""
    is_finite = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.where(is_finite, values, 0.0).sum(axis=axis) / is_finite.sum(axis=axis)
