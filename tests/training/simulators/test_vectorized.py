"""Tests of vectorized simulators in this process and in workers, and of runs with failing ones."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

import rollax
from rollax import api
from rollax.errors import UsageError
from rollax.spaces import Discrete
from rollax.training.run_folder.metric_sinks import read_metrics
from rollax.training.simulators import runner
from rollax.training.simulators.pools import PooledSimulators
from rollax.training.simulators.restarts import SimulatorError
from rollax.training.simulators.vectorized import (
    InProcessSimulators,
    SimulatorSpec,
    SimulatorStep,
)
from rollax.training.simulators.workers import MultiprocessSimulators
from rollax.visualization.render.render import render
from support.counter_simulator import FULL, LIMIT, GymnasiumCounter, on_host
from support.parallel_worlds import make_shift

CONFIG = {"num_envs": 2, "num_steps": 8, "num_minibatches": 1, "num_epochs": 1}


OPTIONS = {"eval_episodes": 3, "eval_count": 1, "tensorboard": False}


@pytest.fixture(scope="module")
def _in_workers() -> Iterator[Any]:
    """Yield five simulators in two processes, which take seconds to start."""
    simulators = runner.make_simulators(on_host(), 5, 2, 60.0, ("sum",))
    yield simulators
    simulators.close()


def rollout(simulators: Any, steps: int) -> list[Any]:
    actions = np.random.default_rng(1).integers(0, 2, (steps, 5)).astype(np.int32)
    return [simulators.reset([1, 2, 3, 4, 5]), *(simulators.step(action) for action in actions)]


def test_workers_equal_in_process_simulators_with_agents() -> None:
    """Agents leave and return, and episodes end."""
    here, there = (runner.make_simulators(make_shift(), 3, n, 60.0, ("time",)) for n in (0, 2))
    ours, theirs = (
        [x.reset([1, 2, 3]), *(x.step(np.ones((3, 3), np.int32)) for _ in range(9))]
        for x in (here, there)
    )
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(a, b)
    assert ours[0].active.all() and ours[7].ended.all() and ours[7].active.all()
    assert ours[7].reset.all() and ours[7].next_obs["observation"][0, 0, 0] == 8
    np.testing.assert_array_equal(ours[4].reset[0], [False, False, True])  # the runner returns
    np.testing.assert_array_equal(ours[5].reset[0], [False, True, False])  # guard 1 returns
    assert [step.ended.any() for step in ours[1:]] == [False] * 6 + [True] + [False] * 2
    here.close()
    there.close()


@pytest.mark.quick
def test_workers_equal_in_process_simulators(_in_workers: Any) -> None:
    here = runner.make_simulators(on_host(), 5, 0, 60.0, ("sum",))
    ours, theirs = rollout(here, 12), rollout(_in_workers, 12)
    assert sum(int(x.terminated.sum() + x.truncated.sum()) for x in ours[1:]) > 5
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_last_observation_is_followed_by_a_reset() -> None:
    """This includes the time limit. A step that reaches both ends terminates."""
    simulators = runner.make_simulators(on_host(), 1, 0, 60.0, ("sum",))
    simulators.reset([0])
    steps: list[SimulatorStep] = [
        simulators.step(np.array([action])) for action in [0] * LIMIT + [1] * 3 + [0, 0, 1, 1, 1]
    ]
    cut, done, both = steps[LIMIT - 1], steps[LIMIT + 2], steps[-1]
    np.testing.assert_array_equal(cut.next_obs[0], [LIMIT, 0])
    np.testing.assert_array_equal(done.next_obs[0], [3, 3])
    for step, terminated in ((cut, False), (done, True), (both, True)):
        assert (bool(step.terminated[0]), bool(step.truncated[0])) == (terminated, not terminated)
        np.testing.assert_array_equal(step.obs[0], [0, 0])
    assert both.next_obs[0, 0] == LIMIT
    assert [step.info[0, 0] for step in steps[LIMIT : LIMIT + 3]] == [1, 2, 3]


class CountingPool:
    """Pool like those of EnvPool: results come in any order, and an end needs a reset."""

    def __init__(self, number: int, seed: int) -> None:
        self.state, self.seed, self.begun, self.closed = np.zeros((number, 2)), seed, 0, False

    def reset(self, ids: np.ndarray) -> Any:
        self.state[ids] = 0
        return self.state[ids[::-1]].astype(np.float32), ids[::-1]

    def begin_next(self, ids: np.ndarray) -> Any:
        self.begun += len(ids)
        return self.reset(ids)

    def step(self, action: np.ndarray, ids: np.ndarray) -> Any:
        assert not np.any(self.state[ids, 0] >= LIMIT), "it was begun anew after the end"
        self.state[ids] += np.stack([np.ones(len(ids)), action], axis=-1)
        moved = self.state[ids[::-1]].astype(np.float32)
        info = {"sum": moved[:, 1], "env_id": ids[::-1]}
        return (
            moved,
            action[::-1].astype(float),
            moved[:, 1] >= FULL,
            moved[:, 0] >= LIMIT,
            info,
            ids[::-1],
        )

    def close(self) -> None:
        self.closed = True


def test_pools_equal_simulators() -> None:
    here = runner.make_simulators(on_host(), 5, 0, 60.0, ("sum",))
    pool = PooledSimulators(CountingPool, 5, SimulatorSpec(np.zeros(2, np.float32), ("sum",)))
    for a, b in zip(
        jax.tree.leaves(rollout(here, 12)), jax.tree.leaves(rollout(pool, 12)), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    assert pool._pool.begun > 0, (
        "EnvPool's own restart goes on with a game, which a reset would begin anew"
    )
    where = np.array([True, False, True, False, False])
    after = pool.step(np.ones(5, np.int32), None, where)
    np.testing.assert_array_equal(np.isfinite(after.info[:, 0]), where)
    pool.close()


def test_only_selected_simulators_step(_in_workers: Any) -> None:
    _in_workers.reset([None] * 5)
    where = np.array([True, False, False, False, True])
    after = _in_workers.step(np.ones(5, np.int32), None, where)
    np.testing.assert_array_equal(after.reward, where.astype(np.float32))


FAULTS = {
    "raise": "the counter is broken",
    "shape": "must have the shape",
    "spaces": "Spaces must not change",
    "nan": "returned an observation that is not finite",
    "inf": "returned a reward that is not finite",
}
HANGS = pytest.param(
    "hang",
    "did not respond within 2 s",
    marks=pytest.mark.skipif(sys.platform == "win32", reason="a timer"),
)


@pytest.mark.parametrize(("fault", "message"), [*FAULTS.items(), HANGS])
def test_a_failing_simulator_loses_only_the_current_update(
    fault: str, message: str, tmp_path: Path, capsys: Any
) -> None:
    """The exit code is 4. The state of the last update is saved, and the run can be resumed."""
    run = tmp_path / "run"
    options = OPTIONS | {"run_dir": run, "env_timeout": 2.0}
    result = api.train(
        "ppo", on_host(fault=fault, at=20), total_steps=96, config=CONFIG, options=options
    )
    told = capsys.readouterr()
    assert (result.status, result.exit_code, result.steps) == ("failed", 4, 32)
    assert re.search(rf"simulator [01] .*{message}|simulator [01] {message}", told.out + told.err)
    again = api.resume(run, environment=on_host())
    told = capsys.readouterr()
    assert (again.status, again.steps) == ("done", 96)
    assert (
        "Continuing from step 32" in told.out + told.err
        and "episodes restart" in told.out + told.err
    )


@pytest.mark.parametrize(
    ("fault", "message"), [*list(FAULTS.items())[:2], ("nan", FAULTS["nan"]), HANGS]
)
def test_a_failing_simulator_while_rendering(fault: str, message: str, drawn: Path) -> None:
    """The error is that of a run, whatever the simulator raises."""
    with pytest.raises(SimulatorError, match=f"the simulator of test/counter .*{message}"):
        render(drawn, drawn / "episode.gif", environment=on_host(fault=fault, at=2, limit=None))
    assert not (drawn / "episode.gif").exists()


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of the counter."""
    options = OPTIONS | {
        "run_dir": tmp_path_factory.mktemp("drawn") / "run",
        "eval_count": 0,
        "env_timeout": 2.0,
    }
    return api.train(
        "ppo", on_host(), total_steps=16, config=CONFIG, options=options, quiet=True
    ).folder


