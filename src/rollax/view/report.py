"""A report: one HTML page of one run or of several, to be read without rollax and without a network."""

import base64
import datetime
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from rollax.errors import UsageError
from rollax.host.api import Policy
from rollax.host.files import write
from rollax.host.progress import size
from rollax.host.reading import find, silent
from rollax.host.settings import CUSTOM
from rollax.view import page, report_archive, report_curves, report_facts
from rollax.view.curves import Curve, Run, curves_of, thinned, together
from rollax.view.lineage import WORDS
from rollax.view.page import Chart, Section, heading, media, paragraph
from rollax.view.plot import free, read
from rollax.view.report_facts import Told

NAME = "report.html"
RENDERED = re.compile(r"episode-checkpoint-(\d+)\.gif")  # what is rendered for a report
KINDS = {".gif": "image/gif", ".webp": "image/webp", ".mp4": "video/mp4", ".webm": "video/webm"}
MOST_BYTES = 25_000_000  # of all animations together


def report(
    runs: Iterable[Path | str],
    out: Path | str | None = None,
    *,
    render: bool = False,
    label: tuple[str, ...] = (),
    tell: Callable[[str], object] = silent,
) -> Path:
    """Writes a report of runs and returns its file: what they are, curves, evaluations, episodes, archives, and how to repeat
    them.

    `runs`: folders of runs, folders that contain runs, or patterns. `out` ends in .html; without it, the run's
    figures/report.html, of several runs a new file here. `render`: play an episode with the best checkpoint of each first
    (figures/episode-checkpoint-STEP.gif). `label`: names for lines, in the order of the legend. `tell` is called with what a
    reader should know, which is on the page too.

    Raises UsageError when a folder is no run, when none has recorded anything, when `out` cannot be written, or when plotly is
    not installed.
    """
    page.plotly()  # before anything is read
    given, notes = list(runs), list[str]()
    if not given:
        raise UsageError("there is nothing to report on: name one run or more")

    def note(words: str) -> None:
        notes.append(words)
        tell(words)

    folders = find(given, note)
    target = _target(folders, out)
    found = read(folders, note)
    folders = list(dict.fromkeys(run.folder for run in found))  # those that could be read
    closed = {run.folder for run in found if run.is_closed_form}
    named = zip(folders, report_facts.names(folders), strict=True)
    told = [report_facts.read(folder, name, folder in closed) for folder, name in named]
    if render:
        for each in told:
            _render(each, note)
    whole = together(found, note)
    longest = max(run.step.size for run in whole)
    if longest > report_curves.MOST_POINTS:
        note(f"of {longest:,} lines of metrics every line of a chart has {report_curves.MOST_POINTS:,}, evenly spread")
    curves = curves_of([thinned(run, report_curves.MOST_POINTS) for run in whole], label)
    sections = [report_facts.about(told, {run.folder: report_curves.lines_of(run, curves) for run in found})]
    sections += _sections(told, curves, whole, note)
    title = f"{_all(each.spec.algorithm for each in told)} on {_all(each.spec.environment for each in told)}"
    now = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    which = told[0].name if len(told) == 1 else f"{len(told)} runs"
    content = page.document(title, f"{which}, as of {now}", sections, notes)
    return write(target, content.encode(), ": choose another --out")


def _target(runs: list[Path], out: Path | str | None) -> Path:
    """Where to write: what was asked for, our own page of the run, or a name that is still free."""
    if out is None:
        return runs[0] / "figures" / NAME if len(runs) == 1 else free(Path(NAME), (".html",))
    if Path(out).suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--out ({out}) must end in .html")
    return Path(out)


def _all(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _sections(told: list[Told], curves: list[Curve], runs: list[Run], note: Callable[[str], object]) -> list[Section]:
    """All further parts of the page that there is something to show in."""
    drawn, left_out = report_curves.section(curves)
    for words in left_out:
        note(words)
    best = {each.folder: each.row["best_step"] for each in told}
    played: list[str | list[Chart]] = [*([report_facts.table_of_evaluations(told[0])] if len(told) == 1 else [])]
    played += report_curves.evaluations(curves, best)
    evolution = [(run, charts) for run in runs if (charts := report_archive.evolution(run))]
    grown: list[str | list[Chart]] = [paragraph(f"{WORDS[0].upper()}{WORDS[1:]}.")] if evolution else []
    for run, charts in evolution:
        grown += [heading(run.folder.resolve().name)] if len(evolution) > 1 else []
        grown.append(charts)
    optional = [
        Section("Evaluations", [part for part in played if part]),
        Section("Episodes", _episodes(told, note)),
        Section("Evolution", grown),
        Section("Archive" if len(told) == 1 else "Archives", _archives(told, note)),
    ]
    ends = [report_facts.settings(told), report_facts.machines(told), report_facts.repeat(told)]
    return [drawn, *(each for each in optional if each.parts), *ends]


def _archives(told: list[Told], note: Callable[[str], object]) -> list[str | list[Chart]]:
    """The archive of each run, and of two runs where one is fitter than the other."""
    parts, policies = list[str | list[Chart]](), list[tuple[str, Policy]]()
    for each in told:
        policy, charts = report_archive.charts(each.folder, note)
        if policy is None:
            continue
        policies.append((each.name, policy))
        parts += [heading(each.name)] if len(told) > 1 else []
        parts.append(charts)
    if len(policies) == len(told) == 2:
        (first, a), (second, b) = policies
        charts = report_archive.comparison(a, b, (first, second), note)
        parts += [heading("Compared"), charts] if charts else []
    return parts


def _render(told: Told, note: Callable[[str], object]) -> None:
    """Plays an episode with the best checkpoint, or the last where none is the best."""
    from rollax.view.render import render

    if told.spec.own_environment or told.spec.network == CUSTOM:
        note(f"{told.name}: no episode was rendered, as that needs the objects that were passed: rollax.view.render.render")
        return
    step = told.newest if told.best is None else told.best[0]
    try:
        if step is None:
            raise UsageError("it has no checkpoint that can be read")
        render(told.folder, told.folder / "figures" / f"episode-checkpoint-{step}.gif", checkpoint=step, tell=note)
    except UsageError as error:
        note(f"{told.name}: no episode was rendered: {error}")


def _episodes(told: list[Told], note: Callable[[str], object]) -> list[str | list[Chart]]:
    """The animations in the runs' figures/, as long as they are not too large together."""
    shown, left = list[str](), MOST_BYTES
    for each in told:
        for path in sorted((each.folder / "figures").glob("*")):
            kind = KINDS.get(path.suffix.lower())
            if kind is None or not path.is_file():
                continue
            try:
                number = path.stat().st_size
                content = path.read_bytes() if number <= left else b""
            except OSError as error:
                note(f"{path} cannot be read: {error}")
                continue
            if number > left:
                note(f"{path} is left out of the page for its size ({size(number)})")
                continue
            left -= number
            title = f"{each.name}: {path.name}" if len(told) > 1 else path.name
            shown.append(media(base64.b64encode(content).decode(), kind, title, _words(each, path)))
    return [f'<div class="media">{"".join(shown)}</div>'] if shown else []


def _words(told: Told, path: Path) -> str:
    """What an animation shows, as far as its name says, and when it was made."""
    made = datetime.datetime.fromtimestamp(path.stat().st_mtime).astimezone().strftime("%Y-%m-%d %H:%M")
    named = RENDERED.fullmatch(path.name)
    if named is None:
        return f"made {made}"
    is_best = told.best is not None and told.best[0] == int(named[1])
    return f"{'the best checkpoint, of step' if is_best else 'the checkpoint of step'} {int(named[1]):,}, made {made}"
