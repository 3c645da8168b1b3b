"""Tables of cross-play: win rates of each pair of policies, and Elo ratings."""

import numpy as np

from rollax.training.evaluation import aggregates
from rollax.training.evaluation.metrics import format_number
from rollax.visualization.plots.intervals import Estimate
from rollax.visualization.tables.run_table import RunTable
from rollax.visualization.tables.table_formats import Cell, Column
from rollax.visualization.tables.tournament import CrossPlay

MATRIX_NOTE = (
    "Win rate of the row against the column, with the mean return of the row in parentheses. A "
    "draw counts 0.5."
)
ELO_NOTE = (
    "Elo ratings by maximum likelihood (Bradley-Terry model) with a mean of 1000 and one "
    "additional draw per pair. Intervals are 95 % intervals."
)


def make_win_rate_table(result: CrossPlay) -> RunTable:
    """Return a table with the win rate and the mean return of each policy against each other."""
    rows = []
    for i, name in enumerate(result.names):
        cells: list[Cell] = [name]
        for j in range(len(result.names)):
            rate, low, high = (float(part[i, j]) for part in result.win_rates)
            mean_return = format_number(float(result.returns.value[i, j]))
            interval = "" if i == j else f" [{low:.2f}, {high:.2f}]"
            cells.append(f"{rate:.2f}{interval} ({mean_return})")
        rows.append(tuple(cells))
    columns = (Column("policy", "policy"), *(Column(name, name) for name in result.names))
    return RunTable(columns, tuple(rows), (MATRIX_NOTE, *_describe_nonfinite_games(result)))


def _describe_nonfinite_games(result: CrossPlay) -> tuple[str, ...]:
    """Return a note about games that are left out, if there are any."""
    left_out = int(np.triu(result.nonfinite_games).sum())
    total = left_out + int(np.triu(result.games).sum())
    note = f"{left_out:,} of {total:,} results are left out, because a return is not finite."
    return (note,) if left_out else ()


def make_elo_table(result: CrossPlay) -> RunTable:
    """Return a table with the Elo rating of each policy, best first."""
    order = np.argsort(-result.elo.value, kind="stable")
    rows = tuple((result.names[i], _estimate(result.elo, int(i))) for i in order)
    return RunTable((Column("policy", "policy"), Column("elo", "Elo", True)), rows, (ELO_NOTE,))


def _estimate(values: aggregates.Estimate, index: int) -> Estimate:
    """Return one entry of an estimate, rounded to whole points."""
    return Estimate(*(float(np.round(part[index])) for part in values))
