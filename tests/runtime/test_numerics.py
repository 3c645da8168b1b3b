"""Tests of runs in processes with other JAX settings, which rollax overrides with a message."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import rollax
from rollax.runtime.numerics import overridden_settings, standard_numerics, to_single_precision
from support.command import PATIENCE
from support.fixtures import compile_once, train  # noqa: F401
from support.runs import Script

SCRIPT = """
import json, sys
import jax
import rollax

for name in ("probe/two-steps", "control/point-maze"):
    rollax.check_environment(rollax.make(name), steps=8)
sizes = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "num_epochs": 1, "sequence_length": 4}
options = {"total_steps": 64, "eval_episodes": 8, "eval_count": 1, "tensorboard": False, \
"run_dir": sys.argv[1]}
network = {"hidden": (8,), "core": "gru", "core_size": 8}
run = rollax.train("ppo", "probe/memory", config=sizes, network=network, options=options)
policy = rollax.load(run.folder)
numbers, _ = policy.evaluate(8, jax.random.key(0))
_, obs = policy.environment.reset(jax.random.key(1))
policy.act(obs, policy.initial_carry(), jax.random.key(2))
kinds = sorted({str(leaf.dtype) for leaf in jax.tree.leaves(policy.state)})
lines = (run.folder / "metrics.jsonl").read_text().splitlines()
losses = [value for line in map(json.loads, lines) for name, value in line.items() \
if name == "policy_loss"]
print(json.dumps([numbers["return_mean"], losses, kinds, jax.config.jax_enable_x64]))
"""


def run(folder: Path, **switches: str) -> tuple[list[Any], str]:
    """Return the results of a tiny run, and everything else that was printed."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", **switches}
    command = [sys.executable, "-c", SCRIPT, str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *told, last = done.stdout.splitlines()
    return json.loads(last), "\n".join(told)


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    numbers, told = run(tmp_path_factory.mktemp("without") / "run")
    assert "no effect" not in told
    return numbers


@pytest.mark.parametrize(
    "switches",
    [
        {"JAX_ENABLE_X64": "1"},
        {"JAX_NUMPY_DTYPE_PROMOTION": "strict"},
        {
            "JAX_DISABLE_JIT": "1",
            "JAX_DEBUG_NANS": "1",
            "JAX_DEBUG_INFS": "1",
            "JAX_NUMPY_RANK_PROMOTION": "raise",
        },
    ],
    ids=lambda switches: "+".join(switches),
)
def test_jax_settings_do_not_change_a_run(
    tmp_path: Path, without: list[Any], switches: dict[str, str]
) -> None:
    numbers, told = run(tmp_path / "run", **switches)
    assert numbers[:3] == without[:3]
    assert numbers[3] == ("JAX_ENABLE_X64" in switches), "the process keeps its own switch"
    assert (
        all(name in told for name in switches)
        and "no effect on a run, which uses the standard settings of JAX" in told
    )


@pytest.mark.quick
def test_jax_settings_are_restored_after_an_error() -> None:
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        with pytest.raises(ZeroDivisionError), standard_numerics():
            assert overridden_settings() == ("JAX_ENABLE_X64", "JAX_NUMPY_DTYPE_PROMOTION")
            assert (jnp.arange(2) * jnp.ones(2)).dtype == jnp.float32
            raise ZeroDivisionError
        assert overridden_settings() == () and jnp.ones(2).dtype == jnp.float64
    with standard_numerics():
        assert overridden_settings() == ()


@pytest.mark.parametrize("guard", ["transfer_guard", "transfer_guard_host_to_device"])
def test_guards_of_transfers(train: Callable, guard: str) -> None:
    """A run moves its state to the device, so that such a guard has no effect and is named."""
    show = Script()
    with getattr(jax, guard)("disallow"):
        assert train(updates=1, eval_count=0, show=show).status == "done"
    assert any(f"JAX_{guard.upper()} has no effect" in line for line in show.lines)


def test_an_environment_in_double_precision_is_converted() -> None:
    with jax.enable_x64(True):
        wide = {"gravity": jnp.asarray(9.8), "count": jnp.asarray(3), "name": "wide"}
        narrow = to_single_precision(wide)
    assert (narrow["gravity"].dtype, narrow["count"].dtype, narrow["name"]) == (
        jnp.float32,
        jnp.int32,
        "wide",
    )
    assert to_single_precision(narrow) is narrow


def test_environments_are_made_in_single_precision() -> None:
    with jax.enable_x64(True):
        environment = rollax.make("control/point-maze")
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(environment)} == {"float32"}


def test_another_key_implementation_raises_usage_error(undisturbed: Path) -> None:
    """Keys of a run have the implementation of the process that trained it."""
    message = (
        r"the random number generator threefry2x32: .* got key<rbg>\[\]\. Set "
        r"JAX_DEFAULT_PRNG_IMPL=threefry2x32\."
    )
    with jax.default_prng_impl("rbg"), pytest.raises(rollax.UsageError, match=message):
        rollax.load(undisturbed)
