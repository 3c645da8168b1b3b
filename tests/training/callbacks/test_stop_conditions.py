"""Tests of stop conditions: syntax, storage, and changes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rollax
from rollax.cli.main import main
from rollax.training.callbacks.stop_conditions import (
    check_condition_names,
    is_condition_met,
    parse_stop_condition,
)
from rollax.training.run_folder.layout import read_spec
from support.runs import FRAMES, SMALL_WORDS, Script


@pytest.mark.parametrize(
    ("text", "comparisons"),
    [
        ("return_mean>=195", [("return_mean", ">=", 195)]),
        (" return_mean  <  -1e3 ", [("return_mean", "<", -1000)]),
        ("info/catches > .5", [("info/catches", ">", 0.5)]),
        ("my metric<=2", [("my metric", "<=", 2)]),
        ("a>1 and b<2  and  c>=3", [("a", ">", 1), ("b", "<", 2), ("c", ">=", 3)]),
        ("sand>1 and band<2", [("sand", ">", 1), ("band", "<", 2)]),
    ],
)
def test_conditions_are_parsed(text: str, comparisons: list[Any]) -> None:
    assert list(parse_stop_condition(text)) == comparisons


@pytest.mark.parametrize(
    "text",
    [
        "",
        "return_mean",
        "return_mean==1",
        "return_mean=1",
        "return_mean>=high",
        "return_mean>=nan",
        "return_mean>=inf",
        ">=1",
        "1<return_mean<2",
        "a>1 or b<2",
        "a>1 and",
        "a>1 & b>1",
        "__import__('os').system('true')>1 2",
    ],
)
def test_invalid_conditions_raise_usage_error(train: Callable, tmp_path: Path, text: str) -> None:
    with pytest.raises(rollax.UsageError, match="stop_when must be comparisons NAME OPERATOR"):
        train("refused", stop_when=text)
    assert not (tmp_path / "refused").exists()


def test_conditions_are_evaluated() -> None:
    evaluated = rollax.Evaluated(64, {"a": 1.0, "list": [1.0], "none": float("nan")}, None)
    assert is_condition_met("a>=1 and step>63", evaluated)
    assert not is_condition_met("a>1", evaluated) and not is_condition_met(
        "a>=1 and a<1", evaluated
    )
    assert not is_condition_met("none<1", evaluated) and not is_condition_met("none>1", evaluated)
    with pytest.raises(rollax.UsageError, match="list in stop_when must be a single number"):
        is_condition_met("list>1", evaluated)
    with pytest.raises(rollax.UsageError, match="unknown evaluation metric in stop_when 'b'"):
        is_condition_met("b>1", evaluated)
    check_condition_names("wall_time>3600 and updates>=7", [])


@pytest.mark.quick
def test_a_condition_is_stored_and_can_be_changed(train: Callable) -> None:
    """The run stops at the first evaluation that meets it.

    `resume` keeps, replaces or removes it.
    """
    show = Script()
    result = train(stop_when="step>=96 and return_mean<1e9", show=show)
    assert (result.status, result.exit_code, result.steps) == ("stopped", 0, 3 * FRAMES)
    assert "holds at step 96 (step 96, return_mean " in show.text
    folder = result.folder
    assert read_spec(folder).options.stop_when == "step>=96 and return_mean<1e9"
    assert rollax.resume(folder, show=Script()).steps == 6 * FRAMES  # at the next evaluation
    with pytest.raises(rollax.UsageError, match="did you mean return_m"):
        rollax.resume(folder, stop_when="retrun_mean>1")
    changed = rollax.resume(folder, stop_when="updates>=9", show=Script())
    assert changed.steps == 9 * FRAMES
    assert read_spec(folder).options.stop_when == "updates>=9"
    done = rollax.resume(folder, stop_when="off", show=Script())
    assert done.status == "done" and read_spec(folder).options.stop_when is None


def test_a_function_and_a_stored_condition(train: Callable) -> None:
    """Either of them stops the run."""
    stopped = train(stop_when="step>=1e9").folder
    longer = rollax.resume(
        stopped,
        total_steps=24 * FRAMES,
        stop_when=lambda evaluated: evaluated.step >= 15 * FRAMES,
        show=Script(),
    )
    assert longer.steps == 15 * FRAMES


def test_unknown_metrics_in_conditions_raise_usage_error(train: Callable, tmp_path: Path) -> None:
    """The error is raised before anything is written.

    If functions add metrics, it is raised before training.
    """
    with pytest.raises(rollax.UsageError, match="stop_when 'retrun_mean': did you mean return_mea"):
        train("refused", stop_when="retrun_mean>1")
    assert not (tmp_path / "refused").exists()
    for name, function in (("metrics", lambda _: {"mine": 1}), ("callback", lambda _: None)):
        with pytest.raises(rollax.UsageError, match="stop_when 'retrun_mean': did you mean"):
            train(f"late {name}", stop_when="retrun_mean>1", **{name: function})
    assert train("own", stop_when="mine>=1", metrics=lambda _: {"mine": 1}).steps == 0

    def log(event: rollax.RunEvent) -> None:
        if event.kind == "evaluation":
            event.log({"mine": event.step})

    assert train("logged", stop_when="mine>=192", callback=log).steps == 6 * FRAMES


def test_stop_when_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "run")
    words = [*SMALL_WORDS, "--total-steps", str(4 * FRAMES), "--eval-count", "4"]
    train = ["train", "ppo", "probe/memory", *words, "--run-dir", folder]
    assert main([*train, "--stop-when", "retrun_mean>1"]) == 2
    assert "did you mean return_mean" in capsys.readouterr().err
    assert main([*train, "--stop-when", "return_mean"]) == 2
    assert "with quotes in a shell" in capsys.readouterr().err
    assert main([*train, "--stop-when", "step>=32"]) == 0
    assert read_spec(tmp_path / "run").options.stop_when == "step>=32"
    assert main(["resume", folder, "--stop-when", "step>=96"]) == 0
    assert "holds at step 96" in capsys.readouterr().out
    assert main(["resume", folder, "--stop-when", "off"]) == 0
    assert read_spec(tmp_path / "run").options.stop_when is None
    assert main(["train", "--help"]) == 0
    assert "--stop-when" in capsys.readouterr().out
    assert main(["train", "ppo", "gymnax/CartPole-v1", "--help"]) == 0
    assert "--stop-when" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    sweep = ["sweep", "ppo", "probe/memory", "--sweep.gamma", "0.9", "0.99"]
    assert main([*sweep, "--stop-when", "return_mean>1"]) == 2
    assert "stop_when (return_mean>1) would end all trials" in capsys.readouterr().err
