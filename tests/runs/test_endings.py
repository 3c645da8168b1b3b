"""Tests of the end of a run: sweep table, best checkpoint, commands, and learning rate."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import rollax
from rollax.errors import UsageError
from rollax.training.checkpoints.summary import MemberScores
from rollax.training.console import result_tables
from rollax.training.console.messages import describe_result
from rollax.training.result import Result
from rollax.training.spec import make_spec
from support.runs import FRAMES, NETWORK, SMALL, Script, options


def spec(mode: Any = "max", **sweep: Any) -> Any:
    given = options(Path("run"), seeds=3, best_mode=mode)
    return make_spec("ppo", "probe/memory", {}, SMALL, NETWORK, given, sweep)


def test_the_sweep_table_has_a_row_per_setting_best_first() -> None:
    two = {"learning_rate": (1e-3, 1e-2), "gamma": (0.9,)}
    values: list[float | None] = [1.0, 2.0, 6.0, 10.0, None, 30.0]
    title, best, other = result_tables.format_sweep_table(
        spec(**two), MemberScores("return_mean", 64, 0, values)
    )
    assert title == "  return_mean by setting, at step 64, with 95 % intervals over seeds:"
    assert (
        " ".join(best.split())
        == "learning_rate 0.01 gamma 0.9 20 [-107.1, 147.1] 2 of 3 seeds (1 not finite) the best"
    )
    low, high = stats.t.interval(0.95, 2, 3.0, stats.sem([1.0, 2.0, 6.0]))
    assert (
        other.split() == f"learning_rate 0.001 gamma 0.9 3 [{low:.3f}, {high:.3f}] 3 seeds".split()
    )
    assert (
        "0.001"
        in result_tables.format_sweep_table(
            spec("min", **two), MemberScores("return_mean", 64, 0, values)
        )[1]
    )


def test_no_table_without_a_sweep_or_scores() -> None:
    scores = MemberScores("return_mean", 64, 0, [1.0, 2.0, 3.0])
    assert (
        result_tables.format_sweep_table(spec(), scores)
        == []
        == result_tables.format_sweep_table(spec(gamma=(0.9,)), None)
    )
    assert (
        result_tables.format_sweep_table(spec(gamma=(0.9,)), scores._replace(values=[None] * 3))
        == []
    )
    lines = result_tables.format_sweep_table(
        spec(gamma=tuple(np.linspace(0.1, 0.9, 30))), scores._replace(values=[1.0] * 90)
    )
    assert len(lines) == 22 and lines[-1] == "    and 10 more"


def test_the_last_lines_of_a_run(train: Callable[..., Any]) -> None:
    show = Script()
    result = train("swept", show=show, sweep={"learning_rate": [1e-3, 1e-2]}, seeds=2, updates=2)
    told = show.text
    assert "  return_mean by setting, at step 64" in told and "2 seeds   the best" in told
    step, value = result.best
    assert f"best checkpoint: return_mean {value:.4g}"[:30] in told and f"at step {step}" in told
    assert result.summary()["best_step"] == step and result.summary()["best"] == value


@pytest.mark.parametrize("status", ["done", "stopped", "nonfinite"])
def test_runs_of_objects_end_with_python_code(status: str, tmp_path: Path) -> None:
    """The command line cannot pass such objects, so the lines are Python instead of commands."""
    own = dataclasses.replace(spec(), own_environment=True, network="custom")
    lines = describe_result(
        Result(tmp_path, status, 0, 64, {}, 1.0, 64.0), own, rollax.make("probe/memory")
    )
    assert not any("rollax eval" in line or "rollax resume" in line for line in lines)
    assert "  in Python, with the environment and the network that you passed:" in lines
    for line in lines[
        lines.index("  in Python, with the environment and the network that you passed:") + 1 :
    ]:
        compile(line.strip(), "said", "exec")
        assert "environment=environment" in line or "policy.evaluate" in line
    assert ('on_nonfinite="rollback"' in lines[-1]) == (status == "nonfinite")


def rates(folder: Path) -> dict[int, float]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {row["step"]: row["learning_rate"] for row in rows if "learning_rate" in row}


def test_a_rising_learning_rate_is_reported_and_can_be_fixed(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    annealed = dataclasses.replace(
        SMALL, learning_rate=1e-3, learning_rate_final_fraction=0.0, critic_learning_rate=4e-3
    )
    folder = train("annealed", config=annealed, updates=4).folder
    show = Script()
    rollax.resume(folder, total_steps=8 * FRAMES, show=show)
    warning = next(message for message in show.lines if "learning rate" in message)
    assert warning.startswith(
        "warning: The learning rate was annealed to 0 at step 128. It is now 0.0005, and "
        "reaches 0 at"
    )
    show = Script()
    rollax.resume(folder, total_steps=12 * FRAMES, learning_rate=2e-4, show=show)
    assert not any("learning rate was annealed" in message for message in show.lines)
    rollax.resume(folder, total_steps=14 * FRAMES, show=show)  # it stays constant
    assert not any("learning rate was annealed" in message for message in show.lines)
    found = rates(folder)
    np.testing.assert_allclose(
        [found[step] for step in found if step > 8 * FRAMES], 2e-4, rtol=1e-6
    )
    config = rollax.load(folder).state.config
    # Four times that of the policy, as before.
    np.testing.assert_allclose(config.critic_learning_rate, 8e-4, rtol=1e-6)


def test_invalid_learning_rates_of_resume_raise_usage_error(train: Callable[..., Any]) -> None:
    folder = train("constant", updates=2).folder
    for value, message in (
        (0.0, "must be greater than 0"),
        (-1.0, "must be greater than 0"),
        ("fast", "must be a number"),
    ):
        with pytest.raises(UsageError, match=message):
            rollax.resume(folder, total_steps=4 * FRAMES, learning_rate=value)  # pyright: ignore[reportArgumentType]
    show = Script()
    rollax.resume(folder, total_steps=4 * FRAMES, show=show)
    assert not any("learning rate" in message for message in show.lines)
