"""Tests of the arguments of a study in Python and on the command line."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import yaml

import rollax
from rollax.cli.main import main
from rollax.errors import UsageError
from rollax.sweeps import launchers
from rollax.sweeps.study import Study, create_study
from rollax.sweeps.sweep_spec import SearchOptions, StudySpec

MEMORY = ("ppo", "probe/memory")
CONFIG = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "num_epochs": 1}
OPTIONS = {"total_steps": 256, "eval_episodes": 8, "eval_count": 4, "tensorboard": False}


@pytest.fixture(autouse=True)
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace training, so that studies are made only."""
    monkeypatch.setattr(launchers, "launch_workers", lambda *_, **__: None)
    monkeypatch.setattr("rollax.sweeps.sweep_session.launch_workers", lambda *_, **__: None)


def test_options_override_a_study_file_even_with_defaults(tmp_path: Path) -> None:
    file, folder = tmp_path / "study.yaml", tmp_path / "study"
    search = {"pruner": "halving", "method": "random", "trials": 4, "search_seed": 5}
    given = {"range": {"gamma": [0.5, 0.9]}, "config": CONFIG, "options": OPTIONS, "search": search}
    file.write_text(yaml.safe_dump({"algorithm": MEMORY[0], "environment": MEMORY[1], **given}))
    words = ["--pruner", "none", "--method", "auto", "--search-seed", "0", "--batch", "2"]
    assert main(["sweep", str(file), *words, "--study-dir", str(folder)]) == 1
    assert Study(folder).spec.search == SearchOptions(trials=4, batch=2)


def test_settings_of_an_existing_study_cannot_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search = SearchOptions(trials=4, method="random")
    spec = StudySpec(
        *MEMORY, range={"gamma": (0.5, 0.9)}, config=CONFIG, options=OPTIONS, search=search
    )
    folder = create_study(spec, tmp_path / "study")
    changes: list[dict[str, Any]] = [
        {"search": {"trials": 4}},
        {"range": {}},
        {"imports": ("os",)},
        {"folder": tmp_path / "b"},
    ]
    for change in changes:
        with pytest.raises(
            UsageError, match=f"settings cannot change. Remove {next(iter(change))}."
        ):
            rollax.sweep(folder, **change)
    for words in (
        ["--method", "auto"],
        ["--trials", "5"],
        ["--sweep.gamma", "1"],
        ["--study-dir", str(tmp_path / "b")],
    ):
        assert main(["sweep", str(folder), *words]) == 2
        assert "is an existing study, whose settings cannot change" in capsys.readouterr().err
    assert rollax.sweep(folder).rows == []


@pytest.mark.parametrize(
    ("option", "setting", "other"),
    [
        ("--when.gamma.network.hidden", "config.gamma", "network.hidden"),
        ("--when.config.gamma.hidden", "config.gamma", "network.hidden"),
        ("--when.network.hidden.config.gamma", "network.hidden", "config.gamma"),
        ("--when.env.delay.gamma", "env.delay", "config.gamma"),
    ],
)
def test_conditions_on_settings_with_their_group(
    tmp_path: Path, option: str, setting: str, other: str
) -> None:
    words = [
        *MEMORY,
        "--sweep.gamma",
        "0.5",
        "0.9",
        "--sweep.hidden",
        "4,4",
        "8",
        "--sweep.env.delay",
        "1",
        "2",
    ]
    value = {"network.hidden": "4,4", "config.gamma": "0.5"}[other]
    assert main(["sweep", *words, option, value, "--study-dir", str(tmp_path / "study")]) == 1
    when = {one.name: dict(one.when) for one in Study(tmp_path / "study").space if one.when}
    assert when == {setting: {other: ((4, 4),) if other == "network.hidden" else (0.5,)}}


