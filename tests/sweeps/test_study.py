"""Tests of studies: drawing, training together, early stopping, and several processes."""

import dataclasses
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import yaml

import rollax
from rollax.cli import train_command
from rollax.cli.main import main
from rollax.errors import UsageError
from rollax.sweeps import optuna_study as drawing
from rollax.sweeps import results, sweep_figure
from rollax.sweeps.launchers import divide_gpus
from rollax.sweeps.study import Study, create_study
from rollax.sweeps.sweep_spec import SearchOptions, StudySpec
from rollax.training.run_folder.metric_sinks import read_metrics
from support.command import PATIENCE, end_with_test

CONFIG = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "num_epochs": 1}
OPTIONS = {"total_steps": 32 * 8, "eval_episodes": 8, "eval_count": 4, "tensorboard": False}
GIVEN: dict[str, Any] = {
    "config": CONFIG,
    "network": {"hidden": (8,)},
    "options": OPTIONS,
    "quiet": True,
}
MEMORY = ("ppo", "probe/memory")


def states(folder: Path) -> list[str]:
    return [trial.state.name for trial in Study(folder).optuna_study.get_trials(deepcopy=False)]


@pytest.mark.quick
def test_a_grid_study(tmp_path: Path) -> None:
    """Every combination occurs once, with a program per static setting.

    The run of the best trial has its scores.
    """
    found = rollax.sweep(
        *MEMORY,
        sweep={"learning_rate": (1e-3, 1e-2), "hidden": [[8], [4, 4]]},
        folder=tmp_path / "study",
        **GIVEN | {"options": OPTIONS | {"seeds": 2}},
    )
    settings = [
        (row.settings["config.learning_rate"], tuple(row.settings["network.hidden"]))
        for row in found.rows
    ]
    assert sorted(settings) == [(1e-3, (4, 4)), (1e-3, (8,)), (1e-2, (4, 4)), (1e-2, (8,))]
    assert {row.state for row in found.rows} == {"COMPLETE"}
    assert len({row.run for row in found.rows}) == 2
    best = found.best
    assert (
        best.value
        == max(row.value or 0 for row in found.rows)
        == pytest.approx(np.mean([x or 0 for x in best.scores]))
    )
    policy = rollax.load(found.folder / str(best.run), member=best.member)
    assert (
        policy.spec.members()[best.member or 0]["learning_rate"]
        == best.settings["config.learning_rate"]
    )
    assert policy.spec.network.hidden == tuple(best.settings["network.hidden"])


@pytest.mark.parametrize(("batch", "sizes"), [(8, [5, 5]), (4, [3, 2, 3, 2])])
def test_a_grid_is_drawn_program_by_program(tmp_path: Path, batch: int, sizes: list[int]) -> None:
    """Each program is compiled once, or trials are split into parts of similar size."""
    sweep, search = (
        {"num_epochs": (1, 2), "gamma": (0.1, 0.2, 0.3, 0.4, 0.5)},
        SearchOptions(batch=batch),
    )
    folder = create_study(
        StudySpec(*MEMORY, sweep=sweep, config=CONFIG, options=OPTIONS, search=search),
        tmp_path / "study",
    )
    while Study(folder).draw():
        pass
    batches = Study(folder).list_batches()
    assert [len(batch.trials) for batch in batches] == sizes
    assert all(
        len({trial.settings["config.num_epochs"] for trial in batch.trials}) == 1
        for batch in batches
    )


