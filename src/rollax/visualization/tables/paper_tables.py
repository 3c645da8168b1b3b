"""Tables for papers: results of runs with intervals, and hyperparameters."""

from collections.abc import Iterable, Sequence
from typing import Literal

from rollax.errors import UsageError
from rollax.runtime.numerics import standard_numerics
from rollax.training.run_folder.tables import find_runs, to_folder_list
from rollax.types import RunPath
from rollax.user_input.arguments import coerce_arguments
from rollax.visualization.tables.hyperparameters import make_hyperparameter_table
from rollax.visualization.tables.result_rows import make_results_table
from rollax.visualization.tables.run_groups import read_groups
from rollax.visualization.tables.run_table import RunTable

TableKind = Literal["results", "hyperparameters"]
TABLE_KINDS: tuple[TableKind, ...] = ("results", "hyperparameters")


@standard_numerics()
@coerce_arguments(kind=TableKind, all_settings=bool, label=str | tuple[str, ...])
def table(
    runs: RunPath | Iterable[RunPath],
    kind: TableKind = "results",
    *,
    all_settings: bool = False,
    label: str | Sequence[str] = (),
) -> RunTable:
    """Return a table of the results or the hyperparameters of runs for a paper.

    Runs that differ only in their seeds are one group. The results table has one row per group:
    number of seeds, steps, final and best return, and coverage and QD score of archives. Returns
    and archive metrics are interquartile means over seeds with 95 % bootstrap intervals. A single
    seed and members of an evolved population with common ancestors have no interval. The
    hyperparameter table has one row per setting and one column per group.

    Args:
        runs: Results of runs, run folders, folders that contain runs, or glob patterns. If at least
            one run can be read, unreadable runs are skipped with a note in the table.
        kind: Content of the table, "results" or "hyperparameters".
        all_settings: Whether the hyperparameter table includes settings that have their default
            value in all groups.
        label: Labels of the groups in order. Defaults to the settings that distinguish the groups.

    Returns:
        The table. It has methods that convert it to LaTeX, Markdown, CSV, text and a data frame.

    Raises:
        UsageError: If no run is found or can be read, or an argument is invalid.
    """
    labels = (label,) if isinstance(label, str) else tuple(label)
    return make_tables(runs, (kind,), all_settings, labels)[0]


def make_tables(
    runs: RunPath | Iterable[RunPath],
    kinds: tuple[TableKind, ...],
    all_settings: bool,
    label: tuple[str, ...],
) -> list[RunTable]:
    """Return several tables of the same runs. The runs are read once.

    Args:
        runs: Results of runs, run folders, folders that contain runs, or glob patterns.
        kinds: Content of each table.
        all_settings: Whether the hyperparameter table includes settings that have their default
            value in all groups.
        label: Labels of the groups in order. If empty, labels are generated.

    Returns:
        The tables in the order of `kinds`. The first table has the notes on skipped runs.

    Raises:
        UsageError: If no run is found or can be read, or an argument is invalid.
    """
    paths, notes = to_folder_list(runs), list[str]()
    if not paths:
        raise UsageError("There is nothing to tabulate. Name at least one run.")
    groups = read_groups(find_runs(paths, notes.append), label, notes.append)
    tables = [
        make_results_table(groups)
        if kind == "results"
        else make_hyperparameter_table(groups, all_settings)
        for kind in kinds
    ]
    first = tables[0]
    return [RunTable(first.columns, first.rows, (*notes, *first.notes)), *tables[1:]]
