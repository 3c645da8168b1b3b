"""Tests of forking some settings of a sweep into a separate run."""

from pathlib import Path

import jax
import numpy as np
import pytest

import rollax
from rollax.errors import UsageError
from rollax.training.checkpoints.fork import fork_run

CONFIG = {"num_envs": 4, "num_steps": 16, "num_minibatches": 4, "learning_rate_final_fraction": 0.0}
STEPS = 64 * 4  # few, because one action that rounding changes affects everything that follows


def train(folder: Path, **more: object) -> rollax.Result:
    options = {"run_dir": folder, "eval_episodes": 8, "eval_count": 2, "tensorboard": False} | dict(
        more.pop("options", {})
    )
    return rollax.train(
        "ppo",
        "gymnax/CartPole-v1",
        config=CONFIG,
        options=options,
        total_steps=STEPS,
        quiet=True,
        **more,
    )


SWEEP = {"learning_rate": (1e-3, 1e-2, 3e-3), "gamma": (0.9, 0.99, 0.95)}


def parameters(run: Path, member: int | None = None) -> list[np.ndarray]:
    return jax.tree.leaves(jax.device_get(rollax.load(run, member=member).state.train.network))


@pytest.mark.parametrize("seeds", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_forked_run_continues_like_the_whole_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seeds: int
) -> None:
    given = {"sweep": SWEEP, "seeds": seeds, "options": {"sweep_paired": True}}
    whole = train(tmp_path / "whole", **given)
    assert [member["gamma"] for member in rollax.load(whole.folder).spec.members()] == list(
        np.repeat(SWEEP["gamma"], seeds)
    )
    half = train(tmp_path / "half", stop_when=lambda evaluated: evaluated.step > 0, **given)
    assert (half.status, half.exit_code, half.steps) == ("stopped", 0, STEPS // 2)
    spec = fork_run(half.folder, [1], tmp_path / "kept")
    assert spec.members() == [
        {"learning_rate": 1e-2, "gamma": 0.99, "seed": seed} for seed in range(seeds)
    ]
    done = rollax.resume(tmp_path / "kept")
    assert "warning" not in capsys.readouterr().out, "nothing of it is lost"
    assert (done.status, done.steps) == ("done", STEPS)
    for seed in range(seeds):
        kept = parameters(done.folder, seed if seeds > 1 else None)
        for a, b in zip(kept, parameters(whole.folder, seeds + seed), strict=True):
            # batches of other sizes are rounded differently
            np.testing.assert_allclose(a, b, atol=1e-4)
    assert rollax.resume(half.folder, quiet=True).steps == STEPS, (
        "the run that was forked goes on as well"
    )


def test_paired_values_must_have_equal_numbers(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="2 of learning_rate, 3 of gamma"):
        train(
            tmp_path / "run",
            sweep=SWEEP | {"learning_rate": (1e-3, 1e-2)},
            options={"sweep_paired": True},
        )
    with pytest.raises(UsageError, match="must have the same number of values .*, got none"):
        train(tmp_path / "run", options={"sweep_paired": True})


def test_invalid_forks_raise_usage_error(tmp_path: Path) -> None:
    run = train(tmp_path / "run", sweep={"gamma": (0.9, 0.99)}).folder
    for kept in ([], [2], [-1]):
        with pytest.raises(UsageError, match="must be from 0 to 1"):
            fork_run(run, kept, tmp_path / "kept")
    with pytest.raises(UsageError, match="must be a sweep without evolution, custom objects"):
        fork_run(train(tmp_path / "single").folder, [0], tmp_path / "kept")
    with pytest.raises(UsageError, match="exists and is not empty"):
        fork_run(run, [0], run)


def test_a_fork_keeps_the_opponents_of_other_runs(tmp_path: Path) -> None:
    config = {"num_envs": 4, "num_steps": 8, "num_minibatches": 1}

    def play(name: str, **options: object) -> rollax.Result:
        options = {"eval_count": 0, "tensorboard": False, "run_dir": tmp_path / name} | options
        return rollax.train(
            "ppo",
            "matrix/rock-paper-scissors",
            total_steps=64,
            config=config,
            network={"hidden": (4,)},
            options=options,
            quiet=True,
        )

    first = play("first")
    pool = play("pool", opponent_pool=1, opponent_pool_runs=(str(first.folder),))
    forked = rollax.resume(pool, fork=tmp_path / "fork", total_steps=128, quiet=True)
    assert (forked.status, forked.steps) == ("done", 128)
    assert (tmp_path / "fork" / "opponent_pool" / "0" / "config.yaml").exists()
