"""Zero-sum games are reported by their sides, because the mean over all agents is always 0."""

import numpy as np
import pytest

from rollax.training.evaluation.metrics import (
    RETURN_STATISTICS,
    format_return,
    format_training_metrics,
    return_names_by_type,
    zero_sum_side_returns,
)
from rollax.training.evaluation.statistics import summarize
from rollax.training.run_folder.run_summary import summarize_run
from support.runs import Script, metrics

CONFIG = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "num_epochs": 1, "sharing": "type"}


def values(per_agent, **kinds):
    """Return the metrics of an evaluation with returns `[episodes, agents]`."""
    per_agent = np.asarray(per_agent, float)
    summary = {f"return_{name}": value for name, value in summarize(per_agent.mean(axis=1)).items()}
    means = per_agent.mean(axis=0)
    agents = {
        "return_agents": means.tolist(),
        "return_team": float(means.sum()),
        "length_mean": 5.0,
        "episodes": len(per_agent),
    }
    return {
        **agents,
        **{f"return_{kind}": float(means[index]) for kind, index in kinds.items()},
        **summary,
    }


def test_names_of_summary_statistics():
    assert set(RETURN_STATISTICS) == set(summarize([1.0, 2.0]))


def test_sides_are_reported_for_zero_sum_games():
    game = [[3.0, -3.0], [5.0, -5.0]]
    assert zero_sum_side_returns(values(game, prey=0, predator=1)) == {
        "return_prey": 4.0,
        "return_predator": -4.0,
    }
    assert zero_sum_side_returns(values(game)) == {"agent 0": 4.0, "agent 1": -4.0}
    # The sum is not exactly zero.
    assert zero_sum_side_returns(values([[3.0, -3.0], [5.0, -4.0]], prey=0, predator=1)) == {}
    assert zero_sum_side_returns(values([[3.0, -3.0], [-5.0, 5.5]])) == {}
    # Without any reward the return is 0.
    assert zero_sum_side_returns(values([[0.0, 0.0], [0.0, 0.0]])) == {}
    # There is a single agent.
    assert zero_sum_side_returns({"return_mean": 0.0, "return_min": 0.0, "return_max": 0.0}) == {}


def test_the_headline_has_the_sides():
    assert (
        format_return(values([[3.0, -3.0]], prey=0, predator=1), 0, False)
        == "return prey 3  predator -3 (their mean is 0)  length 5"
    )
    assert format_return(values([[3.0, 1.0]]), 0, False).startswith("return 2 (std 0, iqm 2")


def test_types_are_reported_if_their_sum_is_not_zero():
    """The mean over agents of several types is not informative."""
    game = values([[3.0, -1.0], [5.0, -1.0]], prey=0, predator=1)
    assert return_names_by_type(game, ("prey", "predator")) == ["return_prey", "return_predator"]
    assert return_names_by_type(game, ("agent", "agent")) == []
    assert (
        return_names_by_type(values([[3.0, -3.0]], prey=0, predator=1), ("prey", "predator")) == []
    )


def test_no_return_from_episodes_that_ended_early():
    """The bar needs as many steps of every environment as the longest episode has."""
    line, evaluated = {"episode_return": 0.9, "coverage": 0.5}, {"length_max": 100.0}
    assert format_training_metrics(line, evaluated, (), 99) == {}
    assert (
        format_training_metrics(line, evaluated, (), 100)
        == {"return": "0.9"}
        == format_training_metrics(line, {}, (), 1)
    )
    assert format_training_metrics(line, evaluated, ("coverage",), 1) == {"coverage": "0.5"}


@pytest.mark.parametrize("best", ["return_mean", "return_prey"])
def test_a_run_of_a_zero_sum_game(train, best):
    """Lines and the bar have the sides. No checkpoint is the best by a mean that is always 0."""
    bar, show = [], Script()
    show.progress = lambda done, total, figures: bar.append(figures)
    more = {
        "config": CONFIG,
        "network": {"hidden": (8,)},
        "arguments": {"time_limit": 5},
        "show": show,
    }
    result = train(best, "hunting/2-players", updates=2, eval_count=1, best_metric=best, **more)
    evaluated = [line for line in show.lines if " steps  return " in line]
    assert len(evaluated) == 2 and all(
        "return prey" in line and "predator" in line for line in evaluated
    )
    warned = [line for line in show.lines if "is always 0" in line]
    assert len(warned) == (best == "return_mean") and all(
        "best_metric return_prey" in line for line in warned
    )
    summary, listed = result.summary(), summarize_run(result.folder)
    assert listed["best_metric"] == best and (listed["best"] is None) == (best == "return_mean")
    assert (result.best is None) == (best == "return_mean")
    assert (
        all({"prey", "predator"} < set(figures) and "return" not in figures for figures in bar)
        and bar
    )
    for line in metrics(result.folder):
        if "prey/episode_return" in line:
            assert line["episode_return"] == pytest.approx(0, abs=1e-4)
            assert (
                line["prey/episode_return"] == pytest.approx(-line["predator/episode_return"]) != 0
            )
    assert (
        summary["return_prey"] == -summary["return_predator"] != 0 and summary["return_mean"] == 0
    )
