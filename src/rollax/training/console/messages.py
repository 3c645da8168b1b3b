"""Messages at the start and at the end of a run."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from rollax.config import CUSTOM, user_functions
from rollax.environments.capabilities import has_closed_form
from rollax.environments.environment import Environment
from rollax.runtime.numerics import overridden_settings
from rollax.runtime.shell import format_command_line
from rollax.training.console import result_tables
from rollax.training.console.progress import format_duration
from rollax.training.evaluation.metrics import format_number
from rollax.training.result import Result
from rollax.training.spec import Spec, get_algorithm_entry
from rollax.types import SettingValues
from rollax.user_input.coercion import format_value

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


def describe_varied_parameters(spec: Spec) -> list[str]:
    """Return lines about the environment parameters that training samples or changes."""
    lines = []
    if spec.randomize:
        ranges = ", ".join(
            f"{name} from {low:g} to {high:g}" for name, (low, high) in spec.randomize.items()
        )
        lines.append(f"Every training episode samples {ranges}. Evaluations use the fixed values")
    if spec.curriculum:
        lines.append(_describe_curriculum(spec))
    return lines


def _describe_curriculum(spec: Spec) -> str:
    """Return a line about the curriculum of a run."""
    scheduled = [
        f"{name} from {points[0]:g} to {points[-1]:g}"
        for name, points in spec.curriculum.items()
        if len(points) > 1
    ]
    returns = spec.options.curriculum_returns
    by = f"between the returns {returns[0]:g} and {returns[1]:g}" if returns else "over training"
    adjustable = spec.curriculum_values.adjustable
    parts = [f"changes {', '.join(scheduled)} {by}"] if scheduled else []
    parts += [f"lets callbacks change {', '.join(adjustable)}"] if adjustable else []
    evaluated = {name: points[-1] for name, points in spec.curriculum.items()}
    evaluated |= {
        name: spec.eval_arguments[name] for name in evaluated.keys() & spec.eval_arguments
    }
    values = ", ".join(f"{name} {format_value(value)}" for name, value in evaluated.items())
    return f"The curriculum {' and '.join(parts)}. Evaluations use {values}"


def describe_opponent_pool(spec: Spec) -> list[str]:
    """Return a line about the pool of opponents in training, or an empty list."""
    config = spec.pool_config
    if not config.size:
        return []
    interval = config.updates_per_version * spec.config.steps_per_update
    sampling = {
        "uniform": "sampled uniformly",
        "newest": "always the newest",
        "win_rate": f"sampled with weight (1 - win rate)^{config.power:g}",
    }[config.sampling]
    agents = f" for {', '.join(config.types)}" if config.types else ""
    return [
        f"{config.fraction:.0%} of training episodes are against one of {config.size} past "
        f"versions{agents}, {sampling}, with a new version every {interval:,} steps"
    ]


def describe_ignored_eval_arguments(name: str, arguments: SettingValues) -> str:
    """Return a message about default evaluation arguments that an environment object ignores.

    Args:
        name: Id of the environment.
        arguments: Default evaluation arguments of an environment made from this id.
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
        f"{' and '.join(names)} {verb} no effect on a run, which uses the standard settings of JAX"
    ]


def rollax_command() -> list[str]:
    """Return the command that runs rollax, as a list of words. It works outside PATH as well."""
    if shutil.which("rollax"):
        return ["rollax"]
    script = Path(sys.executable).with_name("rollax")
    return [os.path.relpath(script)] if script.exists() else ["python", "-m", "rollax"]


def describe_result(
    result: Result, spec: Spec, environment: Environment, in_python: bool = False
) -> list[str]:
    """Return the lines shown after a run: the outcome and the suggested next steps.

    Rendering and export are omitted for tasks without episodes (`task/...`).

    Args:
        result: Result of the run.
        spec: Specification of the run.
        environment: Environment of evaluations.
        in_python: Whether the next steps are Python statements instead of commands.
    """
    lines = [
        f"{OUTCOMES[result.status]} {result.steps:,} steps in "
        f"{format_duration(result.wall_time)}. Run folder: {result.folder}",
        *result_tables.format_sweep_table(spec, result.scores),
        *(f"  {line}" for line in describe_varied_parameters(spec)),
    ]
    has_best = result.best is not None and bool(spec.options.keep_best)
    if result.best is not None and has_best:
        lines.append(
            f"  best checkpoint: {spec.options.best_metric} {format_number(result.best[1])} at "
            f"step {result.best[0]:,}"
        )
    has_objects = spec.own_environment or spec.network == CUSTOM
    if result.status == "done" and in_python:
        steps = _list_next_steps(spec, environment, has_best, in_python)
        statement = f"rollax.load({_format_arguments(result.folder, spec)})"
        steps.append(_NextStep((), statement, "Load the policy in another program"))
        return [*lines, *_format_statements(steps)]
    if has_objects or in_python:
        return [*lines, *describe_python_next_steps(result.folder, result.status, spec)]
    steps = _list_next_steps(spec, environment, has_best)
    if result.status == "stopped":
        steps = [_NextStep(("resume",), "", "")]
    elif result.status != "done":
        option = _find_remedy(result.status, spec)
        words = ("resume", f"--{option.name.replace('_', '-')}", option.value)
        steps = [_NextStep(words, "", option.remark)]
    return [*lines, *(_format_command(step, spec, result.folder) for step in steps)]