def test_the_exported_preset_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--config.num-envs",
        "4",
        "--config.num-steps",
        "8",
        "--config.num-minibatches",
        "2",
        "--eval-episodes",
        "8",
    ]
    words += [
        "--sweep.gamma",
        "0.5",
        "0.9",
        "--sweep.hidden",
        "4,4",
        "--total-steps",
        "128",
        "--no-tensorboard",
    ]
    preset, folder = tmp_path / "best.yaml", tmp_path / "study"
    assert (
        main(["sweep", *MEMORY, *words, "--study-dir", str(folder), "--export-preset", str(preset)])
        == 0
    )
    assert (folder / "study.png").stat().st_size > 10_000
    assert "of 2 trials" in preset.read_text()
    (tuned,) = yaml.safe_load(preset.read_text()).values()
    assert (tuned["network"]["hidden"], tuned["config"]["num_steps"], tuned["total_steps"]) == (
        [4, 4],
        8,
        128,
    )
    out = capsys.readouterr().out
    assert "return_mean by setting" in out and f"--preset {preset}" in out
    assert (
        main(
            [
                "train",
                *MEMORY,
                "--preset",
                str(preset),
                "--run-dir",
                str(tmp_path / "run"),
                "--no-tensorboard",
            ]
        )
        == 0
    )
    spec = rollax.load(tmp_path / "run").spec
    assert (spec.config.gamma, spec.network.hidden) == (tuned["config"]["gamma"], (4, 4))
    assert main(["train", "ppo", "gymnax/CartPole-v1", "--preset", str(preset)]) == 2
    assert f"{preset} has no settings for gymnax/CartPole-v1" in capsys.readouterr().err
    assert main(["sweep", str(folder)]) == 0, "nothing is left to do"
    assert main(["sweep", *MEMORY, *words, "--study-dir", str(folder)]) == 2
    assert f"continue it with: rollax sweep {folder}" in capsys.readouterr().err


def test_the_exported_preset_includes_the_builtin_preset(tmp_path: Path) -> None:
    """It replaces the builtin preset: unchanged settings, and settings reset to their default."""
    task, default = ("ppo", "gymnax/CartPole-v1"), rollax.PPOConfig().num_minibatches
    folder = create_study(
        StudySpec(*task, sweep={"gamma": (0.9,)}, config={"num_minibatches": default}),
        tmp_path / "study",
    )
    study = Study(folder)
    assert {"num_envs": 16, "num_steps": 125}.items() <= vars(study.base.config).items()
    study.draw()
    drawing.tell_result(study.optuna_study, 0, 1.0, {"run": "r", "steps": 10**5, "scores": [1.0]})
    (tmp_path / "best.yaml").write_text(results.format_preset(study))
    given, _ = train_command.parse_train_words([*task], ["--preset", str(tmp_path / "best.yaml")])
    assert given["config"] == dataclasses.replace(study.base.config, gamma=0.9)
    assert (given["network"], given["options"].total_steps) == (study.base.network, 100_000)


def test_the_worse_half_stops_early(tmp_path: Path) -> None:
    """Halving happens after an eighth, a quarter and a half of training.

    One of 8 settings is trained to the end.
    """
    options = OPTIONS | {"eval_count": 8}
    found = rollax.sweep(
        *MEMORY,
        sweep={"learning_rate": np.geomspace(1e-5, 1e-1, 8).tolist()},
        search={"pruner": "halving"},
        folder=tmp_path / "study",
        **GIVEN | {"options": options},
    )
    assert sorted((row.state, row.steps) for row in found.rows) == [
        ("COMPLETE", 256),
        *[("PRUNED", 32)] * 4,
        *[("PRUNED", 64)] * 2,
        ("PRUNED", 128),
    ]
    (batch,) = Study(found.folder).list_batches()
    assert [len(numbers) for _, numbers in batch.runs] == [8, 4, 2, 1]
    sizes = [rollax.load(batch.folder / name).spec.num_members for name, _ in batch.runs]
    assert sizes == [8, 4, 2, 1]


