"""Self-contained HTML reports about one or more runs."""

import base64
import datetime
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from rollax.config import CUSTOM
from rollax.errors import UsageError
from rollax.policy import Policy
from rollax.runtime.numerics import standard_numerics
from rollax.training.console.progress import format_bytes
from rollax.training.run_folder.files import read_regular_file, write_output_file
from rollax.training.run_folder.layout import FIGURES_FOLDER, figures_folder
from rollax.training.run_folder.tables import find_runs, ignore_message, to_folder_list
from rollax.types import RunPath
from rollax.user_input.arguments import coerce_arguments
from rollax.visualization.plots.figure import read_runs, unused_path
from rollax.visualization.plots.learning_curves import Curve, RunCurves, make_curves
from rollax.visualization.plots.lineage_chart import CHART_DESCRIPTION
from rollax.visualization.plots.resampling import thin_run
from rollax.visualization.plots.run_merging import merge_runs
from rollax.visualization.render import animation
from rollax.visualization.report import (
    archive_charts,
    curve_charts,
    distribution_charts,
    html_page,
    run_facts,
    run_sections,
)
from rollax.visualization.report.html_page import (
    Section,
    SectionPart,
    heading_html,
    media_html,
    paragraph_html,
    table_html,
)
from rollax.visualization.report.run_facts import RunFacts
from rollax.visualization.tables.cross_play_tables import make_elo_table, make_win_rate_table
from rollax.visualization.tables.table_formats import format_cell
from rollax.visualization.tables.tournament import cross_play

DEFAULT_FILE_NAME = "report.html"
EPISODE_FILE_PATTERN = re.compile(r"episode-checkpoint-(\d+)\.gif")  # rendered for a report
MEDIA_TYPES = {
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".mp4": "video/mp4",
    ".webm": "video/webm",
}
MAX_MEDIA_BYTES = 25_000_000  # for all animations of a page together


@standard_numerics()
@coerce_arguments(out=Path | None, render=bool, label=tuple[str, ...])
def report(
    runs: RunPath | Iterable[RunPath],
    out: Path | str | None = None,
    *,
    render: bool = False,
    label: tuple[str, ...] = (),
    notify_fn: Callable[[str], object] = ignore_message,
) -> Path:
    """Write an HTML report of runs with curves, evaluations, episodes, archives and settings.

    Args:
        runs: Results of runs, run folders, folders that contain runs, or glob patterns.
        out: Output file ending in .html. Defaults to `figures/report.html` of a single run, or to a
            new file in the current folder.
        render: Whether to render an episode with the best checkpoint of each run before writing
            the report. The file is `figures/episode-checkpoint-STEP.gif` in the run folder.
        label: Labels of the lines in the order of the legend.
        notify_fn: Function that receives notes. The page also contains these notes.

    Returns:
        Path of the report.

    Raises:
        UsageError: If a folder is not a run, no run has recorded data, `out` cannot be written, or
            plotly is not installed.
    """
    html_page.load_plotly_script()  # fails early if plotly is not installed
    paths, notes = to_folder_list(runs), list[str]()
    if not paths:
        raise UsageError("There is nothing to report on. Name at least one run.")

    def note(text: str) -> None:
        notes.append(text)
        notify_fn(text)

    folders = find_runs(paths, note)
    target = _resolve_output_path(folders, out)
    run_curves = read_runs(folders, note)
    facts = _read_facts(run_curves)
    if render:
        for run in facts:
            _render_episode(run, note)
    merged_runs = merge_runs(run_curves, note)
    longest = max(run.step.size for run in merged_runs)
    if longest > curve_charts.MAX_POINTS:
        note(
            f"lines of charts show {curve_charts.MAX_POINTS:,} evenly spaced points of "
            f"{longest:,} metrics lines"
        )
    curves = make_curves([thin_run(run, curve_charts.MAX_POINTS) for run in merged_runs], label)
    labels = {run.folder: curve_charts.format_line_labels(run, curves) for run in run_curves}
    sections = [
        run_facts.runs_section(facts, labels),
        *_make_sections(facts, curves, merged_runs, note),
    ]
    title = (
        f"{_join_distinct(run.spec.algorithm for run in facts)} on "
        f"{_join_distinct(run.spec.environment for run in facts)}"
    )
    now = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    subject = facts[0].name if len(facts) == 1 else f"{len(facts)} runs"
    content = html_page.build_page(title, f"{subject}, as of {now}", sections, notes)
    return write_output_file(target, content.encode(), ". Choose another output file.")


