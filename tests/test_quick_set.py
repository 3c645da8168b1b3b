"""Tests of the quick set: its budget, and its coverage of packages and tests."""

import ast
from pathlib import Path

import pytest

import import_graph
import quick_set
from support.parameters import mark_quick

pytestmark = pytest.mark.quick

KNOWN = quick_set.read_seconds()
QUICK = quick_set.quick_files(KNOWN)


def test_the_quick_set_stays_within_its_budget() -> None:
    """If this fails, reduce the tests marked quick."""
    cost = quick_set.costs(QUICK, KNOWN, quick=True)
    assert sum(cost.values()) <= quick_set.BUDGET


def test_every_package_is_imported_by_a_quick_test() -> None:
    """Imports of the test and its helpers count, but not those of the imported modules.

    The contract test makes an environment of every suite, so imports of suite modules count for it
    too.
    """
    source = quick_set.ROOT / "src"
    modules = [path for path in source.rglob("*.py") if path.name != "__init__.py"]
    packages = {str(path.parent.relative_to(quick_set.ROOT)) for path in modules}
    helpers = import_graph.closure(QUICK, import_graph.imported_helpers)
    suites = {file for _, file in import_graph.suite_modules()}
    assert "tests/environments/test_contract.py" in QUICK
    imported = {used for file in helpers | suites for used in import_graph.read_node(file).imports}
    assert packages - {str(Path(file).parent) for file in imported | suites} == set()


def test_every_file_of_laws_has_a_quick_test() -> None:
    """Parameters of a test may have marks."""
    laws = [file for file in quick_set.list_files() if file.startswith("tests/laws/")]
    assert [file for file in laws if file not in QUICK] == []


def test_chosen_parameters_are_marked() -> None:
    marked = mark_quick(["a", ("b", 1)], ("b", 1))
    assert [(each.values, bool(each.marks)) for each in marked] == [
        (("a",), False),
        (("b", 1), True),
    ]
    with pytest.raises(AssertionError, match="must be among"):
        mark_quick(["a"], "b")


def test_the_cheapest_files_are_included_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    files = ["tests/a.py", "tests/b.py", "tests/c.py", "tests/new.py"]
    monkeypatch.setattr(quick_set, "list_files", lambda: files)
    monkeypatch.setattr(quick_set, "has_quick_tests", lambda file: file != "tests/a.py")
    monkeypatch.setattr(quick_set, "BUDGET", 40)
    known: quick_set.Seconds = {
        "all": {"tests/a.py": 10.0, "tests/b.py": 20.0, "tests/c.py": 500.0},
        "quick": {"tests/b.py": 5.0, "tests/c.py": 5.0},
    }
    # 5 s for each of b, c and new, 10 s for a, and 15 s for the rest of b.
    assert quick_set.whole_files(known) == {"tests/a.py", "tests/b.py"}
    assert quick_set.quick_files(known) == files
    assert quick_set.rest_files(known) == ["tests/c.py", "tests/new.py"]
    assert quick_set.costs(files, known, quick=True) == dict(
        zip(files, (10, 20, 5, 5), strict=True)
    )
    assert quick_set.costs(["tests/c.py::test_x"], known, quick=False) == {
        "tests/c.py::test_x": 500
    }


def test_seconds_of_the_quick_set_are_those_of_marked_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Complete files keep the time of all their tests. Files that no longer exist are left out."""
    monkeypatch.setattr(quick_set, "SECONDS", tmp_path / "seconds.json")
    tree, run = "tests/test_tree.py", "tests/test_run.py"
    known: quick_set.Seconds = {
        "all": {tree: 1.0, run: 900.0, "tests/test_gone.py": 1.0},
        "quick": {},
    }
    quick_set.write_seconds(known, {tree: 2.0, run: 3.0}, quick=True)
    assert quick_set.read_seconds() == {"all": {run: 900.0, tree: 1.0}, "quick": {run: 3.0}}
    quick_set.write_seconds(known, {tree: 2.0, run: 800.0}, quick=False)
    assert quick_set.read_seconds()["all"] == {run: 800.0, tree: 2.0}


def test_quick_marks_in_the_text_of_a_file_exist() -> None:
    """`has_quick_tests` reads the text of a file, so that the runner does not import it."""
    for file in QUICK:
        if quick_set.has_quick_tests(file):
            names = {
                node.attr if isinstance(node, ast.Attribute) else node.id
                for node in ast.walk(import_graph.parse(file))
                if isinstance(node, ast.Attribute | ast.Name)
            }
            assert names & {"quick", "mark_quick", "first"}, file
