"""Report sections with settings, machines and reproduction commands of runs."""

import json
import shlex

from rollax.config import CUSTOM
from rollax.training.console import messages
from rollax.training.run_folder import reproduction
from rollax.training.run_folder.layout import ENVIRONMENT_FILE
from rollax.training.spec import Spec
from rollax.types import JsonValue
from rollax.visualization.report.html_page import (
    Section,
    code_html,
    description_list_html,
    heading_html,
    paragraph_html,
    table_html,
)
from rollax.visualization.report.run_facts import RunFacts

MAX_VALUE_CHARACTERS = 200  # of a table cell


def settings_section(runs: list[RunFacts]) -> Section:
    """Build the section with the settings of one run, or settings that differ between runs."""
    if len(runs) > 1:
        return Section("Settings that differ between the runs", _differing_settings(runs))
    settings = reproduction.list_settings(runs[0].spec)
    overridden = [setting for setting in settings if setting.is_overridden]
    tuned_settings = [setting for setting in settings if setting.is_tuned]
    parts = [
        heading_html("Settings of this run"),
        paragraph_html("Settings that differ from the preset of this algorithm and environment."),
    ]
    rows = [
        (
            setting.name,
            _truncate_value(setting.value),
            _truncate_value(setting.preset),
            _truncate_value(setting.default),
        )
        for setting in overridden
    ]
    parts.append(
        table_html(("setting", "this run", "preset", "default"), rows, strong_column=1)
        if rows
        else paragraph_html("None.")
    )
    parts += [
        heading_html("Settings of the preset"),
        paragraph_html("Preset values that differ from the defaults of the algorithm."),
    ]
    rows = [
        (setting.name, _truncate_value(setting.value), _truncate_value(setting.default))
        for setting in tuned_settings
    ]
    parts.append(
        table_html(("setting", "preset", "default"), rows) if rows else paragraph_html("None.")
    )
    varied = _varied_settings(runs[0].spec)
    if varied:
        parts.append(heading_html("Settings of the members"))
        parts.append(table_html(("setting", "values"), varied))
    return Section("Settings", parts)


def _varied_settings(spec: Spec) -> list[tuple[str, str]]:
    """Return name and description of each swept or evolving setting."""
    swept = [
        (f"config.{name}", f"one member for each of {', '.join(f'{x:g}' for x in values)}")
        for name, values in spec.sweep.items()
    ]
    return swept + list(reproduction.describe_evolving_settings(spec).items())


def _differing_settings(runs: list[RunFacts]) -> list[str]:
    """Return an HTML table of settings that differ between runs, or a paragraph if none differ."""
    settings = [_list_all_settings(run.spec) for run in runs]
    names = dict.fromkeys(name for values in settings for name in values)
    differing = [name for name in names if len({values.get(name, "-") for values in settings}) > 1]
    if not differing:
        return [paragraph_html("None.")]
    if len(runs) > len(differing):
        rows = [
            (run.name, *(values.get(name, "-") for name in differing))
            for run, values in zip(runs, settings, strict=True)
        ]
        return [table_html(("run", *differing), rows)]
    rows = [(name, *(values.get(name, "-") for values in settings)) for name in differing]
    return [table_html(("setting", *(run.name for run in runs)), rows)]


def _list_all_settings(spec: Spec) -> dict[str, str]:
    """Return all settings of a run as text, keyed by setting name."""
    return {
        "algorithm": spec.algorithm,
        "environment": spec.environment,
        **{
            setting.name: _truncate_value(setting.value)
            for setting in reproduction.list_settings(spec)
        },
        **dict(_varied_settings(spec)),
        **({"network": "custom"} if spec.network == CUSTOM else {}),
    }


def _truncate_value(value: object) -> str:
    text = str(list(value)) if isinstance(value, tuple) else str(value)
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[:MAX_VALUE_CHARACTERS]} ..."


def machines_section(runs: list[RunFacts]) -> Section:
    """Build the section with versions and devices. Runs on identical machines share one entry."""
    groups: dict[str, list[RunFacts]] = {}
    for run in runs:
        groups.setdefault(json.dumps(_machine_rows(run)), []).append(run)
    parts = list[str]()
    for group in groups.values():
        rows = _machine_rows(group[0])
        parts += [heading_html(", ".join(run.name for run in group))] if len(groups) > 1 else []
        parts.append(
            description_list_html(rows)
            if rows
            else paragraph_html(f"{ENVIRONMENT_FILE} is missing or cannot be read.")
        )
    return Section("Versions and devices", parts)


def _machine_rows(run: RunFacts) -> dict[str, str]:
    """Return versions and devices of a run as text, keyed by label. Empty values are omitted."""
    machine = run.machine
    devices = machine.get("devices")
    facts = {
        "packages": _join_pairs(machine.get("packages")),
        "python": machine.get("python"),
        "devices": ", ".join(map(str, devices)) if isinstance(devices, list) else "",
        "platform": machine.get("platform"),
        "processors": machine.get("processors"),
        "flags": _join_pairs(machine.get("flags")),
        "commit": machine.get("commit"),
    }
    return {name: str(value) for name, value in facts.items() if value}


def _join_pairs(values: JsonValue) -> str:
    """Return the items of a dictionary as text, or "" if `values` is not a dictionary."""
    if not isinstance(values, dict):
        return ""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def reproduction_section(runs: list[RunFacts]) -> Section:
    """Build the section with commands that train and evaluate the runs again.

    Runs with a custom environment or network have Python code instead of commands.
    """
    parts = list[str]()
    for run in runs:
        spec, folder = run.spec, str(run.folder)
        parts += [heading_html(run.name)] if len(runs) > 1 else []
        if reproduction.needs_python(spec):
            parts += [
                code_html(reproduction.format_train_script(spec, folder)),
                code_html("\n".join(messages.describe_python_next_steps(folder, "done", spec))),
            ]
            continue
        evaluate = [
            "rollax",
            "eval",
            folder,
            *(["--checkpoint", "best"] if run.best is not None else []),
        ]
        evaluate += [word for module in spec.imports for word in ("--import", module)]
        parts.append(
            code_html(f"{reproduction.format_train_command(spec, folder)}\n{shlex.join(evaluate)}")
        )
    note = (
        "The presets are those of this version. With the same versions and devices, the results "
        "are identical bit for bit."
    )
    resumed = [run.name for run in runs if run.resumed]
    if resumed:
        note += (
            " The following were resumed, and the commands contain the options of the last "
            f"session: {', '.join(resumed)}."
        )
    changed = [run.name for run in runs if run.spec.phases]
    if changed:
        note += (
            " The following changed settings in phases, and the commands train from the start with "
            f"the settings of the last phase: {', '.join(changed)}."
        )
    adjusted = [run.name for run in runs if run.spec.curriculum_values.adjustable]
    if adjusted:
        note += (
            " Callbacks may have changed parameters of the environment in the following, and the "
            "commands do not contain callbacks. The metrics curriculum/NAME have the values: "
            f"{', '.join(adjusted)}."
        )
    return Section(
        "Reproduce this run" if len(runs) == 1 else "Reproduce these runs",
        [*parts, paragraph_html(note)],
    )
