"""Tests of Elo ratings and intervals of win rates."""

import numpy as np
import pytest

from rollax.training.evaluation.elo import estimate_means, estimate_win_rates, fit_elo


def games_of(ratings: np.ndarray, number: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the expected wins and the games between policies with these ratings."""
    games = number * (1 - np.eye(len(ratings)))
    return games / (1 + 10 ** ((ratings[None] - ratings[:, None]) / 400)), games


def test_expected_results_give_the_ratings() -> None:
    ratings = np.asarray([1300.0, 1000.0, 900.0, 800.0])
    found = fit_elo(*games_of(ratings, 1e6))
    np.testing.assert_allclose(found.value, ratings, atol=0.01)
    assert np.all((found.low < ratings) & (ratings < found.high))


@pytest.mark.quick
def test_two_policies_have_the_rating_difference_of_their_win_rate() -> None:
    """Of 30 games, 23 are won. With the additional draw, the odds are 23.5 to 7.5."""
    found = fit_elo(np.asarray([[0.0, 23.0], [7.0, 0.0]]), np.asarray([[0, 30], [30, 0]]))
    difference = 400 * np.log10(23.5 / 7.5)
    np.testing.assert_allclose(found.value, [1000 + difference / 2, 1000 - difference / 2])


def test_ratings_are_finite_if_a_policy_always_wins() -> None:
    wins = np.triu(np.full((3, 3), 50.0), 1)
    found = fit_elo(wins, wins + wins.T)
    assert np.all(np.isfinite(found)) and np.all(np.diff(found.value) < 0)
    assert found.value.mean() == pytest.approx(1000.0)


def test_a_cycle_gives_equal_ratings() -> None:
    wins = np.asarray([[0.0, 40.0, 0.0], [0.0, 0.0, 40.0], [40.0, 0.0, 0.0]])
    np.testing.assert_allclose(fit_elo(wins, wins + wins.T).value, 1000.0)


def test_intervals_cover_the_truth() -> None:
    """About 95 % of the intervals contain the true win rate and the true mean."""
    generator = np.random.default_rng(0)
    results = (generator.random((2000, 100)) < 0.7).astype(float)
    count = np.full(2000, 100.0)
    for found in (
        estimate_win_rates(results.sum(1), count),
        estimate_means(results.sum(1), results.sum(1), count),
    ):
        assert 0.92 < np.mean((found.low <= 0.7) & (found.high >= 0.7)) < 0.98
    certain = estimate_win_rates(np.asarray(10.0), np.asarray(10.0))
    assert 0.7 < certain.low < 0.75 and certain.high == pytest.approx(1.0)