def test_invalid_info_is_missing_and_errors_of_close_are_warnings(
    tmp_path: Path,
) -> None:
    simulators = runner.make_simulators(on_host(fault="text", at=2), 1, 0, 60.0, ("sum",))
    simulators.reset([0])
    assert [float(simulators.step(np.array([1])).info[0, 0]) for _ in range(2)] == pytest.approx(
        [1, np.nan], nan_ok=True
    )
    nothing = runner.make_simulators(on_host(fault="nothing", at=2), 1, 0, 60.0, ("sum",))
    nothing.reset([0])
    nothing.step(np.array([1]))
    with pytest.raises(SimulatorError, match="raised AttributeError in step"):
        nothing.step(np.array([1]))
    options = OPTIONS | {"run_dir": tmp_path / "run"}
    with pytest.warns(
        RuntimeWarning, match=r"simulator \d raised RuntimeError when it was closed: already closed"
    ):
        result = api.train(
            "ppo",
            on_host(fault="close", at=8),
            total_steps=32,
            config=CONFIG,
            options=options,
            quiet=True,
        )
    assert (result.status, result.steps) == ("done", 32)


class Slow:
    """Simulator whose reset is slow."""

    def reset(self, seed: int | None) -> Any:
        time.sleep(0.3)
        return np.zeros(2, np.float32)


