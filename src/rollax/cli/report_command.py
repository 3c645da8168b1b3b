"""Command `rollax report`."""

import dataclasses
import webbrowser
from pathlib import Path

import tyro

from rollax.cli.parsing.dynamic_options import parse_options
from rollax.cli.parsing.shared_options import SharedOptions
from rollax.errors import UsageError
from rollax.runtime.printing import print_line, print_note
from rollax.visualization import run_views


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """Build a self-contained HTML report of one or more runs, without network access.

    The report has zoomable curves, evaluations, videos of episodes, archives, settings that differ
    from the preset, versions, and the command that repeats each run.

      rollax report RUN --render --open
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs, folders that contain runs, or patterns such as "runs/*"."""
    out: Path | None = None
    """File to write (.html). Defaults to figures/report.html of the run, or here for several."""
    render: bool = False
    """Render an episode with the best checkpoint of each run first."""
    label: tuple[str, ...] = ()
    """Names in the legend, in order."""
    open: bool = False
    """Open the report in a browser."""


def report(arguments: list[str], shared: SharedOptions) -> int:
    """Run `rollax report` and return its exit code."""
    options = parse_options(ReportOptions, arguments, "rollax report")
    if not options.runs:
        raise UsageError("report needs one or more run folders. Run `rollax report RUN`.")
    path = run_views.report(
        options.runs, path=options.out, render=options.render, label=options.label
    )
    print_line(path)
    if options.open:
        _open_in_browser(path)
    return 0


def _open_in_browser(path: Path) -> None:
    """Open a file in a browser. Print a note if no browser can be started."""
    try:
        is_open = webbrowser.open(path.resolve().as_uri())
    except webbrowser.Error:
        is_open = False
    if not is_open:
        print_note(f"No browser can be started here. Open {path} in a browser.")