class _Remedy(NamedTuple):
    """Option with which a run that ended early can continue, with its value and its effect."""

    name: str
    value: str | int
    remark: str


def _find_remedy(status: str, spec: Spec) -> _Remedy:
    """Return the option with which a run continues after a failure or a non-finite value."""
    if status == "nonfinite":
        return _Remedy("on_nonfinite", "rollback", "Continue with other random keys")
    limit = max(3, 2 * spec.options.env_restarts)
    return _Remedy("env_restarts", limit, "Continue, and restart simulators that fail")


class _NextStep(NamedTuple):
    """Next step after a run.

    Attributes:
        words: Name and options of the command. Empty if only Python can do this step.
        statement: Python statement. Its variable `result` is the result of the run.
        remark: Description of the step.
    """

    words: tuple[object, ...]
    statement: str
    remark: str


def _format_command(step: _NextStep, spec: Spec, folder: Path) -> str:
    """Return a line with the command of a step and its description."""
    imports = [word for module in spec.imports for word in ("--import", module)]
    name, *options = step.words
    words = format_command_line(*rollax_command(), name, folder, *imports, *options)
    return f"  {words}    {step.remark}" if step.remark else f"  {words}"


def _format_statements(next_steps: list[_NextStep]) -> list[str]:
    """Return lines with the Python statements of steps, in two columns."""
    width = max(len(step.statement) for step in next_steps if step.statement.startswith("result."))
    return [
        "  Next steps, where result is the returned value:",
        *(f"    {step.statement:<{width}}    {step.remark}" for step in next_steps),
    ]


def _list_next_steps(
    spec: Spec, environment: Environment, has_best: bool, in_python: bool = False
) -> list[_NextStep]:
    """Return the suggested next steps after a finished run."""
    is_closed_form = has_closed_form(environment)
    episodes = "" if is_closed_form else " on new episodes"
    has_archive = get_algorithm_entry(spec.algorithm).unit == "evaluations"
    is_annealed = vars(spec.config).get("learning_rate_final_fraction", 1.0) < 1
    has_schedule = is_annealed and not user_functions(spec.config)
    schedule = " (restarts the learning-rate schedule)" if has_schedule else ""
    doubled_steps = 2 * spec.total_updates * spec.config.steps_per_update
    steps = [_NextStep(("eval",), "result.evaluate()", f"Evaluate the last policy{episodes}")]
    if has_best:
        statement = 'result.evaluate(checkpoint="best")'
        remark = f"Evaluate the best checkpoint{episodes}"
        steps.append(_NextStep(("eval", "--checkpoint", "best"), statement, remark))
    archive = " and the archive" if has_archive and not in_python else ""
    steps.append(_NextStep(("plot",), "result.plot()", f"Plot learning curves{archive}"))
    if has_archive and in_python:
        steps.append(_NextStep((), "result.plot(archive=True)", "Plot the archive"))
    steps.append(_NextStep(("report",), "result.report()", "Build an HTML report"))
    if not is_closed_form:
        remark = "Export the policy for use without rollax"
        statement = 'rollax.export(result, "jax")'
        steps.append(_NextStep(("render",), "result.render()", "Render one episode"))
        steps.append(_NextStep(("export", "--to", "jax"), statement, remark))
    words = ("resume", "--total-steps", doubled_steps)
    statement = f"rollax.resume(result, total_steps={doubled_steps})"
    return [*steps, _NextStep(words, statement, f"Continue training{schedule}")]


def describe_python_next_steps(folder: Path | str, status: str, spec: Spec) -> list[str]:
    """Return lines with Python statements that load or resume a run from its folder.

    Runs with a custom environment or network need them, because commands cannot pass objects.

    Args:
        folder: Folder of the run.
        status: Status of the run.
        spec: Specification of the run.
    """
    arguments = _format_arguments(folder, spec)
    objects = ["the environment"] * spec.own_environment + ["the network"] * (
        spec.network == CUSTOM
    )
    if status == "done":
        statements = [
            f"policy = rollax.load({arguments})",
            "numbers, episodes = policy.evaluate(128, jax.random.key(0))",
        ]
    else:
        option = None if status == "stopped" else _find_remedy(status, spec)
        keyword = "" if option is None else f", {option.name}={json.dumps(option.value)}"
        functions = user_functions(spec.config)
        arguments += "".join(f", {name}={name}" for name in functions)
        statements = [f"rollax.resume({arguments}{keyword})"]
        objects += [f"the {name}" for name in functions]
    passed = " and ".join(objects)
    condition = f", with {passed} that you passed" if passed else ""
    return [f"  in Python{condition}:", *(f"    {line}" for line in statements)]


def _format_arguments(folder: Path | str, spec: Spec) -> str:
    """Return the argument list of `rollax.load` or `rollax.resume` as source text."""
    objects = ["environment=environment"] * spec.own_environment + ["network=network"] * (
        spec.network == CUSTOM
    )
    return ", ".join([repr(str(folder)), *objects])
