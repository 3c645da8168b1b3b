"""Simulators that fail and are made again: their episode is truncated, and the run continues."""

import functools
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import rollax
from rollax.errors import UsageError
from rollax.training.compile import program as programs
from rollax.training.compile import run_check
from rollax.training.options import RunOptions
from rollax.training.run_folder.metric_sinks import read_metrics
from rollax.training.simulators import (
    episodes,
    policy_episodes,
    restarts,
    runner,
    vectorized,
)
from rollax.training.simulators.recording import find_actor, to_rollout
from rollax.training.simulators.restarts import RestartLimit, SimulatorError
from rollax.training.simulators.vectorized import (
    InProcessSimulators,
    SimulatorSpec,
    SimulatorStep,
)
from rollax.training.spec import make_spec
from support.counter_simulator import LIMIT, on_host
from support.parallel_worlds import make_shift

CONFIG = {"num_envs": 2, "num_steps": 8, "num_minibatches": 1, "num_epochs": 1}
SMALL = {"hidden": (8,)}
HANGS = pytest.param(
    "hang", marks=pytest.mark.skipif(sys.platform == "win32", reason="a timer of POSIX systems")
)


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "FIRST_DELAY_SECONDS", 0.01)


def take_steps(simulators: Any, number: int) -> list[Any]:
    """The steps of two simulators with an action that never completes the task."""
    simulators.reset([0, 1])
    return [simulators.step(np.zeros(2, np.int32)) for _ in range(number)]


@pytest.mark.parametrize("fault", ["raise", "shape", "nan", "inf", HANGS])
def test_the_episode_of_a_simulator_that_fails_is_truncated(fault: str) -> None:
    simulators = runner.make_simulators(
        on_host(fault=fault, at=LIMIT + 2), 2, 0, 0.5, max_restarts=1
    )
    steps = take_steps(simulators, LIMIT + 3)
    assert [bool(step.restarted[0]) for step in steps] == [False] * (LIMIT + 1) + [True, False]
    failed, following = steps[-2:]
    assert failed.truncated.all() and not failed.terminated.any() and not failed.reward.any()
    np.testing.assert_array_equal(failed.next_obs, [[1, 0], [1, 0]])  # the last good observation
    np.testing.assert_array_equal(failed.obs, [[0, 0], [0, 0]])
    np.testing.assert_array_equal(following.obs, [[1, 0], [1, 0]])
    assert len(simulators.pop_restart_messages()) == 2 and not simulators.pop_restart_messages()
    simulators.close()


@pytest.mark.parametrize(("fault", "workers"), [("raise", 0), ("die", 1)])
def test_the_episode_of_all_agents_is_truncated(fault: str, workers: int) -> None:
    """The runner has left, and is truncated neither by a failure nor by the death of a worker."""
    environment = make_shift(fault=fault, at=4)
    simulators = runner.make_simulators(environment, 2, workers, 60.0, max_restarts=1)
    simulators.reset([0, 1])
    *_, before, failed = [simulators.step(np.zeros((2, 3), np.int32)) for _ in range(4)]
    np.testing.assert_array_equal(before.active, [[True, False, False]] * 2)
    np.testing.assert_array_equal(failed.truncated, [[True, False, False]] * 2)
    np.testing.assert_array_equal(failed.terminated, [[False, True, True]] * 2)
    assert failed.ended.all() and failed.restarted.all() and failed.active.all()
    assert failed.reset.all() and not failed.reward.any()
    np.testing.assert_array_equal(
        failed.next_obs["observation"], before.obs["observation"]
    )  # the last good observation
    simulators.close()


def test_too_many_failures_in_a_row_end_a_run() -> None:
    """A completed episode ends the series."""
    environment = on_host(fault="raise", at=3)  # before an episode is complete
    simulators = runner.make_simulators(environment, 2, 0, 60.0, max_restarts=2)
    with pytest.raises(SimulatorError, match=r"(?s)the counter is broken.*failed 3 times in a row"):
        take_steps(simulators, 9)
    simulators = runner.make_simulators(
        on_host(fault="raise", at=LIMIT + 1), 2, 0, 60.0, max_restarts=1
    )
    steps = take_steps(simulators, 4 * (LIMIT + 1))
    assert sum(int(step.restarted.sum()) for step in steps) == 8


def test_many_steps_end_a_series_of_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "RELIABLE_STEPS", 3)
    limit, yes, no = RestartLimit([1], 2), np.ones(1, bool), np.zeros(1, bool)
    error = SimulatorError("it failed")
    assert [limit.record_failure(0, error) for _ in range(2)] == [0.01, 0.02]
    for _ in range(3):
        limit.record_success(yes, no)
    assert limit.record_failure(0, error) == 0.01
    limit.record_failure(0, error)
    with pytest.raises(SimulatorError, match="it failed\nIt failed 3 times in a row"):
        limit.record_failure(0, error)
    with pytest.raises(SimulatorError) as raised:
        RestartLimit([1], 0).record_failure(0, error)
    assert raised.value is error


