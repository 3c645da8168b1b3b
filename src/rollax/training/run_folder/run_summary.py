"""Summary of a run, read from its config and metrics files."""

import contextlib
from pathlib import Path
from typing import Any

from rollax.errors import UsageError
from rollax.training.evaluation.metrics import is_zero_sum_metric, rank_value
from rollax.training.run_folder import layout
from rollax.training.run_folder.layout import CONFIG_FILE, METRICS_FILE
from rollax.training.run_folder.metric_sinks import read_metrics
from rollax.types import Record


def summarize_run(folder: Path) -> dict[str, Any]:
    """Return the summary of a run for `rollax ls`.

    Args:
        folder: Run folder.

    Returns:
        A flat dictionary. `status` is "done", "running" (a process holds the folder's lock),
        "stopped" (the run can be resumed), or "unreadable" (`problem` has the reason). `best` is
        the best value of `best_metric` in an evaluation of the current phase, or None. `changed` is
        the time of the last change in seconds since 1970.
    """
    try:
        return _summarize_readable_run(folder)
    except Exception as error:  # one damaged or hostile folder must not end the listing
        is_explained = isinstance(error, UsageError | OSError)
        unknown = ("members", "steps", "total_steps", "best_metric", "best", "best_step")
        return {
            "run": str(folder),
            "algorithm": "-",
            "environment": "-",
            **dict.fromkeys(unknown),
            "status": "unreadable",
            "changed": _last_modified(folder),
            "problem": str(error) if is_explained else f"{type(error).__name__}: {error}",
        }


def _last_modified(folder: Path) -> float:
    """Return the time of the last change of the metrics or config.yaml, in seconds since 1970."""
    times = [0.0]
    for path in (folder / METRICS_FILE, folder / CONFIG_FILE):
        with contextlib.suppress(OSError):
            times.append(path.lstat().st_mtime)
    return max(times)


def _summarize_readable_run(folder: Path) -> dict[str, Any]:
    """Return the summary of a readable run."""
    spec = layout.read_spec(folder)
    records = read_metrics(folder / METRICS_FILE) if (folder / METRICS_FILE).exists() else []
    total_steps = spec.total_updates * spec.config.steps_per_update
    steps = max((record["step"] for record in records), default=0)
    metric, sign = spec.options.best_metric, 1 if spec.options.best_mode == "max" else -1
    evaluations = [record for record in records if record.get("event") == "evaluation"]
    last_change = max(spec.best_phase_starts, default=-1)
    ranked = [
        (sign * value, record["step"])
        for record in evaluations
        if record["step"] > last_change
        and not _is_always_zero(metric, record)
        and (value := rank_value(metric, record)) is not None
    ]
    best, best_step = max(ranked, default=(None, None))
    is_evaluated = any(record["step"] >= total_steps for record in evaluations)
    if layout.is_folder_locked(folder):
        status = "running"
    else:
        status = "done" if steps >= total_steps and is_evaluated else "stopped"
    return {
        "run": str(folder),
        "algorithm": spec.algorithm,
        "environment": spec.environment,
        "members": spec.num_members if spec.num_members > 1 else None,
        "steps": steps,
        "total_steps": total_steps,
        "best_metric": metric,
        "best": None if best is None else sign * best,
        "best_step": best_step,
        "status": status,
        "changed": _last_modified(folder),
    }


def _is_always_zero(metric: str, record: Record) -> bool:
    """Return whether a metric is always 0 because the returns of all agents sum to 0."""
    required = {"return_agents", "return_min", "return_max"}
    return required <= record.keys() and is_zero_sum_metric(metric, record)
