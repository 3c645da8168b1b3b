"""Tests of figures of archives, comparisons of two archives, and tables of elites."""

import csv

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

import rollax
from rollax.archives.archive import Elites, ScoredSolutions
from rollax.errors import UsageError
from rollax.training.elites import selection
from rollax.training.elites.merging import Comparison
from rollax.training.run_folder.metric_sinks import read_metrics
from rollax.visualization.archives import archive_comparison, archive_figure, cell_charts

ARM = {"batch_size": 32, "num_iterations": 2, "grid": (6, 6)}
KINDS = {
    "grid": ("map_elites", {}),
    "voronoi": ("map_elites", {"cvt_cells": 40}),
    "dots": ("dns", {"population_size": 30}),
}


def trained(folder, kind="grid", seed=0, environment="task/arm", **more):
    algorithm, config = KINDS[kind]
    chosen = {
        name: value for name, value in ARM.items() if name != "grid" or "cvt_cells" not in config
    }
    options = {"eval_episodes": 4, "eval_count": 1, "tensorboard": False, "run_dir": folder}
    result = rollax.train(
        algorithm,
        environment,
        config=chosen | config,
        total_steps=320,
        seed=seed,
        options=options,
        quiet=True,
        **more,
    )
    return result.folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("archives")
    return {kind: trained(base / kind, kind, seed) for seed, kind in enumerate(KINDS)}


def elites_of(number, dimensions, is_grid, seed=0):
    numbers = np.random.default_rng(seed)
    descriptor, center = (numbers.random((number, dimensions)).astype(np.float32) for _ in range(2))
    scored = ScoredSolutions((), numbers.normal(size=number).astype(np.float32), descriptor)
    return Elites(scored, numbers.random(number) < 0.7, center, np.bool_(is_grid))


@pytest.mark.parametrize("dimensions", [1, 2])
def test_every_pixel_shows_the_nearest_center(dimensions, monkeypatch):
    monkeypatch.setattr(cell_charts, "RASTER_SIZE", 24)
    low, high = np.array([-3.0, 10.0])[:dimensions], np.array([1.0, 11.0])[:dimensions]
    center = low + np.random.default_rng(0).random((17, dimensions)) * (high - low)
    found = cell_charts.rasterize_cells(cell_charts.CellLayout(low, high, None, center))
    assert found.shape == (24 if dimensions == 2 else 1, 24)
    for row in range(found.shape[0]):
        for column in range(24):
            share = (np.array([column, row])[:dimensions] + 0.5) / 24
            away = np.sum(((center - low) / (high - low) - share) ** 2, axis=1)
            assert away[found[row, column]] == pytest.approx(away.min(), abs=1e-5)


@pytest.mark.parametrize("shape", [(6, 6), None])
def test_cells_show_their_values(shape, monkeypatch):
    """Empty cells have no value."""
    monkeypatch.setattr(cell_charts, "RASTER_SIZE", 30)
    found = elites_of(36, 2, shape is not None)
    layout = cell_charts.make_layout(found, shape, ((0.0, 0.0), (1.0, 1.0)))
    values = np.where(found.mask, found.solutions.fitness, np.nan)
    axis = Figure().subplots()
    shown = cell_charts.draw_cells(axis, layout, values).get_array()
    if shape is None:
        expected = values[cell_charts.rasterize_cells(layout)]
    else:
        expected = values.reshape(shape).T  # the first dimension points right, the second upwards
    np.testing.assert_array_equal(np.ma.filled(shown, np.nan), expected)
    assert axis.get_xlim() == (0, 1) and axis.get_ylim() == (0, 1)


