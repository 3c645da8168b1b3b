"""Resampling of curves: over wall time, at fewer points, or smoothed."""

import math

import numpy as np

from rollax.visualization.plots.intervals import moving_average
from rollax.visualization.plots.learning_curves import TIME_UNITS, RunCurves
from rollax.visualization.plots.run_merging import select_points


def use_wall_time(runs: list[RunCurves]) -> list[RunCurves]:
    """Return the runs with wall time in place of steps. Points of unknown time are dropped.

    All runs use the same unit: hours, minutes or seconds.
    """
    longest = max(
        (
            float(time)
            for run in runs
            for time in (*run.eval_time, *run.time)
            if math.isfinite(time)
        ),
        default=0.0,
    )
    seconds, unit = next(
        (size, unit) for size, unit in TIME_UNITS if longest >= 3 * size or size == 1
    )
    timed_runs = []
    for run in runs:
        evaluations = np.flatnonzero(np.isfinite(run.eval_time))
        lines = np.flatnonzero(np.isfinite(run.time))
        run_with_times = select_points(run, evaluations, lines, keeps_episodes=True)
        timed_runs.append(
            run_with_times._replace(
                eval_step=run_with_times.eval_time / seconds,
                step=run_with_times.time / seconds,
                axis=f"wall time ({unit})",
            )
        )
    return timed_runs


def thin_run(run: RunCurves, max_lines: int) -> RunCurves:
    """Return a run with at most `max_lines` metric lines, evenly spaced from first to last."""
    if run.step.size <= max_lines:
        return run
    lines = np.linspace(0, run.step.size - 1, max_lines).round().astype(int)
    return run._replace(
        step=run.step[lines],
        time=run.time[lines],
        metrics={name: values[lines] for name, values in run.metrics.items()},
    )


def smooth_run(run: RunCurves, window: int) -> RunCurves:
    """Return a run with each value averaged over `window` neighboring points."""
    return run._replace(
        returns=moving_average(run.returns, window),
        metrics={name: moving_average(x, window) for name, x in run.metrics.items()},
        eval_metrics={name: moving_average(x, window) for name, x in run.eval_metrics.items()},
    )
