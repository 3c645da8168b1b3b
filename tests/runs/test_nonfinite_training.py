"""Tests of nonfinite values in training: messages, the last good state, and rollback."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax
from rollax.environments.closed_form import Task
from rollax.spaces import Box
from rollax.training.checkpoints.store import Checkpoints
from support.runs import FRAMES, Bad, Script, evaluations, metrics, newest, whole_state


def all_finite(state: Any) -> bool:
    leaves = jax.tree.leaves((state.train, state.actor.obs))
    return all(bool(np.isfinite(leaf).all()) for leaf in leaves)


def test_a_nonfinite_reward_stops_the_run(train: Callable) -> None:
    """The message names the reward and the step.

    The last checkpoint is finite, and resuming fails again.
    """
    show, bad = Script(), Bad(good=40)  # the 41st step is in the sixth update
    result = train(environment=bad, eval_max_steps=20, show=show)
    assert (result.status, result.exit_code) == ("nonfinite", 3)
    assert (
        f"a reward of the environment became NaN, infinite or too large at step {6 * FRAMES:,} "
        "(update 6)"
    ) in show.text
    assert f"The last good state is the checkpoint of step {4 * FRAMES:,}" in show.text
    assert (
        f"rollax.resume('{result.folder}', environment=environment, on_nonfinite=\"rollback\")"
        in show.text
    )
    assert result.steps == newest(result.folder) == 4 * FRAMES
    policy = rollax.load(result.folder, environment=bad)
    assert policy.step == 4 * FRAMES and policy.warnings == []
    assert all_finite(whole_state(result.folder, bad))
    again = rollax.resume(result.folder, environment=bad, show=Script())
    assert (again.status, again.steps) == ("nonfinite", 4 * FRAMES)


@pytest.mark.quick
def test_nonfinite_from_the_first_step(
    train: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint from before training exists, even if the run was killed earlier."""

    def die(*_: Any) -> None:
        raise SystemExit("as if killed")

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(Checkpoints, "save", die)
        train(environment=Bad(good=0))
    assert evaluations(tmp_path / "run")["step"].tolist() == [0] and newest(tmp_path / "run") == -1
    result = rollax.resume(tmp_path / "run", environment=Bad(good=0), show=Script())
    assert (result.status, result.exit_code, result.steps) == ("nonfinite", 3, 0)
    assert result.summary()["any_nan"] is True
    assert np.isnan(evaluations(result.folder)["returns"]).all()


def test_a_large_learning_rate_is_named_as_the_cause(train: Callable) -> None:
    """The environment is not named as the cause."""
    show = Script()
    result = train(
        environment="probe/action-reward",
        config={"learning_rate": 1e30, "num_envs": 4, "num_steps": 8},
        show=show,
    )
    assert result.exit_code == 3
    assert "try a smaller learning rate" in show.text
    assert all_finite(whole_state(result.folder))


def test_only_settings_of_the_algorithm_are_suggested(tmp_path: Path) -> None:
    """Algorithms with an archive have neither losses nor parameters that a gradient trains."""
    space = Box(-1.0, 1.0, (2,))

    def score(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return -jnp.sqrt(jnp.sum(x * 0.0)), x  # its gradient is NaN

    show = Script()
    result = rollax.train(
        "omg_mega",
        Task("own/nan-gradient", score, space, space),
        config={"batch_size": 4, "num_iterations": 2, "grid": (3, 3)},
        total_steps=32,
        options={"eval_count": 0, "tensorboard": False, "run_dir": tmp_path / "run"},
        show=show,
    )
    assert result.status == "nonfinite"
    assert "check that the task and its gradients are finite" in show.text
    assert "max_grad_norm" not in show.text and "gradient_sigma" in show.text


@pytest.mark.parametrize(
    ("what", "value"), [("observation", 1e25), ("observation", np.inf), ("reward", 1e30)]
)
def test_values_that_are_too_large_are_named(train: Callable, what: str, value: float) -> None:
    """An output of 1e25 has an infinite square, and a reward of 1e30 an infinite error."""

    class Large(Bad):
        def step(self, key: jax.Array, state: Any, action: Any) -> rollax.Transition:
            after = super().step(key, state, action)
            return after._replace(obs=jnp.where(state >= self.good, value, after.obs))

    show = Script()
    bad = Large(good=40) if what == "observation" else Bad(good=40, value=value)
    assert train(environment=bad, eval_max_steps=20, show=show).exit_code == 3
    assert f"{what} of the environment became NaN, infinite or too large" in show.text


def test_rollback_continues_after_a_random_failure(train: Callable) -> None:
    """The run continues from the last checkpoint with other random numbers.

    The record has no trace of the failed updates.
    """
    show, bad = Script(), Bad(good=1_000_000, chance=0.003)
    result = train(environment=bad, eval_max_steps=3, on_nonfinite="rollback", show=show)
    assert "Continuing from there with other random keys (rollback 1)" in show.text
    assert (result.status, result.exit_code, result.steps) == ("done", 0, 12 * FRAMES)
    lines = [line for line in metrics(result.folder) if "event" not in line]
    assert [line["step"] for line in lines] == [n * FRAMES for n in range(1, 13)]
    assert all(line["reward"] == 1.0 and line["loss"] is not None for line in lines)
    assert evaluations(result.folder)["step"].tolist() == [n * FRAMES for n in (0, 3, 6, 9, 12)]
    assert all_finite(whole_state(result.folder, bad))


def test_rollback_gives_up_after_ten_attempts(train: Callable) -> None:
    show = Script()
    result = train(environment=Bad(good=40), eval_max_steps=3, on_nonfinite="rollback", show=show)
    assert result.exit_code == 3
    assert "became nonfinite again after 10 rollbacks" in show.text
    assert "(rollback 10)" in show.text and "(rollback 11)" not in show.text


def test_a_stopped_run_continues_with_rollback(train: Callable) -> None:
    """The message of the stopped run suggests this."""
    bad = Bad(good=1_000_000, chance=0.003)
    result = train(environment=bad, eval_max_steps=3)
    assert result.exit_code == 3
    resumed = rollax.resume(result.folder, environment=bad, on_nonfinite="rollback", show=Script())
    assert (resumed.exit_code, resumed.steps) == (0, 12 * FRAMES)


def test_a_nonfinite_member_does_not_stop_the_others(train: Callable) -> None:
    """There is one warning, and the other members are not affected."""
    show = Script()
    sweep = {"learning_rate": [1e-3, 1e30]}
    result = train(environment="probe/action-reward", sweep=sweep, show=show)
    assert (result.status, result.exit_code) == ("done", 0)
    warnings = [line for line in show.lines if line.startswith("warning: ")]
    assert warnings == [
        (
            "warning: member 1 (learning_rate 1e+30, seed 0) is no longer finite. The other "
            "members "
            "continue."
        )
    ]
    alone = train("alone", environment="probe/action-reward", sweep={"learning_rate": [1e-3]})
    both, one = metrics(result.folder), metrics(alone.folder)
    for name in ("loss", "entropy", "grad_norm"):
        mine = [line[name][0] for line in both if name in line]
        np.testing.assert_allclose(mine, [line[name] for line in one if name in line], rtol=1e-4)
    assert all_finite(jax.tree.map(lambda x: x[0], whole_state(result.folder)))