@pytest.mark.quick
def test_elites_in_many_dimensions_are_lines(monkeypatch):
    """Lines are in units of the bounds, with the best on top.

    If there are too many, a subset includes the worst and the best.
    """
    found = elites_of(50, 4, False)
    layout = cell_charts.make_layout(found, None, ((-1.0,) * 4, (1.0,) * 4))
    for most in (1000, 10):
        monkeypatch.setattr(cell_charts, "MAX_LINES", most)
        axis = Figure().subplots()
        archive_figure.draw_elites(axis, found, layout)
        (drawn,) = axis.collections
        fitness = np.sort(found.solutions.fitness[found.mask])
        values = drawn.get_array()
        assert len(values) == min(most, len(fitness)) and (values[0], values[-1]) == (
            fitness[0],
            fitness[-1],
        )
        assert np.all(np.diff(values) >= 0)
        best = found.solutions.descriptor[
            np.argmax(np.where(found.mask, found.solutions.fitness, -np.inf))
        ]
        np.testing.assert_allclose(drawn.get_segments()[-1][:, 1], (best + 1) / 2, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_writes_a_figure_and_a_table(folders, kind):
    png, table = archive_figure.write_archive_files(folders[kind])
    assert (png.name, table.name) == ("archive.png", "archive.csv")
    with Image.open(png) as image:
        assert len(np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)) > 20
    expected = rollax.load(folders[kind]).elites()
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(expected)
    for name, column in expected.items():
        np.testing.assert_array_equal(np.array([row[name] for row in rows], column.dtype), column)


@pytest.mark.parametrize("kind", KINDS)
def test_the_title_has_the_logged_coverage(folders, kind):
    """It is the coverage of cells. Populations also have the number of elites."""
    policy = rollax.load(folders[kind])
    words = archive_figure.describe_coverage(
        policy, selection.best_per_cell(selection.get_elites(policy))
    )
    coverage = read_metrics(folders[kind] / "metrics.jsonl")[-1]["coverage"]
    size = {"grid": "36", "voronoi": "40", "dots": "6 x 6"}[kind]
    number = f"{len(policy.elites()['place'])} " * (kind == "dots")
    assert words == f"{number}elites in {coverage:.1%} of {size} cells"


def test_the_title_names_the_member(tmp_path):
    folder = trained(tmp_path / "run", sweep={"iso_sigma": [0.01, 0.1]}, seed=3)
    assert archive_figure.archive_title(rollax.load(folder, member=1)).endswith(
        "evaluations\nmember 1 (iso_sigma 0.1, seed 3)"
    )


def test_a_run_without_an_archive_writes_nothing(run):
    assert archive_figure.write_archive_files(run) == []


@pytest.mark.parametrize(
    ("a", "b"), [("grid", "voronoi"), ("voronoi", "dots"), ("dots", "grid"), ("grid", "grid")]
)
def test_two_archives_are_drawn(folders, tmp_path, a, b):
    (path,) = archive_comparison.write_archive_comparison(
        folders[a], folders[b], tmp_path / "both.png"
    )
    with Image.open(path) as image:
        assert image.width > 2 * image.height


def test_archives_that_cannot_be_compared_are_skipped(folders, run, tmp_path):
    """They have another algorithm, or another environment, which is reported."""
    other, told = (
        trained(tmp_path / "sphere", environment="task/sphere", arguments={"dimensions": 8}),
        list[str](),
    )
    for pair in ((folders["grid"], run), (run, folders["grid"]), (folders["grid"], other)):
        assert (
            archive_comparison.write_archive_comparison(*pair, tmp_path / "both.png", told.append)
            == []
        )
    (why,) = told
    assert why.startswith(
        "The archives are not drawn side by side: Archives must be of the same environment, "
        "got task/arm and task/sphere"
    )
    assert not (tmp_path / "both.png").exists()


