"""Tests of the files of a run, and of errors when it is loaded or resumed."""

import dataclasses
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml

import rollax
from rollax.training.run_folder import creation, layout
from support.runs import (
    FRAMES,
    NETWORK,
    SMALL,
    Bad,
    Script,
    bits,
    check_same,
    evaluations,
    metrics,
    newest,
    options,
    whole_state,
)


@pytest.mark.quick
def test_every_episode_of_every_evaluation_is_recorded(undisturbed: Path) -> None:
    """The file has return, length and end of each episode, and no pickled objects.

    The first evaluation is before training.
    """
    kept = evaluations(undisturbed)
    assert sorted(kept) == ["length", "returns", "step", "terminated", "truncated"]
    assert kept["step"].tolist() == [n * 3 * FRAMES for n in range(5)]
    assert all(kept[name].shape == (5, 8) for name in kept if name != "step")
    assert (kept["length"] == 4).all()  # an episode of probe/memory has 4 steps
    assert kept["terminated"].all() and not kept["truncated"].any()
    assert np.isin(kept["returns"], [-1.0, 1.0]).all()
    lines = [line for line in metrics(undisturbed) if line.get("event") == "evaluation"]
    assert [line["step"] for line in lines] == kept["step"].tolist()
    assert [line["return_mean"] for line in lines] == kept["returns"].mean(axis=1).tolist()


def test_steps_count_whole_updates(train: Callable) -> None:
    """Steps are updates times environments times steps per rollout, rounded up to whole updates."""
    given = options(Path("unused"), checkpoint_steps=0, eval_count=1)
    given = dataclasses.replace(
        given, total_steps=5 * FRAMES - 1, run_dir=train().folder.parent / "odd"
    )
    result = train(options=given)
    assert result.steps == 5 * FRAMES == newest(result.folder)
    lines = metrics(result.folder)
    assert [line["step"] for line in lines if "event" not in line] == [
        n * FRAMES for n in range(1, 6)
    ]
    assert all(line["step"] == line["updates"] * FRAMES for line in lines)
    state = rollax.load(result.folder).state
    assert int(state.updates) == 5
    assert float(state.config.total_updates) == 5.0
    assert evaluations(result.folder)["step"].tolist() == [0, 5 * FRAMES]


def test_episodes_are_counted_once(train: Callable) -> None:
    """If episodes have one step, the episodes of a line are its frames."""
    result = train(environment="probe/action-reward", log_lines=4)
    lines = [line for line in metrics(result.folder) if "event" not in line]
    assert [line["episodes"] for line in lines] == [3 * FRAMES] * 4
    assert all(
        line["episode_length"] == 1 and line["episode_return"] == pytest.approx(line["reward"])
        for line in lines
    )


def test_the_stored_specification_repeats_the_run(train: Callable) -> None:
    """config.yaml is plain YAML, has every setting, and repeats the run bit for bit."""
    config = dataclasses.replace(
        SMALL, learning_rate=3e-3, normalize_observations=True, target_kl=0.5
    )
    given = {"environment": "probe/memory", "arguments": {"delay": 1}, "config": config, "seed": 7}
    result = train(**given)
    document = yaml.safe_load((result.folder / "config.yaml").read_text())
    assert (document["algorithm"], document["environment"], document["arguments"]) == (
        "ppo",
        "probe/memory",
        {"delay": 1},
    )
    assert document["config"] == dataclasses.asdict(config) | {"frozen": []}
    assert document["network"] == dataclasses.asdict(NETWORK) | {"hidden": [8], "head_hidden": []}
    names = {field.name for field in dataclasses.fields(rollax.RunOptions)}
    assert document["options"].keys() == names
    assert (document["options"]["seed"], document["options"]["total_steps"]) == (7, 12 * FRAMES)
    spec = layout.read_spec(result.folder)
    again = rollax.train(
        spec.algorithm,
        spec.environment,
        arguments=spec.arguments,
        config=spec.config,
        network=spec.network,
        options=dataclasses.replace(spec.options, run_dir=result.folder.parent / "again"),
        show=Script(),
    )
    check_same(result.folder, again.folder)


def test_the_machine_is_recorded(undisturbed: Path) -> None:
    document = json.loads((undisturbed / "environment.json").read_text())
    assert document["packages"]["jax"] == jax.__version__
    assert document["packages"]["rollax"] == rollax.__version__
    assert document["packages"].keys() >= {
        "jaxlib",
        "equinox",
        "optax",
        "orbax-checkpoint",
        "numpy",
        "gymnax",
        "gymnasium",
    }
    assert document["devices"] and document["python"] and "commit" in document