@pytest.mark.skipif(sys.platform == "win32", reason="a timer")
def test_the_timeout_applies_to_each_simulator() -> None:
    layout = SimulatorSpec(np.zeros(2, np.float32), ())
    assert InProcessSimulators(Slow, 4, layout, timeout=0.9).reset([None] * 4).obs.shape == (4, 2)
    with pytest.raises(SimulatorError, match="simulator 0 did not respond within 0.1 s"):
        InProcessSimulators(Slow, 2, layout, timeout=0.1).reset([None] * 2)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_workers_ignore_signals_to_stop(_in_workers: Any) -> None:
    """Terminals and schedulers signal whole process groups. The run then closes its workers."""
    _in_workers.reset([None] * 5)
    for worker in _in_workers._workers:
        os.kill(worker.process.pid, signal.SIGTERM)
    time.sleep(0.2)
    assert _in_workers.step(np.ones(5, np.int32)).reward.tolist() == [1.0] * 5


def test_no_worker_remains_if_one_fails_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, worker: Any) -> None:
        raise SimulatorError("the worker process of simulators 0 did not respond")

    before = set(multiprocessing.active_children())
    monkeypatch.setattr(MultiprocessSimulators, "_receive", fail)
    with pytest.raises(SimulatorError):
        runner.make_simulators(on_host(), 2, 2, 60.0)
    assert set(multiprocessing.active_children()) <= before  # in any order


LEFT = """
from support.counter_simulator import on_host
from rollax.training.simulators import runner

if __name__ == "__main__":
    left = runner.make_simulators(on_host(), 2, 1, 60.0)
    print("left", flush=True)
"""


def test_the_timeout_applies_to_each_simulator_of_a_worker() -> None:
    """Four simulators need 1.2 s, with a limit of 1 s each.

    A limit of 0.2 s is too short for one.
    """
    layout = SimulatorSpec(np.zeros(2, np.float32), ())
    simulators = MultiprocessSimulators(Slow, 4, layout, 1, 1.0)
    assert simulators.reset([None] * 4).obs.shape == (4, 2)
    simulators.close()
    simulators = MultiprocessSimulators(Slow, 1, layout, 1, 0.2)
    with pytest.raises(SimulatorError, match=r"did not respond within 0.2 s"):
        simulators.reset([None])
    simulators.close()


