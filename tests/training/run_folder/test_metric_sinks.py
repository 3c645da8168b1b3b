"""Tests of metric sinks: files, TensorBoard, Weights & Biases, and Trackio."""

import json
import re
import sys
import types

import jax.numpy as jnp
import numpy as np
import pytest

import rollax
from rollax.errors import UsageError
from rollax.runtime.installation import install_command
from rollax.training.run_folder import metric_sinks, recorder
from support.runs import NETWORK, SMALL, options


def write(path, *records, resume_from=None):
    sink = metric_sinks.make_json_lines_sink(path, resume_from)
    for step, metrics in records:
        sink.write(step, metrics)
    sink.close()


@pytest.mark.quick
def test_written_metrics_are_read_back(tmp_path):
    path = tmp_path / "new" / "metrics.jsonl"
    write(
        path,
        (2**40, {"loss": 0.1, "updates": 3}),
        (2**40 + 1, {"loss": jnp.float32(0.5), "best": np.float64(2.0)}),
    )
    first, second = metric_sinks.read_metrics(path)
    assert first == {"step": 2**40, "loss": 0.1, "updates": 3}
    assert second == {"step": 2**40 + 1, "loss": 0.5, "best": 2.0}


def test_every_line_is_flushed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    sink = metric_sinks.make_json_lines_sink(path)
    sink.write(1, {"loss": 1.0})
    assert len(metric_sinks.read_metrics(path)) == 1
    sink.close()


def test_nan_and_infinity_are_null_in_valid_json(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(
        path, (1, {"a": float("nan"), "b": float("inf"), "c": jnp.float32(-jnp.inf), "d": np.nan})
    )

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    assert json.loads(path.read_text(), parse_constant=refuse) == {
        "step": 1,
        "a": None,
        "b": None,
        "c": None,
        "d": None,
    }


def test_an_incomplete_line_does_not_affect_others(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, (1, {"loss": 1.0}), (2, {"loss": 2.0}))
    before = path.read_bytes()[:-7]
    path.write_bytes(before)
    write(path, (3, {"loss": 3.0}))
    assert path.read_bytes().startswith(before + b"\n")
    assert [record["step"] for record in metric_sinks.read_metrics(path)] == [1, 3]


def test_invalid_lines_are_skipped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(
        b'{"step": 1}\n\n[1, 2]\nnull\n\xff\xfe\n{"loss": 2}\n{"step": "2"}\n{"step": '
        b'3}\n{"step": 4, "lo'
    )
    assert metric_sinks.read_metrics(path) == [{"step": 1}, {"step": 3}]


def test_a_resume_supersedes_later_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, (10, {"session": 1}), (20, {"session": 1}), (30, {"session": 1}))
    write(path, (30, {"session": 2}), (40, {"session": 2}), resume_from=20)
    write(path, (40, {"session": 3}), resume_from=30)
    assert json.loads(path.read_text().splitlines()[3]) == {"event": "resume", "step": 20}
    found = [(record["step"], record["session"]) for record in metric_sinks.read_metrics(path)]
    assert found == [(10, 1), (20, 1), (30, 2), (40, 3)]


def test_a_missing_file_raises_usage_error(tmp_path):
    with pytest.raises(UsageError, match="nowhere.jsonl"):
        metric_sinks.read_metrics(tmp_path / "nowhere.jsonl")


def test_combined_sinks_write_to_all():
    seen, closed = [], []
    sinks = [
        metric_sinks.MetricSink(
            lambda step, metrics, name=name: seen.append((name, step, metrics)),
            lambda name=name: closed.append(name),
        )
        for name in "ab"
    ]
    both = metric_sinks.combine_sinks(sinks)
    both.write(3, {"loss": 1.0})
    both.close()
    assert seen == [("a", 3, {"loss": 1.0}), ("b", 3, {"loss": 1.0})]
    assert closed == ["a", "b"]


