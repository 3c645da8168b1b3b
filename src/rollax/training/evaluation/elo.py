"""Elo ratings, win rates and mean returns of policies from the results of their matches."""

import numpy as np

from rollax.training.evaluation.aggregates import Estimate

MEAN_RATING = 1000.0
RATING_SCALE = 400.0 / np.log(10.0)  # Elo points per unit of the log-odds
MAX_ITERATIONS = 100
TOLERANCE = 1e-10  # of the change of the log-odds in an iteration
QUANTILE = 1.959964  # of the normal distribution, for 95 % intervals


def fit_elo(wins: np.ndarray, games: np.ndarray) -> Estimate:
    """Fit Elo ratings to the results of games by maximum likelihood.

    In the model of Bradley and Terry, policy i wins against j with probability
    1 / (1 + 10^((r_j - r_i) / 400)). A draw counts as half a win of both. One additional draw
    between each pair that has games keeps the ratings of policies that always win finite. Ratings
    are shifted to a mean of 1000.

    Args:
        wins: Number of games that policy i won against policy j, float `[N, N]`. A draw counts 0.5
            in both directions.
        games: Number of games between i and j, `[N, N]`, symmetric. The diagonal is ignored.

    Returns:
        Ratings `[N]` with intervals from the Fisher information. The interval describes the
        difference of a rating from the mean.

    References:
        Bradley and Terry 1952, "Rank analysis of incomplete block designs".
        Hunter 2004, "MM algorithms for generalized Bradley-Terry models".
    """
    size = len(wins)
    is_pair = (games > 0) & ~np.eye(size, dtype=bool)
    wins = np.where(is_pair, wins + 0.5, 0.0)
    games = np.where(is_pair, games + 1.0, 0.0)
    strength, information = np.zeros(size), np.eye(size)
    for _ in range(MAX_ITERATIONS):
        expected = 1.0 / (1.0 + np.exp(strength[None] - strength[:, None]))
        gradient = np.sum(wins - games * expected, axis=1)
        weights = games * expected * (1.0 - expected)
        information = np.diag(weights.sum(axis=1)) - weights
        # The mean of the strengths is free, so the information matrix is singular.
        change = np.linalg.pinv(information, hermitian=True) @ gradient
        strength = strength + np.clip(change, -1.0, 1.0)
        if np.max(np.abs(change), initial=0.0) < TOLERANCE:
            break
    covariance = np.linalg.pinv(information, hermitian=True)
    margin = QUANTILE * RATING_SCALE * np.sqrt(np.maximum(np.diag(covariance), 0.0))
    ratings = MEAN_RATING + RATING_SCALE * (strength - strength.mean())
    return Estimate(ratings, ratings - margin, ratings + margin)


def estimate_win_rates(wins: np.ndarray, games: np.ndarray) -> Estimate:
    """Return win rates with Wilson score intervals.

    Args:
        wins: Number of games won, where a draw counts 0.5, float of any shape.
        games: Number of games, with the same shape. Without games, the estimate is NaN.

    References:
        Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    games = np.where(games > 0, games, np.nan)
    rate, square = wins / games, QUANTILE**2
    center = (rate + square / (2 * games)) / (1 + square / games)
    spread = np.sqrt(rate * (1 - rate) / games + square / (4 * games**2))
    margin = QUANTILE * spread / (1 + square / games)
    return Estimate(rate, center - margin, center + margin)


def estimate_means(total: np.ndarray, square: np.ndarray, count: np.ndarray) -> Estimate:
    """Return means with 95 % intervals of the normal approximation.

    Args:
        total: Sum of the values, float of any shape.
        square: Sum of the squared values, with the same shape.
        count: Number of values, with the same shape. Without values, the estimate is NaN.
    """
    count = np.where(count > 0, count, np.nan)
    mean = total / count
    variance = np.maximum(square / count - mean**2, 0.0) * count / np.maximum(count - 1, 1)
    margin = QUANTILE * np.sqrt(variance / count)
    return Estimate(mean, mean - margin, mean + margin)
