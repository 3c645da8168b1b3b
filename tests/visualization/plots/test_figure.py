"""Tests of learning curves for any records of a run, which overwrite no other files."""

import dataclasses
import io
import json
import shutil

import matplotlib
import matplotlib.colors
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

import rollax
from rollax.errors import UsageError
from rollax.visualization.plots import intervals, learning_curves, overview, style
from rollax.visualization.plots.curve_estimates import NUM_EARLIER_EVALUATIONS, earlier_evaluations
from rollax.visualization.plots.labels import make_labels
from support.figures import plot


@pytest.fixture
def copy(run, tmp_path):
    """Return a copy of the run without its checkpoints, which tests may change."""
    shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoints", "figures"))
    return tmp_path / "copy"


def check_image(path):
    with Image.open(path) as image:
        image.load()
        pixels = np.asarray(image.convert("RGB"))
    assert min(pixels.shape[:2]) > 300
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20


def rewrite(path, change):
    lines = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines if line is not None))


@pytest.mark.quick
def test_one_run_is_plotted_into_its_folder(copy):
    before = dict(matplotlib.rcParams)
    path = plot([copy])
    assert path == copy / "figures" / "curves.png"
    check_image(path)
    assert plot([copy]) == path  # its own figure is replaced
    assert dict(matplotlib.rcParams) == before