def test_the_number_of_devices_divides_the_members(tmp_path: Path) -> None:
    """Halving leaves 3 of 6 settings, then 1. They use two devices, one, and again two."""
    words = [
        *MEMORY,
        "--config.num-envs",
        "4",
        "--config.num-steps",
        "8",
        "--config.num-minibatches",
        "2",
        "--hidden",
        "8",
    ]
    words += [
        "--sweep.gamma",
        *["0.4", "0.5", "0.6", "0.7", "0.8", "0.9"],
        "--pruner",
        "halving",
        "--devices",
        "2",
        "--no-picture",
    ]
    words += [
        "--total-steps",
        "256",
        "--eval-count",
        "8",
        "--eval-episodes",
        "8",
        "--no-tensorboard",
        "--study-dir",
        "study",
    ]
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, "-m", "rollax", "sweep", *words]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (batch,) = Study(tmp_path / "study").list_batches()
    specs = [rollax.load(batch.folder / name).spec for name, _ in batch.runs]
    assert [(spec.num_members, spec.options.devices) for spec in specs] == [(6, 2), (3, 1), (1, 2)]


@pytest.mark.parametrize(("pruner", "settings"), [("none", 4), ("halving", 7)])
def test_a_budget_of_steps(tmp_path: Path, pruner: str, settings: int) -> None:
    """No trial is drawn that could exceed it.

    Trials that stop early leave their steps to others: there are 4, 2 and 1 trials here.
    """
    each, options = 256 * 2, OPTIONS | {"eval_count": 8, "seeds": 2}
    search = {"budget": 4 * each + 100, "batch": 4, "pruner": pruner, "method": "random"}
    found = rollax.sweep(
        *MEMORY,
        range={"gamma": (0.5, 0.9)},
        search=search,
        folder=tmp_path,
        **GIVEN | {"options": options},
    )
    taken = sum(2 * (row.steps or 0) for row in found.rows)
    assert taken <= 4 * each + 100 < taken + each, "one more was not to be had"
    assert len(found.rows) == settings and {row.state for row in found.rows} <= {
        "COMPLETE",
        "PRUNED",
    }
    study = Study(tmp_path)
    assert study.count_steps() == taken and study.draw() == []
    assert study.is_done() and results.summarize_study(study)["trials"] == settings
    assert main(["sweep", str(tmp_path), "--no-picture"]) == 0, "nothing is left to do"
    assert f"{taken:,} of {4 * each + 100:,} steps" in results.format_progress(study)


def test_a_budget_counts_whole_updates() -> None:
    """It counts all seeds, and the largest number of steps of any setting."""
    options = OPTIONS | {"total_steps": 100, "seeds": 2}
    assert (
        StudySpec(
            *MEMORY, range={"gamma": (0.5, 0.9)}, config=CONFIG, options=options
        ).steps_per_trial
        == 2 * 4 * 32
    )
    sizes = {"num_envs": (4, 8), "network.hidden": [[8], [4]], "env.delay": [[1], [2]]}
    assert (
        StudySpec(*MEMORY, sweep=sizes, config=CONFIG, options=options).steps_per_trial
        == 2 * 2 * 64
    )


