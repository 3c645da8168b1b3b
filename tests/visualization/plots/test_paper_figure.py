"""Tests of figures for papers: lines, seeds, sizes, and notes."""

import csv
import shutil

import matplotlib
import numpy as np
import pytest
import yaml
from matplotlib.figure import Figure as Canvas
from PIL import Image

from rollax.errors import UnknownNameError, UsageError
from rollax.training.evaluation import aggregates
from rollax.training.evaluation.statistics import bootstrap_interval, interquartile_mean
from rollax.visualization.plots import (
    algorithm_comparison,
    curve_estimates,
    intervals,
    learning_curves,
    resampling,
    run_merging,
)
from rollax.visualization.plots.figure import write_figure
from rollax.visualization.plots.figure_options import FigureOptions
from support.figures import plot


def read(*folders):
    return [part for folder in folders for part in learning_curves.read_run(folder)]


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_runs_with_different_seeds_are_one_line(variant, tmp_path):
    folders = [variant(f"seed-{seed}", seed, shift=10.0 * seed) for seed in range(4)]
    (joined,) = run_merging.merge_runs(read(*folders))
    separate = np.stack([part.returns[:, 0].mean(axis=1) for part in read(*folders)], axis=1)
    (curve,) = learning_curves.make_curves([joined])
    (line,) = curve_estimates.estimate_lines([curve], ())
    np.testing.assert_allclose(line.values, separate)
    np.testing.assert_allclose(line.middle, interquartile_mean(separate))
    ends = [bootstrap_interval(row) for row in separate]
    np.testing.assert_allclose(np.stack([line.low, line.high], axis=1), ends)
    notes = []
    table = write_figure(
        folders, tmp_path / "a.svg", FigureOptions(only=("return",), csv=True), notes.append
    )[1]
    assert notes == [
        "lines: interquartile mean over 4 seeds; bands: its 95 % bootstrap interval over seeds"
    ]
    found = rows(table)
    assert [float(row["iqm"]) for row in found] == pytest.approx(line.middle.tolist())
    assert [float(row["x"]) for row in found] == line.x.tolist() and {
        row["seeds"] for row in found
    } == {"4"}


def test_runs_with_a_common_seed_are_separate_lines(variant):
    """They may be from before and after a change, which only the folder shows."""
    folders = [variant("before-0", 0), variant("before-1", 1), variant("after-0", 0)]
    found = learning_curves.make_curves(run_merging.merge_runs(read(*folders)))
    assert [curve.label for curve in found] == ["before-0", "before-1", "after-0"]
    other = run_merging.merge_runs(
        read(
            variant("a", 0, gamma=0.9), variant("b", 1, gamma=0.9), variant("c", 0), variant("d", 1)
        )
    )
    assert [curve.label for curve in learning_curves.make_curves(other)] == [
        "gamma 0.9",
        "gamma 0.98",
    ]


def test_members_of_populations_are_merged_by_swept_values(sweep, tmp_path):
    second = shutil.copytree(
        sweep, tmp_path / "second", ignore=shutil.ignore_patterns("checkpoints")
    )
    document = yaml.safe_load((second / "config.yaml").read_text())
    document["options"]["seed"] = 2
    (second / "config.yaml").write_text(yaml.safe_dump(document))
    with np.load(second / "evaluations.npz") as file:
        np.savez(second / "evaluations.npz", **dict(file) | {"returns": file["returns"] + 1000})
    low, high = learning_curves.make_curves(run_merging.merge_runs(read(sweep, second)))
    assert (low.label, high.label) == ("learning_rate 0.0001", "learning_rate 0.001")
    (one,) = learning_curves.read_run(sweep)
    for curve, members in ((low, [0, 1]), (high, [2, 3])):
        _, values = learning_curves.metric_series(curve, "return")
        own = one.returns[:, members].mean(axis=2)
        np.testing.assert_allclose(values, np.concatenate([own, own + 1000], axis=1))
        _, entropy = learning_curves.metric_series(curve, "entropy")
        np.testing.assert_allclose(entropy, np.tile(one.metrics["entropy"][:, members], (1, 2)))


def test_a_shorter_run_ends_the_merged_line_and_is_reported(variant):
    whole, cut = variant("whole", 0), variant("cut", 1)
    with np.load(cut / "evaluations.npz") as file:
        np.savez(cut / "evaluations.npz", **{name: x[:2] for name, x in file.items()})
    notes = []
    (joined,) = run_merging.merge_runs(read(whole, cut), notes.append)
    np.testing.assert_array_equal(joined.eval_step, learning_curves.read_run(cut)[0].eval_step)
    assert joined.returns.shape[:2] == (2, 2)
    assert len(notes) == 1 and "whole: 2 of its 3 evaluations are used" in notes[0]


