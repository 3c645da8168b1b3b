"""Tests of the choice of a member, which is the best in the last evaluation by best_metric."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rollax
from rollax.acting.evaluation import Episodes
from rollax.training.checkpoints.summary import MemberScores
from rollax.training.evaluation import members
from support.runs import FRAMES, evaluations


def spec(metric: str, mode: Any = "max") -> Any:
    return SimpleNamespace(options=rollax.RunOptions(best_metric=metric, best_mode=mode))


def episodes(agents: int | None = None) -> Episodes:
    """Return four episodes of three members.

    Member 1 has the highest returns, and member 2 the shortest episodes.
    """
    returns = np.repeat([[1.0], [9.0], [5.0]], 4, axis=1)
    # The second agent gains what the first loses, so member 0 is the best for the second.
    if agents is not None:
        returns = np.stack([returns, 10 - returns], axis=-1)
    yes = np.ones((3, 4), bool)
    info = {"catches": np.repeat([[3.0], [0.0], [8.0]], 4, axis=1)}
    return Episodes(returns, np.repeat([[7], [6], [2]], 4, axis=1), yes, ~yes, info)


def shortest(episodes: Episodes) -> dict[str, float]:
    return {"shortest": float(np.min(episodes.length))}


@pytest.mark.parametrize(
    ("metric", "mode", "kinds", "expected"),
    [
        ("return_mean", "max", (), 1),
        ("return_mean", "min", (), 0),
        ("return_iqm_low", "max", (), 1),
        ("length_mean", "min", (), 2),
        ("length_mean", "max", (), 0),
        ("catches", "max", (), 2),
        ("catches", "min", (), 1),
        ("return_prey", "max", ("predator", "prey"), 0),
        ("return_predator", "max", ("predator", "prey"), 1),
        ("shortest", "min", (), 2),
    ],
)
def test_the_best_member_by_any_metric(
    metric: str, mode: Any, kinds: tuple[str, ...], expected: int
) -> None:
    played = episodes(len(kinds) or None)
    found = members.score_members(spec(metric, mode), 64, played, kinds, shortest)
    assert members.find_best_member(spec(metric, mode), found) == (expected, [])


def test_an_unknown_best_member_is_reported() -> None:
    """Without a score of each member, the first one is chosen with a warning.

    There is no evaluation, another metric, or a metric of the whole population.
    """

    def of_all(episodes: Episodes) -> dict[str, float]:
        return {"of_all": float(episodes.length[:, 0].mean())}

    scores = members.score_members(spec("of_all"), 64, episodes(), (), of_all)
    assert scores.values == [None] * 3
    for found, words in (
        (None, "No evaluation"),
        (scores, "is unknown for every single member"),
        (scores._replace(metric="x"), "by x"),
    ):
        chosen, warnings = members.find_best_member(spec("of_all"), found)
        assert chosen == 0 and len(warnings) == 1
        assert words in warnings[0] and "Choose another with member=" in warnings[0]


def test_nonfinite_members_are_never_the_best() -> None:
    bad = episodes()
    bad.returns[1, 2] = np.nan
    assert members.score_members(spec("length_mean"), 0, bad, (), None).values == [7.0, None, 2.0]
    scores = members.drop_nonfinite_scores(
        MemberScores("return_mean", 0, 0, [1.0, 9.0, 5.0]), np.array([False, True, False])
    )
    assert members.find_best_member(spec("return_mean"), scores)[0] == 2


def test_a_copy_has_the_score_of_its_parent() -> None:
    """After a generation, members differ from those that were evaluated."""
    scores = MemberScores("return_mean", 64, 0, [9.0, 1.0, 5.0])
    for parent in ([0, 2, 2], [1, 0, 2]):
        generation: Any = SimpleNamespace(parent=np.array(parent))
        scores = members.inherit_scores(scores, generation)
    assert scores.values == [5.0, 9.0, 5.0]
    chosen, (warning,) = members.find_best_member(spec("return_mean"), scores)
    assert chosen == 1
    assert (
        "Member 1 is the best by its ancestors. Since the evaluation at step 64 there were 2 "
        "generations"
    ) in warning


def test_a_run_is_loaded_by_its_best_metric(train: Callable) -> None:
    """The checkpoint may be between evaluations, or after generations."""
    given: dict[str, Any] = {
        "environment": "probe/action-reward",
        "eval_stochastic": True,
        "best_mode": "min",
    }
    result = train(sweep={"learning_rate": [1e-3, 1e-2]}, seeds=2, **given)
    kept = evaluations(result.folder)
    for step in (12 * FRAMES, 10 * FRAMES):
        means = kept["returns"][kept["step"] <= step][-1].mean(axis=1)
        policy = rollax.load(result.folder, checkpoint=step)
        assert policy.member == int(np.argmin(means)) and policy.warnings == []
    evolved = train(
        "evolved",
        evolve={"learning_rate": (1e-3, 1e-1)},
        seeds=4,
        evolve_every=2 * FRAMES,
        updates=8,
        eval_count=1,
        **given,
    )
    assert rollax.load(evolved.folder).warnings == []
    (warning,) = rollax.load(evolved.folder, checkpoint=6 * FRAMES).warnings
    assert "Since the evaluation at step 0 there were 2 generations" in warning
