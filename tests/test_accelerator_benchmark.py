"""Tests of the benchmark of accelerators, which runs with small sizes on a CPU."""

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.command import end_with_test

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
PATIENCE = 300  # seconds
LIMITS = {
    "row": "limits",
    "status": "measured",
    "device": "card",
    "platform": "gpu",
    "rollax": "1",
    "jax": "2",
    "gymnax": "3",
    "python": "4",
    "date": "2026-11-28 12:00:00",
    "product_flops": {"float32": 1e12, "bfloat16": 4e12},
    "copy_bytes": 1e9,
}


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module that writes the table and the picture."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import accelerator_report

    return accelerator_report


def start(*words: Any) -> subprocess.Popen[str]:
    source = str(BENCHMARKS.parent / "src")
    return end_with_test(
        subprocess.Popen(
            [sys.executable, str(BENCHMARKS / "accelerator.py"), *map(str, words), "--small"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": source},
        )
    )


def wait_for(is_met: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + PATIENCE
    while not is_met():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "took too long"
        time.sleep(0.05)


def records(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for file in folder.glob("*.jsonl")
        for line in file.read_text().split("\n")[:-1]
    ]


def test_rows_are_kept_when_the_benchmark_is_stopped_and_resumed(tmp_path: Path) -> None:
    """Every row is in the file as soon as it ends. The table and the picture exist after a stop."""
    process = start("seeds-rejax", "map_elites", "sac", "--out", tmp_path)
    wait_for(lambda: any(one["row"] == "map_elites" for one in records(tmp_path)), process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 1
    found = {one["row"]: one for one in records(tmp_path)}
    assert list(found)[:3] == ["limits", "seeds-rejax", "map_elites"]
    assert found["seeds-rejax"]["status"] == "skipped"
    row = found["map_elites"]
    assert row["status"] == "measured" and min(row["rates"]) > 0 and row["memory_predicted"] > 0
    assert set(row["compile_seconds"]) == {"tracing", "lowering", "xla"}
    assert found["limits"]["product_flops"]["float32"] > 0 < found["limits"]["copy_bytes"]
    (file,) = tmp_path.glob("*.jsonl")
    text = file.with_suffix(".md").read_text()
    assert "| MAP-Elites, arm, batches of 256 |" in text
    assert "--peers is not given" in text and "stopped by SIGTERM" in text
    assert file.with_suffix(".png").read_bytes().startswith(b"\x89PNG")

    resumed = start("map_elites", "sac", "--resume", file, "--limit", "16")
    out, error = resumed.communicate(timeout=PATIENCE)
    assert resumed.returncode == 0, error
    assert out.count("MAP-Elites") == 0, "measured rows are not repeated"
    assert "time limit of 16 s" in out
    assert "| MAP-Elites, arm, batches of 256 |" in file.with_suffix(".md").read_text()


def test_table_of_shares_ratios_and_times(report: Any) -> None:
    """By hand: 2e10 operations in 0.1 s are a fifth of 1e12 a second, and 1e7 bytes a tenth."""
    common = {"status": "measured", "frames": 1e6, "published": "", "reference": "", "task": {}}
    mine = common | {"row": "a", "title": "mine", "rates": [100.0, 200.0, 300.0]}
    mine |= {"compile_seconds": {"tracing": 1.0, "xla": 2.0}, "init_seconds": 0.5}
    mine |= {"update_seconds": 0.1, "update_flops": 2e10, "parts": {"forward": {"bytes": 1e7}}}
    mine |= {"memory_predicted": 2e6, "memory_used": None}
    peer = common | {"row": "b", "title": "other", "rates": [100.0], "reference": "a"}
    peer |= {"compile_seconds": {"all": 4.0}, "reason": "ended after 5 s"}
    lines = report.table([LIMITS, mine, peer]).splitlines()
    cells = ["mine", "200 (150 to 250)", "1:23:20 for 1e+06", "3.0", "0.50", "2.0 / ?"]
    assert lines[-2] == f"| {' | '.join([*cells, '20.00%', '10.00%', ''])} |"
    assert "| other (ended after 5 s) |" in lines[-1]
    assert "rollax reaches 2.00 times this speed" in lines[-1]
    bfloat16 = mine | {"task": {"network": {"precision": "bfloat16"}}}
    assert report.shares_of(bfloat16, LIMITS).products == pytest.approx(0.05)


def test_names_of_rows_are_checked() -> None:
    process = start("sacc")
    _, error = process.communicate(timeout=60)
    assert process.returncode == 2 and "unknown row sacc" in error


def make_wheel(folder: Path, version: str, modules: list[str]) -> Path:
    path = folder / f"thing-{version}-py3-none-any.whl"
    names = [*modules, f"thing-{version}.dist-info/METADATA", f"thing-{version}.dist-info/RECORD"]
    metadata = "Name: thing\nRequires-Dist: other_package>=2\nRequires-Dist: x; extra == 'y'\n"
    with zipfile.ZipFile(path, "w") as file:
        for name in names:
            text = {"METADATA": metadata, "RECORD": "".join(f"{n},,\n" for n in names)}
            file.writestr(name, text.get(name.split("/")[-1], ""))
    return path


def test_packages_to_carry_are_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of an older version are removed, and missing requirements are listed."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import carry_wheels

    out = tmp_path / "carried"
    for version, modules in (("1.0", ["thing/a.py", "thing/b.py"]), ("2.0", ["thing/a.py"])):
        carry_wheels.unpack(make_wheel(tmp_path, version, modules), out)
    assert [path.name for path in out.glob("thing/*.py")] == ["a.py"]
    assert [path.name for path in out.glob("*.dist-info")] == ["thing-2.0.dist-info"]
    assert carry_wheels.requirements(out) == ["other-package"]
    assert carry_wheels.selected(["+craftax"]) == [*carry_wheels.MISSING, "craftax"]
    assert carry_wheels.selected(["rejax", "+distrax"]) == ["rejax", "distrax"]
