"""Tests of the table of learning results, benchmarks/learning.yaml, and of its program."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import rollax
from rollax.training.presets import load_preset

ROOT = Path(__file__).parents[1]
ROWS = yaml.safe_load((ROOT / "benchmarks" / "learning.yaml").read_text())


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['algorithm']}-{row['task']}" for row in ROWS])
def test_every_row_has_a_preset(row: dict) -> None:
    """The task and the algorithm exist. Without `steps`, their preset has the number of steps."""
    assert row["task"] in rollax.list_environments()
    assert row["algorithm"] in rollax.list_algorithms()
    assert "steps" in row or load_preset(row["algorithm"], row["task"]).total_steps is not None


def run(folder: Path, table: list[dict], *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "table.yaml").write_text(json.dumps(table))
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "learning.py"),
        "--table",
        str(folder / "table.yaml"),
    ]
    return subprocess.run(
        [*command, "--out", str(folder / "runs"), *words],
        capture_output=True,
        text=True,
        timeout=500,
    )


def test_rows_that_hold_miss_and_fail(tmp_path: Path) -> None:
    """A second call does not train again."""
    common = {
        "algorithm": "ppo",
        "seeds": 2,
        "steps": 2048,
        "flags": ["--num-envs", 8, "--num-steps", 8, "--num-minibatches", 2],
    }
    table = [
        {"task": f"probe/{name}", "bar": bar} | common
        for name, bar in (("one-action", 0.9), ("action-reward", 7), ("none", 0))
    ]
    done = run(tmp_path, table)
    assert done.returncode == 1, done.stderr
    assert "1 of 3 rows hold" in done.stdout
    held, missed, failed = done.stdout.splitlines()[4:7]
    assert "| 2 | **1** | 1 to 1 | 0.9 | holds |" in held
    assert "| 7 | **misses by " in missed
    assert "failed" in failed and "probe/none" in done.stderr
    when = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("runs/*/metrics.jsonl"))]
    again = run(tmp_path, table[:1])
    assert (again.returncode, len(when)) == (0, 2)
    assert [
        path.stat().st_mtime_ns for path in sorted(tmp_path.glob("runs/*/metrics.jsonl"))
    ] == when


@pytest.mark.quick
def test_unknown_rows_and_keys_are_reported(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        [{"task": "probe/one-action", "algorithm": "ppo", "seeds": 1, "bar": 0}],
        "--only",
        "tetris",
    )
    assert done.returncode == 1
    assert "no row has tetris: see --list" in done.stderr
    wrong = run(tmp_path, [{"task": "probe/one-action", "bars": 0}])
    assert "must have task, algorithm, seeds and bar" in wrong.stderr