@pytest.mark.parametrize(
    ("search", "message"),
    [
        (
            {"budget": 200},
            "budget .200. must be at least the steps of one trial with all its seeds .256.",
        ),
        ({"budget": 10_000, "method": "evolve"}, "Remove --seeds, --pruner and --budget"),
        ({"budget": 0}, "budget must be at least 1, got 0"),
    ],
)
def test_invalid_budgets_raise_error(tmp_path: Path, search: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rollax.sweep(
            *MEMORY, range={"gamma": (0.5, 0.9)}, search=search, folder=tmp_path / "study", **GIVEN
        )
    assert not (tmp_path / "study").exists()


def test_a_study_with_evolution(tmp_path: Path) -> None:
    """Its members are the trials, with their final settings."""
    search = {"method": "evolve", "trials": 4}
    found = rollax.sweep(
        *MEMORY, range={"gamma": (0.5, 0.9)}, search=search, folder=tmp_path / "study", **GIVEN
    )
    (run,) = {row.run for row in found.rows}
    assert [row.state for row in found.rows] == ["COMPLETE"] * 4
    assert sorted(row.member or 0 for row in found.rows) == [0, 1, 2, 3]
    for row in found.rows:
        policy = rollax.load(found.folder / str(run), member=row.member)
        assert row.settings == {"config.gamma": pytest.approx(float(policy.state.config.gamma))}
        curve = sweep_figure._mean_returns(Study(found.folder), row)[1]
        assert len(curve) == 5 and curve[-1] == pytest.approx(row.value)
    assert len({row.settings["config.gamma"] for row in found.rows}) > 1
    with pytest.raises(UsageError, match="config.num_envs cannot evolve"):
        rollax.sweep(
            *MEMORY, range={"num_envs": (1, 8)}, search=search, folder=tmp_path / "other", **GIVEN
        )
    with pytest.raises(UsageError, match="Remove --seeds"):
        given = GIVEN | {"options": OPTIONS | {"seeds": 2}}
        rollax.sweep(
            *MEMORY, range={"gamma": (0.5, 0.9)}, search=search, folder=tmp_path / "other", **given
        )


@pytest.mark.parametrize("method", ["random", "qmc", "tpe", "cmaes"])
def test_samplers_draw_within_the_space(tmp_path: Path, method: str) -> None:
    """All trials differ, although several processes draw them."""
    spec = StudySpec(
        *MEMORY,
        range={"learning_rate": (1e-4, 1e-2), "num_epochs": (1, 3)},
        config=CONFIG,
        options=OPTIONS,
        search=SearchOptions(trials=12, batch=4, method=method),  # pyright: ignore[reportArgumentType]
    )
    folder = create_study(spec, tmp_path / "study")
    for _ in range(3):
        assert Study(folder).draw()
    assert Study(folder).draw() == []
    trials = [trial for batch in Study(folder).list_batches() for trial in batch.trials]
    rates = [trial.settings["config.learning_rate"] for trial in trials]
    assert len(set(rates)) == 12 and 1e-4 <= min(rates) <= max(rates) <= 1e-2
    for batch in Study(folder).list_batches():
        assert len({trial.settings["config.num_epochs"] for trial in batch.trials}) == 1


def test_invalid_settings_fail_alone(tmp_path: Path) -> None:
    found = rollax.sweep(
        *MEMORY, sweep={"num_minibatches": (2, 3)}, folder=tmp_path / "study", **GIVEN
    )
    assert [(row.state, row.settings["config.num_minibatches"]) for row in found.rows] == [
        ("COMPLETE", 2),
        ("FAIL", 3),
    ]
    assert "num_minibatches 2" in str(found.rows[1].problem)
    with pytest.raises(UsageError, match="No trial .* has a result: .*num_minibatches 2"):
        _ = rollax.sweep(
            *MEMORY, sweep={"num_minibatches": (3, 5)}, folder=tmp_path / "other", **GIVEN
        ).best


def test_nonfinite_trials_have_no_result(tmp_path: Path) -> None:
    """This holds for members of a population and for single runs."""
    given = GIVEN | {
        "config": CONFIG | {"max_grad_norm": float("inf"), "learning_rate_final_fraction": 1.0}
    }
    rates = {"learning_rate": (1e-3, 3e38)}
    together = rollax.sweep(*MEMORY, sweep=rates, folder=tmp_path / "together", **given)
    apart = rollax.sweep(
        *MEMORY, sweep=rates, folder=tmp_path / "apart", search={"batch": 1}, **given
    )
    for found in (together, apart):
        assert [(row.state, row.settings["config.learning_rate"]) for row in found.rows] == [
            ("COMPLETE", 1e-3),
            ("FAIL", 3e38),
        ]
        assert "finite" in str(found.rows[1].problem)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"search": {"trials": 0}}, "at least 1"),
        ({"trials": 4}, "unknown keyword 'trials': it is a setting of search"),
        ({"study_dir": "x"}, "unknown keyword 'study_dir'"),
        ({"search": {"trails": 3}}, "search.trials"),
        (
            {"search": {"method": "grid"}, "sweep": None, "range": {"gamma": (0.1, 0.9)}},
            "The grid method needs values for config.gamma",
        ),
        (
            {"search": {"pruner": "halving"}, "options": OPTIONS | {"eval_count": 1}},
            "eval-count to 2",
        ),
        (
            {"search": {"pruner": "halving"}, "sweep": {"num_epochs": (1, 2)}},
            "has its own program. Choose another",
        ),
        ({"search": {"pruner": "halving", "batch": 1}}, "has its own program. Choose another"),
        ({"options": OPTIONS | {"run_dir": "x"}}, "run_dir is set by the study"),
        ({"search": {"storage": "nosuch://host/db"}}, "storage nosuch"),
        ({"workers": 0}, "at least 1"),
        ({"search": {"method": "gp"}}, "The package torch is not installed"),
        ({"hours": 0}, "more than 0"),
        ({"launcher": "pbs"}, "local, slurm, ray"),
        ({"resources": {"num_cpus": 1}}, "require the launcher slurm or ray"),
    ],
)
def test_invalid_arguments_raise_usage_error(
    tmp_path: Path, changed: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name == "torch" else find(name, *more),
    )
    with pytest.raises(UsageError, match=words):
        rollax.sweep(
            *MEMORY,
            **{"sweep": {"gamma": (0.1, 0.9)}, "folder": tmp_path / "study", **GIVEN, **changed},
        )
    assert not (tmp_path / "study").exists()


