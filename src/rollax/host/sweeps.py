"""A sweep at its end: how each setting did over its seeds."""

import math

import numpy as np

from rollax.host.checkpoint_summary import MemberScores
from rollax.host.evaluation import digits
from rollax.host.settings import Spec

MOST_ROWS = 20


def table(spec: Spec, scores: MemberScores | None) -> list[str]:
    """A line for each combination of swept values, the best first: mean of the best metric with its 95 % t-interval over seeds.

    Nothing without a sweep, and where no member has a score.
    """
    if not spec.sweep or scores is None or len(scores.values) != spec.num_members:
        return []
    sign = 1 if spec.options.best_mode == "max" else -1
    per_setting: dict[tuple[float, ...], list[float | None]] = {}
    for member, value in zip(spec.members(), scores.values, strict=True):
        per_setting.setdefault(tuple(member[name] for name in spec.sweep), []).append(value)
    rows = []
    for setting, values in per_setting.items():
        known = [value for value in values if value is not None]
        mean = float(np.mean(known)) if known else math.nan
        words = " ".join(f"{name} {value:g}" for name, value in zip(spec.sweep, setting, strict=True))
        rows.append((-sign * mean if known else math.inf, words, f"{digits(mean)}{interval(known)}", len(known), len(values)))
    rows.sort(key=lambda row: row[0])
    if not math.isfinite(rows[0][0]):
        return []
    width = max(len(words) for _, words, *_ in rows)
    lines = [f"  {scores.metric} by setting, at step {scores.step:,}, with 95 % intervals over seeds:"]
    for index, (_, words, value, known, number) in enumerate(rows[:MOST_ROWS]):
        seeds = f"{number} seed{'s' * (number > 1)}" if known == number else f"{known} of {number} seeds"
        lines.append(f"    {words:<{width}}  {value}  {seeds}{'   the best' if index == 0 else ''}")
    rest = len(rows) - MOST_ROWS
    return [*lines, *([f"    and {rest} more"] if rest > 0 else [])]


def interval(values: list[float]) -> str:
    """The 95 % t-interval of the mean; nothing of fewer than two values."""
    if len(values) < 2:
        return ""
    from scipy.special import stdtrit  # late: it takes a quarter of a second to import

    half = float(stdtrit(len(values) - 1, 0.975) * np.std(values, ddof=1) / math.sqrt(len(values)))
    mean = float(np.mean(values))
    return f" [{digits(mean - half)}, {digits(mean + half)}]"