@pytest.mark.quick
def test_one_seed_has_no_interval_which_is_reported(variant, tmp_path):
    notes, folders = [], [variant("alone", 0, gamma=0.9), variant("a", 0), variant("b", 1)]
    table = write_figure(
        folders, tmp_path / "a.png", FigureOptions(only=("return",), csv=True), notes.append
    )[1]
    assert "no interval for a single seed: gamma 0.9 on gymnax/CartPole-v1" in notes
    assert {bool(row["low"]) for row in rows(table) if row["label"] == "gamma 0.9"} == {False}
    assert all(row["low"] and row["high"] for row in rows(table) if row["label"] == "gamma 0.99")
    notes = []
    plot([folders[0]], tmp_path / "b.png", FigureOptions(columns=1), notes.append)
    assert notes == ["lines: one seed, without an interval"]


@pytest.mark.parametrize(("columns", "inches"), [(1, 3.3), (2, 6.9)])
@pytest.mark.parametrize("only", [("return",), ("return", "entropy", "length")])
def test_the_width_is_that_of_one_or_two_columns(variant, tmp_path, columns, inches, only):
    folders = [
        variant("a"),
        variant("b", environment="mine/Other"),
        variant("c", environment="mine/Third"),
    ]
    path = plot(folders, tmp_path / "a.png", FigureOptions(only=only, columns=columns))
    with Image.open(path) as image:
        assert image.width == pytest.approx(inches * 300, abs=1)
    content = plot(
        folders, tmp_path / "a.svg", FigureOptions(only=only, columns=columns)
    ).read_text()
    assert all(
        name in content
        for name in ("CartPole-v1", "Other", "Third", "evaluation return", "environment steps")
    )
    assert ("entropy" in content) == (len(only) > 1)


def test_metrics_have_their_logged_names(run):
    found = learning_curves.read_run(run)
    names = learning_curves.metric_names(found)
    assert {"return", "length", "episode_return", "entropy", "steps_per_second"} <= set(names)
    (curve,) = learning_curves.make_curves(found)
    for name in names:
        steps, values = learning_curves.metric_series(curve, name)
        assert values.shape == (steps.size, 1), name
    with pytest.raises(
        UsageError,
        match="unknown metric 'entropi': did you mean entropy.*Known are: return, length",
    ):
        plot([run], figure=FigureOptions(only=("entropi",)))


def test_a_run_without_evaluations(variant, tmp_path):
    folder = variant("a")
    (folder / "evaluations.npz").unlink()
    with pytest.raises(
        UsageError, match="The runs have no evaluations yet. Choose a training metric: .*entropy"
    ):
        plot([folder], figure=FigureOptions(only=("return",)))
    assert plot([folder], tmp_path / "a.png", FigureOptions(only=("entropy",))).exists()
    # There is no empty panel either.
    assert "nothing to draw" not in plot([folder], tmp_path / "a.svg").read_text()


def test_labels_are_given_in_the_order_of_the_legend(variant, tmp_path):
    folders = [
        variant("a", gamma=0.9),
        variant("b", gamma=0.95),
        variant("c", gamma=0.9, environment="mine/Other"),
    ]
    content = plot(
        folders, tmp_path / "a.svg", FigureOptions(only=("return",), label=("ours", "theirs, old"))
    ).read_text()
    assert "ours" in content and "theirs, old" in content and "gamma" not in content
    with pytest.raises(
        UsageError,
        match="--label must have 2 names in the order: gamma 0.9; gamma 0.95. Got 3.",
    ):
        plot(folders, tmp_path / "b.svg", FigureOptions(label=("a", "b", "c")))


def test_the_time_axis_is_the_logged_time(run):
    (read_as_steps,) = learning_curves.read_run(run)
    (over_time,) = resampling.use_wall_time([read_as_steps])
    assert over_time.axis == "wall time (seconds)"
    np.testing.assert_allclose(over_time.step, read_as_steps.time)
    np.testing.assert_allclose(over_time.eval_step, read_as_steps.eval_time)
    assert np.all(np.diff(over_time.eval_step) > 0)
    long = read_as_steps._replace(time=read_as_steps.time + 4 * 3600)
    (hours,) = resampling.use_wall_time([long])
    assert hours.axis == "wall time (hours)" and hours.step[0] == pytest.approx(long.time[0] / 3600)


