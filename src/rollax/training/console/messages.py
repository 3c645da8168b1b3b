"""Messages at the start and at the end of a run."""

import functools
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from rollax.coercion import format_value
from rollax.environments.capabilities import has_closed_form
from rollax.environments.environment import Environment
from rollax.runtime.numerics import overridden_settings
from rollax.runtime.shell import format_command_line
from rollax.training.console import result_tables
from rollax.training.console.progress import format_duration
from rollax.training.evaluation.metrics import format_number
from rollax.training.result import Result
from rollax.training.spec import CUSTOM, Spec, get_algorithm_entry
from rollax.types import SettingValues

OUTCOMES = {
    "done": "Finished",
    "stopped": "Stopped and saved after",
    "nonfinite": "Stopped because of nonfinite values after",
    "failed": "Stopped because a simulator failed, and saved after",
}


def describe_run(spec: Spec, folder: Path) -> str:
    """Return a line with the algorithm, the environment and the folder of a run.

    Args:
        spec: Specification of the run.
        folder: Folder of the run.
    """
    arguments = ", ".join(
        f"{name} {value if isinstance(value, str) else format_value(value)}"
        for name, value in spec.arguments.items()
    )
    environment = f"{spec.environment} ({arguments})" if arguments else spec.environment
    return f"{spec.algorithm} on {environment}, run folder {folder}"


def describe_ignored_eval_arguments(name: str, arguments: SettingValues) -> str:
    """Return a message about default evaluation arguments that a passed environment ignores.

    Args:
        name: Id of the environment.
        arguments: Arguments that evaluations would have had.
    """
    values = ", ".join(f"{argument} {value}" for argument, value in arguments.items())
    return (
        f"Evaluations use the environment that was passed, without {values}. To use these "
        f"arguments, pass its id ({name!r}) and arguments=..."
    )


def describe_overridden_switches() -> list[str]:
    """Return a line about JAX settings that have no effect on a run, or an empty list."""
    names = overridden_settings()
    if not names:
        return []
    verb = "has" if len(names) == 1 else "have"
    return [
        f"{' and '.join(names)} {verb} no effect, because rollax compiles its programs in single "
        "precision"
    ]


def rollax_command() -> list[str]:
    """Return the words of the command that runs rollax, also if it is not in PATH."""
    if shutil.which("rollax"):
        return ["rollax"]
    script = Path(sys.executable).with_name("rollax")
    return [os.path.relpath(script)] if script.exists() else ["python", "-m", "rollax"]


def describe_result(result: Result, spec: Spec, environment: Environment) -> list[str]:
    """Return the lines at the end of a run: the outcome and commands for next steps.

    Rendering and export are omitted for closed-form tasks, which have no episodes.

    Args:
        result: Result of the run.
        spec: Specification of the run.
        environment: Environment of evaluations.
    """
    lines = [
        f"{OUTCOMES[result.status]} {result.steps:,} steps in "
        f"{format_duration(result.wall_time)}. Run folder: {result.folder}",
        *result_tables.format_sweep_table(spec, result.scores),
    ]
    if result.best is not None and spec.options.keep_best:
        lines.append(
            f"  best checkpoint: {spec.options.best_metric} {format_number(result.best[1])} at "
            f"step {result.best[0]:,}"
        )
    if spec.own_environment or spec.network == CUSTOM:
        return [*lines, *describe_python_next_steps(result.folder, result.status, spec)]
    format_step = functools.partial(_format_next_step, spec, result.folder)
    if result.status in ("stopped", "failed"):
        return [*lines, format_step("resume")]
    if result.status == "nonfinite":
        remark = "Continue with other random keys"
        return [*lines, format_step("resume", "--on-nonfinite", "rollback", remark=remark)]
    has_best = result.best is not None and bool(spec.options.keep_best)
    return [*lines, *_describe_next_steps(spec, environment, format_step, has_best)]


def _format_next_step(
    spec: Spec, folder: Path, command: str, *options: object, remark: str = ""
) -> str:
    """Return a line with a command for the run and an optional remark."""
    imports = [word for module in spec.imports for word in ("--import", module)]
    command_line = format_command_line(*rollax_command(), command, folder, *imports, *options)
    return f"  {command_line}    {remark}" if remark else f"  {command_line}"


def _describe_next_steps(
    spec: Spec, environment: Environment, format_step: Callable[..., str], has_best: bool
) -> list[str]:
    """Return the commands for a run that has ended as planned."""
    is_closed_form = has_closed_form(environment)
    episodes = "" if is_closed_form else " on new episodes"
    has_archive = get_algorithm_entry(spec.algorithm).unit == "evaluations"
    has_schedule = vars(spec.config).get("learning_rate_final_fraction", 1.0) < 1
    schedule = " (restarts the learning-rate schedule)" if has_schedule else ""
    doubled_steps = 2 * spec.total_updates * spec.config.steps_per_update
    steps = [format_step("eval", remark=f"Evaluate the last policy{episodes}")]
    if has_best:
        remark = f"Evaluate the best checkpoint{episodes}"
        steps.append(format_step("eval", "--checkpoint", "best", remark=remark))
    archive = " and the archive" if has_archive else ""
    steps.append(format_step("plot", remark=f"Plot learning curves{archive}"))
    steps.append(format_step("report", remark="Build an HTML report"))
    if not is_closed_form:
        remark = "Export the policy for use without rollax"
        steps.append(format_step("render", remark="Render one episode"))
        steps.append(format_step("export", "--to", "jax", remark=remark))
    remark = f"Continue training{schedule}"
    return [*steps, format_step("resume", "--total-steps", doubled_steps, remark=remark)]


def describe_python_next_steps(folder: Path | str, status: str, spec: Spec) -> list[str]:
    """Return the next steps in Python for a run with user objects, which commands cannot pass.

    Args:
        folder: Folder of the run.
        status: Status of the run.
        spec: Specification of the run.
    """
    objects = ["environment=environment"] * spec.own_environment + ["network=network"] * (
        spec.network == CUSTOM
    )
    arguments = ", ".join([repr(str(folder)), *objects])
    if status == "done":
        statements = [
            f"policy = rollax.load({arguments})",
            "numbers, episodes = policy.evaluate(128, jax.random.key(0))",
        ]
    else:
        option = ', on_nonfinite="rollback"' if status == "nonfinite" else ""
        statements = [f"rollax.resume({arguments}{option})"]
    passed = " and ".join(
        ["the environment"] * spec.own_environment + ["the network"] * (spec.network == CUSTOM)
    )
    return [f"  in Python, with {passed} that you passed:", *(f"    {line}" for line in statements)]
