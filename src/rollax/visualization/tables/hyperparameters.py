"""Table of hyperparameters: one row per setting and one column per group of runs."""

from typing import NamedTuple

from rollax.training.run_folder.reproduction import Setting
from rollax.visualization.plots.labels import short_environment_names
from rollax.visualization.tables.run_groups import RunGroup
from rollax.visualization.tables.run_table import RunTable
from rollax.visualization.tables.table_formats import Cell, Column, format_cell

# Options that distinguish the seeds of a group, or that do not change results.
OMITTED_OPTIONS = (
    *("seed", "seeds", "sweep_paired"),
    *("checkpoint_minutes", "checkpoint_steps", "keep_last", "keep_best"),
    *("on_nonfinite", "log_lines", "env_workers", "env_timeout", "env_restarts", "devices"),
)
EVOLUTION_PREFIX = "evolve_"  # options without effect if no setting evolves


class _SettingsColumn(NamedTuple):
    """Column of the table: settings of a group of runs.

    Attributes:
        labels: Labels of the group, one for each agent type.
        environment: Name of the environment.
        cells: Values, keyed by setting name.
        changed: Names of the settings that differ from their default.
    """

    labels: list[str]
    environment: str
    cells: dict[str, Cell]
    changed: set[str]


def make_hyperparameter_table(groups: list[RunGroup], all_settings: bool = False) -> RunTable:
    """Build the table of hyperparameters.

    Args:
        groups: Groups of runs.
        all_settings: Whether to include settings that have their default value in all groups.
            Settings that do not change results, such as the number of checkpoints, are always
            omitted.

    Returns:
        The table. If an algorithm does not have a setting, the cell is None.
    """
    settings_columns = _make_columns(groups)
    names = dict.fromkeys(name for column in settings_columns for name in column.cells)
    shown = [name for name in names if all_settings or _is_informative(name, settings_columns)]
    rows = [
        (name.removeprefix("config."), *(column.cells.get(name) for column in settings_columns))
        for name in shown
    ]
    titles = _make_titles(settings_columns)
    columns = [Column("setting", "setting"), *(Column(title, title) for title in titles)]
    notes = () if rows else ("hyperparameters: all settings have their default values",)
    return RunTable(tuple(columns), tuple(rows), notes)


def _make_columns(groups: list[RunGroup]) -> list[_SettingsColumn]:
    """Return one column for each group. Groups of agent types in the same runs share a column."""
    columns: dict[tuple[object, ...], _SettingsColumn] = {}
    for group in groups:
        run = group.curve.run
        key = (run.folder, *group.curve.members.tolist())
        if key in columns:
            columns[key].labels.append(group.curve.label)
            continue
        cells: dict[str, Cell] = {
            "algorithm": run.spec.algorithm,
            "environment": run.spec.environment,
        }
        names = dict.fromkeys(name for settings in group.settings for name in settings)
        cells |= {
            name: _join_values(group.settings, name)
            for name in names
            if name not in OMITTED_OPTIONS
            and (run.spec.evolve or not name.startswith(EVOLUTION_PREFIX))
        }
        changed = {
            name
            for settings in group.settings
            for name, setting in settings.items()
            if not setting.is_default
        }
        columns[key] = _SettingsColumn([group.curve.label], run.spec.environment, cells, changed)
    return list(columns.values())


def _join_values(settings: list[dict[str, Setting]], name: str) -> Cell:
    """Return the value of a setting, or all values as text if they differ between the runs."""
    cells = [_to_cell(each[name].value) for each in settings if name in each]
    distinct = list({repr(cell): cell for cell in cells}.values())
    return distinct[0] if len(distinct) == 1 else " or ".join(map(format_cell, distinct))


def _to_cell(value: object) -> Cell:
    """Convert the value of a setting to a cell. None is converted to the text "None"."""
    if isinstance(value, str | int | float):
        return value
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _is_informative(name: str, columns: list[_SettingsColumn]) -> bool:
    """Return whether a setting differs from its default or between the groups that have it."""
    values = {repr(column.cells[name]) for column in columns if name in column.cells}
    return len(values) > 1 or any(name in column.changed for column in columns)


def _make_titles(columns: list[_SettingsColumn]) -> list[str]:
    """Return the labels of the columns, with the environment if labels are not distinct."""
    labels = [", ".join(column.labels) for column in columns]
    if len(set(labels)) == len(labels):
        return labels
    names = short_environment_names([column.environment for column in columns])
    return [
        f"{label}, {names[column.environment]}"
        for label, column in zip(labels, columns, strict=True)
    ]
