"""What a study has found: a table of its settings, which of them matter, and the best as a preset."""

import dataclasses
import json
import math
from typing import Any, NamedTuple

import yaml

from rollax.errors import UsageError
from rollax.host.evaluation import digits
from rollax.host.settings import entry
from rollax.host.sweeps import MOST_ROWS, interval
from rollax.studies import optuna_study as drawing
from rollax.studies.study import Study


class Row(NamedTuple):
    """A trial with its result."""

    number: int
    state: str  # WAITING, RUNNING, COMPLETE, PRUNED or FAIL
    settings: dict[str, Any]  # by full name
    value: float | None  # mean of the best metric over seeds; of a trial that stopped early, when it did
    scores: list[float | None]  # by seed
    steps: int | None
    run: str | None  # its run folder, within that of the study
    member: int | None  # the first of its members in that run
    problem: str | None  # why it failed


def rows(study: Study) -> list[Row]:
    """All trials that stand in a batch: complete ones first, the best of them first."""
    known = {trial.number: (batch, trial) for batch in study.batches() for trial in batch.trials}
    sign = 1 if study.mode == "max" else -1
    found = [_row(number, state, facts, value, *known[number]) for number, state, facts, value in _trials(study, known)]
    order = {"COMPLETE": 0, "PRUNED": 1, "RUNNING": 2}
    return sorted(found, key=lambda row: (order.get(row.state, 3), math.inf if row.value is None else -sign * row.value))


def _trials(study: Study, known: dict[int, Any]) -> list[tuple[int, str, dict[str, Any], float | None]]:
    return [
        (trial.number, trial.state.name, trial.user_attrs, _last(trial))
        for trial in study.drawn.get_trials(deepcopy=False)
        if trial.number in known
    ]


def _last(trial: Any) -> float | None:
    if trial.state.name == "FAIL":
        return None
    if trial.state.name == "COMPLETE":
        return trial.value
    return trial.intermediate_values[max(trial.intermediate_values)] if trial.intermediate_values else None


def _row(number: int, state: str, facts: dict[str, Any], value: float | None, batch: Any, trial: Any) -> Row:
    run, numbers = batch.runs[-1]
    if "run" in facts:
        run, numbers = next((each for each in batch.runs if each[0] == facts["run"]), batch.runs[-1])
    scores = facts.get("scores", [])
    member = numbers.index(number) * len(scores) if number in numbers and scores else None
    where = f"{batch.folder.parent.name}/{batch.folder.name}/{run}"
    settings = facts.get("settings", trial.settings)  # of a population that evolved, those that it ended with
    return Row(number, state, settings, value, scores, facts.get("steps"), where, member, facts.get("problem"))


def words(settings: dict[str, Any]) -> str:
    """Settings in a line, names of the algorithm's own without their group."""
    return " ".join(f"{name.removeprefix('config.')} {plain(value)}" for name, value in settings.items())


def plain(value: Any) -> str:
    """A value as a person writes it."""
    if isinstance(value, list | tuple):
        return "x".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def progress(study: Study) -> str:
    """How far a study is, and its best setting so far."""
    found = rows(study)
    ended = sum(row.state in ("COMPLETE", "PRUNED", "FAIL") for row in found)
    text = f"{ended} of {study.spec.num_trials} settings"
    if study.spec.search.budget is not None:
        text = f"{ended} settings, {study.steps_taken():,} of {study.spec.search.budget:,} steps"
    if not found or found[0].state != "COMPLETE":
        return text
    best = found[0]
    return f"{text}, best {study.metric} {_mean(best)} of trial {best.number}: {words(best.settings)}"


def _mean(row: Row) -> str:
    if row.value is None:
        return "-"
    return f"{digits(row.value)}{interval([score for score in row.scores if score is not None])}"


def table(study: Study) -> list[str]:
    """A line for each setting, the best first: mean of the best metric with its 95 % t-interval over seeds."""
    found = rows(study)
    if not found:
        return ["  no setting has been drawn yet"]
    width = min(max(len(words(row.settings)) for row in found[:MOST_ROWS]), 80)
    lines = [f"  {study.metric} by setting{', with 95 % intervals over seeds' * (study.base.options.seeds > 1)}:"]
    for row in found[:MOST_ROWS]:
        told = {"COMPLETE": "", "PRUNED": f"  stopped at {row.steps or 0:,} steps", "FAIL": f"  failed: {row.problem}"}
        lines.append(
            f"    {row.number:>4}  {words(row.settings):<{width}}  {_mean(row)}{told.get(row.state, '  ' + row.state.lower())}"
        )
    rest = len(found) - MOST_ROWS
    return [*lines, *([f"    and {rest} more"] if rest > 0 else [])]


def best(study: Study) -> Row:
    """The best setting. Raises UsageError where no trial is complete."""
    found = rows(study)
    if not found or found[0].state != "COMPLETE":
        problems = {row.problem for row in found if row.problem}
        raise UsageError(f"no setting of {study.folder} has a result{': ' if problems else ''}{'; '.join(sorted(problems))}")
    return found[0]


def importance(study: Study) -> dict[str, float]:
    """How much each setting matters for the result (PED-ANOVA, Watanabe et al. 2023), adding up to 1; empty where it is not
    known, as of few results."""
    return drawing.importance(study.drawn)


def preset(study: Study) -> str:
    """The best setting as a preset, in YAML: `rollax train ... --preset FILE`."""
    row, base = best(study), study.base
    kinds = entry(base.algorithm)
    # The whole of them, as the file takes the place of the library's presets.
    groups: dict[str, dict[str, Any]] = {
        "env": dict(base.arguments),
        "config": _changed(base.config, kinds.config()),
        "network": _changed(base.network, kinds.network_config()),
    }
    for name, value in row.settings.items():
        group, _, own = name.partition(".")
        groups[group][own] = value
    tuned = {"total_steps": base.options.total_steps, **{name: values for name, values in groups.items() if values}}
    complete = sum(each.state == "COMPLETE" for each in rows(study))
    seeds = f"{len(row.scores)} seed{'s' * (len(row.scores) > 1)}"
    told = f"# {study.metric} {_mean(row)} over {seeds}, the best of {complete} settings.\n"
    told += "# It was chosen by this number, which is therefore too good: train it with other seeds to know.\n"
    return told + yaml.safe_dump({base.environment: json.loads(json.dumps(tuned))}, sort_keys=False)


def _changed(settings: Any, defaults: Any) -> dict[str, Any]:
    """What is other than the algorithm's own default."""
    return {name: value for name, value in dataclasses.asdict(settings).items() if value != getattr(defaults, name)}


def summary(study: Study) -> dict[str, Any]:
    """One flat object for scripts."""
    found = rows(study)
    states = [row.state for row in found]
    counts = {name.lower(): states.count(name) for name in ("COMPLETE", "PRUNED", "FAIL", "RUNNING")}
    number = len(found) if study.is_done() else study.spec.num_trials  # which a budget may not be enough for
    told: dict[str, Any] = {"study": str(study.folder), "trials": number, **counts, "metric": study.metric}
    if found and found[0].state == "COMPLETE":
        told |= {
            "best": found[0].value,
            "best_trial": found[0].number,
            "best_settings": found[0].settings,
            "best_run": found[0].run,
        }
    return told
