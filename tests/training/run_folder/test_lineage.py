"""Tests of damaged lineages of evolving populations. Runs and commands continue."""

import json
from pathlib import Path
from typing import Any

import pytest

from rollax.training.run_folder.lineage import num_founders

ODD = (
    "abc",
    {"a": 1},
    3,
    [[1]] * 3,
    [None] * 3,
    [0.5] * 3,
    [-1] * 3,
    [9**9] * 3,
    [10**400],
    [0, 0],
)


@pytest.mark.parametrize("parent", ODD, ids=range(len(ODD)))
def test_damaged_generations_are_passed_over(tmp_path: Path, parent: Any) -> None:
    records = [(0, None), (32, parent), (64, [0, 0, 2]), (128, [1, 1, 1])]
    lines = [json.dumps({"step": step, "parent": parents}) for step, parents in records]
    (tmp_path / "lineage.jsonl").write_text("\n".join(lines) + "\n")
    assert num_founders(tmp_path, 128) == 2