@pytest.mark.quick
@pytest.mark.parametrize(
    ("given", "gammas"),
    [
        ({"sweep": {"gamma": [np.float32(0.5), np.float64(0.75)]}}, [0.5, 0.75]),
        ({"sweep": {"gamma": np.array([0.5, 0.75])}}, [0.5, 0.75]),
        (
            {
                "sweep": {"gamma": jnp.array([0.5, 0.75])},
                "options": OPTIONS | {"total_steps": np.int64(256)},
            },
            [0.5, 0.75],
        ),
        ({"sweep": {"gamma": (0.5,), "num_epochs": [np.int64(1), np.int64(2)]}}, [0.5, 0.5]),
        (
            {
                "sweep": {"gamma": (0.5,)},
                "config": rollax.PPOConfig(num_envs=4, num_steps=8, num_minibatches=2),
            },
            [0.5],
        ),
        ({"sweep": {"gamma": (0.5,)}, "network": rollax.NetworkConfig(hidden=(8,))}, [0.5]),
        (
            {
                "sweep": {"gamma": (0.5,)},
                "options": rollax.RunOptions(**OPTIONS),
                "search": SearchOptions(batch=2),
            },
            [0.5],
        ),
    ],
)
def test_values_are_converted_as_by_train(
    tmp_path: Path, given: dict[str, Any], gammas: list[float]
) -> None:
    """They are numbers and arrays of NumPy and JAX, and config objects.

    The study file has plain values.
    """
    study = Study(
        rollax.sweep(
            *MEMORY, folder=tmp_path / "study", **{"config": CONFIG, "options": OPTIONS, **given}
        ).folder
    )
    while study.draw():
        pass
    assert [
        trial.settings["config.gamma"] for batch in study.list_batches() for trial in batch.trials
    ] == gammas
    assert (study.base.config.num_steps, study.base.options.total_steps) == (8, 256)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"sweep": {"gamma": [object()]}},
            (
                r"sweep.gamma\[0\] must be a number, a string, an array or a list of them, got .* "
                r"\(object\)"
            ),
        ),
        ({"config": 3}, "config .3. must be a dictionary"),
        ({"network": lambda key: key}, "network .* must be a dictionary"),
    ],
)
def test_values_that_cannot_be_stored_raise_usage_error(
    tmp_path: Path, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        rollax.sweep(*MEMORY, folder=tmp_path / "study", **{"sweep": {"gamma": (0.5,)}, **given})
    assert not (tmp_path / "study").exists()


SMALL = ["--num-envs", "4", "--num-steps", "8", "--num-minibatches", "2", "--total-steps", "256"]


def swept(folder: Path, *words: str) -> int:
    return main(["sweep", *MEMORY, *SMALL, *words, "--study-dir", str(folder)])


def test_none_as_a_choice_or_a_missing_value(tmp_path: Path) -> None:
    """ "none" is a choice if the setting has such a choice, and otherwise a missing value."""
    words = [
        "--sweep.core",
        "none",
        "gru",
        "--sweep.filters",
        "none",
        "--sweep.embedding",
        "4",
        "8",
    ]
    assert swept(tmp_path / "study", *words, "--when.embedding.core", "none") == 1
    values = {one.name: (one.choices, dict(one.when)) for one in Study(tmp_path / "study").space}
    assert values["network.core"][0] == ("none", "gru")
    assert values["network.filters"][0] == (None,)
    assert values["network.embedding"] == ((4, 8), {"network.core": ("none",)})


def test_counts_are_parsed_as_by_train(tmp_path: Path) -> None:
    words = [
        "--range.gamma",
        "0.5",
        "0.9",
        "--sweep.num-envs",
        "4",
        "1k",
        "1e2",
        "--trials",
        "1e1",
        "--budget=100k",
    ]
    assert swept(tmp_path / "study", *words) == 1
    study = Study(tmp_path / "study")
    assert study.spec.search == SearchOptions(trials=10, budget=100_000)
    assert {one.name: one.choices for one in study.space}["config.num_envs"] == (4, 1000, 100)


def test_a_range_of_an_integer_argument_of_the_environment(tmp_path: Path) -> None:
    assert swept(tmp_path / "study", "--range.env.delay", "1", "8", "--trials", "4") == 1
    (batch, *more) = Study(tmp_path / "study").draw()
    assert {
        type(trial.settings["env.delay"]) for each in (batch, *more) for trial in each.trials
    } == {int}


def test_options_of_a_study_with_evolution(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evolving = [
        "--range.gamma",
        "0.5",
        "0.9",
        "--trials",
        "4",
        "--evolve-every",
        "64",
        "--evolve-fraction",
        "0.5",
    ]
    assert swept(tmp_path / "study", *evolving, "--method", "evolve") == 1
    options = Study(tmp_path / "study").spec.options
    assert (options["evolve_every"], options["evolve_fraction"]) == (64, 0.5)
    for words, told in (
        (evolving, "Add --method evolve, or remove it"),
        (
            [*evolving, "--method", "evolve", "--evolve-start", "1000"],
            "the first generation would be at",
        ),
        (
            ["--range.gamma", "0.5", "0.9", "--trials", "1", "--method", "evolve"],
            "needs at least 2 trials, got 1",
        ),
    ):
        assert swept(tmp_path / "other", *words) == 2
        assert told in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--best-metric", "return_maen"], "unknown best_metric 'return_maen'"),
        (["--env.dealy", "3"], "unknown argument of probe/memory 'dealy'"),
        (["--eval-env.dealy", "3"], "unknown argument of probe/memory 'dealy'"),
        (["--sweep.env.delay", "x", "3"], "delay must be an integer"),
        (["--wandb", "project"], "wandb is not installed"),
    ],
)
def test_settings_that_always_fail_make_no_study(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    told: str,
) -> None:
    """All trials would fail, although another package or command may fix it."""
    monkeypatch.setattr("rollax.training.loop.installed_version", lambda package: None)
    assert swept(tmp_path / "study", "--sweep.gamma", "0.5", "0.9", *words) == 2
    assert told in capsys.readouterr().err and not (tmp_path / "study").exists()


def test_a_missing_study_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(tmp_path / "study.yaml")]) == 2
    assert "study.yaml is not a study or a study file" in capsys.readouterr().err
