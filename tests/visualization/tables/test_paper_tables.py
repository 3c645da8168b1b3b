"""Tests of tables for papers: rows, estimates over seeds, and hyperparameters."""

import shutil

import numpy as np
import pytest
import yaml

import rollax
from rollax.errors import UsageError
from rollax.training.evaluation.statistics import bootstrap_interval, interquartile_mean
from rollax.visualization.plots import figure
from rollax.visualization.plots.intervals import Estimate
from rollax.visualization.plots.learning_curves import make_curves, read_run
from rollax.visualization.tables.hyperparameters import make_hyperparameter_table
from rollax.visualization.tables.result_rows import make_results_table
from rollax.visualization.tables.run_groups import RunGroup


def cells(table):
    """Return the rows of a table as dictionaries by column name."""
    names = [column.name for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]


def settings(table):
    """Return the columns of a table of hyperparameters as dictionaries by setting."""
    return {
        column.name: {row[0]: row[index] for row in table.rows}
        for index, column in enumerate(table.columns)
        if index
    }


def means(folder):
    """Return the mean return of each evaluation of a single run."""
    return read_run(folder)[0].returns[:, 0].mean(axis=1)


def test_runs_with_different_seeds_are_one_row(variant):
    folders = [variant(f"seed-{seed}", seed, shift=10.0 * seed) for seed in range(5)]
    table = rollax.table(folders)
    (row,) = cells(table)
    values = np.stack([means(folder) for folder in folders])
    for name, expected in (("final_return", values[:, -1]), ("best_return", values.max(axis=1))):
        estimate = row[name]
        assert estimate.middle == pytest.approx(interquartile_mean(expected))
        assert (estimate.low, estimate.high) == pytest.approx(bootstrap_interval(expected))
    assert (row["algorithm"], row["environment"]) == ("ppo", "gymnax/CartPole-v1")
    assert (row["seeds"], row["steps"]) == (5, 512) and "label" not in row
    assert (
        table.notes[0].startswith("values: interquartile mean over seeds") and len(table.notes) == 2
    )


def test_a_single_seed_has_no_interval(run):
    table = rollax.table(run)
    (row,) = cells(table)
    assert row["final_return"].middle == pytest.approx(means(run)[-1])
    assert np.isnan(row["final_return"][1:]).all() and "[" not in table.to_string()
    assert "no interval for a single seed: ppo on gymnax/CartPole-v1" in table.notes


def test_a_sweep_has_a_row_and_a_column_per_value(sweep):
    rows = cells(rollax.table(sweep))
    assert [row["label"] for row in rows] == ["learning_rate 0.0001", "learning_rate 0.001"]
    assert [row["seeds"] for row in rows] == [2, 2]
    shown = settings(rollax.table(sweep, "hyperparameters"))
    assert {label: values["learning_rate"] for label, values in shown.items()} == {
        "learning_rate 0.0001": 0.0001,
        "learning_rate 0.001": 0.001,
    }


def test_groups_in_several_environments(variant):
    folders = [
        variant("a", 0),
        variant("b", 1),
        variant("c", 0, environment="gymnax/Acrobot-v1"),
        variant("d", 0, gamma=0.9),
    ]
    rows = cells(rollax.table(folders, label=("high", "low")))
    assert [(row["label"], row["environment"], row["seeds"]) for row in rows] == [
        ("high", "gymnax/CartPole-v1", 2),
        ("high", "gymnax/Acrobot-v1", 1),
        ("low", "gymnax/CartPole-v1", 1),
    ]
    shown = settings(rollax.table(folders, "hyperparameters", label=("high", "low")))
    assert list(shown) == ["high, CartPole-v1", "high, Acrobot-v1", "low, CartPole-v1"]
    assert [column["gamma"] for column in shown.values()] == [0.98, 0.98, 0.9]
    assert "algorithm" not in shown["low, CartPole-v1"]
    with pytest.raises(UsageError, match="--label must have 2 names"):
        rollax.table(folders, label=("one",))


def test_default_settings_are_left_out(run):
    shown = settings(rollax.table(run, kind="hyperparameters"))["ppo"]
    whole = settings(rollax.table(run, kind="hyperparameters", all_settings=True))["ppo"]
    assert shown.keys() < whole.keys()
    assert shown["num_envs"] == 4 and shown["network.hidden"] == "[8]"
    assert "gae_lambda" not in shown and whole["gae_lambda"] == 0.95
    assert whole["algorithm"] == "ppo" and whole["best_metric"] == "return_mean"
    assert not {"seed", "seeds", "log_lines", "keep_last", "evolve_factor"} & whole.keys()


def test_options_that_differ_between_seeds_are_listed(variant):
    folders = [variant("a", 0), variant("b", 1)]
    document = yaml.safe_load((folders[1] / "config.yaml").read_text())
    document["options"]["eval_count"] = 5
    (folders[1] / "config.yaml").write_text(yaml.safe_dump(document))
    assert settings(rollax.table(folders, "hyperparameters"))["ppo"]["eval_count"] == "2 or 5"


def group(run, **changes):
    """Return a group of one run with changed curves."""
    (curve,) = make_curves([run._replace(**changes)])
    return RunGroup(curve, [{}])


def read_population(run, number=4):
    """Return the curves of a run as those of a population of several members."""
    (found,) = read_run(run)
    shift = np.arange(number)[None, :, None]
    return found._replace(returns=found.returns + shift)


