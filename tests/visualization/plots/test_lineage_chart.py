"""Tests of the chart of an evolving population."""

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import rollax
from rollax.populations.evolution import Range
from rollax.training.run_folder.lineage import read_lineage
from rollax.visualization.plots import lineage_chart
from support.figures import plot

RANGES = {"learning_rate": Range(1e-4, 1e-2, "log")}
# Four members and three generations: member 3 becomes a copy of 0, then 1 of 3, then 0 of 1.
LINES = [
    {
        "step": 0,
        "generation": 0,
        "fitness": None,
        "parent": None,
        "settings": {"learning_rate": [1e-4, 1e-3, 2e-3, 1e-2]},
    },
    {
        "step": 10,
        "fitness": [4.0, None, 1.0, 0.0],
        "parent": [0, 1, 2, 0],
        "settings": {"learning_rate": [1e-4, 1e-3, 2e-3, 2e-4]},
    },
    {
        "step": 20,
        "fitness": [4.0, 0.0, 1.0, 6.0],
        "parent": [0, 3, 2, 3],
        "settings": {"learning_rate": [1e-4, 3e-4, 2e-3, 2e-4]},
    },
    {
        "step": 30,
        "fitness": [0.0, 7.0, 1.0, 6.0],
        "parent": [1, 1, 2, 3],
        "settings": {"learning_rate": [4e-4, 3e-4, 2e-3, 2e-4]},
    },
]


def told() -> lineage_chart.LineageHistory:
    found = lineage_chart.parse_history(LINES, RANGES)
    assert found is not None
    return found


def test_trace_ancestors() -> None:
    """For every final member, the member that had its state after each generation."""
    assert lineage_chart.trace_ancestors(told().parent).tolist() == [
        [0, 0, 2, 0],
        [3, 3, 2, 3],
        [1, 1, 2, 3],
        [0, 1, 2, 3],
    ]


def test_the_best_member() -> None:
    """The best member in the last evaluation, or by fitness without evaluations."""
    assert lineage_chart.best_member(told(), np.array([0.0, np.nan, 3.0, 1.0])) == 2
    assert lineage_chart.best_member(told(), np.zeros(0)) == 1
    assert (
        lineage_chart.best_member(told()._replace(fitness=np.full((4, 4), np.nan)), np.zeros(0))
        == 0
    )


def test_members_and_copies_have_lines() -> None:
    figure = Figure()
    lineage_chart.draw_lineage(figure, told(), RANGES, 40, 1, lambda axis: None)
    settings, fitness = figure.axes
    assert settings.get_yscale() == "log"
    segments = {tuple(zip(*line.get_data(), strict=True)) for line in settings.lines}
    for number, line in enumerate(LINES):
        end = LINES[number + 1]["step"] if number < 3 else 40
        for value in line["settings"]["learning_rate"]:
            assert ((line["step"], value), (end, value)) in segments
    for step, parents, child in ((10, 1e-4, 2e-4), (20, 2e-4, 3e-4), (30, 3e-4, 4e-4)):
        assert ((step, parents), (step, child)) in segments
    black = [line for line in settings.lines if line.get_color() == lineage_chart.BEST_COLOR]
    assert sorted({float(y) for line in black for y in line.get_ydata()}) == [1e-4, 2e-4, 3e-4]
    assert [line.get_ydata().tolist() for line in fitness.lines if len(line.get_xdata()) == 3] == [
        [4.0, 6.0, 7.0]
    ]


def test_incomplete_histories_are_none() -> None:
    assert lineage_chart.parse_history([], RANGES) is None
    assert lineage_chart.parse_history(LINES[1:], RANGES) is None


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of eight updates with two evolving settings."""
    options = rollax.RunOptions(
        total_steps=128,
        seeds=4,
        evolve_every=32,
        eval_episodes=4,
        eval_count=2,
        tensorboard=False,
        run_dir=tmp_path_factory.mktemp("evolving") / "run",
    )
    config = rollax.PPOConfig(num_envs=4, num_steps=4, num_minibatches=2, num_epochs=1)
    network = rollax.NetworkConfig(hidden=(4,))
    evolve = {"learning_rate": (1e-4, 1e-1), "gamma": (0.0, 0.9)}
    given = {"config": config, "network": network, "evolve": evolve, "options": options}
    return rollax.train("ppo", "probe/action-reward", **given, quiet=True).folder


def test_a_run_that_evolves_is_plotted(run: Path, tmp_path: Path) -> None:
    """The figure has the names of settings, and may have an incomplete lineage or none."""
    content = plot([run], tmp_path / "one.svg").read_text()
    assert "learning rate" in content and "evolved settings" in content
    assert len(read_lineage(run)) == 4
    lines = (run / "lineage.jsonl").read_text().splitlines()
    (run / "lineage.jsonl").write_text("\n".join(lines[:2]) + "\n" + lines[2][:20])
    assert "evolved settings" in plot([run], tmp_path / "short.svg").read_text()
    assert [json.loads(line)["generation"] for line in lines] == [0, 1, 2, 3]
    (run / "lineage.jsonl").unlink()
    assert "evolved settings" not in plot([run], tmp_path / "none.svg").read_text()
