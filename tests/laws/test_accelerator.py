"""Tests of runs whose results depend on the backend, also for GPUs and TPUs.

`pytest tests/laws -m accelerator` runs them, and the rows of other files of this folder that have
the marker, on the default device of the machine. It needs no package beyond pytest.
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import rollax
from laws.programs import assert_close, begun, fresh, plain, programs
from support.command import Command
from support.fixtures import compile_once  # noqa: F401
from support.runs import FRAMES, NETWORK, SMALL, Bad, Script, check_same, options

pytestmark = pytest.mark.accelerator
DEFAULT = ""  # leaves the choice of the platform to JAX
ROWS = ("ppo-gru", "td3", "map_elites")


def require_accelerator() -> None:
    if jax.default_backend() == "cpu":
        pytest.skip("This machine has no accelerator, or JAX has no support for it.")


def train(folder: Path, updates: int, **arguments: Any) -> rollax.Result:
    """Train in this process on the default device."""
    return rollax.train(
        "ppo",
        arguments.pop("environment", "probe/memory"),
        config=SMALL,
        network=NETWORK,
        options=options(folder, updates),
        show=Script(),
        **arguments,
    )


def resume(folder: Path, platforms: str, *words: Any) -> None:
    """Continue a run to its end in a process that uses some platforms."""
    command = Command("resume", folder, *words, quick=True, platforms=platforms)
    assert command.finish() == 0, command.err


def test_a_run_resumed_in_another_process_equals_one_without_interruption(
    undisturbed: Path,
    tmp_path: Path,
) -> None:
    """The bits are equal on the same device."""
    first = train(tmp_path / "run", 12, stop_when=lambda evaluated: evaluated.step >= 3 * FRAMES)
    assert first.status == "stopped" and 0 < first.steps < 12 * FRAMES
    resume(tmp_path / "run", DEFAULT if jax.default_backend() != "cpu" else "cpu")
    check_same(tmp_path / "run", undisturbed)


@pytest.mark.quick
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nonfinite_rewards_stop_a_run(value: float, tmp_path: Path) -> None:
    """The last checkpoint is finite."""
    bad = Bad(good=40, value=value)  # the 41st step is in the sixth update
    result = train(tmp_path / "run", 12, environment=bad)
    assert (result.status, result.exit_code, result.steps) == ("nonfinite", 3, 4 * FRAMES)
    network = rollax.load(result.folder, environment=bad).state.train.network
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(plain(network)))


@pytest.mark.parametrize("name", ROWS)
def test_an_update_on_the_cpu_equals_one_on_the_accelerator(name: str) -> None:
    """Results are equal within rounding, and integers and keys are equal."""
    require_accelerator()
    step, state = programs(name).step, begun(name)
    on_cpu = jax.device_put(fresh(state), jax.devices("cpu")[0])
    assert_close(step(state), step(on_cpu), 1e-4)


def test_a_run_moves_from_the_cpu_to_the_accelerator_and_back(tmp_path: Path) -> None:
    """Each part continues from the state of the part before, with no warning about its bits."""
    require_accelerator()
    check_moves(tmp_path / "run")


def check_moves(run: Path) -> None:
    """Train on the CPU, continue on the default device, and finish on the CPU."""
    words = ["train", "ppo", "probe/memory", "--total-steps", 4 * FRAMES, "--hidden", "8"]
    words += ["--num-envs", 4, "--num-steps", 8, "--num-minibatches", 2, "--eval-episodes", 8]
    command = Command(*words, "--no-tensorboard", "--run-dir", run, quick=True)
    assert command.finish() == 0, command.err
    before = plain(rollax.load(run).state)
    result = rollax.resume(run, total_steps=8 * FRAMES, show=Script())
    assert (result.status, result.steps) == ("done", 8 * FRAMES)
    resume(run, "cpu", "--total-steps", 12 * FRAMES)
    policy = rollax.load(run)
    assert (policy.step, policy.warnings) == (12 * FRAMES, [])
    after = plain(policy.state)
    changed = [
        not np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    ]
    assert any(changed) and all(
        np.isfinite(leaf).all() for leaf in jax.tree.leaves(after.train.network)
    )
