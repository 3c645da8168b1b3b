"""Tests of reports: one page with the records of runs, which loads nothing and escapes all text."""

import base64
import json
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

import rollax
from rollax.errors import UsageError
from rollax.runtime.installation import install_command
from rollax.training.run_folder.layout import lock_folder
from rollax.training.run_folder.metric_sinks import read_metrics
from rollax.training.run_folder.recorder import read_evaluations
from rollax.visualization.report import curve_charts, distribution_charts, run_facts
from rollax.visualization.report import report as reports
from rollax.visualization.report.report import report

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


class Reader(HTMLParser):
    """Parser of tags with their attributes, the text of the page, and its scripts."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags, self.words, self.scripts, self._inside = (
            list[tuple[str, dict[str, Any]]](),
            "",
            list[str](),
            "",
        )
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.words += data + "\n"

    def of(self, tag: str) -> list[dict[str, Any]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def data(self) -> dict[str, Any]:
        """Return the data of the charts."""
        return json.loads(self.scripts[0])


class Page(Reader):
    """Report with charts by title. The first chart is used if several have the same title."""

    def __init__(self, path: Path) -> None:
        self.path, content = path, path.read_text()
        super().__init__(content)
        drawn = self.data["charts"]
        titles = re.findall(
            r"<figcaption>(.*?)(?:<span>.*?</span>)?</figcaption><div id=\"(chart-\d+)\"", content
        )
        assert [name for _, name in titles] == list(drawn)
        self.charts = {title: drawn[name] for title, name in reversed(titles)}

    def lines(self, title: str, is_member: bool = False) -> list[dict[str, Any]]:
        """Return the lines of a chart without bands, either of members or of groups."""
        found = [trace for trace in self.charts[title]["data"] if trace.get("hoverinfo") != "skip"]
        return [trace for trace in found if ("members" in trace.get("meta", [])) == is_member]


@pytest.fixture
def copy(run, tmp_path):
    """Return a copy of the run without its checkpoints, which tests may change."""
    shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoints", "figures"))
    return tmp_path / "copy"


@pytest.fixture(scope="module")
def page(run, tmp_path_factory):
    return Page(report([run], tmp_path_factory.mktemp("page") / "one.html"))


def lines_of(folder):
    return [line for line in read_metrics(folder / "metrics.jsonl") if "event" not in line]


@pytest.mark.quick
def test_curves_equal_the_records_of_the_run(page, run):
    arrays, lines = read_evaluations(run / "evaluations.npz"), lines_of(run)
    (drawn,) = page.lines("Evaluation return")
    assert drawn["x"] == arrays["step"].tolist()
    np.testing.assert_allclose(drawn["y"], arrays["returns"].mean(axis=1), rtol=1e-6)
    for title, name in (
        ("value loss", "value_loss"),
        ("entropy", "entropy"),
        ("steps per second", "steps_per_second"),
    ):
        (drawn,) = page.lines(title)
        assert drawn["x"] == [line["step"] for line in lines]
        np.testing.assert_allclose(drawn["y"], [line[name] for line in lines], rtol=1e-6)
    assert page.words.index("Losses") < page.words.index("value loss") < page.words.index("Speed")


def test_every_member_has_a_line(sweep, tmp_path):
    page, arrays = (
        Page(report([sweep], tmp_path / "sweep.html")),
        read_evaluations(sweep / "evaluations.npz"),
    )
    drawn = page.lines("Evaluation return", is_member=True)
    assert [each["name"] for each in drawn] == [
        f"learning_rate {rate}, seed {s}" for rate in ("0.0001", "0.001") for s in (0, 1)
    ]
    for member, each in enumerate(drawn):
        np.testing.assert_allclose(each["y"], arrays["returns"][:, member].mean(axis=1), rtol=1e-6)
    together = page.lines("Evaluation return")
    assert [each["name"] for each in together] == ["learning_rate 0.0001", "learning_rate 0.001"]
    np.testing.assert_allclose(
        together[0]["y"], arrays["returns"][:, :2].mean(axis=(1, 2)), rtol=1e-6
    )
    groups = {each["data-group"] for each in page.of("button")}
    assert {name for each in [*drawn, *together] for name in each["meta"]} <= groups
    assert (
        "4: 2 values of learning_rate x seeds 0 to 1" in page.words
        and "return_mean by setting" in page.words
    )


def test_histograms_count_every_episode(page, run):
    arrays = read_evaluations(run / "evaluations.npz")
    for title, values in (("Return", arrays["returns"]), ("Length", arrays["length"])):
        traces = page.charts[title]["data"]
        assert {
            word for trace in traces for word in trace["name"].partition(",")[0].split(" and ")
        } == {
            "first",
            "best",
            "last",
        }
        for trace in traces:
            own = values[
                arrays["step"]
                .tolist()
                .index(int(trace["name"].rpartition(" ")[2].replace(",", "")))
            ]
            ends = np.array(trace["x"]) + np.array(trace["width"]) / 2
            low, high = (np.sum(own[:, None] <= ends + shift, axis=0) for shift in (-1e-3, 1e-3))
            assert np.all((low <= np.cumsum(trace["y"])) & (np.cumsum(trace["y"]) <= high)) and sum(
                trace["y"]
            ) == len(own)


def test_bin_edges_of_histograms():
    assert distribution_charts._bin_edges(np.array([1.0, 3.0])).tolist() == [0.5, 1.5, 2.5, 3.5]
    bin_edges, most = distribution_charts._bin_edges, distribution_charts.MAX_BINS
    assert bin_edges(np.array([0.25, 0.25])).tolist() == [-0.25, 0.75]
    assert (len(bin_edges(np.arange(2) * 1e3)), *bin_edges(np.zeros(0))) == (most + 1, 0.0, 1.0)


def test_facts_about_the_run(page, run):
    lines = [
        each for each in read_metrics(run / "metrics.jsonl") if each.get("event") == "evaluation"
    ]
    best = max(lines, key=lambda line: (line["return_mean"], line["step"]))
    of_best = f"return_mean {best['return_mean']:.4g} at step {best['step']}"
    for words in ("ppo on gymnax/CartPole-v1", "done: 512 steps", "seed 0", of_best):
        assert words in page.words, words
    machine = json.loads((run / "environment.json").read_text())
    assert f"jax {machine['packages']['jax']}" in page.words and machine["python"] in page.words
    assert "rollax train ppo gymnax/CartPole-v1 --total-steps 512 --log-lines 8" in re.sub(
        r" --eval.*? --log", " --log", page.words
    )
    cells = re.findall(
        r"(config\.\w+)</td><td class=\"strong short\">(\w+)</td><td class=\"short\">(\w+)</td>",
        page.path.read_text(),
    )
    assert ("config.num_epochs", "1", "10") in cells  # the given value and that of the preset
    assert "config.learning_rate" not in [name for name, *_ in cells]  # has the value of the preset


def test_the_page_loads_no_resources(page):
    resources = [
        x
        for _, attributes in page.tags
        for name in ("src", "href", "data", "poster")
        if (x := attributes.get(name))
    ]
    assert resources and [each for each in resources if not each.startswith(("#", "data:"))] == []
    assert page.of("link") == [] and len(page.scripts) == 3
    (policy,) = [
        meta["content"]
        for meta in page.of("meta")
        if meta.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'") and "http" not in policy
    style = re.search(r"<style>(.*?)</style>", page.path.read_text(), re.DOTALL)
    assert style and "url(" not in style[1] and "@import" not in style[1]
    assert page.path.stat().st_size < 6_000_000
    anchors = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    assert {each["href"] for each in page.of("a")} <= {f"#{name}" for name in anchors}


def test_charts_are_valid_plotly_figures(page):
    """Plotly validates every property."""
    graph_objects = pytest.importorskip("plotly.graph_objects")
    for chart in page.data["charts"].values():
        graph_objects.Figure(
            chart | {"layout": {**chart["layout"], "template": page.data["template"]}}
        )


def test_text_of_a_run_is_escaped(copy, tmp_path):
    """It may be in names of folders and files, settings, metrics, the machine and labels."""
    plain = Page(report([copy], tmp_path / "plain.html"))
    folder = tmp_path / "</b><u>run"
    shutil.copytree(copy, folder)
    document = yaml.safe_load((folder / "config.yaml").read_text())
    document["options"]["best_metric"] = EVIL
    (folder / "config.yaml").write_text(yaml.safe_dump(document))
    (folder / "environment.json").write_text(
        json.dumps({"python": EVIL, "devices": [EVIL], "packages": {EVIL: EVIL}})
    )
    records = [
        json.loads(line) | {EVIL: index}
        for index, line in enumerate((folder / "metrics.jsonl").read_text().splitlines())
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    (folder / "figures").mkdir()
    Image.new("RGB", (2, 2)).save(folder / "figures" / "x><img onerror='alert(1)'.gif")
    page = Page(report([folder], tmp_path / "evil.html", label=(EVIL,)))
    assert [tag for tag, _ in page.tags if tag in ("script", "img", "u", "b")] == [
        "img",
        "script",
        "script",
        "script",
    ]
    assert all("onerror" not in attributes for _, attributes in page.tags)
    assert page.scripts[1:] == plain.scripts[1:]
    assert page.words.count(EVIL) >= 4 and "</b><u>run" in page.words
    names = [
        trace["name"]
        for chart in page.data["charts"].values()
        for trace in chart["data"]
        if "name" in trace
    ]
    assert any("&lt;/script&gt;" in name for name in names) and not any(
        "<" in name for name in names
    )


def test_animations_are_embedded_in_the_page(copy, tmp_path, monkeypatch):
    (copy / "figures").mkdir()
    for name, size in (("episode.gif", 4), ("large.gif", 300)):
        pixels = np.random.default_rng(0).integers(0, 255, (size, size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(copy / "figures" / name)
    (copy / "figures" / "curves.png").write_bytes(b"no animation")
    monkeypatch.setattr(reports, "MAX_MEDIA_BYTES", 2000)
    told = []
    page = Page(report([copy], tmp_path / "page.html", notify_fn=told.append))
    (picture,) = page.of("img")
    kind, _, content = picture["src"].partition(",")
    assert (
        kind == "data:image/gif;base64"
        and base64.b64decode(content) == (copy / "figures" / "episode.gif").read_bytes()
    )
    assert len(told) == 1 and "large.gif is left out" in told[0] and told[0] in page.words


def test_an_episode_is_rendered_with_the_best_checkpoint(run, tmp_path):
    shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("*.gif"))
    page = Page(report([tmp_path / "run"], render=True))
    assert page.path == tmp_path / "run" / "figures" / "report.html"
    (path,) = (tmp_path / "run" / "figures").glob("*.gif")
    step = int(path.stem.removeprefix("episode-checkpoint-"))
    lines = [
        each for each in read_metrics(run / "metrics.jsonl") if each.get("event") == "evaluation"
    ]
    assert step == max(lines, key=lambda line: (line["return_mean"], line["step"]))["step"]
    assert len(page.of("img")) == 1 and f"the best checkpoint, of step {step}, made" in page.words


def test_a_failed_rendering_is_reported(copy, tmp_path):
    told = []
    page = Page(
        report([copy], tmp_path / "page.html", render=True, notify_fn=told.append)
    )  # its checkpoints are missing
    assert len(told) == 1 and "no episode was rendered" in told[0] and told[0] in page.words
    assert page.lines("Evaluation return")


def test_reports_are_not_overwritten(run, sweep, copy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [report([run, sweep]).name for _ in range(2)] == ["report.html", "report-2.html"]
    own = report([copy])
    assert own == copy / "figures" / "report.html" == report([copy])
    for out in ("report.pdf", "report"):
        with pytest.raises(UsageError, match=r"must end in \.html"):
            report([run], tmp_path / out)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="Choose another output file"):
        report([run], tmp_path / "file" / "page.html")


def test_a_report_of_several_runs(run, sweep, trials, tmp_path):
    """Each run has a row with its lines. Differences are listed, and environments are separate."""
    page = Page(report([run, sweep, trials], tmp_path / "page.html"))
    assert {"gymnax/CartPole-v1", "rl2/XLand-MiniGrid-R1-9x9"} <= set(page.words.splitlines())
    names = [each["name"] for each in page.lines("Evaluation return")]
    rows = [
        re.findall(r"<td.*?>(.*?)</td>", row)
        for row in re.findall(r"<tr>(<td.*?)</tr>", page.path.read_text())
    ]
    assert [row[0] for row in rows[:3]] == ["single", "sweep", "trials"]
    assert rows[1][1] == "; ".join(names[1:3]) and all("seeds 4" in name for name in names[1:3])
    differing = {row[0] for row in rows[3:]}
    assert {
        "seeds",
        "config.learning_rate",
        "env.episodes",
    } <= differing and "config.num_envs" not in differing
    assert "Return of the episode within a trial" in page.charts
    assert page.words.count("rollax train ppo") == 3


def test_returns_of_episodes_within_trials(trials, tmp_path):
    """Compare the mean return of each episode at the last evaluation."""
    page, arrays = (
        Page(report([trials], tmp_path / "page.html")),
        read_evaluations(trials / "evaluations.npz"),
    )
    last = page.lines("Return of the episode within a trial")[-1]
    np.testing.assert_allclose(
        last["y"], arrays["info/episode_returns"][-1].mean(axis=0), atol=1e-6
    )
    assert last["x"] == [1, 2, 3]


def test_long_lines_are_subsampled(run, tmp_path, monkeypatch):
    monkeypatch.setattr(curve_charts, "MAX_POINTS", 3)
    told = []
    page, lines = Page(report([run], tmp_path / "page.html", notify_fn=told.append)), lines_of(run)
    (drawn,) = page.lines("value loss")
    assert (drawn["x"][0], len(drawn["x"]), drawn["x"][-1]) == (
        lines[0]["step"],
        3,
        lines[-1]["step"],
    )
    by_step = {line["step"]: line["value_loss"] for line in lines}
    np.testing.assert_allclose(drawn["y"], [by_step[step] for step in drawn["x"]], rtol=1e-6)
    assert (
        told == [f"lines of charts show 3 evenly spaced points of {len(lines)} metrics lines"]
        and told[0] in page.words
    )


def test_missing_plotly_raises_usage_error(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(UsageError, match=re.escape(install_command("report"))):
        report([run], tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_evaluations(copy, tmp_path):
    """A run that has just started has none."""
    (copy / "evaluations.npz").unlink()
    records = [
        line
        for line in (copy / "metrics.jsonl").read_text().splitlines()
        if "event" not in json.loads(line)
    ]
    (copy / "metrics.jsonl").write_text("\n".join(records[:2]) + '\n{"step": 4')
    page = Page(report([copy], tmp_path / "page.html"))
    assert (
        "Evaluation return" not in page.charts
        and "Training return" in page.charts
        or "value loss" in page.charts
    )
    assert (
        "none: there is no evaluation yet" in page.words and "stopped, can be resumed" in page.words
    )
    with lock_folder(copy):
        assert (
            "running when this page was made" in Page(report([copy], tmp_path / "page.html")).words
        )


def test_a_run_with_custom_objects(copy, tmp_path):
    """It has Python code instead of a command, and is not rendered."""
    document = yaml.safe_load((copy / "config.yaml").read_text())
    (copy / "config.yaml").write_text(
        yaml.safe_dump(document | {"own_environment": True, "environment": "mine/World"})
    )
    told = []
    page = Page(report([copy], tmp_path / "page.html", render=True, notify_fn=told.append))
    assert (
        "    environment,  # the one that was passed" in page.words
        and "rollax train" not in page.words
    )
    assert f"policy = rollax.load({str(copy)!r}, environment=environment)" in page.words
    assert (
        len(told) == 1
        and "needs the objects that were passed in Python" in told[0]
        and told[0] in page.words
    )


def test_damaged_runs_are_skipped_with_others(run, copy, tmp_path):
    """A single damaged run raises an error. A damaged machine record is reported."""
    (copy / "environment.json").write_text("[1, 2")
    assert (
        "environment.json is missing or cannot be read"
        in Page(report([copy], tmp_path / "page.html")).words
    )
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    (copy / "evaluations.npz").write_bytes(b"no archive")
    with pytest.raises(UsageError, match="Move the file away to plot the rest"):
        report([copy], tmp_path / "page.html")
    told = []
    page = Page(
        report([copy, run, tmp_path / "page.html"], tmp_path / "both.html", notify_fn=told.append)
    )
    assert (
        len(told) == 2
        and all(words in page.words for words in told)
        and "done: 512 steps" in page.words
    )
    assert all(
        path.read_bytes() == content
        for path, content in before.items()
        if path.name != "evaluations.npz"
    )
    (copy / "evaluations.npz").unlink()
    (copy / "metrics.jsonl").write_text("")
    with pytest.raises(UsageError, match="has recorded nothing yet"):
        report([copy])
    with pytest.raises(UsageError, match="is not a run"):
        report([tmp_path / "nowhere"])
    with pytest.raises(UsageError, match="Name at least one run"):
        report([])


def test_nonfinite_returns_are_left_out(copy, tmp_path):
    arrays = read_evaluations(copy / "evaluations.npz")
    arrays["returns"][0], arrays["returns"][1, 0] = np.nan, np.inf
    np.savez(copy / "evaluations.npz", **arrays)
    page = Page(report([copy], tmp_path / "page.html"))
    (drawn,) = page.lines("Evaluation return")
    assert drawn["x"] == arrays["step"][1:].tolist() and np.isfinite(drawn["y"]).all()


def test_unique_names_of_folders():
    assert run_facts.unique_names([Path("/a/x"), Path("/b/y")]) == ["x", "y"]
    assert run_facts.unique_names([Path("/a/x"), Path("/b/x")]) == ["a/x", "b/x"]


def test_sides_of_a_zero_sum_game(tmp_path):
    small = {"num_envs": 4, "num_steps": 16, "num_minibatches": 2, "num_epochs": 1}
    options = {
        "total_steps": 128,
        "run_dir": tmp_path / "run",
        "eval_episodes": 4,
        "eval_count": 1,
        "tensorboard": False,
    }
    given = {
        "config": small,
        "network": {"hidden": (8,)},
        "arguments": {"time_limit": 9},
        "options": options,
        "quiet": True,
    }
    folder = rollax.train("ppo", "hunting/2-players", **given).folder
    page, arrays = Page(report([folder])), read_evaluations(folder / "evaluations.npz")
    assert [each["name"] for each in page.lines("Evaluation return")] == ["prey", "predator"]
    kinds = arrays["agent_types"][0].tolist()
    for drawn in page.lines("Evaluation return"):
        of_kind = arrays["returns"][..., kinds.index(drawn["name"])]
        np.testing.assert_allclose(drawn["y"], of_kind.mean(axis=1), rtol=1e-5)
    assert {"Return: prey", "Return: predator", "Length"} <= set(page.charts)
    assert "none: return_mean is always 0" in page.words and "best evaluation" not in page.words
    assert "return of prey" in page.words and "The returns sum to zero" in page.words
