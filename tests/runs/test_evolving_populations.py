"""Tests of runs with evolving populations: records, errors, and exact resumption."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import rollax
from rollax.cli import main
from rollax.training.evaluation.metrics import format_return
from rollax.training.run_folder import layout, lineage
from rollax.visualization.plots import algorithm_comparison, curve_estimates, paper_figure
from rollax.visualization.plots.learning_curves import Curve, read_run
from support.command import Command
from support.runs import FRAMES, SMALL_WORDS, Script, bits, check_same, metrics

RANGES = {"learning_rate": (1e-3, 1e-1), "entropy_coefficient": (0.0, 0.1)}
MEMBERS = 8
EVOLVING: dict[str, Any] = {
    "environment": "probe/action-reward",
    "evolve": RANGES,
    "seeds": MEMBERS,
    "evolve_every": 2 * FRAMES,
    "eval_stochastic": True,
}


@pytest.fixture(scope="module")
def whole(compile_once: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an uninterrupted run of twelve updates.

    There is a generation after every second update except the last.
    """
    return evolved(tmp_path_factory.mktemp("whole") / "run").folder


def evolved(folder: Path, show: Any = None, **changes: Any) -> rollax.Result:
    from support.runs import NETWORK, SMALL, options

    given = EVOLVING | changes
    evolve, environment = given.pop("evolve"), given.pop("environment")
    settings = {
        "config": SMALL,
        "network": NETWORK,
        "evolve": evolve,
        "options": options(folder, **given),
    }
    return rollax.train("ppo", environment, show=show or Script(), **settings)


def same(run: Path, other: Path) -> None:
    """Check that both runs are equal, with every member and the whole lineage."""
    check_same(run, other)
    assert lineage.read_lineage(run) == lineage.read_lineage(other)
    for member in range(MEMBERS):
        assert bits(rollax.load(run, member=member).state) == bits(
            rollax.load(other, member=member).state
        )


@pytest.mark.quick
def test_the_lineage_records_generations(whole: Path) -> None:
    """It has the initial settings, then for each generation the fitness, parents and settings."""
    lines = lineage.read_lineage(whole)
    assert [line["step"] for line in lines] == [n * 2 * FRAMES for n in range(6)]
    assert [line["generation"] for line in lines] == list(range(6))
    assert (lines[0]["fitness"], lines[0]["parent"]) == (None, None)
    replaced = 0
    for before, line in zip(lines, lines[1:], strict=False):
        fitness, parent = np.array(line["fitness"]), np.array(line["parent"])
        children = np.flatnonzero(parent != np.arange(MEMBERS))
        replaced += len(children)
        assert len(children) <= MEMBERS / 4
        assert all(
            fitness[parent[child]] >= np.sort(fitness)[-2] > fitness[child] for child in children
        )
        for name, (low, high) in RANGES.items():
            old, new = np.array(before["settings"][name]), np.array(line["settings"][name])
            assert np.all((new >= np.float32(low)) & (new <= np.float32(high)))
            assert np.flatnonzero(old != new).tolist() == children.tolist()
    assert replaced > 4


def test_metrics_have_the_settings_of_members(whole: Path) -> None:
    """The settings of an update are those of the previous generation. The optimizer uses them."""
    history = lineage.read_lineage(whole)
    lines = [line for line in metrics(whole) if "event" not in line]
    assert len(lines) == 12
    for line in lines:
        current = [each for each in history if each["step"] < line["step"]][-1]["settings"]
        for name in RANGES:
            assert line[f"evolve/{name}"] == pytest.approx(current[name])
        assert line["learning_rate"] == pytest.approx(current["learning_rate"])
    for member in (0, MEMBERS - 1):
        config = rollax.load(whole, member=member).state.config
        assert config.learning_rate == pytest.approx(
            history[-1]["settings"]["learning_rate"][member]
        )


