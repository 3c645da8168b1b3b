"""Command `rollax cross-play`."""

import dataclasses
from pathlib import Path

import tyro

from rollax.cli.parsing.dynamic_options import check_seed, parse_options
from rollax.cli.parsing.shared_options import SharedOptions
from rollax.errors import UsageError
from rollax.runtime.printing import print_line, print_note
from rollax.training.options import check_path
from rollax.visualization.tables.cross_play_tables import make_elo_table, make_win_rate_table
from rollax.visualization.tables.tournament import DEFAULT_GAMES, cross_play


@dataclasses.dataclass(frozen=True)
class CrossPlayOptions:
    """Let the policies of runs play against each other, and print win rates and Elo ratings.

    RUN@best or RUN@40960 selects another checkpoint than the last.

      rollax cross-play RUN --checkpoints --out cross_play.csv
    """

    runs: tyro.conf.Positional[tuple[str, ...]]
    """Folders of runs, with an optional checkpoint."""
    checkpoints: bool = False
    """Include all checkpoints of each run and the versions in its pool of opponents."""
    games: int = DEFAULT_GAMES
    """Number of games between each pair of policies."""
    seed: int = 0
    """Random seed."""
    greedy: bool = False
    """Take the most likely actions instead of sampling."""
    out: Path | None = None
    """CSV file of the pairs to write. The ratings are written to <name>-elo.csv."""
    overwrite: bool = False
    """Replace existing files."""


def play(arguments: list[str], shared: SharedOptions) -> int:
    """Run `rollax cross-play` and return its exit code."""
    options = parse_options(CrossPlayOptions, arguments, "rollax cross-play")
    if not options.runs:
        raise UsageError(
            "cross-play needs one or more run folders. Run `rollax cross-play RUN --checkpoints`."
        )
    check_seed(options.seed)
    targets = [] if options.out is None else _list_targets(options.out, options.overwrite)
    result = cross_play(
        options.runs,
        checkpoints=options.checkpoints,
        games=options.games,
        seed=options.seed,
        greedy=options.greedy,
    )
    for table in (make_win_rate_table(result), make_elo_table(result)):
        print_line(table.to_string())
        for note in table.notes:
            print_note(note)
    for target, write in zip(targets, (result.matrix_to_csv, result.elo_to_csv), strict=False):
        write(target)
        print_line(target)
    return 0


def _list_targets(out: Path, overwrite: bool) -> tuple[Path, Path]:
    """Return the paths of the two CSV files.

    Raises:
        UsageError: If the path is invalid, or a file exists and `overwrite` is False.
    """
    check_path("out", out)
    if out.suffix.lower() != ".csv":
        raise UsageError(f"--out must end in .csv, got {out}. Choose another name.")
    targets = out, out.with_name(f"{out.stem}-elo{out.suffix}")
    for target in targets:
        if target.exists() and not overwrite:
            raise UsageError(
                f"{target} already exists. Choose another --out, or replace it with --overwrite."
            )
    return targets
