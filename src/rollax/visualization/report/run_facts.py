"""Data of a run for a report, and sections with its status, best checkpoint and evaluations."""

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rollax.training.checkpoints import compatibility
from rollax.training.checkpoints.warm_start import summarize_warm_start
from rollax.training.console import messages, result_tables
from rollax.training.console.progress import format_duration
from rollax.training.evaluation.curve_warnings import WARNING_EVENT
from rollax.training.evaluation.metrics import (
    format_finite_count,
    format_number,
    format_return,
    is_zero_sum_metric,
    user_metric_names,
    zero_sum_side_returns,
)
from rollax.training.run_folder import layout, run_summary
from rollax.training.run_folder.files import MAX_SMALL_FILE_BYTES, read_regular_file
from rollax.training.run_folder.layout import ENVIRONMENT_FILE, METRICS_FILE
from rollax.training.run_folder.lineage import num_founders
from rollax.training.run_folder.metric_sinks import read_all_records, read_metrics
from rollax.training.spec import Spec, get_algorithm_entry
from rollax.types import JsonValue, Record
from rollax.user_input.coercion import format_value
from rollax.visualization.report.html_page import (
    Section,
    code_html,
    description_list_html,
    paragraph_html,
    table_html,
)

RETURN_COLUMNS = ("return_mean", "return_std", "return_iqm", "return_iqm_low", "return_iqm_high")


class RunFacts(NamedTuple):
    """Data of a run for a report, without evaluation arrays and checkpoint states.

    Attributes:
        folder: Run folder.
        name: Name that distinguishes the run in the report.
        spec: Specification of the run.
        summary: Summary of the run (see `run_summary.summarize_run`).
        records: Records of metrics.jsonl.
        resumed: Steps at which the run was resumed.
        best: Step and best metric of the best checkpoint, or None if no checkpoint is ranked.
        newest: Step of the newest checkpoint, or None without a checkpoint.
        machine: Content of environment.json. Empty if the file cannot be read.
        sweep: Lines of the table of sweep results. Empty without a sweep.
        is_closed_form: Whether evaluations score solutions directly, without episodes.
    """

    folder: Path
    name: str
    spec: Spec
    summary: dict[str, Any]
    records: list[Record]
    resumed: list[int]
    best: tuple[int, float] | None
    newest: int | None
    machine: dict[str, Any]
    sweep: list[str]
    is_closed_form: bool


def read_run_facts(folder: Path, name: str, is_closed_form: bool = False) -> RunFacts:
    """Read the data of a run for a report.

    Args:
        folder: Run folder.
        name: Name that distinguishes the run in the report.
        is_closed_form: Whether evaluations score solutions directly, without episodes.

    Raises:
        UsageError: If the run cannot be read.
    """
    spec, path = layout.read_spec(folder), folder / METRICS_FILE
    all_records = read_all_records(path) if path.exists() else []
    resumed = [record["step"] for record in all_records if record.get("event") == "resume"]
    records = read_metrics(path) if path.exists() else []
    with compatibility.open_checkpoints(folder, spec) as checkpoints:
        best = checkpoints.best_value()
        newest = next(checkpoints.readable_summaries(), None)
    scores = None if newest is None else newest.scores
    row = run_summary.summarize_run(folder)
    if _is_best_metric_constant(spec, records):
        row, best = row | {"best": None, "best_step": None}, None
    return RunFacts(
        folder=folder,
        name=name,
        spec=spec,
        summary=row,
        records=records,
        resumed=resumed,
        best=best,
        newest=None if newest is None else newest.step,
        machine=_read_machine_info(folder),
        sweep=result_tables.format_sweep_table(spec, scores),
        is_closed_form=is_closed_form,
    )


