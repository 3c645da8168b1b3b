"""Statistics of nonfinite episodes and members report how many they include, and rank nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax
from rollax import Transition
from rollax.acting.evaluation import Episodes
from rollax.cli.main import main
from rollax.spaces import Box, Discrete
from rollax.training.evaluation.metrics import (
    default_metrics,
    format_evaluation,
    format_finite_count,
    format_return,
    format_training_metrics,
    rank_value,
    zero_sum_side_returns,
)
from rollax.training.evaluation.task_results import format_worst_tasks as tasks_in_words
from rollax.training.run_folder import recorder
from rollax.training.run_folder.run_summary import summarize_run
from rollax.visualization.plots.curve_estimates import describe_exclusions, describe_lines
from rollax.visualization.plots.learning_curves import make_curves, read_run
from support.runs import Script, metrics


class Broken(eqx.Module):
    """Environment with episodes of four steps, whose reward is NaN if their start is below `bad`.

    Starts are uniform in [0, 1).
    """

    bad: float = eqx.field(static=True, default=0.0, converter=float)

    name = "left/broken"
    observation_space = Box(0.0, 1.0, (1,))
    action_space = Discrete(2)
    num_agents = None
    time_limit = 4

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return (jax.random.uniform(key), jnp.zeros((), jnp.int32)), jnp.zeros(1)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        start, time = state[0], state[1] + 1
        reward = jnp.where(start < self.bad, jnp.nan, action.astype(jnp.float32))
        return Transition(
            (start, time), jnp.zeros(1), reward, jnp.zeros((), bool), time >= 4, {"score": reward}
        )


@pytest.fixture(autouse=True)
def registered() -> None:
    rollax.register("left/broken", Broken)


def episodes(returns: Any, **info: Any) -> Episodes:
    returns = np.asarray(returns, float)
    yes = np.ones(returns.shape, bool)
    return Episodes(
        returns,
        np.full(returns.shape, 4),
        yes,
        ~yes,
        {name: np.asarray(x) for name, x in info.items()},
    )


def test_an_evaluation_reports_the_number_of_finite_episodes() -> None:
    values = default_metrics(episodes([[1.0, 3.0], [np.nan, 5.0], [4.0, np.nan]])) | {"episodes": 6}
    assert "return 2 (" in format_return(
        values, 3, False
    ) and "over 1 of 3 members (2 not finite))" in format_return(values, 3, False)
    values = default_metrics(episodes([1.0, np.nan, 3.0])) | {"episodes": 3}
    assert "over 2 of 3 episodes (1 not finite), sampled)" in format_return(
        values, 0, False, "sampled"
    )
    assert "over 3 members" in format_return(values | {"return_count": 3.0}, 3, False)
    assert format_finite_count(1, 3, "members") == "1 of 3 members (2 not finite)"


def test_an_info_metric_that_some_episodes_lack() -> None:
    """The mean is over the episodes that have it. It reports their number and ranks nothing."""
    values = default_metrics(
        episodes([1.0, 2.0, 3.0], won=[1.0, np.nan, 0.0], whole=[1.0, 1.0, 0.0])
    ) | {"episodes": 3}
    assert values["won"] == 0.5 and values["won/count"] == 2 and "whole/count" not in values
    assert "won 0.5 (over 2 of 3 episodes)  whole 0.6667" in format_evaluation(
        values, (), ["won", "whole"], 0, False
    )
    assert rank_value("won", values) is None and rank_value("whole", values) == values["whole"]


def test_a_cooperative_task_with_a_broken_episode_is_not_zero_sum() -> None:
    played = episodes([[1.0, 2.0], [np.nan, 2.0]])._replace(length=np.full(2, 4))
    values = default_metrics(played, ("a", "b"))
    assert values["return_agents"] == [1.0, 2.0] and zero_sum_side_returns(values) == {}


def test_the_progress_bar_counts_finite_members() -> None:
    line = {"episode_return": [1.0, None, 3.0]}
    assert format_training_metrics(line, {}, ()) == {"return": "2 (2 of 3 members)"}
    assert format_training_metrics({"episode_return": [1.0, 3.0]}, {}, ()) == {"return": "2"}


def test_dashboards_count_finite_members() -> None:
    assert recorder._to_finite_scalars({"train/loss": [1.0, float("nan"), 3.0]}) == {
        "train/loss": 2.0,
        "train/loss/count": 2.0,
    }
    assert recorder._to_finite_scalars({"train/loss": [1.0, float("nan")]}, 0) == {
        "train/loss": 1.0
    }
    assert (
        recorder._to_finite_scalars({"train/loss": [float("nan")] * 2, "eval/metrics": ["a"]}) == {}
    )


def test_no_checkpoint_is_the_best_with_nonfinite_episodes(
    train: Callable, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    show = Script()
    result = train(
        environment="left/broken", eval_arguments={"bad": 0.5}, updates=2, eval_count=1, show=show
    )
    lines = [line for line in metrics(result.folder) if line.get("event") == "evaluation"]
    assert all(0 < line["return_count"] < 8 and line["return_mean"] is not None for line in lines)
    assert result.best is None and summarize_run(result.folder)["best"] is None
    count = int(lines[-1]["return_count"])
    said = f"over {count} of 8 episodes ({8 - count} not finite), greedy)"
    assert (
        said in show.text
        and f"score {result.evaluation['score']:.4g} (over {count} of 8 episodes)" in show.text
    )
    assert "return_mean is not finite in every episode" in show.text
    summary = result.summary()
    assert summary["return_count"] == count and summary["any_nan"] is True
    curves = make_curves(read_run(result.folder))
    assert f"evaluations of {count} of 8 episodes ({8 - count} not finite) at" in describe_lines(
        curves
    )
    capsys.readouterr()
    assert (
        main(["plot", str(result.folder), "--only", "return", "--out", str(tmp_path / "a.png")])
        == 0
    )
    told = capsys.readouterr()
    assert f"{count} of 8 episodes ({8 - count} not finite)" in told.out + told.err
    assert main(["eval", str(result.folder), "--episodes", "16"]) == 0
    out = capsys.readouterr().out
    assert " of 16 episodes (" in out and "not finite), greedy actions" in out
    assert json.loads(out.splitlines()[-1])["any_nan"] is True


def test_a_population_counts_its_finite_members(train: Callable) -> None:
    show = Script()
    result = train(
        environment="left/broken",
        eval_arguments={"bad": 0.1},
        seeds=3,
        updates=2,
        eval_count=1,
        show=show,
    )
    count = int(result.evaluation["return_count"])
    assert 0 < count < 3, "the seeds no longer test this"
    assert f"over {count} of 3 members ({3 - count} not finite), greedy)" in show.text
    assert result.best is None and result.scores is not None
    assert [value is None for value in result.scores.values].count(True) == 3 - count
    (words,) = describe_exclusions(make_curves(read_run(result.folder)))
    assert words.startswith(f"evaluations of {count} of 3 seeds ({3 - count} not finite) at")


def test_nonfinite_tasks_are_listed_first() -> None:
    table = {
        "task": np.arange(3),
        "return_mean": np.array([1.0, np.nan, 0.0]),
        "return_std": np.zeros(3),
    }
    environment: Any = type("Tasks", (), {"describe": lambda self, number: f"task {number}"})()
    words = tasks_in_words(table, environment, 1)
    assert words.startswith("1 of 3 tasks (1 not finite)") and "task 1: return nan" in words
