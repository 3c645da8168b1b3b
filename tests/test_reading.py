"""Tests of docs/architecture.md, which lists the files of an update with their lines."""

import re
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from laws.table import BY_NAME

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "rollax"
# Files that readers are assumed to know.
GRANTED = ("config.py", "user_input/coercion.py", "spaces.py")


def listed() -> list[dict[str, int]]:
    """Return the tables of the page in order."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    tables = re.findall(r"\| (\d+) files \| ([\d,]+) lines \|\n\|---\|---\|\n((?:\| `.*\n)+)", page)
    found = []
    for number, total, rows in tables:
        files = {name: int(lines) for name, lines in re.findall(r"\| `(.*)` \| (\d+) \|", rows)}
        assert len(files) == int(number) and sum(files.values()) == int(total.replace(",", ""))
        found.append(files)
    return found


def run_by_tracing(name: str) -> set[str]:
    """Return the files of rollax whose functions run while an update is traced.

    The file of the `Algorithm` interface is included.
    """
    row = BY_NAME[name]
    algorithm = row.make(row.environment)
    state = jax.eval_shape(lambda key: algorithm.init(key, row.config), jax.random.key(0))
    called = set()

    def look(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            called.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        jax.eval_shape(algorithm.step, state)
    finally:
        sys.setprofile(before)
    files = {"algorithm.py"} | {
        str(Path(file).relative_to(SOURCE)) for file in called if SOURCE in Path(file).parents
    }
    return {
        file
        for file in files
        if not file.startswith(("networks/", "environments/")) and file not in GRANTED
    }


@pytest.mark.parametrize(("table", "name"), [(0, "ppo"), (1, "td3")])
def test_the_listed_files_are_those_of_an_update(table: int, name: str) -> None:
    files = listed()[table]
    assert set(files) == run_by_tracing(name)
    assert files == {file: len((SOURCE / file).read_text().splitlines()) for file in files}