def test_fitness_is_the_return_in_training(whole: Path) -> None:
    """It is the mean over episodes since the previous generation, or the last known fitness."""
    lines = {line["step"]: line for line in metrics(whole) if "event" not in line}
    for line in lineage.read_lineage(whole)[1:]:
        two = [lines[line["step"] - FRAMES], lines[line["step"]]]
        count = np.array([each["episodes"] for each in two])
        total = sum(
            np.array(each["episode_return"]) * n for each, n in zip(two, count, strict=True)
        )
        np.testing.assert_allclose(line["fitness"], total / count.sum(axis=0), atol=1e-6)


@pytest.mark.parametrize("updates", [3, 4, 9, 12])
def test_a_stopped_run_is_resumed_exactly(whole: Path, tmp_path: Path, updates: int) -> None:
    """It is stopped between generations, at one, and at the end."""

    def react(kind: str, text: str) -> None:
        if kind == "progress" and int(text) >= updates * FRAMES:
            signal.raise_signal(signal.SIGTERM)

    stopped = evolved(tmp_path / "run", Script(react))
    assert (stopped.status, stopped.steps) == ("stopped", updates * FRAMES)
    assert rollax.resume(stopped.folder, show=Script()).status == "done"
    same(stopped.folder, whole)


@pytest.mark.parametrize("generation", [1, 3])
def test_a_killed_run_is_resumed_exactly(whole: Path, tmp_path: Path, generation: int) -> None:
    """A generation after the last checkpoint is repeated, and recorded once."""

    def react(kind: str, text: str) -> None:
        if f"generation {generation}:" in text:
            raise SystemExit("as if killed")

    for checkpoint_steps in (0, 2 * FRAMES):
        folder = tmp_path / str(checkpoint_steps)
        with pytest.raises(SystemExit):
            evolved(folder, Script(react), checkpoint_steps=checkpoint_steps)
        assert lineage.read_lineage(folder)[-1]["generation"] == generation
        rollax.resume(folder, show=Script())
        same(folder, whole)