def events(folder):
    """Return (step, name, value) and the first steps of sessions in the order of writing."""
    from tensorboardX.event_file_writer import EventFileWriter  # noqa: F401 - the package must be there
    from tensorboardX.proto.event_pb2 import Event

    scalars, starts = [], []
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            event = Event.FromString(data[12 : 12 + length])
            data = data[12 + length + 4 :]
            scalars += [
                (event.step, value.tag, value.simple_value) for value in event.summary.value
            ]
            starts += [event.step] if event.HasField("session_log") else []
    return scalars, starts


def test_tensorboard_has_the_same_values_and_a_resume_purges(tmp_path):
    first = metric_sinks.make_tensorboard_sink(tmp_path / "1")
    first.write(2**33, {"loss": 0.5, "bad": float("nan")})
    first.close()
    scalars, starts = events(tmp_path / "1")
    assert (2**33, "loss", 0.5) in scalars and len(scalars) == 2 and starts == []
    resumed = metric_sinks.make_tensorboard_sink(tmp_path / "2", resume_from=20)
    resumed.write(30, {"loss": 0.25})
    resumed.close()
    assert events(tmp_path / "2") == ([(30, "loss", 0.25)], [21])


@pytest.mark.parametrize("package", ["wandb", "trackio"])
def test_a_missing_package_raises_usage_error(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=re.escape(install_command(package))):
        if package == "wandb":
            metric_sinks.make_wandb_sink("project", "name", tmp_path, {})
        else:
            metric_sinks.make_trackio_sink("project", "name", {})


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("steps_per_second", "time/steps_per_second"),
        ("wall_time", "time/wall_time"),
        ("episode_return", "train/episode_return"),
        ("coverage", "train/coverage"),
        ("mine", "train/mine"),
        ("value_loss", "losses/value_loss"),
        ("approx_kl", "losses/approx_kl"),
        ("prey/entropy", "losses/prey/entropy"),
    ],
)
def test_dashboards_have_sections(name, shown):
    assert metric_sinks.add_section_prefix(name) == shown


def test_a_single_run_has_sections_and_settings(train):
    folder = train(updates=4, tensorboard=True).folder
    scalars, _ = events(folder / "tensorboard")
    names = {name for _, name, _ in scalars if not name.startswith("_hparams_")}
    assert {name.partition("/")[0] for name in names} == {"time", "train", "losses", "eval"}
    assert {
        "train/episode_return",
        "losses/entropy",
        "eval/return_mean",
        "time/steps_per_second",
    } <= names
    lines = metric_sinks.read_metrics(folder / "metrics.jsonl")
    entropy = {line["step"]: line["entropy"] for line in lines if "entropy" in line}
    found = {step: value for step, name, value in scalars if name == "losses/entropy"}
    assert found == pytest.approx(entropy) and len(found) > 1


def test_every_member_of_a_population_is_a_dashboard_run(train):
    folder = train(
        updates=4, tensorboard=True, sweep={"learning_rate": [0.001, 0.01]}, seeds=2
    ).folder
    members = sorted(path.name for path in (folder / "tensorboard").iterdir())
    assert members == [
        f"learning_rate={rate},seed={seed}" for rate in ("0.001", "0.01") for seed in (0, 1)
    ]
    lines = metric_sinks.read_metrics(folder / "metrics.jsonl")
    with np.load(folder / "evaluations.npz") as file:
        returns = file["returns"].reshape(len(file["step"]), 4, -1).mean(axis=2)
    for index, name in enumerate(members):
        scalars, _ = events(folder / "tensorboard" / name)
        entropy = [value for _, each, value in scalars if each == "losses/entropy"]
        assert entropy == pytest.approx(
            [line["entropy"][index] for line in lines if "entropy" in line]
        )
        evaluated = [value for _, each, value in scalars if each == "eval/return_mean"]
        assert evaluated == pytest.approx(returns[:, index])
        settings = hyperparameters(folder / "tensorboard" / name)
        rate, seed = (float(part.partition("=")[2]) for part in name.split(","))
        assert (settings["learning_rate"], settings["seed"]) == (rate, seed)


