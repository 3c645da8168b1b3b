"""Host code uses functions of an algorithm, and reads no field of its state or config by name."""

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollax
from rollax.algorithm import Algorithm, ArchiveFunctions
from rollax.algorithms.derived_settings import DerivedSettings
from rollax.algorithms.off_policy import OffPolicyState
from rollax.algorithms.on_policy import OnPolicyState
from rollax.algorithms.quality_diversity import QDState
from rollax.algorithms.registry import ALGORITHMS

pytestmark = pytest.mark.quick

SOURCE = Path(rollax.__file__).parent
HOST = ("api.py", "cli", "exporting", "loading.py", "policy.py", "prediction.py", "sweeps")
HOST += ("training", "visualization")
STATE_FIELDS = {*OnPolicyState._fields, *OffPolicyState._fields, *QDState._fields}
# Fields that every config has, see `rollax.algorithm.Config`.
CONTRACT = {"total_updates", "learning_rate", "learning_rate_final_fraction"}
SETTINGS = {
    field.name for entry in ALGORITHMS.values() for field in dataclasses.fields(entry.config)
} - CONTRACT
FIELDS = {"state": STATE_FIELDS, "config": SETTINGS}


def last_name(node: ast.expr) -> str:
    """Return `state` for `state`, `policy.state`, `self._state` and `member_state`."""
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name.rpartition("_")[2]


def reads(tree: ast.AST) -> Iterator[str]:
    """Yield the expressions of a file that read fields of states and settings by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            holder, name = node.value, node.attr
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
            holder, name = node.args[0], getattr(node.args[1], "value", None)
        else:
            continue
        if name in FIELDS.get(last_name(holder), set()):
            yield ast.unparse(node)


def test_host_code_reads_no_field_by_name() -> None:
    files = [
        path
        for name in HOST
        for path in ([SOURCE / name] if name.endswith(".py") else (SOURCE / name).rglob("*.py"))
    ]
    assert len(files) > 50
    found = {
        str(path.relative_to(SOURCE)): sorted(set(reads(ast.parse(path.read_text()))))
        for path in files
    }
    assert {path: names for path, names in found.items() if names} == {}, (
        "add a function to Algorithm or ArchiveFunctions, or a field to DerivedSettings"
    )


def test_reads_of_fields_are_found() -> None:
    """The check finds fields of every family."""
    program = "policy.state.archive, session.state.train, spec.config.num_envs, config.grid"
    assert len(set(reads(ast.parse(program)))) == 4
    assert set(reads(ast.parse("getattr(config, 'warmup', 0)"))) == {"getattr(config, 'warmup', 0)"}
    assert not set(reads(ast.parse("algorithm.config(state).total_updates")))


def test_derived_settings_of_every_algorithm() -> None:
    """Each family declares the values that the host needs."""
    for name, entry in ALGORITHMS.items():
        derived = entry.derive_settings(entry.config())
        assert isinstance(derived, DerivedSettings) and derived.sizes, name
        has_archive = entry.unit == "evaluations"
        assert (derived.archive is not None) == has_archive
        assert (derived.num_envs > 0) == (entry.unit == "steps")
        assert entry.adapt_to_host(entry.config()).total_updates == entry.config().total_updates
    assert set(Algorithm._fields) >= {"config", "with_config", "state_metrics", "archived"}
    assert set(ArchiveFunctions._fields) >= {"archive", "with_archive", "qd_offset", "num_batches"}
