"""What a study says of its settings: which have failed and why, and which matter."""

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
from rollax.host import api
from rollax.studies import optuna_study as drawing
from rollax.studies import pictures
from rollax.studies.results import Row

CONFIG = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2}
OPTIONS = {"total_steps": 256, "eval_episodes": 8, "eval_count": 2, "tensorboard": False}
GIVEN: dict[str, Any] = {"config": CONFIG, "network": {"hidden": (8,)}, "options": OPTIONS}
MEMORY = ("ppo", "probe/memory")


def test_what_does_not_fit_into_memory_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a device says that has no more; any other error of the program ends the study."""
    train = api.train

    def exhausted(*names: Any, config: Any, **given: Any) -> Any:
        result = train(*names, config=config, **given)
        if config["num_epochs"] == 2:  # in the midst of training
            raise jax.errors.JaxRuntimeError(told)
        return result

    monkeypatch.setattr(api, "train", exhausted)
    given = {"sweep": {"num_epochs": (1, 2, 3), "gamma": (0.9, 0.99)}, **GIVEN}
    told = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes"
    found = rollax.sweep(*MEMORY, folder=tmp_path / "study", **given)
    states = {row.settings["config.num_epochs"]: (row.state, str(row.problem)) for row in found.rows}
    assert [states[number][0] for number in (1, 2, 3)] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert "for 2 of these" in states[2][1] and "Out of memory" in states[2][1] and "--batch" in states[2][1]
    assert "batch 0001 cannot be trained: the memory" in "".join(capsys.readouterr())
    told = "INTERNAL: something else"
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        rollax.sweep(*MEMORY, folder=tmp_path / "other", quiet=True, **given)


def test_importance_needs_results() -> None:
    """Of few it is chance, whichever setting it names; of enough it is the one that matters."""
    span = {name: optuna.distributions.FloatDistribution(0, 1) for name in ("matters", "other")}
    study = optuna.create_study(direction="maximize")
    points = np.random.default_rng(0).uniform(size=(32, 2))
    made = optuna.trial.create_trial
    trials = [
        made(params=dict(zip(span, map(float, point), strict=True)), distributions=span, value=-abs(point[0] - 0.5))
        for point in points
    ]
    study.add_trials(trials[:15])
    assert drawing.importance(study) == {}
    study.add_trials(trials[15:])
    assert drawing.importance(study)["matters"] > 0.8


def test_axes_of_the_picture() -> None:
    """Steps are called what the algorithm counts, and the ends of a range are shown where no setting is near them."""
    span = SimpleNamespace(low=1e-5, high=1e-1, scale="log")
    space = [SimpleNamespace(name="config.learning_rate", span=span, choices=())]
    row = Row(0, "COMPLETE", {"config.learning_rate": 1e-3}, 1.0, [1.0], 8, None, 0, None)
    curves, parallel = Figure().subplots(1, 2)
    for algorithm, unit in (("map_elites", "evaluations"), ("ppo", "environment steps")):
        study: Any = SimpleNamespace(space=space, base=SimpleNamespace(algorithm=algorithm))
        pictures._curves(curves, study, [], ScalarMappable())
        assert curves.get_xlabel() == unit
    pictures._parallel(parallel, study, [row, row], ScalarMappable())
    low, high = parallel.get_ylim()
    assert low < 0 and high > 1 and {text.get_text() for text in parallel.texts} == {"1e-05", "0.1"}
