"""Tests of user functions, whose values are in all outputs, and whose errors stop no training."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import rollax
from rollax.cli.main import main
from rollax.training.run_folder.run_summary import summarize_run
from rollax.visualization.plots.curve_estimates import select_panel_metrics
from rollax.visualization.plots.figure_options import FigureOptions
from rollax.visualization.plots.learning_curves import make_curves, metric_names, read_run
from rollax.visualization.report.report import report
from support.counting_environment import Counting
from support.figures import plot
from support.runs import FRAMES, Script, metrics


def own() -> Callable[[Any], dict[str, Any]]:
    """Return a function whose values change with each evaluation, for single runs and members."""
    calls = []

    def numbers(episodes: Any) -> dict[str, Any]:
        calls.append(1)
        length = np.asarray(episodes.length)
        return {
            "a/b": np.int32(len(calls)),
            "my metric": length.mean(),
            "yes": True,
            "none": np.nan,
            "per": length.mean(-1),
        }

    return numbers


@pytest.mark.quick
def test_metrics_are_in_all_outputs(train: Callable, tmp_path: Path) -> None:
    show = Script()
    result = train(metrics=own(), best_metric="a/b", tensorboard=True, show=show)
    assert "  a/b 5  my metric 4  yes 1  none -" in show.text
    summary = result.summary()
    assert summary["a/b"] == 5 and summary["my metric"] == 4 and summary["yes"] == 1
    assert result.best == (12 * FRAMES, 5.0) and summarize_run(result.folder)["best"] == 5
    tables = rollax.read(result.folder)
    assert (
        tables.metrics["a/b"].dropna().tolist() == [1, 2, 3, 4, 5]
        and tables.metrics["step"].iloc[0] == 0
    )
    assert tables.evaluations["a/b"].tolist() == np.repeat([1, 2, 3, 4, 5], 8).tolist()
    assert tables.evaluations["none"].isna().all()
    runs = read_run(result.folder)
    assert {"a/b", "my metric", "yes", "none", "per"} <= set(metric_names(runs))
    assert "a/b" in select_panel_metrics(make_curves(runs), [])
    plot([result.folder], tmp_path / "a.png", FigureOptions(only=("a/b", "my metric"), csv=True))
    rows = [line for line in (tmp_path / "a.csv").read_text().splitlines() if ",a/b," in line]
    assert [row.split(",")[5] for row in rows] == ["1", "2", "3", "4", "5"]
    page = report([result.folder], tmp_path / "page.html").read_text()
    assert "In evaluation" in page and "my metric" in page
    content = b"".join(
        p.read_bytes() for p in (result.folder / "tensorboard").rglob("*") if p.is_file()
    )
    assert b"eval/a/b" in content and b"eval/my_metric" in content


def test_info_metrics_are_plotted(train: Callable, tmp_path: Path) -> None:
    """Names work with and without "info/", and arrays are plotted by element.

    Metrics that change are plotted by default.
    """
    result = train(environment=Counting(), eval_fresh=True)
    runs = read_run(result.folder)
    assert {"info/steps", "info/right", "info/place/0"} <= set(metric_names(runs))
    assert "info/steps" in select_panel_metrics(
        make_curves(runs), []
    ) and "info/place/0" not in select_panel_metrics(make_curves(runs), [])
    for name in ("steps", "info/steps"):
        plot([result.folder], tmp_path / "a.svg", FigureOptions(only=(name,)))
    with pytest.raises(rollax.UsageError, match="unknown metric 'stepz'"):
        plot([result.folder], tmp_path / "a.svg", FigureOptions(only=("stepz",)))


def test_metrics_of_members(train: Callable) -> None:
    """An array has one value per member, also to choose the best.

    A number applies to all members.
    """

    def each(episodes: Any) -> dict[str, Any]:
        return {"order": np.arange(3.0) if np.ndim(episodes.length) == 2 else 0.0, "all": 7}

    result = train(
        seeds=3, metrics=each, best_metric="order", updates=2, eval_count=1, tensorboard=True
    )
    assert result.scores is not None and result.scores.values == [0, 1, 2]
    assert (
        result.best is not None
        and result.best[1] == 1.0
        and summarize_run(result.folder)["best"] == 1
    )
    assert rollax.load(result.folder).member == 2
    tables = rollax.read(result.folder)
    assert tables.metrics["order"].dropna().tolist() == [0, 1, 2] * 2 and set(
        tables.metrics["all"].dropna()
    ) == {7}
    (run,) = read_run(result.folder)
    assert run.eval_metrics["order"][..., 0].tolist() == [[0, 1, 2]] * 2
    for folder in (result.folder / "tensorboard").iterdir():
        assert b"eval/order" in b"".join(path.read_bytes() for path in folder.iterdir())


class Unprintable(Exception):
    """An exception that cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({1: 2.0}, "the name 1 of metrics function"),
        ({"": 2.0}, "the name ''"),
        ({"a\nb": 2.0}, r"the name 'a\\nb'"),
        ({"return_mean": 1.0}, "the name 'return_mean' .* Choose another name"),
        ({"step": 1.0}, "the name 'step'"),
        ({"info/x": 1.0}, "the name 'info/x'"),
        ({"x": "high"}, "'x' .* must be a number, .* got 'high'"),
        ({"x": None}, "'x' .* got None"),
        ({"x": np.zeros((2, 2))}, r"'x' .* got an array of shape \[2, 2\]"),
        ({"x": ["1"]}, "'x' "),
        ({"x": []}, r"'x' .* got \[\]"),
        (3.0, "must return a dictionary"),
        (ZeroDivisionError("by nothing"), "metrics: broken raised ZeroDivisionError: by nothing"),
        (Unprintable(), "metrics: broken raised Unprintable: the message cannot be shown"),
    ],
)
def test_errors_of_a_metrics_function(train: Callable, found: Any, words: str) -> None:
    """Before training they end the run. In a later evaluation they are a warning."""

    def broken(episodes: Any, at: int = 0) -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    with pytest.raises(rollax.UsageError, match=words):
        train("first", metrics=broken)
    calls: list[int] = []

    def later(episodes: Any) -> Any:
        calls.append(1)
        return broken(episodes) if len(calls) == 3 else {"fine": 1.0}

    show = Script()
    result = train("later", metrics=later, show=show)
    assert result.status == "done" and result.steps == 12 * FRAMES
    assert sum("The evaluation of step 192 is kept without it" in line for line in show.lines) == 1
    lines = [line for line in metrics(result.folder) if line.get("event") == "evaluation"]
    assert [line.get("fine") for line in lines] == [1.0, 1.0, None, 1.0, 1.0]


