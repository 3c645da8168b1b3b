"""The command that writes a page of runs."""

import dataclasses
import webbrowser
from pathlib import Path

import tyro

from rollax.cli.plotting import tell
from rollax.cli.shared import Shared
from rollax.cli.words import parse
from rollax.errors import UsageError
from rollax.view.report import report as write


@dataclasses.dataclass(frozen=True)
class Report:
    """Writes one HTML page of a run, or of several together, to be shown to others: it needs no rollax and no network.

    What the runs are, curves that one can zoom, evaluations, episodes as videos, archives, settings that differ from the
    preset, versions, and the command that repeats each.

      rollax report RUN --render --open
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs, folders that contain runs, or patterns such as "runs/*"."""
    out: Path | None = None
    """Page to write, whose name ends in .html; default: report.html in the run's figures/, of several runs here."""
    render: bool = False
    """Play an episode with the best checkpoint of each run first, for its video."""
    label: tuple[str, ...] = ()
    """Names for the legend, in its order."""
    open: bool = False
    """Show the page in a browser."""


def report(arguments: list[str], shared: Shared) -> int:
    given = parse(Report, arguments, "rollax report")
    if not given.runs:
        raise UsageError("report takes one or more run folders: rollax report RUN")
    if given.render:
        from rollax.host import compilation_cache

        compilation_cache.use()
    path = write(given.runs, given.out, render=given.render, label=given.label, tell=tell)
    print(path)
    if given.open:
        _open(path)
    return 0


def _open(path: Path) -> None:
    """In a browser, where there is one."""
    try:
        is_open = webbrowser.open(path.resolve().as_uri())
    except webbrowser.Error:
        is_open = False
    if not is_open:
        tell(f"there is no browser here that could be started: open {path} in one")
