"""Table of sweep results: mean and interval over seeds for each combination of swept values."""

import math
from typing import NamedTuple

import numpy as np

from rollax.training.checkpoints.summary import MemberScores
from rollax.training.evaluation.metrics import format_finite_count, format_number
from rollax.training.spec import Spec

MAX_ROWS = 20


def format_sweep_table(spec: Spec, scores: MemberScores | None) -> list[str]:
    """Return a line for each combination of swept values, best first.

    A line contains the mean of the best metric over seeds and its 95 % t-interval.

    Args:
        spec: Specification of the run.
        scores: Best metric of each member, or None if the members were not evaluated.

    Returns:
        The lines, with a heading. Empty without a sweep, or if no member has a score.
    """
    if not spec.sweep or scores is None or len(scores.values) != spec.num_members:
        return []
    sign = 1 if spec.options.best_mode == "max" else -1
    per_setting: dict[tuple[float, ...], list[float | None]] = {}
    for member, value in zip(spec.members(), scores.values, strict=True):
        per_setting.setdefault(tuple(member[name] for name in spec.sweep), []).append(value)
    rows = [_make_row(spec, setting, values, sign) for setting, values in per_setting.items()]
    rows.sort(key=lambda row: row.rank)
    if not math.isfinite(rows[0].rank):
        return []
    width = max(len(row.setting) for row in rows)
    lines = [
        f"  {scores.metric} by setting, at step {scores.step:,}, with 95 % intervals over seeds:"
    ]
    for index, row in enumerate(rows[:MAX_ROWS]):
        note = "   the best" if index == 0 else ""
        lines.append(f"    {row.setting:<{width}}  {row.mean}  {row.seeds}{note}")
    return [*lines, *format_omitted_rows(len(rows))]


class _Row(NamedTuple):
    """Row of the table: sort key (smallest first), and texts of setting, mean and seed count."""

    rank: float
    setting: str
    mean: str
    seeds: str


def _make_row(
    spec: Spec, setting: tuple[float, ...], values: list[float | None], sign: int
) -> _Row:
    finite = [value for value in values if value is not None]
    mean = float(np.mean(finite)) if finite else math.nan
    names = zip(spec.sweep, setting, strict=True)
    return _Row(
        rank=-sign * mean if finite else math.inf,
        setting=" ".join(f"{name} {value:g}" for name, value in names),
        mean=f"{format_number(mean)}{format_interval(finite)}",
        seeds=format_finite_count(len(finite), len(values), f"seed{'s' * (len(values) > 1)}"),
    )


def format_omitted_rows(num_rows: int) -> list[str]:
    """Return a line with the number of rows after the first `MAX_ROWS`, or an empty list."""
    return [f"    and {num_rows - MAX_ROWS} more"] if num_rows > MAX_ROWS else []


def format_interval(values: list[float]) -> str:
    """Return the 95 % t-interval of the mean as text, or "" for fewer than two values."""
    if len(values) < 2:
        return ""
    from scipy.special import stdtrit  # imported late, because it takes a quarter of a second

    half = float(stdtrit(len(values) - 1, 0.975) * np.std(values, ddof=1) / math.sqrt(len(values)))
    mean = float(np.mean(values))
    return f" [{format_number(mean - half)}, {format_number(mean + half)}]"