class Goal:
    """Simulator that terminates in every step with a reward of 1.

    Args:
        last_reset: Number of the last reset that succeeds.
    """

    def __init__(self, last_reset: int) -> None:
        self.last_reset, self.num_resets = last_reset, 0

    def reset(self, seed: int | None) -> Any:
        self.num_resets += 1
        if self.num_resets > self.last_reset:
            raise ConnectionError("the server is busy")
        return np.zeros(2, np.float32)

    def step(self, action: Any) -> Any:
        return np.ones(2, np.float32), 1.0, True, False, {}

    def close(self) -> None:
        pass


def make_goals(last_reset: int, **options: Any) -> InProcessSimulators:
    """Return one simulator of `Goal`."""
    make: Any = functools.partial(Goal, last_reset)
    return InProcessSimulators(make, 1, SimulatorSpec(np.zeros(2, np.float32), ()), **options)


def test_a_failing_reset_does_not_change_the_last_step_of_an_episode() -> None:
    """Every second reset fails. The completed episodes end each series of failures."""
    simulators = make_goals(last_reset=1, max_restarts=1)
    simulators.reset([0])
    for _ in range(3):
        step = simulators.step(np.zeros(1, np.int32))
        assert step.reward.tolist() == [1.0] and step.terminated.all()
        assert not step.truncated.any() and not step.restarted.any()
        np.testing.assert_array_equal(step.next_obs, [[1, 1]])
        np.testing.assert_array_equal(step.obs, [[0, 0]])
        assert len(simulators.pop_restart_messages()) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="a timer of POSIX systems")
def test_the_timeout_does_not_apply_to_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulators have responded in time."""
    simulators = make_goals(last_reset=9, max_restarts=1, timeout=0.2)
    simulators.reset([0])
    monkeypatch.setattr(vectorized, "check_finite", lambda *_: time.sleep(0.3))
    step = simulators.step(np.zeros(1, np.int32))
    assert step.reward.tolist() == [1.0] and not step.restarted.any()
    assert simulators.pop_restart_messages() == []


def test_all_simulators_of_a_worker_must_complete_an_episode() -> None:
    """One simulator that ends its process in every episode cannot restart it without end."""
    limit, error, all_three = RestartLimit([2, 1], 1), SimulatorError("it died"), np.ones(3, bool)
    limit.record_failure(0, error)
    limit.record_success(all_three, np.array([False, True, True]))
    with pytest.raises(SimulatorError, match="failed 2 times in a row"):
        limit.record_failure(0, error)
    limit = RestartLimit([2, 1], 1)
    limit.record_failure(0, error)
    for completed in ([True, False, False], [False, True, False]):
        limit.record_success(all_three, np.array(completed))
    limit.record_failure(0, error)


@pytest.mark.skipif(sys.platform == "win32", reason="exit codes of processes")
@pytest.mark.parametrize("fault", ["die", "raise"])
def test_a_simulator_that_fails_in_a_worker_process(fault: str) -> None:
    """A process that dies is started again with all its simulators."""
    simulators = runner.make_simulators(
        on_host(fault=fault, at=LIMIT + 2), 2, 1, 60.0, max_restarts=1
    )
    steps = take_steps(simulators, LIMIT + 3)
    failed, following = steps[-2:]
    assert failed.restarted.all() and failed.truncated.all() and not failed.reward.any()
    np.testing.assert_array_equal(failed.next_obs, [[1, 0], [1, 0]])
    np.testing.assert_array_equal(following.obs, [[1, 0], [1, 0]])
    messages = simulators.pop_restart_messages()
    expected = "died with exit code 9" if fault == "die" else "the counter is broken"
    assert len(messages) == (1 if fault == "die" else 2) and expected in messages[0]
    simulators.close()


@pytest.mark.skipif(sys.platform == "win32", reason="exit codes of processes")
def test_episodes_that_a_reset_loses_are_truncated() -> None:
    """A worker that dies in a reset of some simulators loses the episodes of the others."""
    simulators: Any = runner.make_simulators(on_host(), 2, 1, 60.0, max_restarts=1)
    take_steps(simulators, 2)
    simulators._workers[0].process.kill()
    simulators.reset([5, 6], np.array([True, False]))
    step = simulators.step(np.zeros(2, np.int32))
    np.testing.assert_array_equal(step.restarted, [False, True])
    np.testing.assert_array_equal(step.truncated, [False, True])
    np.testing.assert_array_equal(step.next_obs, [[1, 0], [2, 0]])
    simulators.close()


def make_runner(environment: Any, **options: Any) -> tuple[runner.SimulatorRunner, Any]:
    """Return a compiled runner of PPO with two simulators, and the initial state."""
    spec = make_spec("ppo", "test/counter", {}, CONFIG, SMALL, RunOptions(**options), None)
    algorithm, _ = programs.build_algorithm_and_environment(spec, environment)
    state = algorithm.init(jax.random.key(0), spec.config)
    made = runner.SimulatorRunner(spec, algorithm, algorithm, (environment, environment), state)
    made.compile(3)
    return made, state


def test_failed_episodes_do_not_count_in_training_metrics() -> None:
    acts, state = make_runner(on_host(fault="raise", at=7), env_restarts=1)
    acts.begin(state)
    recording = acts.collect_rollout(jax.tree.leaves(state))
    episodes = to_rollout(acts.environment, recording, find_actor(state)).episodes
    is_end = recording.steps.terminated | recording.steps.truncated
    assert recording.steps.truncated[6].all() and acts.num_restarts == 2
    assert episodes.number == episodes.info["sum"][0] == is_end.sum() - 2
    acts.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_training_continues_after_a_failure_or_a_stop(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollback restarts the episodes. Workers then have answers that were not read."""
    acts, state = make_runner(on_host(fault="raise", at=12), env_workers=workers)
    state, rows = acts.advance(state, 3)
    assert len(rows.episodes.number) == 1 and acts.failure is not None
    acts.restart_episodes(0)
    state, rows = acts.advance(state, 1)
    assert len(rows.episodes.number) == 1 and acts.failure is None
    requests = iter([False] * 3)
    with monkeypatch.context() as patch:
        patch.setattr(runner, "is_stop_requested", lambda: next(requests, True))
        state, rows = acts.advance(state, 1)
    assert len(rows.episodes.number) == 0
    acts.begin(state)
    recording = acts.collect_rollout(jax.tree.leaves(state))
    assert recording.steps.reset[0].all() and not recording.steps.obs[0].any()
    acts.close()


