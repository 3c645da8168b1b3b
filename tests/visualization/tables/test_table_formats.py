"""Tests of table formats: escaping, numbers, intervals, and missing values."""

import csv
import io
import math
import shutil
import subprocess

import pytest

from rollax.visualization.plots.intervals import Estimate
from rollax.visualization.tables import table_formats
from rollax.visualization.tables.run_table import RunTable
from rollax.visualization.tables.table_formats import Column

COLUMNS = (
    Column("name", "name_%"),
    Column("steps", "steps"),
    Column("final_return", "final return", has_interval=True),
)
ODD = "\\_%&#${}~^|<b>*x*[a](b)`\x1b[31m\n=1+1"
ROWS = (
    ("ppo_1", 20_000, Estimate(-1234.5678901234567, -1300.0, -1100.25)),
    (ODD, 7, Estimate(0.1 + 0.2, math.nan, math.nan)),
    ("=HYPERLINK(1)", None, None),
)
TABLE = RunTable(COLUMNS, ROWS, ("a note\nof two lines",))


def test_text_is_aligned() -> None:
    lines = TABLE.to_string().splitlines()
    assert lines[0].split() == ["name_%", "steps", "final", "return"]
    assert lines[1].endswith("20,000  -1,235 [-1,300, -1,100]")
    assert lines[2].endswith("  0.3") and lines[3].split() == ["=HYPERLINK(1)", "-", "-"]
    assert len({len(line) for line in lines[:1] + lines[1:2]}) == 1
    assert "\x1b" not in TABLE.to_string() and "\\u001b[31m\\n" in TABLE.to_string()
    assert str(TABLE) == f"{TABLE.to_string()}\na note\\nof two lines"


def test_text_is_wrapped_in_a_terminal() -> None:
    assert max(map(len, TABLE.to_string(50).splitlines())) <= 50


def test_latex_table() -> None:
    lines = TABLE.to_latex().splitlines()
    assert lines[1:5] == [
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"name\_\% & steps & final return \\",
        r"\midrule",
    ]
    assert lines[5] == r"ppo\_1 & $20{,}000$ & $-1{,}235\; [-1{,}300, -1{,}100]$ \\"
    assert lines[6].startswith(
        r"\textbackslash{}\_\%\&\#\$\{\}\textasciitilde{}\textasciicircum{}\textbar{}\textless{}b"
    )
    assert lines[6].endswith(r"& $7$ & $0.3$ \\") and lines[7] == r"=HYPERLINK(1) & -- & -- \\"
    assert lines[8:] == [r"\bottomrule", r"\end{tabular}"]


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (1e-5, "$10^{-5}$"),
        (2.5e-07, r"$2.5 \times 10^{-7}$"),
        (-3e22, r"$-3 \times 10^{22}$"),
        (math.inf, r"$\infty$"),
        (1_000_000, "$1{,}000{,}000$"),
        (True, "True"),
        ("[64, 64]", "[64, 64]"),
        (Estimate(1e-5, 9e-6, 2e-5), r"$10^{-5}\; [9 \times 10^{-6}, 2 \times 10^{-5}]$"),
    ],
)
def test_latex_numbers(cell: table_formats.Cell, expected: str) -> None:
    table = table_formats.format_latex((Column("a", "a"), Column("b", "b")), [("x", cell)])
    assert f"x & {expected} \\\\\n" in table


@pytest.mark.parametrize("text", ["[64]", "*"])
def test_latex_protects_cells_after_a_line_break(text: str) -> None:
    assert f"{{}}{text} \\\\\n" in table_formats.format_latex((Column("a", "a"),), [(text,)])


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs LaTeX")
def test_latex_compiles(tmp_path) -> None:
    document = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n"
    (tmp_path / "a.tex").write_text(f"{document}{TABLE.to_latex()}\\end{{document}}\n")
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "a.tex"]
    assert subprocess.run(words, cwd=tmp_path, check=False, timeout=60).returncode == 0


def test_markdown_table() -> None:
    lines = TABLE.to_markdown().splitlines()
    assert lines[:3] == [
        r"| name\_% | steps | final return |",
        "| --- | ---: | ---: |",
        "| ppo_1 | 20,000 | -1,235 [-1,300, -1,100] |",
    ]
    assert lines[3].startswith(
        r"| \\\_%&amp;#\${}\~^\|&lt;b&gt;\*x\*[a]\(b)\`\\u001b[31m\\n=1+1 | 7 |"
    )
    assert table_formats.escape_markdown("_a_b_ __c__") == r"\_a_b\_ \_\_c\_\_"


def test_csv_has_all_digits_and_no_formula() -> None:
    rows = list(csv.reader(io.StringIO(TABLE.to_csv())))
    assert rows[0] == ["name", "steps", "final_return", "final_return_low", "final_return_high"]
    assert rows[1] == ["ppo_1", "20000", "-1234.5678901234567", "-1300.0", "-1100.25"]
    assert rows[2][1:] == ["7", "0.30000000000000004", "", ""]
    assert rows[2][0] == ODD.replace("\x1b", "\\u001b").replace("\n", "\\n")
    assert rows[3] == ["'=HYPERLINK(1)", "", "", "", ""]


@pytest.mark.parametrize("text", ["=1", "+1", "-1", "@SUM(1)", " =1", "\uff1d1", "\t=1"])
def test_formulas_are_escaped(text: str) -> None:
    table = RunTable((Column("a", text),), ((text,),))
    (cell,) = list(csv.reader(io.StringIO(table.to_csv())))[1]
    assert not cell.lstrip().startswith(("=", "+", "-", "@", "\uff1d", "\t"))


def test_passwords_are_masked() -> None:
    table = RunTable((Column("a", "a"),), (("postgresql://me:hunter2@host/db",),))
    for text in (str(table), table.to_latex(), table.to_markdown(), table.to_csv()):
        assert "hunter2" not in text and "host" in text


def test_long_texts_are_truncated_except_in_csv() -> None:
    table = RunTable((Column("a", "y" * 500),), (("x" * 500,),))
    assert "y" * 201 not in table.to_string() + table.to_latex() + table.to_markdown()
    assert "x" * 201 not in table.to_markdown() and "x" * 200 + " ..." in table.to_markdown()
    assert "x" * 500 in table.to_csv()


def test_tables_without_rows() -> None:
    table = RunTable(COLUMNS, ())
    assert table.to_string() == "name_%  steps  final return\n"
    assert table.to_csv().count("\n") == 1 and table.to_latex().count("\\\\") == 1


def test_conversion_to_a_data_frame() -> None:
    pytest.importorskip("pandas")
    frame = TABLE.to_pandas()
    assert list(frame) == [
        "name",
        "steps",
        "final_return",
        "final_return_low",
        "final_return_high",
    ]
    assert frame["final_return"].tolist()[:2] == [-1234.5678901234567, 0.1 + 0.2]
    assert frame["name"].tolist()[1] == ODD and frame["final_return_low"].isna().sum() == 2


def test_files_are_written(tmp_path) -> None:
    for name in ("latex", "markdown", "csv"):
        path = tmp_path / "new" / name
        text = getattr(TABLE, f"to_{name}")(path)
        assert path.read_text() == text == getattr(TABLE, f"to_{name}")()
    assert repr(TABLE) == "RunTable(rows=3, columns=3)"
