"""Tests of printed commands, which can be executed for any folder names."""

import ast
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import rollax
from rollax.runtime.shell import format_command_line, is_command_running, running_command
from rollax.training.console.messages import describe_result, rollax_command
from rollax.training.result import Result
from rollax.training.spec import make_spec
from support.runs import NETWORK, SMALL, options

SOURCE = Path(rollax.__file__).parent
NAME = 'it\'s $HOME `and` "more"'


@pytest.mark.quick
def test_quoted_words_are_parsed_back() -> None:
    words = ["rollax", "resume", NAME, "--total-steps", 5]
    assert shlex.split(format_command_line(*words)) == [str(word) for word in words]
    assert format_command_line("rollax", "eval", Path("runs/a-b_1")) == "rollax eval runs/a-b_1"


@pytest.mark.quick
def test_running_command_marks_the_command_line() -> None:
    assert not is_command_running()
    with running_command():
        assert is_command_running()
    assert not is_command_running()


@pytest.mark.parametrize("status", ["done", "stopped", "nonfinite"])
def test_commands_in_the_last_lines_of_a_run(status: str, tmp_path: Path) -> None:
    spec = make_spec(
        "ppo", "probe/memory", {}, SMALL, NETWORK, options(tmp_path), {}, imports=("my_module",)
    )
    result: Any = Result(tmp_path / NAME, status, 0, 64, {}, 1.0, 64.0, best=(64, 1.0))
    lines = [
        line
        for line in describe_result(result, spec, rollax.make("probe/memory"))
        if " --import " in line
    ]
    assert len(lines) == (7 if status == "done" else 1)
    for line in lines:
        words = shlex.split(line.strip())
        number = len(rollax_command())
        assert words[:number] == rollax_command()
        assert words[number + 1 : number + 4] == [str(tmp_path / NAME), "--import", "my_module"]


def test_every_printed_command_has_quotes() -> None:
    """Source code formats commands with `format_command_line`, not with f-strings."""
    found = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                text = "".join(
                    part.value if isinstance(part, ast.Constant) else "{}" for part in node.values
                )
                found += [f"{path.name}: {text}"] * bool(
                    re.search(r"rollax (resume|sweep|eval|plot|render|report|export) {}", text)
                )
    assert found == []
