"""Tests of warnings about the curves of a run, with planted problems and with healthy curves."""

import json
import math
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import rollax
from rollax.algorithms.learning_signals import LearningSignals, SharedClip
from rollax.spaces import Box, Dict, Discrete, MultiDiscrete
from rollax.training.evaluation.curve_warnings import (
    NUM_LINES,
    PAGE,
    CurveMonitor,
    CurveWarning,
    WatchedRun,
    describe_watched_run,
    min_entropy,
)
from rollax.training.spec import make_spec
from support.runs import FRAMES, NETWORK, SMALL, Script, options

ROOT = Path(__file__).parents[3]
CLIP = SharedClip("grad_norm", "value_loss", value_weight=0.5, max_grad_norm=0.5)
RUN = WatchedRun(
    total_steps=1000,
    min_entropy=0.01,
    signals=LearningSignals(entropy="entropy", shared_clip=CLIP),
)


def line(step: int, **values: Any) -> dict[str, Any]:
    """Return a healthy line of training metrics with other values for some names."""
    healthy = {
        "episode_return": 10.0 + step / 10,
        "episode_length": 20.0,
        "entropy": 0.6,
        "grad_norm": 1.0,
        "value_loss": 0.5,
    }
    return {"step": step, **healthy, **values}


def evaluation(step: int, **values: Any) -> dict[str, Any]:
    healthy = {
        "event": "evaluation",
        "return_mean": 10.0 + step / 10,
        "return_std": 1.0,
        "return_count": 16,
        "length_max": 20.0,
        "unfinished": 0.0,
    }
    return {"step": step, **healthy, **values}


def observe(records: list[dict[str, Any]], run: WatchedRun = RUN) -> list[CurveWarning]:
    monitor = CurveMonitor(run)
    return [warning for record in records for warning in monitor.observe(record)]


def curves(
    evaluated: dict[str, Any] | None = None, first_return: float | None = None, **values: Any
) -> list[dict[str, Any]]:
    """Return a run of 100 lines and 10 evaluations with the same values in each.

    The first line may have another return.
    """
    records = [evaluation(0)]
    if first_return is not None:
        records.append(line(5, **(values | {"episode_return": first_return})))
    for step in range(10, 1001, 10):
        records.append(line(step, **values))
        if step % 100 == 0:
            records.append(evaluation(step, **(evaluated or {})))
    return records


def test_healthy_curves_cause_no_warning() -> None:
    assert observe(curves()) == []


@pytest.mark.parametrize(
    ("name", "records"),
    [
        ("greedy-actions-worse-than-sampled-actions", curves({"return_mean": 9.0})),
        (
            "greedy-actions-worse-than-sampled-actions",
            curves(
                {"return_mean": -200.0, "return_std": 0.0}, first_return=-12.0, episode_return=-11
            ),
        ),
        ("value-loss-dominates-the-gradient-clip", curves(grad_norm=50.0, value_loss=400.0)),
        ("episodes-of-one-step", curves(episode_length=1.0)),
        ("evaluation-episodes-cut-off", curves({"unfinished": 0.25})),
        ("advantages-of-zero", curves({"return_mean": -200.0}, episode_return=-200.0)),
        ("entropy-collapse", curves(entropy=0.001)),
    ],
)
def test_each_planted_problem_causes_its_warning_once(
    name: str, records: list[dict[str, Any]]
) -> None:
    """The warning is one line, which ends with its section on the page."""
    (warning,) = observe(records)
    assert warning.name == name and warning.text.endswith(f" See {PAGE}#{name}.")
    assert "\n" not in warning.text
    assert f"## {name.replace('-', ' ')}" in (ROOT / PAGE).read_text().lower()


@pytest.mark.parametrize(
    "records",
    [
        # The return is that of short episodes, until every environment has finished a long one.
        curves({"return_mean": 9.0, "length_max": 1000.0}),
        # Greedy actions lose less than half of the improvement.
        curves({"return_mean": 80.0}),
        # The gradient is clipped because of the policy, not of the value.
        curves(grad_norm=50.0, value_loss=0.5),
        # The entropy falls late, when the policy has learned.
        [line(step, entropy=0.6 if step < 400 else 0.0) for step in range(10, 1001, 10)],
        # The return is constant after the task is solved.
        [line(step, episode_return=min(step, 100.0)) for step in range(10, 1001, 10)],
        # No episode has ended.
        curves(episode_return=None, episode_length=None),
    ],
)
def test_ordinary_curves_cause_no_warning(records: list[dict[str, Any]]) -> None:
    assert observe(records) == []


def test_sampled_evaluations_are_not_compared_with_training() -> None:
    run = RUN._replace(can_compare_actions=False)
    assert observe(curves({"return_mean": 9.0}), run) == []


def test_an_environment_may_have_episodes_of_one_step() -> None:
    run = RUN._replace(can_end_after_one_step=True)
    assert observe(curves(episode_length=1.0), run) == []


