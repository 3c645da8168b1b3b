"""What a report says of runs in words and tables: what they are, their settings, the machine, and how they are repeated."""

import datetime
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rollax.host import listing, repeating, resuming, run_folder, sweeps, words
from rollax.host.evaluation import digits, returned, sides, tells_nothing
from rollax.host.logging import all_records, read_metrics
from rollax.host.progress import duration
from rollax.host.run_folder import ENVIRONMENT, METRICS
from rollax.host.settings import Spec, entry
from rollax.typed import shown
from rollax.view.page import Section, code, facts, heading, paragraph, table

OF_RETURNS = ("return_mean", "return_std", "return_iqm", "return_iqm_low", "return_iqm_high")
MOST_LETTERS = 200  # of a value in a table


class Told(NamedTuple):
    """What a run's small files say of it."""

    folder: Path
    name: str  # what tells it from the other runs of the report
    spec: Spec
    row: dict[str, Any]  # of `rollax ls`
    records: list[dict[str, Any]]
    resumed: list[int]  # the steps that it was resumed at
    best: tuple[int, float] | None  # the step and the value of its best checkpoint
    newest: int | None  # the step of its newest checkpoint
    machine: dict[str, Any]  # environment.json; empty where it cannot be read
    sweep: list[str]  # a line for each setting of a sweep
    is_closed_form: bool  # evaluations play no episodes


def read(folder: Path, name: str, is_closed_form: bool = False) -> Told:
    """Raises UsageError for a run that cannot be read."""
    spec, path = run_folder.read_spec(folder), folder / METRICS
    every = all_records(path) if path.exists() else []
    resumed = [each["step"] for each in every if each.get("event") == "resume"]
    records = read_metrics(path) if path.exists() else []
    with resuming.checkpoints_of(folder, spec) as checkpoints:
        best = checkpoints.best_value()
        newest = next(checkpoints.readable(), None)
        step = None if newest is None else newest.step
        table = sweeps.table(spec, None if newest is None else newest.scores)
    row = listing.of_run(folder)
    if _tells_nothing(spec, records):
        row, best = row | {"best": None, "best_step": None}, None
    return Told(folder, name, spec, row, records, resumed, best, step, _machine(folder), table, is_closed_form)


def _machine(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / ENVIRONMENT).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def names(folders: Sequence[Path]) -> list[str]:
    """The folders' names, with as much before them as tells them apart."""
    parts = [folder.resolve().parts for folder in folders]
    longest = max(map(len, parts))
    found = next(
        (each for count in range(1, longest + 1) if len(set(each := ["/".join(p[-count:]) for p in parts])) == len(parts)), None
    )
    return found or [str(folder) for folder in folders]


def about(runs: list[Told], lines: Mapping[Path, str]) -> Section:
    """What the runs are: facts of one, a row for each of several with the labels of its `lines`."""
    if len(runs) > 1:
        head = ("run", "line", "algorithm", "environment", "members", "steps", "best checkpoint", "status", "begun", "took")
        return Section("Runs", [table(head, [_row(told, lines.get(told.folder, "-")) for told in runs])])
    told = runs[0]
    parts = [facts(_facts(told))]
    if told.sweep:
        parts.append(code("\n".join(told.sweep)))
    return Section("The run", parts)


def _row(told: Told, line: str) -> tuple[str, ...]:
    members = str(told.spec.num_members) if told.spec.num_members > 1 else "1"
    best = "-" if told.best is None else f"{told.spec.options.best_metric} {digits(told.best[1])}, step {told.best[0]:,}"
    about = (
        told.name,
        line,
        told.spec.algorithm,
        told.spec.environment,
        members,
        f"{told.row['steps']:,}",
        best,
        told.row["status"],
    )
    return (*about, _begun(told) or "-", _took(told) or "-")


def _facts(told: Told) -> dict[str, str]:
    spec, kinds = told.spec, entry(told.spec.algorithm)
    given = ", ".join(f"{name} {shown(value)}" for name, value in spec.arguments.items())
    others = ", ".join(f"{name} {shown(value)}" for name, value in spec.eval_arguments.items())
    found = {
        "algorithm": f"{spec.algorithm}: {kinds.summary}" if kinds.summary else spec.algorithm,
        "environment": spec.environment + (f" ({given})" if given else "") + (f", evaluated with {others}" if others else ""),
        "opponents": ", ".join(spec.opponents),
        "status": _status(told, kinds.unit),
        "members": _members(spec),
        "best checkpoint": _best(told),
        "last evaluation": _last(told),
        "begun": _begun(told),
        "took": _took(told),
        "speed": _speed(told, kinds.unit),
        "resumed": f"at step {', '.join(f'{max(step, 0):,}' for step in told.resumed)}" if told.resumed else "",
        "folder": str(told.folder),
    }
    return {name: words for name, words in found.items() if words}