def test_the_difference_is_over_common_cells():
    """It is the second minus the first. Cells of only one archive have a separate color."""
    nan = np.nan
    found = Comparison(
        np.array([0, 1, 3]),
        np.array([1.0, 2.0, nan]),
        np.array([4.0, nan, 5.0]),
        _METRICS,
        _METRICS,
    )
    figure = Figure()
    axis = figure.subplots()
    archive_comparison._draw_difference(
        figure, axis, found, cell_charts.CellLayout(np.zeros(2), np.ones(2), (2, 2))
    )
    difference, only = (np.ma.filled(image.get_array(), nan) for image in axis.images)
    np.testing.assert_array_equal(difference, [[3.0, nan], [nan, nan]])
    np.testing.assert_array_equal(only, [[nan, nan], [0.0, 1.0]])
    words = [text.get_text() for text in axis.get_legend().get_texts()]
    assert words == ["only in the first: 1", "only in the second: 1"]


_METRICS = {"qd_score": 1.0, "coverage": 0.5, "fitness_best": 1.0, "fitness_mean": 1.0}


def test_a_figure_that_cannot_be_written_raises_usage_error(folders, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        archive_figure.write_archive_png(
            rollax.load(folders["grid"]), tmp_path / "file" / "archive.png"
        )


def test_curves_of_a_closed_form_do_not_mention_episodes(folders, tmp_path):
    from rollax.visualization.plots import curve_estimates
    from rollax.visualization.plots.learning_curves import make_curves, read_run

    maze = trained(
        tmp_path / "maze",
        environment="control/point-maze",
        arguments={"time_limit": 5},
        network={"hidden": (4,)},
    )
    words = [
        curve_estimates.describe_lines(make_curves(read_run(each)))
        for each in (folders["grid"], maze)
    ]
    assert words[0] == "best elite, scored in closed form without episodes"
    assert words[1].startswith("mean of 4 episodes, with its")


def test_curves_of_members_have_intervals(tmp_path):
    """The QD score is below the return, and panels have coverage and best fitness."""
    from rollax.visualization.plots import curve_estimates, intervals, overview
    from rollax.visualization.plots.learning_curves import make_curves, read_run
    from support.figures import plot

    folder = trained(tmp_path / "seeds", network={}, seeds=3)
    curves = make_curves(read_run(folder))
    assert curve_estimates.secondary_metric(curves) == "qd_score"
    assert (
        "interquartile mean of 3 seeds, with its 95 % bootstrap interval"
        in curve_estimates.describe_lines(curves)
    )
    figure = Figure()
    overview._draw_returns(figure, curves, True)
    (line,), (band,) = figure.axes[1].lines, figure.axes[1].collections
    scores = curves[0].run.metrics["qd_score"]
    assert scores.shape[1] == 3
    np.testing.assert_allclose(
        line.get_ydata(), [intervals.estimate_with_interval(row[:, None])[0] for row in scores]
    )
    heights = band.get_paths()[0].vertices[:, 1]
    assert heights.min() < heights.max() <= scores.max() + 1e-3
    assert {"coverage", "fitness_best"} <= set(curves[0].run.metrics)
    assert plot([folder]).exists()


@pytest.mark.parametrize(
    ("dimensions", "shape"), [(4, None), (4, (2, 3, 3, 2)), (1, (36,)), (1, None)]
)
@pytest.mark.parametrize("is_alike", [False, True])
def test_archives_with_any_number_of_dimensions_are_compared(dimensions, shape, is_alike):
    """This includes archives with the same cells."""
    first, second = (
        elites_of(36, dimensions, shape is not None, seed) for seed in (0, 0 if is_alike else 1)
    )
    layout = cell_charts.make_layout(first, shape, ((0.0,) * dimensions, (1.0,) * dimensions))
    at = np.flatnonzero(first.mask | second.mask)
    fitness = [np.where(each.mask, each.solutions.fitness, np.nan)[at] for each in (first, second)]
    shown = [
        archive_comparison.ArchivePanel(name, each, layout)
        for name, each in (("first", first), ("second", second))
    ]
    figure = archive_comparison.draw_comparison_panels(
        shown[0], shown[1], Comparison(at, fitness[0], fitness[1], _METRICS, _METRICS), layout
    )
    assert archive_figure.encode_figure(figure, "png").startswith(b"\x89PNG")