def hyperparameters(folder):
    """Return the hyperparameters that TensorBoard shows for a run."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    (path,), found = list(folder.iterdir()), {}
    data = path.read_bytes()
    while data:
        length = int.from_bytes(data[:8], "little")
        for value in Event.FromString(data[12 : 12 + length]).summary.value:
            if value.tag == "_hparams_/session_start_info":
                start = HParamsPluginData.FromString(
                    value.metadata.plugin_data.content
                ).session_start_info
                found |= {
                    name: getattr(x, x.WhichOneof("kind")) for name, x in start.hparams.items()
                }
        data = data[12 + length + 4 :]
    return found


def test_a_large_population_is_one_dashboard_run_of_means(train, monkeypatch):
    monkeypatch.setattr(recorder, "MAX_DASHBOARD_RUNS", 2)
    folder = train(updates=4, tensorboard=True, seeds=3).folder
    scalars, _ = events(folder / "tensorboard")
    lines = metric_sinks.read_metrics(folder / "metrics.jsonl")
    entropy = [value for _, name, value in scalars if name == "losses/entropy"]
    assert entropy == pytest.approx(
        [np.mean(line["entropy"]) for line in lines if "entropy" in line]
    )


def test_weights_and_biases_has_a_group_of_members(train, monkeypatch):
    """A fake package records the calls."""
    begun = []

    class Run:
        def __init__(self, **about):
            self.about, self.logged, self.is_over = about, [], False
            begun.append(self)

        def define_metric(self, name, step_metric=None):
            pass

        def log(self, values):
            self.logged.append(values)

        def finish(self):
            self.is_over = True

    monkeypatch.setitem(
        sys.modules, "wandb", types.SimpleNamespace(init=lambda **about: Run(**about))
    )
    monkeypatch.setattr("rollax.training.loop.installed_version", lambda package: "1.0")
    folder = train(updates=4, seeds=2, wandb="project").folder
    first, second = begun
    assert first.is_over and second.is_over
    assert (
        first.about["group"] == second.about["group"] == folder.name
        and first.about["reinit"] == "create_new"
    )
    assert [run.about["id"] for run in begun] == [f"{folder.name}-seed-0", f"{folder.name}-seed-1"]
    assert [run.about["config"]["seed"] for run in begun] == [0, 1]
    assert first.logged != second.logged and all("step" in values for values in first.logged)
    train("single", updates=2, wandb="project")
    assert begun[2].about["id"] == "single" and "group" not in begun[2].about


@pytest.mark.parametrize("quiet", [False, True])
def test_weights_and_biases_is_silent_in_a_quiet_run(tmp_path, monkeypatch, quiet):
    """The package has a setting for this. A fake package records the arguments of `init`."""
    begun = []
    run = types.SimpleNamespace(
        define_metric=lambda *_, **__: None, log=lambda values: None, finish=lambda: None
    )
    package = types.SimpleNamespace(
        init=lambda **about: begun.append(about) or run, Settings=types.SimpleNamespace
    )
    monkeypatch.setitem(sys.modules, "wandb", package)
    monkeypatch.setattr("rollax.training.loop.installed_version", lambda name: "1.0")
    settings = {
        "config": SMALL,
        "network": NETWORK,
        "options": options(tmp_path / "run", 2, wandb="project"),
    }
    rollax.train("ppo", "probe/memory", quiet=quiet, **settings)
    (about,) = begun
    assert getattr(about.get("settings"), "silent", False) is quiet


@pytest.mark.parametrize("quiet", [False, True])
def test_trackio_is_silent_in_a_quiet_run(tmp_path, monkeypatch, capsys, quiet):
    """The package has no setting for this. A fake package prints as the package does."""
    run = types.SimpleNamespace(
        log=lambda *_, **__: None, finish=lambda: print("trackio: finished")
    )
    package = types.SimpleNamespace(
        init=lambda **_: print("trackio: view the dashboard") or run, finish=lambda: None
    )
    monkeypatch.setitem(sys.modules, "trackio", package)
    monkeypatch.setattr("rollax.training.loop.installed_version", lambda name: "1.0")
    settings = {
        "config": SMALL,
        "network": NETWORK,
        "options": options(tmp_path / "run", 2, trackio="project"),
    }
    rollax.train("ppo", "probe/memory", quiet=quiet, **settings)
    told = capsys.readouterr().out
    assert (told == "") is quiet and told.count("trackio: ") == (0 if quiet else 2)