def test_arrays_of_metrics_have_one_value_per_member(train: Callable) -> None:
    with pytest.raises(
        rollax.UsageError, match=r"'x' .* one number per member, got an array of shape \[2\]"
    ):
        train(seeds=3, metrics=lambda episodes: {"x": np.zeros(2)})


@pytest.mark.parametrize("name", ["metrics", "stop_when"])
def test_functions_with_other_arguments_raise_usage_error(
    train: Callable, tmp_path: Path, name: str
) -> None:
    """The error is raised before anything is written, also by `resume`."""
    for function in (lambda: True, lambda first, second: True, 3):
        with pytest.raises(rollax.UsageError, match=f"{name}.* must be a function"):
            train("refused", **{name: function})
    assert not (tmp_path / "refused").exists()
    done = train("done", updates=1)
    with pytest.raises(rollax.UsageError, match=f"{name} must be a function of one argument"):
        rollax.resume(done.folder, total_steps=4 * FRAMES, **{name: lambda: True})


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            lambda evaluated: evaluated.values["retrun_mean"] > 1,
            "unknown evaluation metric .* did you mean return_mean",
        ),
        (lambda evaluated: None, "must return True or False, got None"),
        (lambda evaluated: 1.0, "must return True or False, got 1.0"),
        (lambda evaluated: evaluated.value > 1, "raised AttributeError"),
    ],
)
def test_errors_of_stop_when_are_raised_before_training(
    train: Callable, function: Any, words: str
) -> None:
    events: list[str] = []
    with pytest.raises(rollax.UsageError, match=words):
        train(stop_when=function, show=Script(lambda kind, text: events.append(kind)))
    assert "evaluating" in events and "progress" not in events


def test_a_later_error_of_stop_when_is_a_warning(train: Callable) -> None:
    def stop(evaluated: Any) -> Any:
        return evaluated.step == 6 * FRAMES and 1 / 0 or np.bool_(evaluated.step == 9 * FRAMES)

    show = Script()
    result = train(stop_when=stop, show=show)
    assert (result.status, result.steps) == ("stopped", 9 * FRAMES)
    assert sum("raised ZeroDivisionError" in line for line in show.lines) == 1


def test_evaluations_use_the_mode_of_the_run(
    train: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are greedy or sampled in a run and in `evaluate`. The command has an option."""
    show = Script()
    folder = train("sampled", eval_stochastic=True, updates=1, show=show).folder
    assert "over 8 episodes, sampled)" in show.text
    policy, key = rollax.load(folder), jax.random.key(0)
    sampled, greedy = (policy.evaluate(64, key, way)[0]["return_mean"] for way in (False, True))
    assert policy.evaluate(64, key)[0]["return_mean"] == sampled != greedy
    for words, mode in (
        ([], "sampled"),
        (["--stochastic"], "sampled"),
        (["--no-stochastic"], "greedy"),
    ):
        capsys.readouterr()
        assert main(["eval", os.fspath(folder), "--episodes", "4", *words]) == 0
        assert f"4 episodes, {mode} actions" in capsys.readouterr().out
    spec = rollax.load(train("greedy", updates=1).folder).spec
    assert spec.options.eval_stochastic is False
