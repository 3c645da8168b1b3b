"""What a person is told when a run begins and when it ends."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from rollax.environments.core import Environment
from rollax.host import sweeps
from rollax.host.evaluation import digits
from rollax.host.progress import duration
from rollax.host.result import Result
from rollax.host.settings import CUSTOM, Spec, entry
from rollax.networks.solutions import has_closed_form
from rollax.typed import shown


def of_run(spec: Spec, folder: Path) -> str:
    """What begins, and where it is kept."""
    given = ", ".join(f"{name} {value if isinstance(value, str) else shown(value)}" for name, value in spec.arguments.items())
    return f"{spec.algorithm} on {spec.environment}{f' ({given})' if given else ''}, run folder {folder}"


def of_what_was_passed(name: str, lost: dict[str, Any]) -> str:
    """What is said when an environment was passed of which evaluations would have had other arguments."""
    values = ", ".join(f"{argument} {value}" for argument, value in lost.items())
    return (
        f"evaluations are in the environment that was passed, not with {values}: give its id ({name!r}) and its "
        "arguments=... for that"
    )


def command() -> str:
    """How this program is called from the shell that a person reads in: by its path where it is not on the search path."""
    beside = Path(sys.executable).with_name("rollax")
    if shutil.which("rollax"):
        return "rollax"
    return os.path.relpath(beside) if beside.exists() else "python -m rollax"


def at_the_end(result: Result, spec: Spec, environment: Environment) -> list[str]:
    """What a person is told at the end: the outcome and what to do next; a closed form plays no episode to look at."""
    rollax = command()
    outcome = {"done": "done", "stopped": "stopped, nothing is lost", "nonfinite": "stopped at numbers that are not finite"}
    outcome["failed"] = "stopped at a simulator that failed, what was learnt is kept"
    lines = [
        f"{outcome[result.status]}: {result.steps:,} steps in {duration(result.wall_time)}, in {result.folder}",
        *sweeps.table(spec, result.scores),
    ]
    if result.best is not None and spec.options.keep_best:
        lines.append(f"  best checkpoint: {spec.options.best_metric} {digits(result.best[1])} at step {result.best[0]:,}")
    if spec.own_environment or spec.network == CUSTOM:
        return [*lines, *in_python(result.folder, result.status, spec)]
    folder = " ".join([str(result.folder), *(f"--import {module}" for module in spec.imports)])
    if result.status in ("stopped", "failed"):
        return [*lines, f"  {rollax} resume {folder}"]
    if result.status == "nonfinite":
        return [*lines, f"  {rollax} resume {folder} --on-nonfinite rollback   to go on with other random numbers"]
    is_closed_form = has_closed_form(environment)
    played, other = ("", "") if is_closed_form else ("other episodes of ", ", on other episodes than chose it")
    best = f"  {rollax} eval {folder} --checkpoint best    its best checkpoint{other}"
    rises = "; its learning rate rises again" if getattr(spec.config, "learning_rate_final_fraction", 1.0) < 1 else ""
    archive = " and its archive" if entry(spec.algorithm).unit == "evaluations" else ""
    return [
        *lines,
        f"  {rollax} eval {folder}      {played}its last policy",
        *([best] if result.best is not None and spec.options.keep_best else []),
        f"  {rollax} plot {folder}      its curves{archive}",
        f"  {rollax} report {folder}    a page to show to others",
        *([f"  {rollax} render {folder}    an episode to look at"] if not is_closed_form else []),
        *([f"  {rollax} export {folder} --to jax    its policy for use without rollax"] if not is_closed_form else []),
        f"  {rollax} resume {folder} --total-steps {2 * spec.total_updates * spec.config.steps_per_update}    to go on{rises}",
    ]


def in_python(folder: Path | str, status: str, spec: Spec) -> list[str]:
    """What to do next with a run that was given objects, which no command has."""
    objects = ["environment=environment"] * spec.own_environment + ["network=network"] * (spec.network == CUSTOM)
    given = ", ".join([repr(str(folder)), *objects])
    if status == "done":
        following = [f"policy = rollax.load({given})", "numbers, episodes = policy.evaluate(128, jax.random.key(0))"]
    else:
        changed = ', on_nonfinite="rollback"' if status == "nonfinite" else ""
        following = [f"rollax.resume({given}{changed})"]
    passed = " and ".join(["the environment"] * spec.own_environment + ["the network"] * (spec.network == CUSTOM))
    return [f"  in Python, with {passed} that you passed:", *(f"    {line}" for line in following)]