def _read_facts(run_curves: list[RunCurves]) -> list[RunFacts]:
    """Read the data of each run for the report, and assign distinct run names."""
    folders = list(dict.fromkeys(run.folder for run in run_curves))
    closed_form = {run.folder for run in run_curves if run.is_closed_form}
    return [
        run_facts.read_run_facts(folder, name, folder in closed_form)
        for folder, name in zip(folders, run_facts.unique_names(folders), strict=True)
    ]


def _resolve_output_path(runs: list[Path], out: Path | str | None) -> Path:
    """Return the path that the user chose, or a default path.

    The default is a file in `figures/` of a single run, or a new file in the current folder.
    """
    if out is None:
        return (
            figures_folder(runs[0]) / DEFAULT_FILE_NAME
            if len(runs) == 1
            else unused_path(Path(DEFAULT_FILE_NAME), (".html",))
        )
    if Path(out).suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"The output file must end in .html, got {out}.")
    return Path(out)


def _join_distinct(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _make_sections(
    facts: list[RunFacts],
    curves: list[Curve],
    runs: list[RunCurves],
    notify_fn: Callable[[str], object],
) -> list[Section]:
    """Return the report sections after the first section. Empty sections are omitted."""
    curves_section = curve_charts.curves_section(curves)
    for text in curves_section.notes:
        notify_fn(text)
    best_steps = {run.folder: run.summary["best_step"] for run in facts}
    evaluations: list[SectionPart] = []
    if len(facts) == 1 and (table := run_facts.evaluation_table(facts[0])):
        evaluations.append(table)
    evaluations += distribution_charts.evaluation_charts(curves, best_steps)
    optional = [
        Section("Evaluations", evaluations),
        Section("Episodes", _episode_parts(facts, notify_fn)),
        Section("Evolution", _evolution_parts(runs)),
        Section("Opponents", _opponent_parts(facts, notify_fn)),
        Section("Archive" if len(facts) == 1 else "Archives", _archive_parts(facts, notify_fn)),
    ]
    return [
        curves_section.section,
        *(section for section in optional if section.parts),
        run_sections.settings_section(facts),
        run_sections.machines_section(facts),
        run_sections.reproduction_section(facts),
    ]


def _evolution_parts(runs: list[RunCurves]) -> list[SectionPart]:
    """Return section parts with the charts of each evolving run."""
    evolving = [(run, charts) for run in runs if (charts := archive_charts.evolution_charts(run))]
    if not evolving:
        return []
    description = f"{CHART_DESCRIPTION[0].upper()}{CHART_DESCRIPTION[1:]}."
    parts: list[SectionPart] = [paragraph_html(description)]
    for run, charts in evolving:
        parts += [heading_html(run.folder.resolve().name)] if len(evolving) > 1 else []
        parts.append(charts)
    return parts


def _archive_parts(facts: list[RunFacts], notify_fn: Callable[[str], object]) -> list[SectionPart]:
    """Return section parts with charts of each archive, and for two runs with a comparison."""
    parts, policies = list[SectionPart](), list[tuple[str, Policy]]()
    for run in facts:
        archive = archive_charts.make_archive_charts(run.folder, notify_fn)
        if archive.policy is None:
            continue
        policies.append((run.name, archive.policy))
        parts += [heading_html(run.name)] if len(facts) > 1 else []
        parts.append(archive.charts)
    if len(policies) == len(facts) == 2:
        (name_a, policy_a), (name_b, policy_b) = policies
        charts = archive_charts.comparison_charts(policy_a, policy_b, (name_a, name_b), notify_fn)
        parts += [heading_html("Comparison"), charts] if charts else []
    return parts


def _opponent_parts(facts: list[RunFacts], notify_fn: Callable[[str], object]) -> list[SectionPart]:
    """Return section parts with cross-play of the versions of each run with a pool of opponents."""
    parts = list[SectionPart]()
    for run in facts:
        if not run.spec.options.opponent_pool or run.newest is None:
            continue
        try:
            result = cross_play(run.folder, checkpoints=True)
        except UsageError as error:
            notify_fn(f"{run.name}: no cross-play: {error}")
            continue
        parts += [heading_html(run.name)] if len(facts) > 1 else []
        for table in (make_elo_table(result), make_win_rate_table(result)):
            head = [column.title for column in table.columns]
            rows = [[format_cell(cell) for cell in row] for row in table.rows]
            parts += [table_html(head, rows), *map(paragraph_html, table.notes)]
    return parts


def _render_episode(run: RunFacts, notify_fn: Callable[[str], object]) -> None:
    """Render an episode with the best checkpoint, or the newest if no checkpoint is ranked."""
    from rollax.visualization.render.render import render

    if run.spec.own_environment or run.spec.network == CUSTOM:
        notify_fn(
            f"{run.name}: no episode was rendered, because the run needs the objects that were "
            "passed in Python. Pass them to rollax.render."
        )
        return
    step = run.newest if run.best is None else run.best[0]
    try:
        if step is None:
            raise UsageError("The run has no readable checkpoint.")
        render(
            run.folder,
            figures_folder(run.folder) / f"episode-checkpoint-{step}.gif",
            checkpoint=step,
            warn_fn=notify_fn,
        )
    except UsageError as error:
        notify_fn(f"{run.name}: no episode was rendered: {error}")


def _episode_parts(facts: list[RunFacts], notify_fn: Callable[[str], object]) -> list[SectionPart]:
    """Return HTML with the animations in `figures/` of the runs, at most `MAX_MEDIA_BYTES`."""
    figures, remaining_bytes = list[str](), MAX_MEDIA_BYTES
    for run in facts:
        for path in sorted((run.folder / FIGURES_FOLDER).glob("*")):
            media_type = MEDIA_TYPES.get(path.suffix.lower())
            if media_type is None or path.is_dir():
                continue
            try:
                size = path.lstat().st_size
                content = read_regular_file(path) if size <= remaining_bytes else b""
            except (OSError, UsageError) as error:
                notify_fn(f"{path} is left out of the page: {error}")
                continue
            if path.parent.is_symlink() and animation.FILE_MARKER not in content:
                # The page may be shared, so linked folders only contribute files made by rollax.
                continue
            if size > remaining_bytes:
                notify_fn(
                    f"{path} is left out of the page because of its size ({format_bytes(size)})"
                )
                continue
            remaining_bytes -= size
            title = f"{run.name}: {path.name}" if len(facts) > 1 else path.name
            encoded = base64.b64encode(content).decode()
            figures.append(media_html(encoded, media_type, title, _media_note(run, path)))
    return [f'<div class="media">{"".join(figures)}</div>'] if figures else []


def _media_note(run: RunFacts, path: Path) -> str:
    """Return a note with the date of an animation, and the checkpoint if the file name has it."""
    modified = datetime.datetime.fromtimestamp(path.stat().st_mtime).astimezone()
    date = modified.strftime("%Y-%m-%d %H:%M")
    match = EPISODE_FILE_PATTERN.fullmatch(path.name)
    if match is None:
        return f"made {date}"
    step = int(match[1])
    is_best = run.best is not None and run.best[0] == step
    checkpoint = "the best checkpoint, of step" if is_best else "the checkpoint of step"
    return f"{checkpoint} {step:,}, made {date}"