def test_figures_of_several_runs_are_not_overwritten(run, sweep, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = plot([run, sweep]), plot([run, sweep])
    assert (first.name, second.name) == ("comparison.png", "comparison-2.png")
    check_image(first)


@pytest.mark.parametrize(
    "suffix, start", [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml"), ("SVG", b"<?xml")]
)
def test_the_suffix_selects_the_format(copy, tmp_path, suffix, start):
    path = plot([copy], tmp_path / "new" / f"curves.{suffix}")
    assert path.read_bytes().startswith(start)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("out", ["curves.jpg", "curves"])
def test_other_formats_raise_usage_error(run, tmp_path, out):
    with pytest.raises(UsageError, match="must end in .png, .pdf or .svg"):
        plot([run], tmp_path / out)


def test_folders_that_are_not_runs_raise_usage_error(tmp_path):
    with pytest.raises(UsageError, match="is not a run"):
        plot([tmp_path])
    with pytest.raises(UsageError, match="Name at least one run"):
        plot([])


def test_an_output_that_cannot_be_written_raises_usage_error(run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="Choose another output file"):
        plot([run], tmp_path / "file" / "curves.png")


def test_a_sweep_has_a_line_per_value(sweep):
    found = learning_curves.make_curves(learning_curves.read_run(sweep))
    assert [curve.label for curve in found] == ["learning_rate 0.0001", "learning_rate 0.001"]
    assert [curve.members.tolist() for curve in found] == [[0, 1], [2, 3]]
    assert found[0].color != found[1].color
    check_image(plot([sweep]))


def test_the_line_is_the_mean_and_inside_its_interval(run):
    (read,) = learning_curves.read_run(run)
    for returns in read.returns:
        line, low, high = intervals.estimate_with_interval(returns)
        assert low <= line <= high and line == pytest.approx(returns.mean())


def test_damaged_lines_and_missing_values(copy):
    def change(record):
        if "event" in record:
            return record
        return {
            **record,
            "value_loss": None,
            "policy_loss": "what",
            "entropy": [1.0, 2.0],
            "episode_return": float("nan"),
        }

    metrics = copy / "metrics.jsonl"
    rewrite(metrics, change)
    metrics.write_bytes(
        metrics.read_bytes() + b'\xff\x00 {"step": 12, "entr\n[1, 2]\n{"step": "x"}\n{"step": 9'
    )
    (read,) = learning_curves.read_run(copy)
    assert np.isnan(read.metrics["value_loss"]).all() and np.isnan(read.metrics["entropy"]).all()
    check_image(plot([copy]))


def test_nonfinite_returns_are_plotted(copy):
    with np.load(copy / "evaluations.npz") as file:
        arrays = dict(file)
    arrays["returns"][0] = np.nan
    arrays["returns"][1, 0] = np.inf
    np.savez(copy / "evaluations.npz", **arrays)
    check_image(plot([copy]))


@pytest.mark.parametrize("missing", ["evaluations.npz", "metrics.jsonl"])
def test_one_of_the_records_is_enough(copy, missing):
    (copy / missing).unlink()
    check_image(plot([copy]))


def test_a_run_without_records_raises_usage_error(copy):
    (copy / "evaluations.npz").unlink()
    (copy / "metrics.jsonl").unlink()
    with pytest.raises(UsageError, match="has recorded nothing yet"):
        plot([copy])


def test_damaged_evaluations_raise_usage_error(copy):
    (copy / "evaluations.npz").write_bytes(b"PK\x03\x04 broken")
    with pytest.raises(UsageError, match="Move the file away"):
        plot([copy])


def test_a_single_point_is_plotted(copy):
    rewrite(
        copy / "metrics.jsonl",
        lambda record: record if record["step"] <= 128 and "event" not in record else None,
    )
    with np.load(copy / "evaluations.npz") as file:
        arrays = {name: values[:1] for name, values in file.items()}
    np.savez(copy / "evaluations.npz", **arrays)
    assert learning_curves.read_run(copy)[0].step.size == 1
    check_image(plot([copy]))


def test_several_environments_have_a_column_each(copy, run, tmp_path):
    path = copy / "config.yaml"
    path.write_text(path.read_text().replace("gymnax/CartPole-v1", "mine/Other"))
    check_image(plot([run, copy], tmp_path / "both.png"))


def test_labels_name_the_differences(copy, run):
    facts = [
        {"environment": "a", "algorithm": "ppo", "gamma": 0.9},
        {"environment": "a", "algorithm": "ppo", "gamma": 0.99},
    ]
    assert make_labels(facts, [run, copy]) == ["gamma 0.9", "gamma 0.99"]
    assert make_labels([facts[0], facts[0]], [run, copy]) == ["single", "copy"]
    assert make_labels([facts[0], {**facts[1], "algorithm": "impala"}], [run, copy]) == [
        "ppo",
        "impala",
    ]
    assert make_labels([facts[0], {**facts[0], "environment": "b"}], [run, copy]) == ["ppo", "ppo"]


@pytest.mark.parametrize(
    "value, text",
    [(0, "0"), (500, "500"), (10_000, "10k"), (1_000_000, "1M"), (1_500_000, "1.5M"), (2e9, "2B")],
)
def test_counts_are_short(value, text):
    assert style.format_count(value) == text


def with_trials(folder, within):
    """Set the returns of episodes within trials in the evaluations of a run."""
    with np.load(folder / "evaluations.npz") as file:
        arrays = dict(file) | {"info/episode_returns": within}
    np.savez(folder / "evaluations.npz", **arrays)


def adaptation(folder):
    axis = Figure().subplots()
    overview._draw_adaptation(
        axis, learning_curves.make_curves(learning_curves.read_run(folder)), is_wide=True
    )
    return axis


def test_trials_are_read_from_a_run(trials):
    (read,) = learning_curves.read_run(trials)
    assert read.trials.shape == (*read.returns.shape, 3)
    assert np.allclose(read.trials.sum(axis=-1), read.returns)
    check_image(plot([trials]))


def test_adaptation_is_the_mean_of_each_episode_of_a_trial(copy):
    within = np.random.default_rng(0).uniform(size=(3, 4, 5)).astype("float32")
    with_trials(copy, within)
    *earlier, last = adaptation(copy).lines
    assert last.get_xdata().tolist() == [1, 2, 3, 4, 5]
    for line, values in zip([*earlier, last], within, strict=True):
        assert np.allclose(line.get_ydata(), values.mean(axis=0))
    band = adaptation(copy).collections[-1].get_paths()[0].vertices
    assert (
        band[:, 1].min() < within[-1].mean(axis=0).min()
        and band[:, 1].max() > within[-1].mean(axis=0).max()
    )


def test_earlier_evaluations_are_fainter_and_labeled(copy):
    steps = learning_curves.read_run(copy)[0].eval_step
    with_trials(copy, np.zeros((3, 4, 5)))
    lines = adaptation(copy).lines
    assert [line.get_label() for line in lines] == [style.format_count(step) for step in steps]
    lightness = [sum(matplotlib.colors.to_rgb(line.get_color())) for line in lines]
    assert lightness == sorted(lightness, reverse=True) and len(set(lightness)) == len(lightness)
    assert earlier_evaluations(1) == [] and earlier_evaluations(2) == [0]
    assert (
        earlier_evaluations(21) == [0, 5, 10, 14, 19]
        and len(earlier_evaluations(1000)) == NUM_EARLIER_EVALUATIONS
    )


def test_an_evaluation_shortly_before_the_last_has_no_line(copy):
    with_trials(copy, np.zeros((3, 4, 5)))
    with np.load(copy / "evaluations.npz") as file:
        arrays = dict(file)
    np.savez(copy / "evaluations.npz", **arrays | {"step": np.array([0, 19_988_480, 20_004_864])})
    assert [line.get_label() for line in adaptation(copy).lines] == ["0", "20M"]


def test_adaptation_of_a_sweep_has_a_line_per_value(sweep, tmp_path):
    folder = shutil.copytree(
        sweep, tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoints", "figures")
    )
    within = np.arange(3 * 4 * 4 * 2, dtype=float).reshape(3, 4, 4, 2)
    with_trials(folder, within)
    lines = adaptation(folder).lines
    assert len(lines) == 2
    for line, members in zip(lines, ([0, 1], [2, 3]), strict=True):
        assert np.allclose(line.get_ydata(), within[-1, members].mean(axis=(0, 1)))


@pytest.mark.parametrize(
    "within, points", [(np.ones((3, 4, 1)), 1), (np.full((3, 4, 2), np.nan), 0)]
)
def test_trials_with_few_values(copy, within, points):
    with_trials(copy, within)
    axis = adaptation(copy)
    assert [line.get_xdata().size for line in axis.lines] == [points] * (3 if points else 0)
    axis.figure.savefig(io.BytesIO())


def test_trials_next_to_an_environment_without_trials(copy, run, tmp_path):
    with_trials(copy, np.ones((3, 4, 2)))
    path = copy / "config.yaml"
    path.write_text(path.read_text().replace("gymnax/CartPole-v1", "mine/Trials"))
    check_image(plot([run, copy], tmp_path / "both.png"))


def test_every_agent_type_has_a_curve(tmp_path):
    """The sum of their returns may always be zero."""
    options = rollax.RunOptions(
        total_steps=64, run_dir=tmp_path / "hunt", eval_episodes=4, eval_count=1, tensorboard=False
    )
    config = {
        "num_envs": 4,
        "num_steps": 8,
        "num_minibatches": 2,
        "num_epochs": 1,
        "sharing": "type",
    }
    arguments = {"time_limit": 5}
    folder = rollax.train(
        "ppo",
        "hunting/3-players",
        options=options,
        config=config,
        network={"hidden": (8,)},
        arguments=arguments,
        quiet=True,
    ).folder
    prey, predator = learning_curves.read_run(folder)
    assert (prey.agent_type, predator.agent_type) == ("prey", "predator")
    with np.load(folder / "evaluations.npz") as file:
        np.testing.assert_allclose(prey.returns[:, 0], file["returns"][..., 0])
        np.testing.assert_allclose(predator.returns[:, 0], file["returns"][..., 1:].mean(axis=-1))
    assert [curve.label for curve in learning_curves.make_curves([prey, predator])] == [
        "prey",
        "predator",
    ]
    assert not np.array_equal(prey.metrics["entropy"], predator.metrics["entropy"])
    assert plot([folder]).is_file()


@pytest.mark.parametrize(("algorithm", "unit"), [("ppo", "steps"), ("map_elites", "evaluations")])
def test_speed_has_the_unit_of_the_algorithm(run, algorithm, unit):
    curve = learning_curves.make_curves(learning_curves.read_run(run))[0]
    spec = dataclasses.replace(curve.run.spec, algorithm=algorithm)
    axis = Figure().subplots()
    overview._draw_panel(
        axis, [curve._replace(run=curve.run._replace(spec=spec))], "steps_per_second"
    )
    assert axis.get_title(loc="left") == f"{unit} per second"