def test_the_default_folder_of_a_run(
    train: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is runs/<environment>/<algorithm>-<date>-<id>, which is different for each run."""
    monkeypatch.chdir(tmp_path)
    given = dataclasses.replace(options(tmp_path, updates=1), run_dir=None)
    folders = [train(options=given).folder for _ in range(2)]
    assert folders[0] != folders[1]
    assert all(
        folder.parent == Path("runs/probe-memory") and folder.name.startswith("ppo-")
        for folder in folders
    )


def test_a_folder_name_in_use_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that creates the folder owns it, also if two try at the same time."""
    names = iter(["first", "first", "second"])
    monkeypatch.setattr(
        creation, "_default_folder_path", lambda spec: tmp_path / "runs" / next(names, "second")
    )
    spec: Any = None
    assert [creation._make_unique_folder(spec).name for _ in range(2)] == ["first", "second"]
    with pytest.raises(rollax.UsageError, match="no free name for another run. Choose a --run-dir"):
        creation._make_unique_folder(spec)


def test_a_run_can_be_moved(train: Callable, tmp_path: Path) -> None:
    """No file has an absolute path of the run."""
    result = train(updates=3)
    moved = result.folder.rename(tmp_path / "elsewhere")
    assert rollax.resume(moved, total_steps=6 * FRAMES, show=Script()).steps == 6 * FRAMES
    assert not result.folder.exists()


def test_resume_with_more_steps(train: Callable, undisturbed: Path) -> None:
    """A finished run continues to a larger number of steps.

    Without schedules, it equals a run that was started with that number.
    """
    result = train(updates=6, eval_count=2)
    with pytest.raises(
        rollax.UsageError,
        match=rf"is finished at {6 * FRAMES} steps. To continue, raise --total-steps",
    ):
        rollax.resume(result.folder)
    with pytest.raises(rollax.UsageError, match="is finished"):
        rollax.resume(result.folder, total_steps=5 * FRAMES)
    longer = rollax.resume(result.folder, total_steps=12 * FRAMES, show=Script())
    assert (longer.status, longer.steps) == ("done", 12 * FRAMES)
    state, whole = rollax.load(result.folder).state, rollax.load(undisturbed).state
    for mine, theirs in zip(
        jax.tree.leaves(state.train.network), jax.tree.leaves(whole.train.network), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)
    assert float(state.config.total_updates) == 12.0
    assert metrics(result.folder) == metrics(undisturbed)
    with pytest.raises(rollax.UsageError, match="is finished"):
        rollax.resume(result.folder)


def test_a_finished_run_with_a_damaged_checkpoint_is_resumed(train: Callable) -> None:
    """Its last state cannot be loaded, so training continues from the previous checkpoint."""
    result = train(updates=6, eval_count=2)
    whole = bits(whole_state(result.folder))
    files = [
        path
        for path in (result.folder / "checkpoints" / f"step_{6 * FRAMES:012d}" / "state").rglob("*")
        if path.is_file()
    ]
    largest = max(files, key=lambda path: path.stat().st_size)
    largest.write_bytes(bytes(byte ^ 0xFF for byte in largest.read_bytes()))
    script = Script()
    again = rollax.resume(result.folder, show=script)
    assert (again.status, again.steps) == ("done", 6 * FRAMES)
    assert "is damaged" in script.text
    assert bits(whole_state(result.folder)) == whole


def test_a_failed_resume_changes_nothing(train: Callable) -> None:
    """Otherwise the next one would fail as well."""
    result = train(updates=3)
    before = (result.folder / "config.yaml").read_bytes()
    with pytest.raises(
        rollax.UsageError, match=r"devices \(64\) must be at most the number of devices"
    ):
        rollax.resume(result.folder, total_steps=6 * FRAMES, devices=64)
    with pytest.raises(rollax.UsageError, match=r"total_steps \(0\) must be at least 1"):
        rollax.resume(result.folder, total_steps=0)
    assert (result.folder / "config.yaml").read_bytes() == before


def _changed(folder: Path, change: Callable[[dict], Any]) -> None:
    document = yaml.safe_load((folder / "config.yaml").read_text())
    change(document)
    (folder / "config.yaml").write_text(yaml.safe_dump(document))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda d: d.update(format=99, rollax="7.1"),
            r"rollax 7.1 in another format .* git -C .* checkout v7.1",
        ),
        (lambda d: d.pop("format"), "another format"),
        (
            lambda d: d["config"].update(lerning_rate=1),
            "unknown key 'config.lerning_rate': did you mean config.learning_rate",
        ),
        (lambda d: d["network"].update(depth=1), "unknown key 'network.depth'"),
        (lambda d: d["options"].update(evaluate=1), "unknown key 'options.evaluate'"),
        (lambda d: d.update(algorithm="ppp"), "unknown algorithm 'ppp': did you mean ppo"),
        (
            lambda d: d.update(environment="probe/memry"),
            "environment is 'probe/memry', but was 'probe/memory'",
        ),
        (
            lambda d: d.pop("options"),
            "config.yaml, written by rollax .*: the key options is missing",
        ),
        (lambda d: d.update(config=3), r"config \(3\) must be a dictionary"),
        (
            lambda d: d["config"].update(num_envs=8),
            "config.num_envs is 8, but was 4. The settings of a run cannot change. Restore them",
        ),
        # No leaf of the state depends on it.
        (
            lambda d: d["config"].update(num_steps=16),
            "config.num_steps is 16, but was 8",
        ),
        (
            lambda d: d["config"].update(learning_rate=1.0),
            "config.learning_rate is 1.0, but was 0.0005",
        ),
        (
            lambda d: d["network"].update(activation="relu"),
            "network.activation is 'relu', but was 'tanh'",
        ),
        (lambda d: d["options"].update(seed=5), "options.seed is 5, but was 0"),
        (
            lambda d: d["sweep"].update(gamma=[0.5, 0.9]),
            r"sweep.gamma is \[0.5, 0.9\], but was None",
        ),
        (lambda d: d.update(updates_per_evaluation=1), "updates_per_evaluation is 1, but was 3"),
    ],
)
@pytest.mark.parametrize("function", [rollax.resume, rollax.load])
def test_a_changed_specification_raises_usage_error(
    undisturbed: Path, tmp_path: Path, function: Callable, change: Callable, message: str
) -> None:
    """The error names the unknown or changed key."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("config.yaml", "metrics.jsonl", "evaluations.npz"):
        (folder / name).write_bytes((undisturbed / name).read_bytes())
    (folder / "checkpoints").symlink_to(undisturbed / "checkpoints")
    _changed(folder, change)
    more = {"total_steps": 100 * FRAMES, "show": Script()} if function is rollax.resume else {}
    with pytest.raises(rollax.UsageError, match=message):
        function(folder, **more)


@pytest.mark.quick
def test_folders_that_are_not_runs_raise_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.yaml").write_text("a: [")
    (tmp_path / "list").mkdir()
    (tmp_path / "list/config.yaml").write_text("- 1")
    for name, message in {
        ".": "no config.yaml",
        "file": "no config",
        "none": "no config",
        "broken": "not valid YAML",
    }.items():
        for function in (rollax.resume, rollax.load):
            with pytest.raises(rollax.UsageError, match=message):
                function(tmp_path / name)
    with pytest.raises(rollax.UsageError, match=r"must be a dictionary, got \[1\]"):
        rollax.resume(tmp_path / "list")


def test_a_specification_executes_no_code(undisturbed: Path, tmp_path: Path) -> None:
    """YAML tags that would call a function raise an error."""
    (tmp_path / "config.yaml").write_text(f"!!python/object/apply:os.mkdir ['{tmp_path / 'made'}']")
    with pytest.raises(rollax.UsageError, match="not valid YAML"):
        rollax.load(tmp_path)
    assert not (tmp_path / "made").exists()


def test_a_folder_that_is_not_empty_is_not_used(train: Callable, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/thesis.tex").write_text("years of work")
    with pytest.raises(
        rollax.UsageError, match="exists and is not empty. Choose another --run-dir"
    ):
        train()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.tex"]
    assert (tmp_path / "run/thesis.tex").read_text() == "years of work"


def test_an_empty_folder_can_be_used(train: Callable, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert train(updates=1).status == "done"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"total_steps": 0}, r"total_steps \(0\) must be at least 1"),
        ({"total_steps": -5}, r"total_steps \(-5\) must be at least 1"),
        ({"seeds": 0}, r"seeds \(0\) must be at least 1"),
        ({"config": {"num_minibatches": 5}}, "Use num_minibatches"),
        ({"config": {"sequence_length": 48}}, "Use sequence_length 32 or 64"),
        ({"config": {"learning_rate": float("nan")}}, "learning_rate"),
        ({"config": {"lerning_rate": 1e-3}}, "did you mean learning_rate"),
        ({"network": {"hidden": (0,)}}, r"network.hidden must be at least 1, got \(0,\)"),
        (
            {"network": {"core": "gru", "core_size": 0}},
            r"network.core_size must be at least 1, got 0",
        ),
        ({"network": {"hiden": (8,)}}, "did you mean hidden"),
        ({"sweep": {"num_envs": [1, 2]}}, "static"),
        ({"sweep": {"gamma": []}}, "sweep over gamma must have at least one value, got none"),
        ({"arguments": {"dely": 1}}, "did you mean delay"),
        ({"options": rollax.RunOptions(best_metric="retrun_mean")}, "did you mean return_mean"),
    ],
)
def test_invalid_arguments_of_train_raise_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict, message: str
) -> None:
    """The error has a remedy, and is raised before anything is compiled or written."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(rollax.UsageError, match=message):
        rollax.train("ppo", "probe/memory", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_arguments_override_options(tmp_path: Path) -> None:
    result = rollax.train(
        "ppo",
        "probe/memory",
        config=SMALL,
        network=NETWORK,
        options=options(tmp_path / "run"),
        total_steps=FRAMES,
        seed=3,
        seeds=2,
        show=Script(),
    )
    spec = layout.read_spec(result.folder)
    assert (spec.options.total_steps, spec.options.seed, spec.options.seeds) == (FRAMES, 3, 2)
    assert [member["seed"] for member in spec.members()] == [3, 4]


def test_a_custom_metric(train: Callable) -> None:
    """It is in the lines of evaluations, and may be the best_metric."""

    def lost(episodes: Any) -> dict[str, Any]:
        return {
            "lost": np.mean(episodes.returns < 0),
            "longest": jax.numpy.max(episodes.length),
            "all": episodes.returns[:2],
        }

    result = train(metrics=lost, best_metric="lost", best_mode="min", eval_stochastic=True)
    lines = [line for line in metrics(result.folder) if line.get("event") == "evaluation"]
    returns = evaluations(result.folder)["returns"]
    assert [line["lost"] for line in lines] == (returns < 0).mean(axis=1).tolist()
    assert [line["longest"] for line in lines] == [4] * 5
    assert [line["all"] for line in lines] == returns[:, :2].tolist()
    kept = [int(path.name[5:]) for path in (result.folder / "checkpoints").glob("step_*")]
    least = min((line["lost"], -line["step"]) for line in lines)
    assert rollax.load(result.folder, checkpoint="best").step == -least[1]
    assert -least[1] in kept
    with pytest.raises(rollax.UsageError, match="did you mean lost"):
        train("other", metrics=lost, best_metric="lots")
    with pytest.raises(
        rollax.UsageError,
        match=(
            "unknown best_metric 'lost'.* If metrics=... computes it, train and resume from Python"
        ),
    ):
        rollax.resume(result.folder, total_steps=13 * FRAMES)


def test_nonfinite_metrics_are_null(train: Callable) -> None:
    """metrics.jsonl is valid JSON for any rewards."""
    result = train(environment=Bad(good=0, value=float("inf")), eval_max_steps=3)
    assert result.exit_code == 3

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    lines = (result.folder / "metrics.jsonl").read_text().splitlines()
    parsed = [json.loads(line, parse_constant=refuse) for line in lines]
    assert [line["return_mean"] for line in parsed if line.get("event") == "evaluation"] == [None]


def test_the_commit_of_a_repository_is_read_without_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock of a command that is killed would remain in the user's repository."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "file.txt"
    file.write_text("first")
    identity = ["-c", "user.name=name", "-c", "user.email=name@example.org"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *words], check=True)
    os.utime(file, (0, 0))  # commands that take a lock would write the new time to the index
    index = (tmp_path / ".git" / "index").read_bytes()
    commit = layout._git_commit()
    assert commit is not None and re.fullmatch("[0-9a-f]{40}", commit)
    file.write_text("second")
    assert layout._git_commit() == f"{commit}-dirty"
    assert (tmp_path / ".git" / "index").read_bytes() == index