def test_processes_divide_the_gpus() -> None:
    """If there are fewer GPUs than processes, they divide the memory of each."""
    seen = [share["CUDA_VISIBLE_DEVICES"] for share in divide_gpus(["0", "1", "4", "5", "6"], 2)]
    assert seen == ["0,4,6", "1,5"]
    three = divide_gpus(["0", "GPU-7a"], 3)
    assert [share["CUDA_VISIBLE_DEVICES"] for share in three] == ["0", "GPU-7a", "0"]
    assert {share["XLA_PYTHON_CLIENT_MEM_FRACTION"] for share in three} == {"0.375"}
    assert divide_gpus([], 2) == [{}, {}]


def test_requirements_of_a_launcher_are_checked_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "sweep",
        *MEMORY,
        "--sweep.gamma",
        "0.5",
        "0.9",
        "--study-dir",
        str(tmp_path / "study"),
    ]
    assert main([*words, "--workers", "0"]) == 2
    assert "workers must be at least 1, got 0" in capsys.readouterr().err
    assert not (tmp_path / "study").exists()


def test_another_worker_continues_the_batch_of_a_killed_worker(tmp_path: Path) -> None:
    """Two processes work on a study in a database, and one is killed while it trains.

    Every trial has a result.
    """
    folder = create_study(
        StudySpec(
            *MEMORY,
            sweep={"num_epochs": (1, 2, 3, 4), "gamma": (0.5, 0.9)},
            config={name: value for name, value in CONFIG.items() if name != "num_epochs"},
            network={"hidden": (8,)},
            options=OPTIONS | {"total_steps": 32 * 2000},
            search=SearchOptions(batch=2, storage=f"sqlite:///{tmp_path}/trials.db"),
        ),
        tmp_path / "study",
    )
    command = [sys.executable, "-m", "rollax", "sweep", str(folder), "--worker", "--trust"]
    workers = [
        end_with_test(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
        for _ in range(2)
    ]
    until, training = time.monotonic() + PATIENCE, []
    while not training and time.monotonic() < until:
        time.sleep(0.1)
        training = list(folder.glob("batches/*/run/checkpoints/step_*"))
    workers[0].kill()
    _, error = workers[1].communicate(timeout=PATIENCE)
    assert workers[1].returncode == 0, error.decode()
    assert workers[0].wait() == -signal.SIGKILL
    workers[0].stderr.close()  # pyright: ignore[reportOptionalMemberAccess]
    assert states(folder) == ["COMPLETE"] * 8
    found = results.list_trial_results(Study(folder))
    assert {row.steps for row in found} == {32 * 2000}


def test_a_storage_that_does_not_respond(tmp_path: Path) -> None:
    """The error has no password."""
    with (
        pytest.raises(UsageError, match=f"does not respond .gone.*rollax sweep {tmp_path}"),
        drawing.convert_storage_errors(tmp_path),
    ):
        raise optuna.exceptions.StorageInternalError("gone")
    with pytest.raises(ZeroDivisionError), drawing.convert_storage_errors(tmp_path):
        raise ZeroDivisionError
    with pytest.raises(UsageError, match=r"storage nosuch://me:\*\*\*@host/db cannot be used"):
        drawing.load_optuna_study("nosuch://me:secret@host/db", "rollax", "none")


def test_a_study_stops_after_its_hours_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops as by a signal, also in a thread, where no signal can be received.

    Nothing is lost or trained twice.
    """
    given = (
        GIVEN
        | {"options": OPTIONS | {"total_steps": 32 * 4000}}
        | {"hours": 1 / 3600, "folder": tmp_path / "study"}
    )
    monkeypatch.setattr(os, "kill", lambda *_: None)  # the signal would end this process
    with ThreadPoolExecutor() as pool:
        first = pool.submit(rollax.sweep, *MEMORY, sweep={"gamma": (0.5, 0.9)}, **given).result()
    assert {row.state for row in first.rows} == {"RUNNING"}
    (batch,) = Study(first.folder).list_batches()
    began = (
        (batch.folder / "run" / "config.yaml").stat().st_mtime_ns,
        os.listdir(first.folder / "batches"),
    )
    done = rollax.sweep(first.folder, quiet=True)
    assert [(row.state, row.steps) for row in done.rows] == [("COMPLETE", 32 * 4000)] * 2
    assert os.listdir(first.folder / "batches") == began[1]
    steps = [
        line["step"]
        for line in read_metrics(batch.folder / "run" / "metrics.jsonl")
        if "event" not in line
    ]
    assert steps == sorted(set(steps))
    with pytest.raises(UsageError, match="is not a study"):
        rollax.sweep(tmp_path)


def holder(lock: Path) -> int | None:
    """Return the id of the process that holds a lock on Linux, or None."""
    inode = f":{lock.stat().st_ino}"
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return next(
        (int(words[4]) for words in lines if words[1] == "FLOCK" and words[5].endswith(inode)), None
    )


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="needs Linux")
@pytest.mark.parametrize(
    ("launcher", "resources"),
    [
        ("slurm", {"cluster": "local", "timeout_min": 10}),
        pytest.param("ray", {}, marks=pytest.mark.slow),
    ],
)
def test_workers_of_a_cluster(
    tmp_path: Path, launcher: str, resources: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are two local jobs of Submitit or tasks of a local Ray cluster.

    One is killed in training.
    """
    package = pytest.importorskip("submitit" if launcher == "slurm" else "ray")
    if launcher == "slurm":
        monkeypatch.setattr(
            package.Job, "_results_timeout_s", 0
        )  # timeout for the result of the killed job, on a slow disk
    folder, killed = tmp_path / "study", []

    def kill() -> None:
        until = time.monotonic() + PATIENCE
        while not killed and time.monotonic() < until:
            time.sleep(0.1)
            begun = [path.parents[2] for path in folder.glob("batches/*/run/checkpoints/step_*")]
            pids = [pid for batch in begun if (pid := holder(batch / ".lock"))]
            if pids:
                os.kill(pids[0], signal.SIGKILL)
                killed.append(pids[0])

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        found = rollax.sweep(
            *MEMORY,
            sweep={"num_epochs": (1, 2, 3, 4), "gamma": (0.5, 0.9)},
            folder=folder,
            launcher=launcher,  # pyright: ignore[reportArgumentType]
            resources=resources,
            workers=2,
            search={"batch": 2},
            **GIVEN | {"options": OPTIONS | {"total_steps": 32 * 2000}},
        )
    finally:
        thread.join()
    assert len(killed) == 1
    assert [(row.state, row.steps) for row in found.rows] == [("COMPLETE", 32 * 2000)] * 8