def test_open_workers_do_not_block_the_end_of_the_process(tmp_path: Path) -> None:
    script = tmp_path / "left.py"
    script.write_text(LEFT)
    path = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, str(script)], env=path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr


def test_a_locally_registered_id_is_sent_to_workers() -> None:
    gymnasium.register("Unknown-v0", entry_point=GymnasiumCounter)
    environment = rollax.from_gymnasium("Unknown-v0")
    gymnasium.registry.pop("Unknown-v0")
    simulators = runner.make_simulators(environment, 1, 1, 60.0)
    assert environment.name == "own/Unknown-v0" and simulators.reset([0]).obs.shape == (1, 2)
    simulators.close()


def test_a_constructor_that_cannot_be_pickled_raises_usage_error() -> None:
    with pytest.raises(UsageError, match="cannot be sent to worker processes"):
        environment = rollax.from_gymnasium(lambda: GymnasiumCounter(), name="mine/unnamed")
        runner.make_simulators(environment, 1, 1, 60.0)


def test_a_script_without_main_guard_does_not_train_in_its_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(UsageError, match="__main__"):
        api.train("ppo", on_host(), total_steps=32)


def test_a_resumed_run_continues_from_the_saved_state(tmp_path: Path) -> None:
    """Episodes restart. Networks and the state of the optimizer are restored."""
    run = tmp_path / "run"
    options = OPTIONS | {"run_dir": run}
    api.train(
        "ppo",
        on_host(fault="raise", at=20),
        total_steps=96,
        config=CONFIG,
        options=options,
        quiet=True,
    )
    saved = rollax.load(run, environment=on_host()).state.train
    api.resume(run, environment=on_host(), learning_rate=1e-30, quiet=True)
    after = rollax.load(run, environment=on_host()).state.train
    for a, b in zip(jax.tree.leaves(saved.network), jax.tree.leaves(after.network), strict=True):
        np.testing.assert_array_equal(a, b)
    counts = [
        {int(x) for x in jax.tree.leaves(t.optimizer) if x.dtype == np.int32 and x.ndim == 0}
        for t in (saved, after)
    ]
    assert counts == [{2}, {6}]  # one gradient step per update of 16 steps


@pytest.mark.skipif(sys.platform == "win32", reason="a timer in another process")
@pytest.mark.parametrize(
    ("fault", "message"), [("die", "died with exit code 9"), ("hang", "did not respond within 2 s")]
)
def test_a_run_is_saved_if_a_worker_fails(
    fault: str, message: str, tmp_path: Path, capsys: Any
) -> None:
    run = tmp_path / "run"
    options = OPTIONS | {"run_dir": run, "env_timeout": 2.0, "env_workers": 1}
    result = api.train(
        "ppo", on_host(fault=fault, at=20), total_steps=48, config=CONFIG, options=options
    )
    told = capsys.readouterr()
    assert (result.status, result.exit_code, result.steps) == ("failed", 4, 32)
    assert message in told.out + told.err
    again = api.resume(run, environment=on_host(), quiet=True)
    assert (again.status, again.steps) == ("done", 48)


@pytest.mark.skipif(sys.platform == "win32", reason="exit codes of processes")
def test_errors_of_processes_that_die_or_hang() -> None:
    dies = runner.make_simulators(on_host(fault="die", at=2), 2, 1, 60.0)
    hangs = runner.make_simulators(on_host(fault="hang", at=2), 2, 1, 1.0)
    for simulators, message in ((dies, "died with exit code 9"), (hangs, "not respond within 1 s")):
        simulators.reset([0, 1])
        simulators.step(np.zeros(2, np.int32))
        with pytest.raises(SimulatorError, match=message):
            simulators.step(np.zeros(2, np.int32))
        simulators.close()


