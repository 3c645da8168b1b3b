"""Tests of `Result`: methods, use in place of a folder, and custom objects."""

import inspect
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

import rollax
from rollax.training.console.messages import describe_result
from support.runs import FRAMES, NETWORK, SMALL, Script, options

Train = Callable[..., rollax.Result]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory, compile_once: None) -> rollax.Result:
    """Return the result of a run with a custom environment and network."""
    return rollax.train(
        "ppo",
        environment(),
        config=SMALL,
        network=make_network,
        options=options(tmp_path_factory.mktemp("result") / "run", 4, eval_count=2),
        show=Script(),
    )


def environment() -> Any:
    return rollax.make("probe/memory", delay=2)


def make_network(key: jax.Array) -> Any:
    return rollax.actor_critic(environment(), NETWORK, key)


def test_the_objects_of_a_result_are_reused(result: rollax.Result) -> None:
    """They need not be passed again. A folder alone requires them."""
    assert result.policy().step == rollax.load(result).step == 4 * FRAMES
    assert result.policy(0).step == 0
    assert result.evaluate(8)["length_mean"] == 3
    with pytest.raises(rollax.UsageError, match="environment"):
        rollax.load(result.folder)
    assert rollax.load(folder=result, environment=environment(), network=make_network).step > 0


def test_a_result_can_be_resumed(train: Train) -> None:
    first = train("own", environment(), network=make_network, updates=2)
    second = rollax.resume(first, total_steps=4 * FRAMES, show=Script())
    assert second.steps == 4 * FRAMES and second.environment is not None
    assert second.policy().step == 4 * FRAMES


def test_a_result_is_a_path(result: rollax.Result) -> None:
    assert Path(result) == result.folder and os.listdir(result)
    for tables in (rollax.read(result), rollax.read([result, str(result.folder)])):
        assert len(tables.settings) == 1


def test_metrics_of_a_result(result: rollax.Result) -> None:
    """There is one row per line of training and per evaluation.

    Rows of the same step are joined.
    """
    table = result.metrics
    assert table["step"].tolist() == sorted({0, *rollax.read(result).metrics["step"]})
    assert {"loss", "episode_return", "return_mean", "return_std", "length_mean"} <= set(table)
    last = table.iloc[-1]
    assert last["return_mean"] == pytest.approx(result.evaluation["return_mean"])
    assert last["return_std"] == pytest.approx(result.evaluation["return_std"], abs=1e-6)
    assert last["length_mean"] == 3 and math.isfinite(last["loss"])
    assert math.isnan(table.iloc[0]["loss"]) and math.isfinite(table.iloc[0]["return_mean"])


def test_figures_of_a_result(result: rollax.Result, tmp_path: Path) -> None:
    assert len(result.plot(quiet=True).axes) > 3
    assert not (result.folder / "figures").exists()
    animation = result.render(path=tmp_path / "episode.gif", quiet=True)
    assert animation.path.read_bytes().startswith(b"GIF8")
    page = result.report(path=tmp_path / "page.html", label="mine", quiet=True)
    assert page == tmp_path / "page.html" and "mine" in page.read_text()


@pytest.mark.quick
@pytest.mark.parametrize(
    ("method", "function"),
    [("policy", "load"), ("plot", "plot"), ("render", "render"), ("report", "report")],
)
def test_methods_have_the_arguments_of_the_functions(method: str, function: str) -> None:
    """Names and defaults are equal for the arguments that apply to a single run."""
    ours = inspect.signature(getattr(rollax.Result, method)).parameters
    theirs = inspect.signature(getattr(rollax, function)).parameters
    shared = {name: one for name, one in ours.items() if name != "self"}
    assert {name: one.default for name, one in shared.items()} == {
        name: theirs[name].default for name in shared
    }


@pytest.mark.quick
@pytest.mark.parametrize("method", ["policy", "evaluate", "plot", "render", "report"])
def test_a_misspelled_keyword(method: str, tmp_path: Path) -> None:
    result = rollax.Result(tmp_path, "done", 0, 64, {}, 1.0, 64.0)
    with pytest.raises(rollax.UsageError, match="unknown keyword 'pth'") as error:
        getattr(result, method)(pth="figure.png")
    assert "\n" not in str(error.value)


@pytest.mark.quick
def test_invalid_seeds_of_evaluate_raise_usage_error(tmp_path: Path) -> None:
    result = rollax.Result(tmp_path, "done", 0, 64, {}, 1.0, 64.0)
    for seed in (-1, 2**32):
        with pytest.raises(rollax.UsageError, match="seed must be between 0"):
            result.evaluate(seed=seed)


def test_the_last_lines_are_python_code(train: Train) -> None:
    """Each can be executed if `result` is the returned value."""
    show = Script()
    result = train("told", show=show, updates=2)
    start = show.lines.index("  Next steps, where result is the returned value:")
    statements = [line.strip().partition("    ")[0] for line in show.lines[start + 1 :]]
    assert len(statements) == 8 and not any("rollax plot" in line for line in show.lines)
    for statement in statements[:3]:
        eval(statement, {"result": result, "rollax": rollax})
    for statement in statements[3:]:
        compile(statement, "told", "eval")
    assert statements[-2] == f"rollax.resume(result, total_steps={4 * FRAMES})"
    assert statements[-1] == f"rollax.load({str(result.folder)!r})"


def test_the_last_lines_of_a_stopped_run(train: Train, tmp_path: Path) -> None:
    """They have the folder, because nothing is returned after Ctrl-C."""
    show = Script()
    result = train("stopped", show=show, stop_when=lambda evaluated: evaluated.step > 0)
    assert result.status == "stopped"
    assert show.lines[-1].strip() == f"rollax.resume({str(tmp_path / 'stopped')!r})"


def test_the_last_lines_of_an_archive(tmp_path: Path) -> None:
    from rollax.training.spec import make_spec

    spec = make_spec("map_elites", "task/arm", {}, None, None, options(tmp_path), {})
    done = rollax.Result(tmp_path, "done", 0, 64, {}, 1.0, 64.0)
    lines = describe_result(done, spec, rollax.make("task/arm"), in_python=True)
    assert any(
        line.split() == ["result.plot(archive=True)", "Plot", "the", "archive"] for line in lines
    )
    assert not any("render" in line or "export" in line for line in lines)
    commands = describe_result(done, spec, rollax.make("task/arm"))
    assert not any("result." in line for line in commands)
    assert any("Plot learning curves and the archive" in line for line in commands)
