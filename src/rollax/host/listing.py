"""A run in a line, from its small files alone."""

import math
from pathlib import Path
from typing import Any

from rollax.errors import UsageError
from rollax.host import run_folder
from rollax.host.evaluation import tells_nothing
from rollax.host.logging import read_metrics
from rollax.host.run_folder import CONFIG, METRICS


def of_run(folder: Path) -> dict[str, Any]:
    """What a run is and how far it is, as a flat object.

    `status`: "done", "running" (a process has it), "stopped" (it can be resumed), or "unreadable", where `problem` says why.
    `best`: the best of its evaluations by `best_metric`, None where there is none. `changed`: when, in seconds since 1970.
    """
    changed = max(path.stat().st_mtime for path in (folder / METRICS, folder / CONFIG) if path.exists())
    try:
        spec = run_folder.read_spec(folder)
        lines = read_metrics(folder / METRICS) if (folder / METRICS).exists() else []
    except (UsageError, OSError) as error:
        told = dict.fromkeys(("members", "steps", "total_steps", "best_metric", "best", "best_step"))
        unknown = {"algorithm": "-", "environment": "-", **told, "status": "unreadable"}
        return {"run": str(folder), **unknown, "changed": changed, "problem": str(error)}
    end = spec.total_updates * spec.config.steps_per_update
    steps = max((line["step"] for line in lines), default=0)
    name, sign = spec.options.best_metric, 1 if spec.options.best_mode == "max" else -1
    evaluations = [line for line in lines if line.get("event") == "evaluation"]
    found = [(None if _is_zero_sum(name, line) else line.get(name), line["step"]) for line in evaluations]
    known = [(sign * value, step) for value, step in found if isinstance(value, int | float) and math.isfinite(value)]
    best, best_step = max(known, default=(None, None))
    is_evaluated = any(step >= end for _, step in found)
    return {
        "run": str(folder),
        "algorithm": spec.algorithm,
        "environment": spec.environment,
        "members": spec.num_members if spec.num_members > 1 else None,
        "steps": steps,
        "total_steps": end,
        "best_metric": name,
        "best": None if best is None else sign * best,
        "best_step": best_step,
        "status": "running" if run_folder.is_held(folder) else "done" if steps >= end and is_evaluated else "stopped",
        "changed": changed,
    }


def _is_zero_sum(name: str, line: dict[str, Any]) -> bool:
    """Whether a number of an evaluation is 0 whatever is learnt; False where the line lacks the returns that tell."""
    return {"return_agents", "return_min", "return_max"} <= line.keys() and tells_nothing(name, line)