def test_evaluations_count_every_episode_and_are_deterministic(tmp_path: Path) -> None:
    """The number of episodes does not depend on the number of simulators, also in `evaluate`."""
    options = OPTIONS | {"run_dir": tmp_path / "run", "eval_episodes": 40, "eval_count": 2}
    environment = on_host()
    result = api.train(
        "ppo",
        environment,
        total_steps=32,
        config=CONFIG | {"learning_rate": 0.0},
        options=options,
        quiet=True,
    )
    with np.load(tmp_path / "run" / "evaluations.npz") as file:
        returns, length = file["returns"], file["length"]
    assert returns.shape == (3, 40) and np.all(length > 0)
    np.testing.assert_array_equal(returns[0], returns[-1])
    policy = rollax.load(result.folder, environment=environment)
    numbers, episodes = policy.evaluate(50, jax.random.key(0), greedy=False)
    assert episodes.length.shape == (50,) and set(np.unique(episodes.length)) <= set(
        range(1, LIMIT + 1)
    )
    assert abs(numbers["sum"] - float(np.mean(episodes.info["sum"]))) < 1e-6
    with pytest.raises(UsageError, match="has no descriptor"):
        policy.evaluate(2, jax.random.key(0), descriptor="final")


def test_a_population_in_simulators(tmp_path: Path) -> None:
    """Each member equals the single run of its seed."""
    options = OPTIONS | {"run_dir": tmp_path / "run"}
    both = api.train(
        "ppo", on_host(), total_steps=48, seeds=2, config=CONFIG, options=options, quiet=True
    )
    alone = api.train(
        "ppo",
        on_host(),
        total_steps=48,
        seed=1,
        config=CONFIG,
        options=OPTIONS | {"run_dir": tmp_path / "one"},
        quiet=True,
    )
    assert both.status == alone.status == "done"
    states = [
        rollax.load(run, environment=on_host(), member=m).state
        for run, m in ((both.folder, 1), (alone.folder, None))
    ]
    for a, b in zip(
        jax.tree.leaves(states[0].train.network),
        jax.tree.leaves(states[1].train.network),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_episodes_continue_over_generations(tmp_path: Path) -> None:
    """Members that survive continue their episodes, which may be longer than a generation."""
    config = CONFIG | {"num_steps": 2}
    options = OPTIONS | {"run_dir": tmp_path / "run", "evolve_every": 4}
    evolve = {"learning_rate": (1e-4, 1e-2)}
    api.train(
        "ppo",
        on_host(),
        total_steps=48,
        seeds=4,
        evolve=evolve,
        config=config,
        options=options,
        quiet=True,
    )
    generations = read_metrics(tmp_path / "run" / "lineage.jsonl")
    fitness = np.asarray(
        [[np.nan if x is None else x for x in line["fitness"]] for line in generations[1:]], float
    )
    assert np.isnan(fitness[0]).all(), "no episode ends in two steps"
    assert np.isfinite(fitness[-1]).sum() >= 2
    parents = [line["parent"] for line in generations[1:]]
    assert any(parent != [0, 1, 2, 3] for parent in parents)


def test_an_unknown_info_metric_raises_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="in the info of .* 'lives'.*info_names"):
        options = OPTIONS | {"run_dir": tmp_path / "run", "eval_info": ("lives=sum",)}
        api.train("ppo", on_host(), total_steps=16, config=CONFIG, options=options, quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_gymnasium_environment_as_an_object() -> None:
    environment = rollax.from_gymnasium(GymnasiumCounter, max_episode_steps=9)
    assert (environment.name, environment.action_space, environment.time_limit) == (
        "own/GymnasiumCounter",
        Discrete(2),
        9,
    )
    assert environment.info_names == ("sum",) and environment.fps == 7
    with pytest.raises(UsageError, match="from_gymnasium"):
        api.train("ppo", GymnasiumCounter(), total_steps=64, quiet=True)
    with pytest.raises(UsageError, match="GymnasiumCounter cannot be copied"):
        rollax.from_gymnasium(GymnasiumCounter())
    with pytest.raises(UsageError, match="got an object of int"):
        rollax.from_gymnasium(3)
    with pytest.raises(UsageError, match="must make a gymnasium.Env"):
        rollax.from_gymnasium(lambda: 3)