@pytest.mark.quick
def test_a_run_continues_after_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Restarts are counted, and evaluations repeat the episode that was lost."""
    monkeypatch.setattr(episodes, "MAX_PARALLEL_SIMULATORS", 1)
    options = {"eval_episodes": 10, "eval_count": 1, "tensorboard": False}
    returns = []
    for fault in ("", "raise"):
        run = tmp_path / f"run-{fault}"
        result = rollax.train(
            "ppo",
            on_host(fault=fault),
            total_steps=96,
            config=CONFIG,
            options=options | {"run_dir": run, "env_restarts": 1 if fault else 0},
        )
        assert (result.status, result.steps) == ("done", 96)
        with np.load(run / "evaluations.npz") as file:
            returns.append((file["returns"][0], file["length"][0]))
    np.testing.assert_array_equal(*returns)
    lines = [line for line in read_metrics(run / "metrics.jsonl") if "env_restarts" in line]
    counts = [line["env_restarts"] for line in lines]
    assert len(counts) == 6 and counts == sorted(counts) and counts[-1] >= 6
    told = " ".join(capsys.readouterr().out.split())
    assert told.count("is made again") == 1 and "the counter is broken" in told
    policy = rollax.load(run, environment=on_host(fault="raise", at=7))
    policy.evaluate(10, jax.random.key(0))
    told = " ".join(capsys.readouterr().err.split())
    assert "were made again (number of restarts: " in told and "the counter is broken" in told
    _, resets = policy_episodes.collect_observations(policy, jax.random.key(0), 2, 8)
    assert resets[[0, 7]].all() and "(number of restarts: 2)" in capsys.readouterr().err


def test_a_repeated_episode_has_a_new_seed_after_two_failures() -> None:
    plan = episodes.plan_episodes([jax.random.key(0)], 4)
    playing = episodes.EpisodeTracker(plan, 2, ())
    planned = playing.make_seeds(playing.index)
    step = SimulatorStep(
        next_obs=np.zeros(2),
        obs=np.zeros(2),
        reward=np.zeros(2, np.float32),
        terminated=np.zeros(2, bool),
        truncated=np.array([True, False]),
        ended=np.array([True, False]),
        info=np.zeros((2, 0), np.float32),
        restarted=np.array([True, False]),
    )
    assert playing.add(step, 100).tolist() == [True, False]
    assert playing.make_seeds(playing.index) == planned
    playing.add(step, 100)
    repeated, unchanged = playing.make_seeds(playing.index)
    assert repeated not in plan.seeds and unchanged == planned[1]


def test_restarts_need_simulators_that_step_separately() -> None:
    spec = make_spec("ppo", "probe/memory", {}, CONFIG, None, RunOptions(env_restarts=2), None)
    with pytest.raises(
        UsageError, match=r"env_restarts \(2\) requires .* probe/memory is compiled"
    ):
        run_check.check_run(spec)
    with pytest.raises(UsageError, match=r"env_restarts \(-1\) must be between 0 and 1000"):
        RunOptions(env_restarts=-1).check()
