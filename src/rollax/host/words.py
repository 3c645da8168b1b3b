"""What a person is told when a run begins and when it ends."""

import os
import shutil
import sys
from pathlib import Path

import jax

from rollax.environments.core import Environment
from rollax.host.loop import Result
from rollax.host.program import Program
from rollax.host.progress import duration, size
from rollax.host.settings import Spec, entry
from rollax.networks.solutions import has_closed_form
from rollax.typed import shown


def of_run(spec: Spec, folder: Path) -> str:
    """What begins, and where it is kept."""
    given = ", ".join(f"{name} {shown(value)}" for name, value in spec.arguments.items())
    return f"{spec.algorithm} on {spec.environment}{f' ({given})' if given else ''}, run folder {folder}"


def of_program(program: Program) -> str:
    """What was compiled."""
    memory = f", about {size(program.memory_bytes)} of memory" if program.memory_bytes else ""
    members = f", {program.num_members} members in one program" if program.num_members else ""
    device = jax.devices()[0]
    return f"compiled in {program.compile_seconds:.1f} s for {device.platform}{memory}{members}"


def command() -> str:
    """How this program is called from the shell that a person reads in: by its path where it is not on the search path."""
    beside = Path(sys.executable).with_name("rollax")
    if shutil.which("rollax"):
        return "rollax"
    return os.path.relpath(beside) if beside.exists() else "python -m rollax"


def at_the_end(result: Result, spec: Spec, environment: Environment) -> list[str]:
    """What a person is told at the end: the outcome and what to do next; a closed form plays no episode to look at."""
    rollax = command()
    folder = " ".join([str(result.folder), *(f"--import {module}" for module in spec.imports)])
    outcome = {"done": "done", "stopped": "stopped, nothing is lost", "nonfinite": "stopped at numbers that are not finite"}
    lines = [f"{outcome[result.status]}: {result.steps:,} steps in {duration(result.wall_time)}, in {result.folder}"]
    if result.status == "stopped":
        return [*lines, f"  {rollax} resume {folder}"]
    if result.status == "nonfinite":
        return [*lines, f"  {rollax} resume {folder} --on-nonfinite rollback   to go on with other random numbers"]
    is_closed_form = has_closed_form(environment)
    played, other = ("", "") if is_closed_form else ("other episodes of ", ", on other episodes than chose it")
    best = f"  {rollax} eval {folder} --checkpoint best    its best checkpoint{other}"
    archive = " and its archive" if entry(spec.algorithm).unit == "evaluations" else ""
    return [
        *lines,
        f"  {rollax} eval {folder}      {played}its last policy",
        *([best] if spec.options.keep_best else []),
        f"  {rollax} plot {folder}      its curves{archive}",
        *([f"  {rollax} render {folder}    an episode to look at"] if not is_closed_form else []),
        f"  {rollax} resume {folder} --total-steps {2 * spec.total_updates * spec.config.steps_per_update}    to go on",
    ]