def test_steps_of_generations(tmp_path: Path) -> None:
    """They start after evolve_start.

    With evolve_every 0 there are none, and settings are constant.
    """
    late = evolved(tmp_path / "late", evolve_start=5 * FRAMES).folder
    assert [line["step"] // FRAMES for line in lineage.read_lineage(late)] == [0, 6, 8, 10]
    never = evolved(tmp_path / "never", evolve_every=0).folder
    (drawn,) = lineage.read_lineage(never)
    lines = [line for line in metrics(never) if "event" not in line]
    assert all(
        line["evolve/learning_rate"] == pytest.approx(drawn["settings"]["learning_rate"])
        for line in lines
    )
    assert drawn == lineage.read_lineage(late)[0]
    assert (
        rollax.train("ppo", "probe/action-reward", **_defaults(tmp_path / "default")).status
        == "done"
    )
    assert layout.read_spec(tmp_path / "default").updates_per_generation == 1, (
        "a 10th of twelve updates"
    )


def _defaults(folder: Path) -> dict[str, Any]:
    from support.runs import NETWORK, SMALL, options

    return {
        "config": SMALL,
        "network": NETWORK,
        "evolve": {"gamma": (0.5, 0.9, "linear")},
        "options": options(folder, updates=4, seeds=2, eval_count=0),
        "show": Script(),
    }


def test_a_nonfinite_member_is_replaced(tmp_path: Path) -> None:
    """It becomes a copy of a finite member.

    A member that becomes nonfinite again is reported again.
    """
    show = Script()
    result = evolved(
        tmp_path / "run", show, evolve={"learning_rate": (1e-3, 1e36)}, evolve_factor=100.0
    )
    lines = [line for line in metrics(result.folder) if "event" not in line]
    assert any("is no longer finite" in line for line in show.lines)
    for history in lineage.read_lineage(result.folder)[1:]:
        bad = [index for index, value in enumerate(history["fitness"]) if value is None]
        assert all(history["parent"][index] not in bad for index in range(MEMBERS))
    assert result.status == "done" and len(lines) == 12


def test_evolve_command_line_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "train",
        "ppo",
        "probe/action-reward",
        *SMALL_WORDS,
        "--run-dir",
        str(tmp_path / "run"),
    ]
    words += [
        "--total-steps",
        str(4 * FRAMES),
        "--seeds",
        "4",
        "--evolve-every",
        str(FRAMES),
        "--evolve-fraction",
        "0.5",
    ]
    words += ["--evolve.learning-rate", "1e-3", "1e-1", "--evolve.gamma", "0.5", "0.9", "linear"]
    assert main.main(words) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["status"] == "done"
    spec = layout.read_spec(tmp_path / "run")
    assert spec.evolve == {"learning_rate": (1e-3, 1e-1, "log"), "gamma": (0.5, 0.9, "linear")}
    assert len(lineage.read_lineage(tmp_path / "run")) == 4
    assert main.main([*words, "--evolve.learning-rte", "0", "1"]) == 2
    assert "did you mean learning_rate" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("evolve", "changes", "message"),
    [
        (
            {"learning_rat": (0.1, 1)},
            {},
            "unknown setting to evolve .*learning_rat.*did you mean learning_rate",
        ),
        ({"num_envs": (4, 8)}, {}, "unknown setting to evolve"),
        ({"total_updates": (4, 8)}, {}, "unknown setting to evolve"),
        ({"gamma": (0.5, 1.5)}, {}, r"gamma \(1.5\) must be between 0 and 1"),
        ({"gamma": (0.9, 0.5)}, {}, "must be finite with low < high"),
        ({"gamma": (0.0, 0.5, "log")}, {}, "must begin above 0 on a log scale"),
        ({"gamma": (0.1, 0.5, "cubic")}, {}, "must be log or linear"),
        ({"gamma": (0.5,)}, {}, r"must be \(low, high\) or \(low, high, scale\), got"),
        ({"gamma": ("low", "high")}, {}, r"must be \(low, high\) or \(low, high, scale\), got"),
        ({"gamma": (0.1, 0.5)}, {"seeds": 1}, "a population of 1 cannot evolve"),
        (
            {"gamma": (0.1, 0.5)},
            {"evolve_fraction": 0.6},
            "evolve_fraction .0.6. must be between 0 and 0.5",
        ),
        ({"gamma": (0.1, 0.5)}, {"evolve_resample": 2}, "evolve_resample"),
        ({"gamma": (0.1, 0.5)}, {"evolve_every": -1}, "evolve_every .-1. must be at least 0"),
        ({"gamma": (0.1, 0.5)}, {"sweep": {"gamma": [0.1]}}, "cannot be combined"),
        (
            {"gamma": (0.1, 0.5)},
            {"evolve_every": 12 * FRAMES},
            "the first generation would be at step 384, but the run ends at 384",
        ),
        (
            {"gamma": (0.1, 0.5)},
            {"evolve_every": 8 * FRAMES, "evolve_start": 9 * FRAMES},
            "would be at step 512",
        ),
        (
            {"gamma": (0.1, 0.5)},
            {"evolve_start": 12 * FRAMES},
            "With evolve_start 384, the first generation would be at step 384",
        ),
        (
            {"gamma": (0.1, 0.5)},
            {"updates": 1},
            "the first generation would be at step 32, but the run ends at 32",
        ),
    ],
)
def test_invalid_evolve_settings_raise_usage_error(
    train: Callable, tmp_path: Path, evolve: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(rollax.UsageError, match=message):
        train(evolve=evolve, **({"seeds": 4} | changes))
    assert not (tmp_path / "run").exists()


def test_rollback_keys_and_total_steps_reach_every_member(whole: Path) -> None:
    """A rollback changes keys, and a resume with other total steps changes the config."""
    from rollax.training.checkpoints import changed_state
    from rollax.training.compile import program as programs

    spec = layout.read_spec(whole)
    program = programs.compile_program(spec)
    other = changed_state.with_rollback_keys(program.algorithm, spec, program.init(), 3, 1)
    other = changed_state.with_settings(program.algorithm, other, {"total_updates": 99})
    assert other.members.config.total_updates.tolist() == [99.0] * MEMBERS
    before = program.init()
    for old, new in ((before.key, other.key), (before.members.key, other.members.key)):
        assert not np.any(np.all(jax.random.key_data(old) == jax.random.key_data(new), axis=-1))


def test_evolution_over_two_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parents may be on another device than their children. The history is that of one device."""
    words = [
        "train",
        "ppo",
        "probe/action-reward",
        *SMALL_WORDS,
        "--total-steps",
        6 * FRAMES,
        "--seeds",
        4,
        "--eval-count",
        1,
    ]
    words += [
        "--evolve.learning-rate",
        1e-3,
        1e-1,
        "--evolve-every",
        FRAMES,
        "--evolve-fraction",
        0.5,
    ]
    flags = os.environ.get("XLA_FLAGS", "")
    monkeypatch.setenv("XLA_FLAGS", f"{flags} --xla_force_host_platform_device_count=2")
    commands = [
        Command(*words, "--devices", n, "--run-dir", tmp_path / str(n), quick=True) for n in (1, 2)
    ]
    for command in commands:
        assert command.finish() == 0, command.err
    one, two = lineage.read_lineage(tmp_path / "1"), lineage.read_lineage(tmp_path / "2")
    assert [line["parent"] for line in one] == [line["parent"] for line in two]
    assert any(
        child < 2 <= parent for line in one[1:] for child, parent in enumerate(line["parent"])
    ) or any(parent < 2 <= child for line in one[1:] for child, parent in enumerate(line["parent"]))
    for a, b in zip(one, two, strict=True):
        np.testing.assert_allclose(
            a["settings"]["learning_rate"], b["settings"]["learning_rate"], rtol=1e-5
        )


def test_members_with_a_common_founder_have_no_interval(whole: Path) -> None:
    """Evaluations, messages, the summary and figures have the number of founders instead."""
    history, origin = lineage.read_lineage(whole), np.arange(MEMBERS)
    evaluated = [line for line in metrics(whole) if line.get("event") == "evaluation"]
    assert len(evaluated) == 5
    for line in evaluated:
        generations = [each for each in history[1:] if each["step"] < line["step"]]
        origin = np.arange(MEMBERS)
        for each in generations:
            origin = origin[np.array(each["parent"])]
        if (number := len(set(origin))) == MEMBERS:
            assert "founders" not in line and line["return_iqm_low"] <= line["return_iqm"]
            assert f"over {MEMBERS} members)" in format_return(line, MEMBERS, False)
        else:
            assert (
                line["founders"] == number
                and line["return_iqm_low"] is line["return_iqm_high"] is None
            )
            assert f"over {MEMBERS} members of {number} founder" in format_return(
                line, MEMBERS, False
            )
            assert "[" not in format_return(line, MEMBERS, False)
    assert "founders" not in evaluated[0] and "founders" in evaluated[-1]
    (run,) = read_run(whole)
    assert run.founders == evaluated[-1]["founders"]
    curve = Curve(run, np.arange(MEMBERS), "", "black", "-")
    (line,) = curve_estimates.estimate_evaluation_returns([curve])
    np.testing.assert_array_equal(line.low, line.high)
    assert "interval over members from" in curve_estimates.describe_lines([curve])
    (of_paper,) = paper_figure.estimate_lines([curve], ())
    assert np.isnan(of_paper.low).all() and np.isnan(of_paper.high).all()
    scored = algorithm_comparison.normalize_scores([of_paper], (f"{run.spec.environment}=-1,1",))
    assert [scores.size for scores in scored.scores[""]] == [1]


def test_the_summary_without_an_interval(tmp_path: Path) -> None:
    result = evolved(tmp_path / "run", updates=6, evolve_every=FRAMES)
    assert result.summary()["founders"] < MEMBERS
    assert not {"return_iqm_low", "return_iqm_high"} & set(result.summary())
    fixed = evolved(tmp_path / "fixed", updates=6, evolve_every=0).summary()
    assert "founders" not in fixed and fixed["return_iqm_low"] <= fixed["return_iqm_high"]


def test_selection_by_another_metric(tmp_path: Path) -> None:
    """The fitness is the mean of a metric of updates since the previous generation."""
    show = Script()
    folder = evolved(tmp_path / "run", show, updates=6, evolve_metric="entropy").folder
    assert layout.read_spec(folder).evolve_metric == "entropy"
    lines = [line for line in metrics(folder) if "event" not in line]
    for line in lineage.read_lineage(folder)[1:]:
        two = [
            each["entropy"]
            for each in lines
            if line["step"] - FRAMES <= each["step"] <= line["step"]
        ]
        np.testing.assert_allclose(line["fitness"], np.mean(two, axis=0), rtol=1e-5)
        fitness, parent = np.array(line["fitness"]), np.array(line["parent"])
        assert np.all(fitness[parent] >= fitness)
    assert any("generation 1: entropy" in line for line in show.lines)


@pytest.mark.parametrize(
    ("algorithm", "environment", "metric", "message"),
    [
        (
            "ppo",
            "probe/action-reward",
            "entrpy",
            "unknown evolve_metric 'entrpy': did you mean entropy",
        ),
        (
            "map_elites",
            "task/sphere",
            "qd_scor",
            "unknown evolve_metric 'qd_scor': did you mean qd_score",
        ),
        (
            "map_elites",
            "task/sphere",
            "episode_return",
            "evolve_metric must be .* got episode_return.* not report episodes.*qd_score",
        ),
    ],
)
def test_a_metric_that_is_not_reported_raises_usage_error(
    tmp_path: Path, algorithm: str, environment: str, metric: str, message: str
) -> None:
    setting = {"ppo": "learning_rate", "map_elites": "iso_sigma"}[algorithm]
    options = {
        "run_dir": tmp_path / "run",
        "evolve_metric": metric,
        "seeds": 4,
        "total_steps": 100_000,
    }
    with pytest.raises(rollax.UsageError, match=message):
        rollax.train(
            algorithm, environment, evolve={setting: (1e-3, 1e-1)}, options=options, quiet=True
        )
    assert not (tmp_path / "run").exists()


def test_the_first_generation_uses_the_last_interval(tmp_path: Path) -> None:
    """Before evolve_start, measurements restart with each interval, also in a resumed run."""

    def react(kind: str, text: str) -> None:
        if kind == "progress" and int(text) >= 6 * FRAMES:
            signal.raise_signal(signal.SIGTERM)

    late = {"evolve_start": 7 * FRAMES}
    whole = evolved(tmp_path / "whole", **late).folder
    lines = {line["step"]: line for line in metrics(whole) if "event" not in line}
    first = lineage.read_lineage(whole)[1]
    assert first["step"] == 8 * FRAMES
    two = [lines[7 * FRAMES], lines[8 * FRAMES]]
    count = np.array([each["episodes"] for each in two])
    total = sum(np.array(each["episode_return"]) * n for each, n in zip(two, count, strict=True))
    np.testing.assert_allclose(first["fitness"], total / count.sum(axis=0), atol=1e-6)
    stopped = evolved(tmp_path / "stopped", Script(react), **late)
    assert stopped.status == "stopped"
    rollax.resume(stopped.folder, show=Script())
    same(stopped.folder, whole)


def test_a_run_with_an_archive_evolves(tmp_path: Path) -> None:
    """Selection uses the QD score of each member, and copies get different settings."""
    config = {"batch_size": 16, "num_iterations": 2, "grid": (6, 6)}
    options = {
        "run_dir": tmp_path / "run",
        "seeds": 8,
        "total_steps": 320,
        "evolve_every": 64,
        "eval_count": 0,
    }
    options |= {"tensorboard": False, "checkpoint_steps": 0}
    evolve = {"iso_sigma": (1e-4, 1.0, "log")}
    result = rollax.train(
        "map_elites", "task/sphere", config=config, evolve=evolve, options=options, show=Script()
    )
    first, *generations = lineage.read_lineage(result.folder)
    assert result.status == "done" and len(generations) == 4
    lines = {line["step"]: line for line in metrics(result.folder) if "qd_score" in line}
    for line in generations:
        np.testing.assert_allclose(line["fitness"], lines[line["step"]]["qd_score"], rtol=1e-5)
        fitness, parent = np.array(line["fitness"]), np.array(line["parent"])
        assert (
            np.any(parent != np.arange(8)) and fitness[parent[np.argmin(fitness)]] > fitness.min()
        )
    assert generations[-1]["settings"] != first["settings"]
