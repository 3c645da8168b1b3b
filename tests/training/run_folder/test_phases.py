"""Phases of a run: how they are read from config.yaml, undone and described."""

from typing import Any

import pytest

from rollax.errors import UsageError
from rollax.training.run_folder import phases
from rollax.training.run_folder.phases import Phase

CHANGED = Phase(64, {"config.gamma": (0.9, 0.5), "options.eval_seed": (None, 3)})
MOVED = Phase(32, {"arguments": ({"delay": 1}, {"delay": 2, "size": 3})}, run="runs/first")


def document(**changes: object) -> dict[str, Any]:
    return {"step": 64, "changes": {"config.gamma": [0.9, 0.5]}, "run": None} | changes


def test_a_phase_is_one_line() -> None:
    assert CHANGED.describe() == "step 64: gamma 0.9 -> 0.5, eval_seed default -> 3"
    moved = "step 32: continues runs/first, delay 1 -> 2, size default -> 3"
    assert MOVED.describe() == moved


def test_the_settings_before_a_phase() -> None:
    entries = [
        {"step": 32, "changes": {"config.gamma": [0.8, 0.9]}, "run": None},
        {"step": 64, "changes": {"config.gamma": [0.9, 0.5], "arguments": [{}, {"a": 1}]}},
    ]
    settings = {"config": {"gamma": 0.5}, "arguments": {"a": 1}, "phases": entries}
    assert phases.undo_phases(settings, 2) == settings
    one = phases.undo_phases(settings, 1)
    assert (one["config"], one["arguments"], one["phases"]) == ({"gamma": 0.9}, {}, entries[:1])
    assert phases.undo_phases(settings, 0)["config"] == {"gamma": 0.8}
    assert settings["config"] == {"gamma": 0.5}, "the settings themselves stay"


def test_the_best_restarts_where_evaluations_change() -> None:
    assert phases.best_phase_starts([MOVED, Phase(48, {"config.gamma": (1, 2)}), CHANGED]) == (
        32,
        64,
    )


def test_a_phase_starts_at_the_checkpoint_that_is_there() -> None:
    assert [phase.step for phase in phases.with_starts([MOVED, CHANGED], 1, 40)] == [32, 40]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (3, "phases .3. must be a sequence"),
        ([{"step": 1}], r"phases\[0\] must have the keys step, changes and run"),
        ([document(step="1")], r"phases\[0\].step .'1'. must be an integer"),
        ([document(changes={"config.gamma": [1]})], r"phases\[0\].changes"),
        ([document(changes={"secret.gamma": [1, 2]})], r"unknown setting in phases\[0\].changes"),
        ([document(changes={"arguments": [1, {}]})], r"phases\[0\].changes.arguments"),
        ([document(run=3)], r"phases\[0\].run"),
    ],
)
def test_a_file_that_was_changed_by_hand(values: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        phases.parse_phases(values)
