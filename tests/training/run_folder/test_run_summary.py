"""Tests of run summaries."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollax.cli.main import main
from rollax.training.run_folder import layout
from rollax.training.run_folder.run_summary import summarize_run
from support.runs import FRAMES, Script


def test_summary_of_a_finished_run(train: Callable[..., Any]) -> None:
    result = train("done", updates=4, eval_count=2)
    row = summarize_run(result.folder)
    lines = [
        json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()
    ]
    values = {
        line["step"]: line["return_mean"] for line in lines if line.get("event") == "evaluation"
    }
    assert (
        row["status"] == "done"
        and row["steps"] == row["total_steps"] == 4 * FRAMES
        and row["members"] is None
    )
    assert (
        row["best"] == max(values.values()) == values[row["best_step"]]
        and row["best_metric"] == "return_mean"
    )
    assert (row["algorithm"], row["environment"]) == ("ppo", "probe/memory")


def test_summary_of_running_stopped_and_unreadable_runs(train: Callable[..., Any]) -> None:
    found: list[str] = []
    folders: list[Path] = []

    def look(kind: str, text: str) -> None:
        if kind == "progress" and folders:
            found.append(summarize_run(folders[0])["status"])

    show = Script(look)
    folders.append(show_folder := Path(train("first", updates=2).folder).with_name("second"))
    result = train(
        "second", show=show, updates=4, seeds=2, best_metric="length_mean", best_mode="min"
    )
    assert set(found) == {"running"} and result.folder == show_folder
    row = summarize_run(result.folder)
    assert (row["members"], row["status"], row["best_metric"]) == (2, "done", "length_mean")
    config = result.folder / layout.CONFIG_FILE
    text = config.read_text()
    config.write_text(text.replace(f"total_steps: {4 * FRAMES}", f"total_steps: {8 * FRAMES}"))
    assert summarize_run(result.folder)["status"] == "stopped"
    config.write_text("[")
    row = summarize_run(result.folder)
    assert row["status"] == "unreadable" and str(config) in row["problem"] and row["best"] is None


def test_the_ls_command(
    train: Callable[..., Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = train("one", updates=2).folder
    train("two", updates=2)
    capsys.readouterr()
    assert main(["ls", str(folder.parent)]) == 0
    title, *rows = capsys.readouterr().out.splitlines()
    assert title.split() == [
        "run",
        "algorithm",
        "environment",
        "members",
        "steps",
        "best",
        "status",
        "changed",
    ]
    assert (
        len(rows) == 2
        and rows[0].split()[0] == str(folder)
        and "return_mean" in rows[0]
        and "done" in rows[1]
    )
    assert main(["ls", str(folder), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["run"] == str(folder)
    monkeypatch.chdir(folder)
    assert main(["ls"]) == 2 and "rollax ls FOLDER" in capsys.readouterr().err