def test_the_median_member_of_a_population_counts() -> None:
    assert observe(curves(entropy=[0.0, 0.5, 0.6])) == []
    assert [w.name for w in observe(curves(entropy=[0.0, 0.0, 0.6]))] == ["entropy-collapse"]


def test_a_warning_is_not_repeated_after_a_resume() -> None:
    """The lines of the run, with its warnings, restore the monitor."""
    given = {"step": 60, "event": "warning", "name": "entropy-collapse", "text": "..."}
    assert observe([given, *curves(entropy=0.001)]) == []
    records, monitor = curves(entropy=0.001), CurveMonitor(RUN)
    for record in records[: NUM_LINES - 1]:
        assert monitor.observe(record) == []
    assert [w.name for w in observe(records[:NUM_LINES])] == []
    assert len(observe(records[: NUM_LINES + 1])) == 1


def test_values_of_damaged_lines_are_ignored() -> None:
    records = curves(entropy="low", episode_return={}, grad_norm=[None, "1"], episode_length=True)
    assert observe(records) == []


class Spaces(eqx.Module):
    """Environment that only has spaces."""

    observation_space: Any = eqx.field(static=True)
    action_space: Any = eqx.field(static=True)


def test_lowest_entropy_of_each_space() -> None:
    """The entropy of continuous actions is relative to their range."""
    obs, arm = Box(0.0, 1.0, (1,)), Box(-100.0, 100.0, (2,))
    standard = 2 * (0.5 * math.log(2 * math.pi * math.e) - 4.9)
    assert min_entropy(Spaces(obs, Discrete(4)), False) == pytest.approx(0.01 * math.log(4))
    assert min_entropy(Spaces(obs, MultiDiscrete((4, 4))), False) == pytest.approx(
        0.02 * math.log(4)
    )
    assert min_entropy(Spaces(obs, arm), True) == pytest.approx(standard)
    assert min_entropy(Spaces(obs, arm), False) == pytest.approx(standard + 2 * math.log(100))
    assert min_entropy(Spaces(obs, Box(-math.inf, math.inf, (2,))), False) == -math.inf
    masked = Dict({"obs": obs, "action_mask": Box(0, 1, (4,), "bool")})
    assert min_entropy(Spaces(masked, Discrete(4)), False) == -math.inf


def test_algorithms_declare_what_applies_to_them() -> None:
    """A clip is shared only in a shared network with normalized advantages."""

    def watched(algorithm: str, environment: str, **settings: Any) -> WatchedRun:
        spec = make_spec(algorithm, environment, None, None, None, rollax.RunOptions(), None)
        network = settings.pop("network", {})
        if settings or network:
            spec = make_spec(
                algorithm, environment, None, settings, network, rollax.RunOptions(), None
            )
        return describe_watched_run(spec, rollax.make(environment))

    assert watched("ppo", "gymnax/CartPole-v1").signals.shared_clip is None
    shared = watched("ppo", "gymnax/CartPole-v1", network={"shared": True}, max_grad_norm=2.0)
    assert shared.signals.shared_clip == CLIP._replace(max_grad_norm=2.0)
    off = {"network": {"shared": True}, "normalize_advantages": "off"}
    assert watched("ppo", "gymnax/CartPole-v1", **off).signals.shared_clip is None
    assert watched("sac", "gymnax/Pendulum-v1").signals.has_normalized_actions
    assert watched("dqn", "gymnax/CartPole-v1").signals == LearningSignals()
    assert not watched("map_elites", "task/arm").has_policy


class OneStep(eqx.Module):
    """Environment whose episodes end after one step by mistake, with a constant reward."""

    name = "one_step"
    observation_space = Box(0.0, 1.0, (1,))
    action_space = Discrete(2)
    num_agents = None
    time_limit = None

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return jnp.zeros(()), jnp.zeros(1)

    def step(self, key: jax.Array, state: Any, action: Any) -> rollax.Transition:
        true, reward = jnp.ones((), bool), jnp.ones(())
        return rollax.Transition(state, jnp.zeros(1), reward, true, ~true, {})


def test_a_run_shows_and_records_its_warnings(tmp_path: Path) -> None:
    """Each appears once in the messages, in metrics.jsonl and in the report, after a resume too."""
    folder, show = tmp_path / "run", Script()
    ends_early = options(folder, updates=12, log_lines=100)
    rollax.train(
        "ppo",
        OneStep(),
        config=SMALL,
        network=NETWORK,
        options=ends_early,
        stop_when=lambda evaluated: evaluated.step >= 6 * FRAMES,
        show=show,
    )
    rollax.resume(folder, environment=OneStep(), show=show)
    warned = [text for text in show.lines if text.startswith("warning:")]
    names = ["episodes-of-one-step", "advantages-of-zero"]
    assert [text.rpartition("#")[2].rstrip(".") for text in warned] == names
    records = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    records = [record for record in records if record.get("event") == "warning"]
    assert [record["name"] for record in records] == names
    page = rollax.report(folder, path=tmp_path / "report.html", quiet=True).read_text()
    assert all(page.count(f"{PAGE}#{name}") == 1 for name in names)