def _status(told: Told, unit: str) -> str:
    steps, total, status = told.row["steps"], told.row["total_steps"], told.row["status"]
    each = " for each member" if told.spec.num_members > 1 else ""
    if status == "done":
        return f"done: {steps:,} {unit}{each}"
    words = {"running": "running when this page was made", "stopped": "stopped, can be resumed"}.get(status, status)
    return f"{words}: {steps:,} of {total:,} {unit}{each}"


def _members(spec: Spec) -> str:
    seeds = spec.options.seeds
    last = f" to {spec.options.seed + seeds - 1}" if seeds > 1 else ""
    told = f"seed{'s' * (seeds > 1)} {spec.options.seed}{last}"
    if spec.evolve:
        moved = ", ".join(f"{name} {span.low:g} to {span.high:g}" for name, span in spec.evolve.items())
        return f"{spec.num_members} that evolve ({moved}), {told}"
    values = [f"{len(values)} values of {name}" for name, values in spec.sweep.items()]
    values = [f"{len(spec.swept())} settings of {', '.join(spec.sweep)}"] if spec.options.sweep_paired else values
    return f"{spec.num_members}: {' x '.join([*values, told])}" if spec.num_members > 1 else told


def _best(told: Told) -> str:
    row = told.row
    if _tells_nothing(told.spec, told.records):
        return f"none: {told.spec.options.best_metric} is 0 whatever is learnt, as the returns of all agents add up to 0"
    if told.best is not None:
        return f"{told.spec.options.best_metric} {digits(told.best[1])} at step {told.best[0]:,}"
    if row["best"] is None:
        return "none: there is no evaluation yet"
    return f"none kept; the best evaluation had {row['best_metric']} {digits(row['best'])} at step {row['best_step']:,}"


def evaluations(told: Told) -> list[dict[str, Any]]:
    """The lines of evaluations."""
    return [record for record in told.records if record.get("event") == "evaluation"]


def _last(told: Told) -> str:
    found = evaluations(told)
    if not found:
        return ""
    count = told.spec.num_members if told.spec.num_members > 1 else 0
    try:
        return f"{_plain(returned(found[-1], count, told.is_closed_form))}, at step {found[-1]['step']:,}"
    except (KeyError, TypeError, ValueError):  # of a line that was damaged, or written by another version
        return "cannot be read"


def _plain(told: str) -> str:
    return told.replace("  ", ", ")


def table_of_evaluations(told: Told) -> str:
    """The first, the best and the last evaluation in numbers; of games whose sum is zero by side."""
    lines = evaluations(told)
    if not lines or told.is_closed_form:
        return ""
    wanted = {
        "first": lines[0],
        "best": next((x for x in lines[::-1] if x["step"] == told.row["best_step"]), None),
        "last": lines[-1],
    }
    of_sides = _sides(lines[-1])
    known = [*(() if of_sides else OF_RETURNS), "length_mean", "terminated", "truncated"]
    head, rows = ["evaluation", "step", *(name.removeprefix("return_").replace("_", " ") for name in known)], []
    for name, line in wanted.items():
        if line is not None:
            own = [_number(line.get(key)) for key in known]
            rows.append([name, f"{line['step']:,}", *own, *(_number(_sides(line).get(side)) for side in of_sides)])
    head += [side.replace("return_", "return of ") for side in of_sides]
    over = "members, each the mean of its episodes" if told.spec.num_members > 1 else "episodes"
    interval = "the interval of the interquartile mean (iqm) is a 95 % bootstrap interval"
    zero = "the sum of the returns is zero, so that the mean over all agents says nothing"
    return table(head, rows) + paragraph(f"Over {over}; {zero if of_sides else interval}.")


def _tells_nothing(spec: Spec, records: list[dict[str, Any]]) -> bool:
    """Whether no evaluation is the best, as what they are compared by is always 0."""
    found = [record for record in records if record.get("event") == "evaluation"]
    try:
        return bool(found) and tells_nothing(spec.options.best_metric, found[-1])
    except (KeyError, TypeError, ValueError):
        return False


def _sides(line: dict[str, Any]) -> dict[str, float]:
    try:
        return sides(line)
    except (KeyError, TypeError, ValueError):
        return {}


def _number(value: Any) -> str:
    return digits(float(value)) if isinstance(value, int | float) else "-"


def _begun(told: Told) -> str:
    try:
        return datetime.datetime.fromisoformat(told.machine["date"]).strftime("%Y-%m-%d %H:%M %Z").strip()
    except (KeyError, TypeError, ValueError):
        return ""


def _took(told: Told) -> str:
    times = [x for record in told.records if isinstance(x := record.get("wall_time"), int | float)]
    return duration(times[-1]) if times else ""


def _speed(told: Told, unit: str) -> str:
    speeds = [x for record in told.records if isinstance(x := record.get("steps_per_second"), int | float)]
    all_of_them = " of all members together" if told.spec.num_members > 1 else ""
    return f"{digits(float(np.median(speeds)))} {unit} per second{all_of_them}, without evaluations (median)" if speeds else ""


