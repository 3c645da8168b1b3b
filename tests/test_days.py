"""Tests of the scripts in examples/days: their commands work, and the commands that they print."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def program() -> Any:
    spec = importlib.util.spec_from_file_location(
        "transcript", ROOT / "examples" / "days" / "transcript.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TRANSCRIPT = program()
LEAVES = {  # files that exist at the end of a day
    "contributor": ["beside.png"],
    "engineer": ["return.png", "own/policy.npz", "own/card.md", "usual/policy.jax"],
    "jaxmarl": ["spread.png", "spread.gif", "runs/prey/figures/curves.png"],
    "simulator": ["return.png", "policy/policy.npz"],
    "sb3": ["return.pdf", "return.csv", "report.html", "episode.gif", "policy/policy.onnx"],
    "xland": ["trial.gif", "runs/rl2/figures/curves.png"],
}


def lived(day: str, folder: Path) -> str:
    """Run the commands of a day with few steps, and return their output.

    XLand has the steps of one update, because its script also trains for twice as many.
    """
    steps = "16384" if day == "xland" else "4000"
    return "".join(
        TRANSCRIPT.run(command, folder, steps)
        for _, commands in TRANSCRIPT.blocks(day)
        for command in commands
    )


def printed(output: str) -> list[str]:
    """Return the distinct commands in an output, without their descriptions."""
    lines = [line.strip() for line in output.splitlines() if line.startswith("  ")]
    return list(
        dict.fromkeys(
            re.split(r"\s{3,}", line)[0] for line in lines if re.match(r"rollax [a-z]+ ", line)
        )
    )


@pytest.mark.parametrize(
    "day",
    ["engineer", *(pytest.param(day, marks=pytest.mark.slow) for day in ("contributor", "sb3"))],
)
def test_a_day_and_its_printed_commands(day: str, tmp_path: Path) -> None:
    commands = printed(lived(day, tmp_path))
    assert {line.split()[1] for line in commands} >= {"eval", "plot", "render", "export", "resume"}
    for command in commands:
        TRANSCRIPT.run(command, tmp_path, "4000")
    assert [name for name in LEAVES[day] if not (tmp_path / name).exists()] == []


@pytest.mark.slow
@pytest.mark.parametrize("day", ["jaxmarl", "simulator", "xland"])
def test_a_long_day(day: str, tmp_path: Path) -> None:
    lived(day, tmp_path)
    assert [name for name in LEAVES[day] if not (tmp_path / name).exists()] == []


def test_pages_of_days_show_their_commands() -> None:
    """There is a page for each kind of user."""
    assert sorted(LEAVES) == TRANSCRIPT.DAYS
    for day in LEAVES:
        page = (ROOT / "docs" / "days" / f"{day}.md").read_text()
        shown = [line.removeprefix("$ ") for line in page.splitlines() if line.startswith("$ ")]
        commands = [command for _, commands in TRANSCRIPT.blocks(day) for command in commands]
        steps = re.search(r"with STEPS=(\d+)", page)
        assert steps and shown == [TRANSCRIPT.in_full(command, steps[1]) for command in commands]
