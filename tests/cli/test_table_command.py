"""Tests of `rollax table`: formats, files and output streams."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.test_mistakes import refused

Rollax = Callable[..., Any]


@pytest.mark.quick
def test_both_tables_are_printed(rollax: Rollax, finished: Path) -> None:
    outcome = rollax("table", finished)
    assert outcome.code == 0, outcome.err
    results, settings = outcome.out.split("\n\n")
    assert results.splitlines()[0].split()[:2] == ["algorithm", "environment"]
    assert "probe/memory" in results and settings.splitlines()[0].split() == ["setting", "ppo"]
    assert "no interval for a single seed" in outcome.err and "Traceback" not in outcome.err
    assert list(Path().iterdir()) == []


def test_table_formats(rollax: Rollax, finished: Path) -> None:
    assert rollax("table", finished, "--latex").out.count("\\begin{tabular}") == 2
    assert rollax("table", finished, "--markdown").out.startswith("| algorithm | environment |")
    outcome = rollax("table", finished, "--csv", "--kind", "results")
    (row,) = csv.DictReader(io.StringIO(outcome.out))
    assert row["environment"] == "probe/memory" and -1 <= float(row["final_return"]) <= 1
    whole = rollax("table", finished, "--kind", "hyperparameters", "--all-settings").out
    assert "gae_lambda" in whole and "gae_lambda" not in rollax("table", finished).out


@pytest.mark.parametrize(
    ("name", "start"),
    [("a.tex", "% Add"), ("a.md", "| algorithm"), ("a.txt", "algorithm"), ("A.CSV", "algorithm,")],
)
def test_the_suffix_selects_the_format(
    rollax: Rollax, finished: Path, name: str, start: str
) -> None:
    outcome = rollax("table", finished, "--out", f"new/{name}")
    assert outcome.code == 0 and outcome.lines[0] == f"new/{name}", outcome.err
    text = Path("new", name).read_text()
    assert text.startswith(start)
    second = [path for path in Path("new").iterdir() if path.name != name]
    if name == "A.CSV":
        assert [path.name for path in second] == ["A-hyperparameters.CSV"]
        assert second[0].read_text().startswith("setting,ppo\n")
        assert outcome.lines[1] == "new/A-hyperparameters.CSV"
    else:
        assert second == [] and "num_envs" in text.replace("\\", "")


def test_a_format_can_be_chosen_for_another_suffix(rollax: Rollax, finished: Path) -> None:
    assert rollax("table", finished, "--markdown", "--out", "a.txt").code == 0
    assert Path("a.txt").read_text().startswith("| algorithm")


def test_files_are_replaced_only_on_request(rollax: Rollax, finished: Path) -> None:
    Path("a-hyperparameters.csv").write_text("precious")
    outcome = rollax("table", finished, "--out", "a.csv")
    assert outcome.code == 2 and "or replace it with --overwrite" in outcome.err
    assert not Path("a.csv").exists()
    assert rollax("table", finished, "--out", "a.csv", "--kind", "results").code == 0
    assert Path("a-hyperparameters.csv").read_text() == "precious"
    assert rollax("table", finished, "--out", "a.csv", "--overwrite").code == 0
    assert Path("a-hyperparameters.csv").read_text().startswith("setting")
    Path("link.csv").symlink_to("precious.csv")
    assert rollax("table", finished, "--out", "link.csv", "--kind", "results").code == 2


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ["table needs one or more run folders"]),
        (["nowhere"], ["nowhere is not a run"]),
        (["nowhere", "--latex", "--csv"], ["--latex and --csv exclude each other"]),
        (["nowhere", "--out", "a.pdf"], ["--out must end in .tex, .md, .csv or .txt, got a.pdf"]),
        (["nowhere", "--out", f"{'x' * 300}.tex"], ["too long"]),
        (["nowhere", "--kind", "result"], ["results"]),
    ],
)
def test_mistakes_are_refused(rollax: Rollax, words: list[str], parts: list[str]) -> None:
    refused(rollax("table", *words), *parts)


def test_the_help_of_table(rollax: Rollax) -> None:
    outcome = rollax("table", "--help")
    assert outcome.code == 0
    options = "--latex --markdown --csv --kind --all-settings --label --out --overwrite"
    assert [name for name in options.split() if name not in outcome.out] == []
    assert "rollax table RUN..." in rollax("--help").out


def test_a_misspelled_command(rollax: Rollax) -> None:
    refused(rollax("tabel", "run"), "unknown command 'tabel': did you mean table?")