def settings(runs: list[Told]) -> Section:
    """Of one run what is not the preset or not the default; of several in what they differ."""
    if len(runs) > 1:
        return Section("Settings in which the runs differ", _differing(runs))
    found = repeating.settings(runs[0].spec)
    given, tuned = [each for each in found if each.is_given], [each for each in found if each.is_tuned]
    parts = [heading("Given to this run"), paragraph("What is not what the preset of this algorithm and environment has.")]
    rows = [(each.name, _value(each.value), _value(each.preset), _value(each.default)) for each in given]
    parts.append(table(("setting", "this run", "preset", "default"), rows, strong=1) if rows else paragraph("Nothing."))
    parts += [heading("Of the preset"), paragraph("What the preset has, and is not the default of the algorithm.")]
    rows = [(each.name, _value(each.value), _value(each.default)) for each in tuned]
    parts.append(table(("setting", "preset", "default"), rows) if rows else paragraph("Nothing."))
    moved = _moved(runs[0].spec)
    parts += [heading("Of the members"), table(("setting", "values"), moved)] if moved else []
    return Section("Settings", parts)


def _moved(spec: Spec) -> list[tuple[str, str]]:
    swept = [
        (f"config.{name}", f"one member for each of {', '.join(f'{x:g}' for x in values)}")
        for name, values in spec.sweep.items()
    ]
    return swept + [(f"config.{n}", f"evolves from {x.low:g} to {x.high:g} ({x.scale})") for n, x in spec.evolve.items()]


def _differing(runs: list[Told]) -> list[str]:
    found: list[dict[str, str]] = []
    for told in runs:
        values = {each.name: _value(each.value) for each in repeating.settings(told.spec)}
        values |= {"algorithm": told.spec.algorithm, "environment": told.spec.environment} | dict(_moved(told.spec))
        found.append(values | ({"network": "of the user's own"} if told.spec.network == run_folder.CUSTOM else {}))
    every = dict.fromkeys(["algorithm", "environment", *(name for values in found for name in values)])
    differing = [name for name in every if len({values.get(name, "-") for values in found}) > 1]
    if not differing:
        return [paragraph("In none.")]
    if len(runs) > len(differing):
        rows = [(told.name, *(values.get(name, "-") for name in differing)) for told, values in zip(runs, found, strict=True)]
        return [table(("run", *differing), rows)]
    return [
        table(("setting", *(told.name for told in runs)), [(n, *(values.get(n, "-") for values in found)) for n in differing])
    ]


def _value(value: Any) -> str:
    told = str(list(value)) if isinstance(value, tuple) else str(value)
    return told if len(told) <= MOST_LETTERS else f"{told[:MOST_LETTERS]} ..."


def machines(runs: list[Told]) -> Section:
    """Versions and devices; of several runs those that have the same together."""
    alike: dict[str, list[Told]] = {}
    for told in runs:
        alike.setdefault(json.dumps(_of_machine(told)), []).append(told)
    parts = list[str]()
    for group in alike.values():
        rows = _of_machine(group[0])
        parts += [heading(", ".join(told.name for told in group))] if len(alike) > 1 else []
        parts.append(facts(rows) if rows else paragraph(f"{ENVIRONMENT} is missing or cannot be read."))
    return Section("Versions and devices", parts)


def _of_machine(told: Told) -> dict[str, str]:
    machine = told.machine
    packages, flags = machine.get("packages"), machine.get("flags")
    pairs = lambda values: ", ".join(f"{n} {x}" for n, x in values.items()) if isinstance(values, dict) else ""  # noqa: E731
    devices = machine.get("devices")
    found = {
        "packages": pairs(packages),
        "python": machine.get("python"),
        "devices": ", ".join(map(str, devices)) if isinstance(devices, list) else "",
        "platform": machine.get("platform"),
        "processors": machine.get("processors"),
        "flags": pairs(flags),
        "commit": machine.get("commit"),
    }
    return {name: str(value) for name, value in found.items() if value}


def repeat(runs: list[Told]) -> Section:
    """The commands that train the runs again and evaluate them, or the lines of Python where no command can."""
    parts = list[str]()
    for told in runs:
        spec, folder = told.spec, str(told.folder)
        parts += [heading(told.name)] if len(runs) > 1 else []
        if repeating.needs_python(spec):
            parts += [code(repeating.program(spec, folder)), code("\n".join(words.in_python(folder, "done", spec)))]
            continue
        evaluate = ["rollax", "eval", folder, *(["--checkpoint", "best"] if told.best is not None else [])]
        evaluate += [word for module in spec.imports for word in ("--import", module)]
        parts.append(code(f"{repeating.command(spec, folder)}\n{shlex.join(evaluate)}"))
    note = "The presets are those of this version; with the same versions and devices the numbers are the same, bit for bit."
    resumed = [told.name for told in runs if told.resumed]
    if resumed:
        note += f" Resumed, perhaps with other options than at first, of which the last are given here: {', '.join(resumed)}."
    return Section("To repeat it" if len(runs) == 1 else "To repeat them", [*parts, paragraph(note)])