def _read_machine_info(folder: Path) -> dict[str, Any]:
    try:
        info = json.loads(read_regular_file(folder / ENVIRONMENT_FILE, MAX_SMALL_FILE_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return info if isinstance(info, dict) else {}


def unique_names(folders: Sequence[Path]) -> list[str]:
    """Return distinct names: the shortest endings of the paths that differ from each other."""
    parts = [folder.resolve().parts for folder in folders]
    longest = max(map(len, parts))
    for count in range(1, longest + 1):
        names = ["/".join(folder_parts[-count:]) for folder_parts in parts]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def runs_section(runs: list[RunFacts], lines: Mapping[Path, str]) -> Section:
    """Build the first section: a description of a single run, or a table of several runs.

    Args:
        runs: Data of the runs.
        lines: Labels of the curves that contain a run, keyed by run folder.
    """
    if len(runs) > 1:
        head = (
            "run",
            "line",
            "algorithm",
            "environment",
            "members",
            "steps",
            "best checkpoint",
            "status",
            "started",
            "duration",
        )
        table = table_html(head, [_table_row(run, lines.get(run.folder, "-")) for run in runs])
        warnings = [f"{run.name}: {text}" for run in runs for text in _list_warnings(run)]
        return Section("Runs", [table, *map(paragraph_html, warnings)])
    run = runs[0]
    parts = [description_list_html(_describe_run(run))]
    if run.sweep:
        parts.append(code_html("\n".join(run.sweep)))
    return Section("The run", parts)


def _table_row(run: RunFacts, line: str) -> tuple[str, ...]:
    """Return the cells of a run in the table of several runs."""
    members = str(run.spec.num_members) if run.spec.num_members > 1 else "1"
    best = (
        "-"
        if run.best is None
        else f"{run.spec.options.best_metric} {format_number(run.best[1])}, step {run.best[0]:,}"
    )
    return (
        run.name,
        line,
        run.spec.algorithm,
        run.spec.environment,
        members,
        f"{run.summary['steps']:,}",
        best,
        run.summary["status"],
        _format_start_time(run) or "-",
        _format_wall_time(run) or "-",
    )


def _describe_run(run: RunFacts) -> dict[str, str]:
    """Return the description of a single run, keyed by label. Empty entries are omitted."""
    spec, entry = run.spec, get_algorithm_entry(run.spec.algorithm)
    facts = {
        "algorithm": f"{spec.algorithm}: {entry.summary}" if entry.summary else spec.algorithm,
        "environment": _format_environment(spec),
        "training parameters": ". ".join(messages.describe_varied_parameters(spec)),
        "opponents": ", ".join(spec.opponents),
        "opponent pool": ". ".join(messages.describe_opponent_pool(spec)),
        "started from": summarize_warm_start(run.folder),
        "status": _format_status(run, entry.unit),
        "warnings": " ".join(_list_warnings(run)),
        "members": _format_members(spec),
        "best checkpoint": _format_best(run),
        "last evaluation": _format_last_evaluation(run),
        "started": _format_start_time(run),
        "duration": _format_wall_time(run),
        "speed": _format_speed(run, entry.unit),
        "resumed": f"at step {', '.join(f'{max(step, 0):,}' for step in run.resumed)}"
        if run.resumed
        else "",
        "phases": "; ".join(phase.describe() for phase in spec.phases),
        "folder": str(run.folder),
    }
    return {name: text for name, text in facts.items() if text}


def _list_warnings(run: RunFacts) -> list[str]:
    """Return the warnings about the curves of a run, with the step at which each was given."""
    return [
        f"Step {record['step']:,}: {record.get('text')}"
        for record in run.records
        if record.get("event") == WARNING_EVENT
    ]


def _format_environment(spec: Spec) -> str:
    """Return the environment id and arguments as text."""

    def join(arguments: Record) -> str:
        return ", ".join(f"{name} {format_value(value)}" for name, value in arguments.items())

    text = f"{spec.environment} ({join(spec.arguments)})" if spec.arguments else spec.environment
    if not spec.eval_arguments:
        return text
    return f"{text}, evaluated with {join(spec.eval_arguments)}"


def _format_status(run: RunFacts, unit: str) -> str:
    steps, total, status = run.summary["steps"], run.summary["total_steps"], run.summary["status"]
    per_member = " for each member" if run.spec.num_members > 1 else ""
    if status == "done":
        return f"done: {steps:,} {unit}{per_member}"
    description = {
        "running": "running when this page was made",
        "stopped": "stopped, can be resumed",
    }.get(status, status)
    return f"{description}: {steps:,} of {total:,} {unit}{per_member}"


def _format_members(spec: Spec) -> str:
    """Return text with the number of members, their seeds, and swept or evolving settings."""
    seeds = spec.options.seeds
    last = f" to {spec.options.seed + seeds - 1}" if seeds > 1 else ""
    seed_range = f"seed{'s' * (seeds > 1)} {spec.options.seed}{last}"
    if spec.evolve:
        ranges = ", ".join(
            f"{name} {span.low:g} to {span.high:g}" for name, span in spec.evolve.items()
        )
        return f"{spec.num_members} that evolve ({ranges}), {seed_range}"
    if spec.num_members == 1:
        return seed_range
    factors = (
        [f"{len(spec.swept_settings())} settings of {', '.join(spec.sweep)}"]
        if spec.options.sweep_paired
        else [f"{len(values)} values of {name}" for name, values in spec.sweep.items()]
    )
    return f"{spec.num_members}: {' x '.join([*factors, seed_range])}"


def _format_best(run: RunFacts) -> str:
    """Return text with the best checkpoint, or with the reason why there is none."""
    row = run.summary
    if _is_best_metric_constant(run.spec, run.records):
        return (
            f"none: {run.spec.options.best_metric} is always 0, because the returns of all agents "
            "sum to 0"
        )
    if run.best is not None:
        return (
            f"{run.spec.options.best_metric} {format_number(run.best[1])} at step {run.best[0]:,}"
        )
    if row["best"] is None:
        return "none: there is no evaluation yet"
    return (
        f"not kept; the best evaluation had {row['best_metric']} {format_number(row['best'])} "
        f"at step {row['best_step']:,}"
    )


def evaluation_records(run: RunFacts) -> list[Record]:
    """Return the records of evaluations, with intervals of None for members of common ancestry."""
    evaluations = [record for record in run.records if record.get("event") == "evaluation"]
    if not run.spec.evolve:
        return evaluations
    founders = [num_founders(run.folder, record["step"]) for record in evaluations]
    no_interval = {"return_iqm_low": None, "return_iqm_high": None}
    return [
        record if number is None else record | no_interval | {"founders": number}
        for record, number in zip(evaluations, founders, strict=True)
    ]


def _format_last_evaluation(run: RunFacts) -> str:
    evaluations = evaluation_records(run)
    if not evaluations:
        return ""
    count = run.spec.num_members if run.spec.num_members > 1 else 0
    try:
        mode = "sampled" if run.spec.options.eval_stochastic else "greedy"
        returns = format_return(evaluations[-1], count, run.is_closed_form, mode)
    # The line is damaged or was written by another version.
    except (KeyError, TypeError, ValueError):
        return "cannot be read"
    return f"{returns.replace('  ', ', ')}, at step {evaluations[-1]['step']:,}"


def evaluation_table(run: RunFacts) -> str:
    """Return an HTML table of the first, best and last evaluation, or "" without evaluations.

    For zero-sum games, the table has one return column per side. The result is also "" if
    evaluations score solutions without episodes.
    """
    evaluations = evaluation_records(run)
    if not evaluations or run.is_closed_form:
        return ""
    best_step = run.summary["best_step"]
    lines = {
        "first": evaluations[0],
        "best": next((line for line in evaluations[::-1] if line["step"] == best_step), None),
        "last": evaluations[-1],
    }
    rows = {role: line for role, line in lines.items() if line is not None}
    sides = list(_side_returns(evaluations[-1]))
    metrics = [*(() if sides else RETURN_COLUMNS), "length_mean", "terminated", "truncated"]
    custom = list(dict.fromkeys(name for line in rows.values() for name in user_metric_names(line)))
    head = [
        "evaluation",
        "step",
        *(name.removeprefix("return_").replace("_", " ") for name in metrics),
        *(side.replace("return_", "return of ") for side in sides),
        *custom,
    ]
    cells = [
        [
            role,
            f"{line['step']:,}",
            *(_format_optional_number(line.get(name)) for name in metrics),
            *(_format_optional_number(_side_returns(line).get(side)) for side in sides),
            *(_format_user_metric(line.get(name)) for name in custom),
        ]
        for role, line in rows.items()
    ]
    return table_html(head, cells) + paragraph_html(_describe_evaluations(run, rows, bool(sides)))


def _describe_evaluations(run: RunFacts, rows: dict[str, Record], is_zero_sum: bool) -> str:
    """Return the note below the evaluation table: samples, intervals and excluded returns."""
    num_members = run.spec.num_members
    samples = "members, each the mean of its episodes" if num_members > 1 else "episodes"
    mode = "sampled" if run.spec.options.eval_stochastic else "greedy"
    if is_zero_sum:
        note = "The returns sum to zero, so the mean over all agents is not informative"
    else:
        note = "The interval of the interquartile mean (iqm) is a 95 % bootstrap interval"
    if any("founders" in line for line in rows.values()) and not is_zero_sum:
        note += ". Members that share founders have no interval, because they are not independent"
    excluded = []
    for role, line in rows.items():
        if line.get("return_any_nan"):
            unit = "members" if num_members > 1 else "episodes"
            total = num_members if num_members > 1 else line.get("episodes", 0)
            count = format_finite_count(line.get("return_count", 0), total, unit)
            excluded.append(f"{role}: {count}")
    omitted = f" Non-finite returns are left out: {'; '.join(excluded)}." if excluded else ""
    return f"Over {samples}, {mode} actions. {note}.{omitted}"


def _format_user_metric(value: JsonValue) -> str:
    """Format a user metric: a number, or a list with one number per member."""
    if isinstance(value, list):
        return " ".join(map(_format_optional_number, value))
    return _format_optional_number(value)


def _is_best_metric_constant(spec: Spec, records: list[Record]) -> bool:
    """Return whether the best metric is always 0 (a zero-sum game), so that it cannot rank."""
    evaluations = [record for record in records if record.get("event") == "evaluation"]
    try:
        return bool(evaluations) and is_zero_sum_metric(spec.options.best_metric, evaluations[-1])
    except (KeyError, TypeError, ValueError):
        return False


def _side_returns(line: Record) -> dict[str, float]:
    try:
        return zero_sum_side_returns(line)
    except (KeyError, TypeError, ValueError):
        return {}


def _format_optional_number(value: JsonValue) -> str:
    return format_number(float(value)) if isinstance(value, int | float) else "-"


def _format_start_time(run: RunFacts) -> str:
    try:
        return (
            datetime.datetime.fromisoformat(run.machine["date"])
            .strftime("%Y-%m-%d %H:%M %Z")
            .strip()
        )
    except (KeyError, TypeError, ValueError):
        return ""


def _format_wall_time(run: RunFacts) -> str:
    times = [x for record in run.records if isinstance(x := record.get("wall_time"), int | float)]
    return format_duration(times[-1]) if times else ""


def _format_speed(run: RunFacts, unit: str) -> str:
    speeds = [
        x for record in run.records if isinstance(x := record.get("steps_per_second"), int | float)
    ]
    members_text = " over all members" if run.spec.num_members > 1 else ""
    return (
        f"{format_number(float(np.median(speeds)))} {unit} per second{members_text}, "
        "without evaluations (median)"
        if speeds
        else ""
    )
