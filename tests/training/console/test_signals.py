"""Tests of interrupts: acknowledgment, an exception after saving, and abort."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax
from rollax.training.compile import background
from rollax.training.console.progress import LineDisplay
from rollax.training.console.signals import get_interrupt_result, set_activity, stop_on_signals
from support.command import Command
from support.runs import FRAMES, NETWORK, SMALL, SMALL_WORDS, Script, newest, options

# An environment whose step takes XLA a long time to compile.
SLOW = """
import equinox as eqx, jax, jax.numpy as jnp
import rollax
from rollax import Transition
from rollax.spaces import Box, Discrete

class Slow(eqx.Module):
    name = "mine/Slow"
    observation_space = Box(-10.0, 10.0, (8,))
    action_space = Discrete(2)
    num_agents = None
    time_limit = 20

    def reset(self, key):
        return jnp.zeros((), jnp.int32), jnp.zeros(8)

    def step(self, key, state, action):
        x = jax.random.normal(key, (8, 8))
        for _ in range(120):
            x = jnp.sin(x @ x) + jnp.cumsum(jnp.sort(x, axis=0), axis=1) * 0.1
        no = jnp.zeros((), bool)
        return Transition(state + 1, jnp.clip(x[0], -10, 10), jnp.float32(1), no, \
state + 1 >= 20, {})

rollax.register("mine/Slow", Slow)
"""


@pytest.fixture
def compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """Return a process that compiles for a long time."""
    (tmp_path / "slow_module.py").write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    words = [
        "train",
        "ppo",
        "mine/Slow",
        "--import",
        "slow_module",
        *SMALL_WORDS,
        "--total-steps",
        100 * FRAMES,
    ]
    command = Command(*words, "--run-dir", tmp_path / "run")
    try:
        command.wait_for("^compiling")
        yield command
    finally:
        command.process.kill()
        command.process.wait()


def test_an_interrupt_while_compiling(compiling: Command) -> None:
    """XLA blocks signal handlers of the main thread.

    The first interrupt is acknowledged, and the second ends the process.
    """
    compiling.process.send_signal(signal.SIGINT)
    compiling.wait_for(r"^Stopping after this compilation\. Press Ctrl-C again to abort\.$")
    assert not any(line.startswith("Compiled in") for line in compiling.out), (
        "it compiled too fast to test this"
    )
    assert compiling.stop(signal.SIGINT) == 130, compiling.err
    assert not any(line.startswith("Compiled in") for line in compiling.out), (
        "it waited for the compiler"
    )
    assert [line for line in compiling.err if "Traceback" in line or "terminate" in line] == []


def interrupt_at(event: str) -> Callable[[str, str], None]:
    """Return a reaction that raises SIGINT once, at the first event of this kind."""
    done = []

    def react(kind: str, text: str) -> None:
        if kind == event and not done:
            done.append(kind)
            signal.raise_signal(signal.SIGINT)

    return react


def test_an_interrupt_ends_a_loop_over_runs(train: Callable, tmp_path: Path) -> None:
    """The run is saved first. The exception names its folder and has its result."""
    begun = []
    with pytest.raises(KeyboardInterrupt, match=str(tmp_path / "run-0")) as raised:
        for index in range(2):
            begun.append(index)
            train(f"run-{index}", show=Script(interrupt_at("progress")))
    assert begun == [0] and raised.type is KeyboardInterrupt
    result = get_interrupt_result(raised.value)
    assert (result.status, result.exit_code) == ("stopped", 130)
    assert rollax.load(tmp_path / "run-0").step == result.steps == newest(tmp_path / "run-0") > 0
    with pytest.raises(KeyboardInterrupt):
        rollax.resume(tmp_path / "run-0", show=Script(interrupt_at("progress")))
    assert rollax.resume(tmp_path / "run-0", show=Script()).status == "done"


@pytest.mark.quick
def test_an_interrupt_at_the_end_of_a_run(train: Callable, tmp_path: Path) -> None:
    """The run is done, but a loop over runs should still end."""

    def react(kind: str, text: str) -> None:
        if text.startswith("Finished "):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as raised:
        train(updates=1, show=Script(react))
    assert get_interrupt_result(raised.value).status == "done"


def test_a_quiet_run_acknowledges_an_interrupt(capsys: pytest.CaptureFixture) -> None:
    with stop_on_signals(notify_fn=LineDisplay(silent=True).message), set_activity("evaluation"):
        signal.raise_signal(signal.SIGINT)
    assert (
        capsys.readouterr().err == "Stopping after this evaluation. Press Ctrl-C again to abort.\n"
    )


def test_an_interrupt_of_a_study(tmp_path: Path) -> None:
    """The study is saved, and does not start other settings until it is continued."""
    given = {
        "config": SMALL,
        "network": {"hidden": (8,)},
        "options": {"total_steps": 4 * FRAMES, "tensorboard": False},
    }
    given["options"] |= {"eval_episodes": 4, "best_metric": "return_mean"}
    with pytest.raises(KeyboardInterrupt, match="study was interrupted"):
        rollax.sweep(
            "ppo",
            "probe/memory",
            sweep={"num_epochs": [1, 2]},
            folder=tmp_path / "study",
            picture=False,
            show=Script(interrupt_at("progress")),
            **given,
        )
    swept = rollax.sweep(tmp_path / "study", picture=False, show=Script())
    assert [row.state for row in swept.rows] == ["COMPLETE", "COMPLETE"]


def test_an_interrupt_stops_an_evaluation_of_a_simulator(tmp_path: Path) -> None:
    """The evaluation stops at the next step, and is repeated when the run is resumed."""
    pytest.importorskip("gymnasium")
    played = []

    def react(kind: str, text: str) -> None:
        if kind == "evaluating":
            played.append(kind)
            signal.raise_signal(signal.SIGINT)

    settings = {"config": SMALL, "network": NETWORK, "arguments": {}}
    with pytest.raises(KeyboardInterrupt) as raised:
        rollax.train(
            "ppo",
            "gymnasium/CartPole-v1",
            options=options(tmp_path / "run"),
            show=Script(react),
            **settings,
        )
    result = get_interrupt_result(raised.value)
    assert (result.steps, result.evaluation, played) == (0, {}, ["evaluating"])
    assert rollax.resume(tmp_path / "run", show=Script()).status == "done"


def test_waiting_for_background_work_can_be_interrupted() -> None:
    """An exception in the waiting thread abandons the work. Errors of the work are raised."""
    release = threading.Event()

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(
        0.2, signal.pthread_kill, (threading.main_thread().ident or 0, signal.SIGUSR1)
    )
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            background.run_in_thread(release.wait)
    finally:
        release.set()
        timer.cancel()
        signal.signal(signal.SIGUSR1, before)
    with pytest.raises(ZeroDivisionError):
        background.run_in_thread(lambda: 1 // 0)
    np.testing.assert_array_equal(
        background.execute(jax.jit(lambda x: x + 1), jnp.arange(3)), [1, 2, 3]
    )


def test_a_script_ends_with_abandoned_work(tmp_path: Path) -> None:
    """Python would crash if it ended while XLA compiles. After an interrupt it does not wait."""
    script = """
import threading
from rollax.training.compile import background
background.submit(threading.Event().wait)
raise KeyboardInterrupt
"""
    words = [sys.executable, "-c", script]
    ended = subprocess.run(
        words, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
    )
    assert ended.returncode in (130, -signal.SIGINT) and "KeyboardInterrupt" in ended.stderr