def test_smoothing_is_the_mean_of_neighbors():
    values = np.array([[0.0], [3.0], [6.0], [np.nan], [9.0]])
    np.testing.assert_allclose(
        intervals.moving_average(values, 3), [[1.5], [3.0], [4.5], [np.nan], [9.0]]
    )
    np.testing.assert_array_equal(intervals.moving_average(values, 1), values)
    whole = np.random.default_rng(0).normal(size=(20, 2, 3))
    expected = [whole[max(0, k - 2) : k + 3].mean(axis=0) for k in range(20)]
    np.testing.assert_allclose(intervals.moving_average(whole, 5), expected)
    with pytest.raises(UsageError, match="smooth must be between 1 and 1000000, got 0."):
        plot(["nowhere"], figure=FigureOptions(smooth=0))


def test_training_returns_are_constant_until_the_next_episode_ends(run):
    (read_run,) = learning_curves.read_run(run)
    nan = np.nan
    values = np.array([[nan, 1.0], [2.0, nan], [nan, nan], [5.0, 6.0]])
    changed = read_run._replace(
        step=np.arange(4), metrics={"episode_return": values, "entropy": values}
    )
    curve = learning_curves.Curve(
        changed._replace(returns=np.zeros((0, 2, 1))), np.arange(2), "", "black", "-"
    )
    np.testing.assert_array_equal(
        learning_curves.metric_series(curve, "episode_return")[1],
        [[nan, 1], [2, 1], [2, 1], [5, 6]],
    )
    np.testing.assert_array_equal(learning_curves.metric_series(curve, "entropy")[1], values)


def test_early_training_returns_are_left_out(variant):
    """If success ends episodes early, first returns would be too high.

    They are left out until an episode of the longest length could have ended.
    """
    folder = variant("a")
    (before,) = learning_curves.read_run(folder)
    assert before.step[0] == 128  # 4 environments with 32 steps each
    with np.load(folder / "evaluations.npz") as file:
        arrays = dict(file)
    arrays["length"][0, 0] = 65  # no environment has taken 65 steps before step 384
    np.savez(folder / "evaluations.npz", **arrays)
    (after,) = learning_curves.read_run(folder)
    assert np.isnan(after.metrics["episode_return"][:2]).all()
    np.testing.assert_array_equal(
        after.metrics["episode_return"][2:], before.metrics["episode_return"][2:]
    )
    np.testing.assert_array_equal(after.metrics["entropy"], before.metrics["entropy"])
    arrays["length"][0, 0] = 10_000
    np.savez(folder / "evaluations.npz", **arrays)
    # All are plotted if the run is too short.
    assert np.isfinite(learning_curves.read_run(folder)[0].metrics["episode_return"]).any()


def scored(variant, normalize=()):
    """Return runs, lines and scores of two settings in two environments with three seeds each."""
    folders = [
        variant(
            f"{gamma}-{name}-{seed}",
            seed,
            f"mine/{name}",
            shift=5.0 * seed + 100 * gamma,
            gamma=gamma,
        )
        for gamma in (0.9, 0.99)
        for name in ("One", "Two")
        for seed in range(3)
    ]
    lines = curve_estimates.estimate_lines(
        learning_curves.make_curves(run_merging.merge_runs(read(*folders))), ()
    )
    return folders, lines, algorithm_comparison.normalize_scores(lines, normalize)


def test_scores_are_normalized_from_the_last_evaluation(variant):
    _, lines, found = scored(variant)
    assert found.environments == ["mine/One", "mine/Two"] and list(found.scores) == [
        "gamma 0.9",
        "gamma 0.99",
    ]
    reached = np.concatenate(
        [line.values.ravel() for line in lines if line.environment == "mine/Two"]
    )
    for line in lines:
        own = found.scores[line.curve.label][found.environments.index(line.environment)]
        np.testing.assert_allclose(own, (line.values[-1] - reached.min()) / np.ptp(reached))
    assert any("lowest and highest value reached" in note for note in found.notes)
    given = algorithm_comparison.normalize_scores(lines, ("One=-10,90", "mine/Two=0,200"))
    last = {(line.curve.label, line.environment): line.values[-1] for line in lines}
    np.testing.assert_allclose(
        given.scores["gamma 0.9"][0], (last["gamma 0.9", "mine/One"] + 10) / 100
    )
    np.testing.assert_allclose(given.scores["gamma 0.99"][1], last["gamma 0.99", "mine/Two"] / 200)
    assert not any("reached" in note for note in given.notes)


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("only", [(), ("return",)])
def test_aggregates_are_plotted_and_written(variant, tmp_path, columns, only):
    folders, _, found = scored(variant)
    notes = []
    figure = FigureOptions(only=only, columns=columns, aggregate=True, csv=True)
    image, table, aggregate = write_figure(folders, tmp_path / "a.svg", figure, notes.append)
    words = [
        "interquartile mean of scores",
        "share of runs above",
        "gamma 0.99 &gt; gamma 0.9",
        "probability of improvement",
    ]
    assert all(word in image.read_text() for word in words)
    assert ("evaluation return" in image.read_text()) == bool(only)
    assert table.name == "a.csv" and aggregate.name == "a-aggregate.csv"
    expected = aggregates.estimate_interquartile_mean(found.scores["gamma 0.9"])
    row = next(row for row in rows(aggregate) if row["label"] == "gamma 0.9")
    assert [float(row[name]) for name in ("value", "low", "high")] == pytest.approx(
        [float(x) for x in expected]
    )
    assert any(note.startswith("P(gamma 0.99 > gamma 0.9) = ") for note in notes)


