"""Tests of the results of a study: failures, order, and importance of settings."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import optuna
import pytest
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure

import rollax
from rollax import api
from rollax.sweeps import optuna_study as drawing
from rollax.sweeps import sweep_figure
from rollax.sweeps.results import TrialResult, find_best_trial, list_trial_results
from rollax.sweeps.study import Study, create_study
from rollax.sweeps.sweep_spec import StudySpec

CONFIG = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2}
OPTIONS = {"total_steps": 256, "eval_episodes": 8, "eval_count": 2, "tensorboard": False}
GIVEN: dict[str, Any] = {"config": CONFIG, "network": {"hidden": (8,)}, "options": OPTIONS}
MEMORY = ("ppo", "probe/memory")


def test_a_program_without_enough_memory_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any other error of a program ends the study."""
    train = api.train

    def exhausted(*names: Any, config: Any, **given: Any) -> Any:
        result = train(*names, config=config, **given)
        if config["num_epochs"] == 2:  # during training
            raise jax.errors.JaxRuntimeError(told)
        return result

    monkeypatch.setattr(api, "train", exhausted)
    given = {"sweep": {"num_epochs": (1, 2, 3), "gamma": (0.9, 0.99)}, **GIVEN}
    told = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes"
    found = rollax.sweep(*MEMORY, folder=tmp_path / "study", **given)
    states = {
        row.settings["config.num_epochs"]: (row.state, str(row.problem)) for row in found.rows
    }
    assert [states[number][0] for number in (1, 2, 3)] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert (
        "for 2 of these" in states[2][1]
        and "Out of memory" in states[2][1]
        and "--batch" in states[2][1]
    )
    assert "Batch 0001 cannot be trained: not enough memory" in "".join(capsys.readouterr())
    told = "INTERNAL: something else"
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        rollax.sweep(*MEMORY, folder=tmp_path / "other", quiet=True, **given)


@pytest.mark.quick
@pytest.mark.parametrize(("mode", "best_first"), [("max", [1, 2, 0]), ("min", [0, 2, 1])])
def test_the_best_trial_comes_first(tmp_path: Path, mode: str, best_first: list[int]) -> None:
    """The order follows best_mode. Trials without a result come last."""
    options = OPTIONS | {"best_mode": mode}
    spec = StudySpec(
        *MEMORY, **GIVEN | {"sweep": {"gamma": (0.1, 0.2, 0.3, 0.4)}, "options": options}
    )
    study = Study(create_study(spec, tmp_path / "study"))
    study.draw()
    for number, value in enumerate((1.0, 3.0, 2.0, None)):
        drawing.tell_result(study.optuna_study, number, value, {})
    assert [row.number for row in list_trial_results(study)] == [*best_first, 3]
    assert find_best_trial(study).number == best_first[0]


def test_parameter_importance_needs_enough_results() -> None:
    """With few results it is random."""
    span = {name: optuna.distributions.FloatDistribution(0, 1) for name in ("matters", "other")}
    study = optuna.create_study(direction="maximize")
    points = np.random.default_rng(0).uniform(size=(32, 2))
    made = optuna.trial.create_trial
    trials = [
        made(
            params=dict(zip(span, map(float, point), strict=True)),
            distributions=span,
            value=-abs(point[0] - 0.5),
        )
        for point in points
    ]
    study.add_trials(trials[:15])
    assert drawing.parameter_importance(study) == {}
    study.add_trials(trials[15:])
    assert drawing.parameter_importance(study)["matters"] > 0.8


@pytest.mark.quick
def test_axes_of_the_study_figure() -> None:
    """The axis of steps has the unit of the algorithm, and a range shows its ends."""
    span = SimpleNamespace(low=1e-5, high=1e-1, scale="log")
    space = [SimpleNamespace(name="config.learning_rate", value_range=span, choices=())]
    row = TrialResult(0, "COMPLETE", {"config.learning_rate": 1e-3}, 1.0, [1.0], 8, None, 0, None)
    curves, parallel = Figure().subplots(1, 2)
    for algorithm, unit in (("map_elites", "evaluations"), ("ppo", "environment steps")):
        study: Any = SimpleNamespace(space=space, base=SimpleNamespace(algorithm=algorithm))
        sweep_figure._draw_curves(curves, study, [], ScalarMappable())
        assert curves.get_xlabel() == unit
    sweep_figure._draw_parallel_coordinates(parallel, study, [row, row], ScalarMappable())
    low, high = parallel.get_ylim()
    assert low < 0 and high > 1 and {text.get_text() for text in parallel.texts} == {"1e-05", "0.1"}
