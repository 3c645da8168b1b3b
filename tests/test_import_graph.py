"""Tests of `import_graph`, which selects the tests that changes can affect."""

import pytest

import import_graph
from quick_set import list_files
from rollax.algorithms.builtin import BUILTIN_ALGORITHMS
from rollax.environments.suites.table import SUITES as SUITE_TABLE

pytestmark = pytest.mark.quick

SUITES = "src/rollax/environments/suites"


@pytest.mark.parametrize(
    ("changed", "affected", "unaffected"),
    [
        ("src/rollax/tree.py", "tests/test_tree.py", None),
        # Re-exports lead to the module that defines a name.
        ("src/rollax/algorithms/td3.py", "tests/algorithms/test_td3.py", "tests/test_tree.py"),
        ("src/rollax/sweeps/study.py", "tests/sweeps/test_study.py", "tests/laws/test_form.py"),
        (
            "src/rollax/exporting/onnx_file.py",
            "tests/exporting/test_formats.py",
            "tests/laws/test_value.py",
        ),
        (
            "src/rollax/visualization/report/page.css",
            "tests/visualization/report/test_report.py",
            "tests/laws/test_form.py",
        ),
        # Suites are imported by name.
        (
            f"{SUITES}/craftax/adapter.py",
            "tests/environments/suites/test_craftax.py",
            "tests/runs/test_endings.py",
        ),
        (
            f"{SUITES}/craftax/adapter.py",
            "tests/environments/test_contract.py",
            "tests/test_policy.py",
        ),
        # A helper counts for those that import it, a conftest for its folder.
        ("tests/laws/walk.py", "tests/laws/test_form.py", "tests/test_tree.py"),
        ("tests/support/command.py", "tests/runs/test_stopping.py", "tests/test_tree.py"),
        # Data counts for tests that name it, and for modules next to it.
        ("src/rollax/presets/ppo.yaml", "tests/laws/test_settings.py", "tests/test_tree.py"),
        ("tests/golden/values.json", "tests/golden/test_golden.py", "tests/test_tree.py"),
        ("docs/runs.md", "tests/test_documents.py", "tests/test_tree.py"),
        ("examples/own_loop.py", "tests/test_documents.py", "tests/test_tree.py"),
        (".github/workflows/nightly.yml", "tests/test_structure.py", "tests/test_tree.py"),
        # `__init__.py` counts for every module of the package.
        ("src/rollax/__init__.py", "tests/archives/test_cells.py", None),
    ],
)
def test_affected_and_unaffected_tests(changed: str, affected: str, unaffected: str | None) -> None:
    tests = import_graph.affected_tests([changed])
    assert affected in tests
    assert unaffected is None or unaffected not in tests


def test_every_algorithm_and_suite_is_followed() -> None:
    assert [name for name, _ in import_graph.algorithm_modules()] == list(BUILTIN_ALGORITHMS)
    assert {name for name, _ in import_graph.suite_modules()} == set(SUITE_TABLE)


@pytest.mark.parametrize(
    "changed", ["tests/conftest.py", "tests/cli/conftest.py", "pyproject.toml"]
)
def test_configuration_of_tests_affects_everything(changed: str) -> None:
    assert import_graph.affected_tests(["docs/runs.md", changed]) == list_files()


def test_source_files_affect_the_tests_that_read_them() -> None:
    """Such tests contain the name of its folder, for example `test_structure.py`."""
    assert "tests/test_structure.py" in import_graph.affected_tests(["src/rollax/tree.py"])
    affected = import_graph.affected_tests(["tests/test_tree.py"])
    assert {"tests/test_tree.py", "tests/test_structure.py"} <= set(affected)
    assert "tests/archives/test_cells.py" not in affected
    assert import_graph.affected_tests([]) == []


def test_changed_files_are_relative_paths() -> None:
    for file in import_graph.changed_files():
        assert not file.startswith(("/", ".cache"))