def test_environments_that_are_not_common_are_left_out(variant, tmp_path):
    folders, lines, _ = scored(variant)
    more = variant("more", 0, "mine/Three", gamma=0.9)
    notes = []
    plot([*folders, more], tmp_path / "a.png", FigureOptions(aggregate=True), notes.append)
    assert any("mine/Three" in note and "left out" in note for note in notes)
    apart = [
        line
        for line in lines
        if (line.curve.label == "gamma 0.9") == (line.environment == "mine/One")
    ]
    with pytest.raises(UsageError, match="requires an environment that .* share"):
        algorithm_comparison.normalize_scores(apart, ())


@pytest.mark.parametrize(
    "text",
    ["mine/One", "mine/One=3", "mine/One=a,b", "mine/One=1,2,3", "mine/One=2,2", "mine/One=0,inf"],
)
def test_invalid_normalizations_raise_usage_error(variant, text):
    folders, lines, _ = scored(variant)
    with pytest.raises(UsageError):
        algorithm_comparison.normalize_scores(lines, (text,))
    with pytest.raises(UnknownNameError, match="unknown environment of --normalize 'Pong'"):
        algorithm_comparison.normalize_scores(lines, ("Pong=0,1",))
    with pytest.raises(UsageError, match="normalize requires aggregate"):
        plot(folders, figure=FigureOptions(normalize=("One=0,1",)))


def test_one_seed_has_aggregates_without_intervals(variant, tmp_path):
    notes = []
    plot(
        [variant("a"), variant("b", gamma=0.9)],
        tmp_path / "a.png",
        FigureOptions(aggregate=True),
        notes.append,
    )
    assert any("have no intervals" in note for note in notes)
    told = [note for note in notes if note.startswith(("gamma", "P("))]
    assert len(told) == 3 and "[" not in "".join(told)


def test_every_metric_that_changes_has_a_panel(run):
    from rollax.visualization.plots import curve_estimates, overview

    canvas = Canvas()
    curve = learning_curves.make_curves(learning_curves.read_run(run))[0]
    overview.draw_overview(canvas, [curve])
    shown = {
        axis.get_title(loc="left")
        for axis in canvas.findobj(matplotlib.axes.Axes)
        if axis.get_visible()
    }
    assert {
        "entropy",
        "value loss",
        "gradient norm",
        "steps per second",
        "training episode length",
    } <= shown
    assert all(axis.lines for axis in canvas.findobj(matplotlib.axes.Axes) if axis.get_visible())
    constant = {**curve.run.metrics, "entropy": np.ones_like(curve.run.metrics["entropy"])}
    assert "entropy" not in curve_estimates.select_panel_metrics(
        [curve._replace(run=curve.run._replace(metrics=constant))], []
    )


def test_unreadable_runs_in_a_folder_are_skipped(variant, tmp_path):
    _, bad = variant("runs/good"), variant("runs/bad", 1)
    (bad / "metrics.jsonl").unlink()
    (bad / "evaluations.npz").unlink()
    notes = []
    assert plot(
        [tmp_path / "runs"], tmp_path / "a.png", FigureOptions(columns=1), notes.append
    ).exists()
    assert any(
        note.startswith("Skipped: ") and "bad has recorded nothing" in note for note in notes
    )
    with pytest.raises(UsageError, match="bad has recorded nothing yet"):
        plot([bad])


def test_existing_files_are_not_overwritten(variant, tmp_path, monkeypatch):
    folders = [variant("runs/a", gamma=0.9), variant("runs/b")]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "paper.csv").write_text("mine")
    figure = FigureOptions(only=("return",), csv=True)
    assert [path.name for path in write_figure(folders, figure=figure)] == [
        "paper-2.png",
        "paper-2.csv",
    ]
    assert [path.name for path in write_figure(folders, figure=figure)] == [
        "paper-3.png",
        "paper-3.csv",
    ]
    assert (tmp_path / "paper.csv").read_text() == "mine"
    # In the figures of the run.
    assert [path.name for path in write_figure(folders[:1], figure=figure)] == [
        "paper.png",
        "paper.csv",
    ]
