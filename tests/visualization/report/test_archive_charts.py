"""Tests of archives, fronts and evolving populations in reports, and of charts in a browser."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import rollax
from rollax.archives.archive import Elites, ScoredSolutions
from rollax.errors import UsageError
from rollax.training.elites import selection
from rollax.training.elites.merging import compare_archives
from rollax.training.run_folder.lineage import read_lineage
from rollax.visualization.archives import cell_charts
from rollax.visualization.report import archive_charts
from rollax.visualization.report.report import report
from support.browser import needs_browser, opened
from visualization.report.test_report import Page

ARM = {"batch_size": 32, "num_iterations": 2, "grid": (6, 5)}


def trained(folder, algorithm="map_elites", environment="task/arm", **config):
    options = {"eval_episodes": 4, "eval_count": 1, "tensorboard": False, "run_dir": folder}
    chosen = {
        name: value for name, value in ARM.items() if name != "grid" or "cvt_cells" not in config
    }
    more = {"config": chosen | config, "options": options, "total_steps": 320}
    return rollax.train(algorithm, environment, **more, quiet=True).folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("archives")
    return {
        "grid": trained(base / "grid"),
        "other": trained(base / "other", iso_sigma=0.3),
        "voronoi": trained(base / "voronoi", cvt_cells=40),
        "fronts": trained(base / "fronts", "mome", "task/rastrigin-multi"),
    }


@pytest.fixture(scope="module")
def evolving(tmp_path_factory):
    """Return the folder of a run of eight updates with two evolving settings."""
    options = {
        "total_steps": 128,
        "seeds": 4,
        "evolve_every": 32,
        "eval_episodes": 4,
        "eval_count": 2,
        "tensorboard": False,
    }
    given = {
        "config": {"num_envs": 4, "num_steps": 4, "num_minibatches": 2, "num_epochs": 1},
        "network": {"hidden": (4,)},
    }
    options["run_dir"] = tmp_path_factory.mktemp("evolving") / "run"
    evolve = {"learning_rate": (1e-4, 1e-1), "gamma": (0.0, 0.9)}
    return rollax.train(
        "ppo", "probe/action-reward", **given, evolve=evolve, options=options, quiet=True
    ).folder


def chart_with(page, words):
    (title,) = [title for title in page.charts if words in title]
    return page.charts[title]


def test_a_grid_is_a_heat_map(folders, tmp_path):
    """The first descriptor points right.

    The text of a cell describes its elite, and has its index.
    """
    page, policy = (
        Page(report([folders["grid"]], tmp_path / "page.html")),
        rollax.load(folders["grid"]),
    )
    (trace,) = chart_with(page, "elites in")["data"]
    z = np.array(trace["z"], float)  # [second, first]
    assert z.shape == (5, 6) and len(trace["x"]) == 6 and trace["x"][0] == pytest.approx(1 / 12)
    table = policy.elites()
    for place, fitness, first, second in zip(
        *(table[n] for n in ("place", "fitness", "descriptor_0", "descriptor_1")), strict=True
    ):
        column, row = np.unravel_index(place, (6, 5))
        assert z[row, column] == pytest.approx(fitness, rel=1e-6)
        assert f"descriptor {first:.4g}, {second:.4g}" in trace["text"][row][column]
        assert trace["text"][row][column].endswith(f"cell {column} {row}")
    assert np.isfinite(z).sum() == len(table["place"]) < z.size
    assert "Length" not in page.charts and "closed form" in page.words


def test_cells_without_a_grid_are_dots(folders, tmp_path):
    page, table = (
        Page(report([folders["voronoi"]], tmp_path / "page.html")),
        rollax.load(folders["voronoi"]).elites(),
    )
    (trace,) = chart_with(page, "elites in")["data"]
    order = np.argsort(table["fitness"], kind="stable")
    np.testing.assert_allclose(
        np.sort(trace["marker"]["color"]), table["fitness"][order], rtol=1e-6
    )
    drawn = sorted(zip(trace["x"], trace["y"], strict=True))
    np.testing.assert_allclose(
        drawn, sorted(zip(table["descriptor_0"], table["descriptor_1"], strict=True)), rtol=1e-5
    )


def test_charts_of_pareto_fronts(folders, tmp_path):
    page, table = (
        Page(report([folders["fronts"]], tmp_path / "page.html")),
        rollax.load(folders["fronts"]).elites(),
    )
    dots, front = page.charts["Objectives of all elites with their Pareto front"]["data"]
    names = rollax.load(folders["fronts"]).spec.config.objectives
    np.testing.assert_allclose(np.sort(dots["x"]), np.sort(table[names[0]]), rtol=1e-5)
    points = np.stack([table[name] for name in names], axis=1)
    for x, y in zip(front["x"], front["y"], strict=True):  # no elite is better in both objectives
        assert not np.any(np.all(points > np.array([x, y]) + 1e-4 * np.abs([x, y]), axis=1))
    assert chart_with(page, "Hypervolume of the front")["data"][0]["type"] == "heatmap"


def test_two_archives_are_compared(folders, tmp_path):
    both = [folders["grid"], folders["other"]]
    page, comparison = Page(report(both, tmp_path / "page.html")), compare_archives(*both)
    (trace,) = page.charts["other minus grid"]["data"]
    z, numbers = np.array(trace["z"], float), comparison.numbers()
    assert np.isfinite(z).sum() == numbers["both"] > 0 and np.sum(z > 0) == numbers["better_b"]
    assert (
        f"{numbers['both']:,} cells in both" in page.words
        and f"cells only in the first: {numbers['only_a']:,}" in page.words
    )
    mixed = Page(report([folders["voronoi"], folders["grid"]], tmp_path / "mixed.html"))
    assert mixed.charts["grid minus voronoi"]["data"][0]["type"] == "scatter"


def test_an_unreadable_archive_is_reported(folders, tmp_path):
    shutil.copytree(folders["grid"], tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    told = []
    page = Page(report([tmp_path / "run"], notify_fn=told.append))
    assert (
        len(told) == 1
        and told[0].startswith("The archive is not drawn: No checkpoint exists")
        and told[0] in page.words
    )
    assert page.lines("QD score")


def elites_of(number, dimensions, is_grid):
    numbers = np.random.default_rng(0)
    descriptor = numbers.random((number, dimensions)).astype(np.float32)
    scored = ScoredSolutions((), numbers.normal(size=number).astype(np.float32), descriptor)
    return Elites(scored, numbers.random(number) < 0.7, descriptor, np.bool_(is_grid))


@pytest.mark.parametrize(
    ("shape", "image"), [((12,), (1, 12)), ((3, 4, 2), (4, 6)), ((2, 2, 3, 2), (4, 6))]
)
def test_grids_with_other_dimensions(shape, image):
    found = elites_of(int(np.prod(shape)), len(shape), True)
    layout = cell_charts.make_layout(found, shape, (np.zeros(len(shape)), np.ones(len(shape))))
    values = np.where(found.mask, found.solutions.fitness, np.nan)
    (chart,) = archive_charts.descriptor_charts(
        "title", found, layout, archive_charts.CellValues("fitness", values)
    )
    z = np.array(chart.data[0]["z"], float)
    assert z.shape == image
    np.testing.assert_allclose(np.sort(z[np.isfinite(z)]), np.sort(values[found.mask]), rtol=1e-6)
    for value, words in zip(z.ravel(), np.ravel(chart.data[0]["text"]), strict=True):
        assert words.startswith(f"fitness {value:.4g}"[:9]) if np.isfinite(value) else words == ""


@pytest.mark.parametrize(
    ("dimensions", "pairs"),
    [(1, [(0, None)]), (2, [(0, 1)]), (3, [(0, 1), (1, 2)]), (4, [(0, 1), (2, 3)])],
)
def test_dots_with_other_dimensions(dimensions, pairs, monkeypatch):
    monkeypatch.setattr(archive_charts, "MAX_DOTS", 10)
    found = elites_of(40, dimensions, False)
    layout = cell_charts.make_layout(found, None, (np.zeros(dimensions), np.ones(dimensions)))
    values = np.where(found.mask, found.solutions.fitness, np.nan)
    charts = archive_charts.descriptor_charts(
        "title", found, layout, archive_charts.CellValues("fitness", values)
    )
    titles = [
        tuple(chart.layout[axis]["title"]["text"] for axis in ("xaxis", "yaxis"))
        for chart in charts
    ]
    assert titles == [
        (f"descriptor {a}", "fitness" if b is None else f"descriptor {b}") for a, b in pairs
    ]
    assert all(len(chart.data[0]["x"]) == 10 and "10 of" in chart.note for chart in charts)
    assert max(charts[0].data[0]["marker"]["color"]) == pytest.approx(np.nanmax(values), rel=1e-6)


def test_many_cells_are_merged_into_blocks(monkeypatch):
    monkeypatch.setattr(archive_charts, "MAX_CELLS", 50)
    monkeypatch.setattr(archive_charts, "BLOCK_GRID_SHAPE", (5, 5))
    found = elites_of(100, 2, True)
    layout = cell_charts.make_layout(found, (10, 10), (np.zeros(2), np.ones(2)))
    values = np.where(found.mask, found.solutions.fitness, np.nan)
    (chart,) = archive_charts.descriptor_charts(
        "title", found, layout, archive_charts.CellValues("fitness", values)
    )
    z = np.array(chart.data[0]["z"], float)
    assert (
        z.shape == (5, 5)
        and len(chart.data[0]["x"]) == 5
        and "best of several" in chart.note
        and "text" not in chart.data[0]
    )
    blocks = np.fmax.reduce(
        values.reshape(5, 2, 5, 2).transpose(0, 2, 1, 3).reshape(5, 5, 4), axis=2
    ).T
    np.testing.assert_allclose(z, blocks, rtol=1e-6)


def test_charts_of_a_population_that_evolves(evolving, tmp_path):
    """There is a line per member and generation, and the ancestors of the best are black."""
    page, lines = Page(report([evolving], tmp_path / "page.html")), read_lineage(evolving)
    chart = page.charts["learning rate of each member"]
    assert (
        chart["layout"]["yaxis"]["type"] == "log"
        and page.charts["gamma of each member"]["layout"]["yaxis"]["type"] == "linear"
    )
    drawn = {
        (x, round(y, 9))
        for trace in chart["data"]
        for x, y in zip(trace["x"], trace["y"], strict=True)
        if x is not None
    }
    ends = [line["step"] for line in lines[1:]] + [128]
    for line, end in zip(lines, ends, strict=True):
        for value in line["settings"]["learning_rate"]:
            assert {
                (line["step"], round(float(f"{value:.7g}"), 9)),
                (end, round(float(f"{value:.7g}"), 9)),
            } <= drawn
    assert chart["data"][-1]["name"] == "best" and chart["data"][-1]["line"]["color"] == "#000000"
    fitness = page.charts["Return in training, which selects the members"]["data"]
    points = sum(
        len([y for y in trace["y"] if y is not None])
        for trace in fitness
        if trace["mode"] == "markers"
    )
    assert points == sum(value is not None for line in lines[1:] for value in line["fitness"])
    # settings are drawn only once
    assert not [title for title in page.charts if title.startswith("evolve")]
    assert "4 that evolve (learning_rate 0.0001 to 0.1, gamma 0 to 0.9), seeds 0 to 3" in page.words


def test_an_empty_archive_is_reported(folders, tmp_path, monkeypatch):
    def refuse(policy):
        raise UsageError("the archive is empty at step 0: take a later checkpoint")

    monkeypatch.setattr(selection, "get_elites", refuse)
    told = []
    assert report([folders["grid"]], tmp_path / "page.html", notify_fn=told.append).exists()
    assert told == [
        "The archive is not drawn: the archive is empty at step 0: take a later checkpoint"
    ]


@needs_browser
def test_a_browser_draws_every_chart(folders, evolving, tmp_path):
    """The browser has no network access, and the page needs nothing that it forbids."""
    path = report([folders["grid"], evolving], tmp_path / "page.html")
    done = opened(path, tmp_path)
    charts = Page(path).data["charts"]
    drawn = re.findall(r'id="(chart-\d+)"[^>]*class="js-plotly-plot"', done.stdout)
    assert drawn == list(charts), done.stderr[-2000:]
    assert len(re.findall(r'class="main-svg"', done.stdout)) >= len(charts) >= 10
    assert "descriptor 0" in done.stdout and re.findall(
        r"<image [^>]*href=\"data:image/png", done.stdout
    )
    titles = set(re.findall(r'data-title="([^"]*)"', done.stdout))
    # Nothing is sent to services of plotly.
    assert {"Zoom", "Pan"} <= titles and not any(
        "hare" in title or "loud" in title for title in titles
    )


def test_only_opening_a_report_uses_a_browser():
    """No other module of the package imports webbrowser."""
    sources = [
        path
        for path in Path(rollax.__file__).parent.rglob("*.py")
        if "webbrowser" in path.read_text()
    ]
    assert [path.name for path in sources] == ["plot_commands.py"]
