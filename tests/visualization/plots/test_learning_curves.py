"""Curves of runs, and the steps at which a resume changed settings."""

import dataclasses
import shutil
from pathlib import Path

from rollax.training.run_folder import layout
from rollax.training.run_folder.phases import Phase
from rollax.visualization.plots.figure import draw_figure
from rollax.visualization.plots.learning_curves import make_curves, phase_steps, read_run
from rollax.visualization.plots.resampling import use_wall_time
from rollax.visualization.plots.run_merging import experiment_settings
from rollax.visualization.report.run_facts import read_run_facts, runs_section
from support.runs import FRAMES

PHASE = Phase(2 * FRAMES, {"config.gamma": (0.99, 0.5)})


def test_phases_are_marked(finished: Path, tmp_path: Path) -> None:
    """At their steps, but not over wall time, and in the description of a report."""
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    layout.write_spec(folder, dataclasses.replace(layout.read_spec(folder), phases=(PHASE,)))
    runs = read_run(folder)
    assert phase_steps(make_curves(runs)) == [2 * FRAMES]
    assert phase_steps(make_curves(use_wall_time(runs))) == []
    assert experiment_settings(runs[0])["phases"] == [(2 * FRAMES, PHASE.changes)]
    top = draw_figure([folder]).figure.axes[0]
    assert any(set(line.get_xdata()) == {2 * FRAMES} for line in top.lines)
    assert "step 64: gamma 0.99 -&gt; 0.5" in str(runs_section([read_run_facts(folder, "run")], {}))
