"""Tests of many runs in one program: each member equals a single run."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest

import rollax
from support.runs import FRAMES, Script, evaluations, metrics


@pytest.mark.quick
def test_a_member_equals_the_run_of_its_seed(train: Callable) -> None:
    """This includes every episode of its evaluations."""
    together = train(environment="probe/truncation", seeds=3, seed=5)
    assert (together.status, together.steps) == ("done", 12 * FRAMES)
    returns, lines = evaluations(together.folder)["returns"], metrics(together.folder)
    assert returns.shape == (5, 3, 8)
    for member in (0, 2):
        alone = train(f"alone{member}", environment="probe/truncation", seed=5 + member)
        np.testing.assert_array_equal(returns[:, member], evaluations(alone.folder)["returns"])
        for line, one in zip(lines, metrics(alone.folder), strict=True):
            for name in set(one) & {"value_loss", "value", "grad_norm", "explained_variance"}:
                np.testing.assert_allclose(line[name][member], one[name], rtol=2e-4, atol=1e-6)
    losses = np.asarray([line["value_loss"] for line in lines if "value_loss" in line])
    assert not np.isclose(losses[:, 0], losses[:, 1]).all(), "seeds make no difference"


def test_a_sweep_has_every_combination(train: Callable) -> None:
    """Two values of two settings and two seeds give eight members."""
    sweep = {"learning_rate": [1e-3, 1e-2], "gamma": [0.5, 0.9]}
    result = train(environment="probe/action-reward", sweep=sweep, seeds=2)
    policy = rollax.load(result.folder)
    members = policy.spec.members()
    assert members == [
        {"learning_rate": rate, "gamma": gamma, "seed": seed}
        for rate, gamma, seed in itertools.product([1e-3, 1e-2], [0.5, 0.9], [0, 1])
    ]
    lines = [line for line in metrics(result.folder) if "event" not in line]
    assert all(line["learning_rate"] == pytest.approx([1e-3] * 4 + [1e-2] * 4) for line in lines)
    assert rollax.load(result.folder, member=5).state.config.gamma == np.float32(0.5)
    assert evaluations(result.folder)["returns"].shape == (5, 8, 8)


def test_statistics_of_a_population_are_over_its_members(train: Callable) -> None:
    """The mean is over the means of members. The number of episodes counts all members."""
    result = train(
        environment="probe/action-reward",
        sweep={"learning_rate": [1e-3, 1e-2]},
        seeds=2,
        eval_stochastic=True,
    )
    means = evaluations(result.folder)["returns"][-1].mean(axis=1)
    assert len(set(means)) > 1
    summary = result.summary()
    assert summary["return_members"] == pytest.approx(means.tolist())
    assert summary["return_mean"] == pytest.approx(means.mean())
    assert summary["return_std"] == pytest.approx(means.std(ddof=1))
    assert summary["episodes"] == 4 * 8
    assert summary["steps"] == 12 * FRAMES


def test_which_member_is_loaded(train: Callable) -> None:
    """The default is the best member. A member that does not exist raises an error."""
    result = train(
        environment="probe/action-reward",
        sweep={"learning_rate": [1e-3, 1e-2]},
        seeds=2,
        eval_stochastic=True,
    )
    means = evaluations(result.folder)["returns"][-1].mean(axis=1)
    assert rollax.load(result.folder).member == int(np.argmax(means))
    for member in range(4):
        policy = rollax.load(result.folder, member=member)
        assert policy.member == member
        assert policy.state.config.learning_rate == np.float32([1e-3, 1e-3, 1e-2, 1e-2][member])
    with pytest.raises(rollax.UsageError, match=r"member \(4\) must be between 0 and 3"):
        rollax.load(result.folder, member=4)
    single = train("single", environment="probe/action-reward")
    assert rollax.load(single.folder, member=0).member is None
    with pytest.raises(rollax.UsageError, match=r"member \(1\) must be between 0 and 0"):
        rollax.load(single.folder, member=1)


def test_a_sweep_with_one_value_is_a_single_run(train: Callable) -> None:
    """There is no axis of members."""
    result = train(environment="probe/action-reward", sweep={"learning_rate": [0.25]})
    assert evaluations(result.folder)["returns"].shape == (5, 8)
    assert rollax.load(result.folder).state.config.learning_rate == np.float32(0.25)


def test_a_population_is_resumed_exactly(train: Callable) -> None:
    """All members end with the same bits."""
    import signal

    from support.runs import check_same

    def react(kind: str, text: str) -> None:
        if kind == "progress" and int(text) == 4 * FRAMES:
            signal.raise_signal(signal.SIGTERM)

    given = {
        "environment": "probe/action-reward",
        "sweep": {"learning_rate": [1e-3, 1e-2]},
        "seeds": 2,
    }
    stopped, whole = train(show=Script(react), **given), train("whole", **given)
    assert stopped.exit_code == 143
    assert rollax.resume(stopped.folder, show=Script()).status == "done"
    check_same(stopped.folder, whole.folder)