@pytest.mark.quick
def test_members_with_common_founders_have_no_interval(run):
    (row,) = cells(make_results_table([group(read_population(run), founders=2)]))
    assert row["seeds"] == 2 and np.isnan(row["final_return"][1:]).all()
    (independent,) = cells(make_results_table([group(read_population(run))]))
    assert independent["final_return"].middle == row["final_return"].middle
    assert independent["final_return"].low < independent["final_return"].high
    notes = make_results_table([group(read_population(run), founders=2)]).notes
    assert (
        "ppo on gymnax/CartPole-v1: no interval, because 4 members with 2 distinct founders are "
        "not independent"
    ) in notes


def test_archives_have_coverage_and_qd_score(run):
    population = read_population(run, 2)
    lines = len(population.step)
    coverage = np.linspace([0.1, 0.2], [0.5, 0.7], lines)
    table = make_results_table(
        [group(population, metrics={"coverage": coverage, "qd_score": 100 * coverage[:, :1]})]
    )
    (row,) = cells(table)
    assert row["coverage"] == pytest.approx((0.6, 0.5, 0.7))
    assert row["qd_score"] == pytest.approx((50.0, 50.0, 50.0))
    assert [column.title for column in table.columns[-2:]] == ["coverage", "QD score"]
    (without,) = cells(make_results_table([group(population)]))
    assert "coverage" not in without


def test_a_nonfinite_last_evaluation(run):
    population = read_population(run)
    returns = population.returns.copy()
    returns[-1, 1] = np.nan
    table = make_results_table([group(population, returns=returns)])
    (row,) = cells(table)
    assert np.isnan(row["final_return"].middle) and np.isfinite(row["best_return"]).all()
    assert any("not finite for all seeds" in note for note in table.notes)


def test_the_best_return_is_the_lowest_with_best_mode_min(run):
    (found,) = read_run(run)
    options = rollax.RunOptions(
        **{**vars(found.spec.options), "best_mode": "min", "best_metric": "return_mean"}
    )
    spec = type(found.spec)(**{**vars(found.spec), "options": options})
    (row,) = cells(make_results_table([group(found, spec=spec)]))
    assert row["best_return"].middle == pytest.approx(means(run).min())


def test_runs_without_evaluations(variant):
    folders = [variant("a", 0), variant("b", 1)]
    (folders[1] / "evaluations.npz").unlink()
    table = rollax.table(folders)
    (row,) = cells(table)
    assert row["seeds"] == 1 and row["final_return"].middle == pytest.approx(means(folders[0])[-1])
    assert any("b has no evaluation yet" in note for note in table.notes)
    table = rollax.table(folders[1])
    (row,) = cells(table)
    assert row["final_return"] is None and row["best_return"] is None and row["steps"] == 512
    assert any("the seeds have no evaluation in common" in note for note in table.notes)


def test_a_shorter_seed_ends_the_row(variant):
    whole, cut = variant("whole", 0), variant("cut", 1)
    with np.load(cut / "evaluations.npz") as file:
        np.savez(cut / "evaluations.npz", **{name: x[:2] for name, x in file.items()})
    table = rollax.table([whole, cut])
    (row,) = cells(table)
    assert row["steps"] == 256
    assert row["final_return"].middle == pytest.approx(means(whole)[1])
    assert "ppo on gymnax/CartPole-v1: results after 256 of 512 steps" in table.notes
    assert any("whole: 2 of its 3 evaluations are used" in note for note in table.notes)


def test_a_damaged_run_is_skipped(variant, monkeypatch):
    good, damaged, empty = variant("good"), variant("damaged", 1), variant("empty", 2)
    (damaged / "config.yaml").write_text("a: [")
    (empty / "evaluations.npz").write_bytes(b"no archive")
    table = rollax.table([good.parent])
    assert len(table.rows) == 1
    assert [note.partition(":")[0] for note in table.notes[:2]] == ["Skipped", "Skipped"]
    with pytest.raises(UsageError, match="config.yaml"):
        rollax.table(damaged)

    def read(folder):
        return {}["member"] if folder == damaged else read_run(folder)

    monkeypatch.setattr(figure, "read_run", read)
    table = rollax.table([good, damaged])
    assert len(table.rows) == 1
    assert f"Skipped: {damaged} cannot be read (KeyError: 'member')." in table.notes


def test_types_of_agents_share_a_column(run):
    (found,) = read_run(run)
    curves = make_curves([found._replace(agent_type=name) for name in ("prey", "predator")])
    groups = [RunGroup(curve, [{}]) for curve in curves]
    assert [row["agents"] for row in cells(make_results_table(groups))] == ["prey", "predator"]
    columns = [column.name for column in make_hyperparameter_table(groups).columns]
    assert columns == ["setting", "prey, predator"]


def test_zero_sum_returns_are_not_shown(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    line = (
        '{"event": "evaluation", "step": 512, "return_agents": [5.0, -5.0], '
        '"return_min": 0.0, "return_max": 0.0}\n'
    )
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(line)
    (found,) = read_run(folder)
    zero = group(found, returns=np.zeros_like(found.returns))
    table = make_results_table([zero])
    (row,) = cells(table)
    assert row["final_return"] is None
    assert any("the returns of all agents sum to 0" in note for note in table.notes)
    assert cells(make_results_table([group(found)]))[0]["final_return"] is not None


def test_invalid_arguments_of_table_raise_usage_error(run):
    with pytest.raises(UsageError, match="Name at least one run"):
        rollax.table([])
    with pytest.raises(UsageError, match="kind"):
        rollax.table(run, "result")
    with pytest.raises(UsageError, match="is not a run"):
        rollax.table(run.parent / "nothing")


def test_a_cell_may_be_an_estimate(run):
    (row,) = cells(rollax.table(run))
    assert isinstance(row["final_return"], Estimate)
