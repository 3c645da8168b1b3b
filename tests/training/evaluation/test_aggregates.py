"""Tests of aggregates over environments, compared with closed forms and with all resamples."""

import itertools

import numpy as np
import pytest
from scipy import stats

from rollax.errors import UsageError
from rollax.training.evaluation import aggregates
from rollax.training.evaluation.statistics import bootstrap_interval, bootstrap_intervals


def scores(seeds=(5, 5, 5), shift=0.0, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.normal(shift + index, size=number) for index, number in enumerate(seeds)]


def test_normalize_returns():
    np.testing.assert_allclose(
        aggregates.normalize_returns(np.array([-500.0, -280.0, -60.0, -16.0]), -500, -60),
        [0, 0.5, 1, 1.1],
    )
    # Lower is better.
    np.testing.assert_allclose(aggregates.normalize_returns(np.array([3.0]), 5, 1), [0.5])
    for low, high in ((1.0, 1.0), (0.0, np.inf), (np.nan, 1.0)):
        with pytest.raises(UsageError, match="must be finite and differ"):
            aggregates.normalize_returns(np.zeros(2), low, high)


def test_the_interquartile_mean_is_over_all_scores():
    assert (
        aggregates.estimate_interquartile_mean([np.array([0.0, 100.0]), np.array([1.0, 3.0])]).value
        == 2.0
    )
    of_one = scores((20,))
    np.testing.assert_allclose(
        aggregates.estimate_interquartile_mean(of_one).value, stats.trim_mean(of_one[0], 0.25)
    )


def test_a_profile_weights_environments_equally():
    found = aggregates.estimate_performance_profile(
        [np.array([0.0, 1.0]), np.array([1.0, 1.0, 1.0, 0.2])], np.array([-1.0, 0.1, 0.5, 1.0])
    )
    np.testing.assert_allclose(found.value, [1.0, (0.5 + 1) / 2, (0.5 + 0.75) / 2, 0.0])
    assert np.all(np.diff(found.value) <= 0)
    assert np.all((found.low <= found.value) & (found.value <= found.high))


def test_the_probability_of_improvement_equals_mann_whitney():
    first, second = scores((5, 7, 3), 0.4), scores((6, 4, 3), seed=1)
    second[2][:2] = first[2][:2]  # ties
    expected = np.mean(
        [
            stats.mannwhitneyu(a, b).statistic / (a.size * b.size)
            for a, b in zip(first, second, strict=True)
        ]
    )
    np.testing.assert_allclose(
        aggregates.estimate_probability_of_improvement(first, second).value, expected
    )
    other_way = aggregates.estimate_probability_of_improvement(second, first)
    np.testing.assert_allclose(
        aggregates.estimate_probability_of_improvement(first, second).value + other_way.value, 1
    )
    assert aggregates.estimate_probability_of_improvement(first, first).value == 0.5
    better = aggregates.estimate_probability_of_improvement([x + 100 for x in first], second)
    assert (better.value, better.low, better.high) == (1, 1, 1)


def every_resample(samples):
    """Return all draws with replacement of the stratified bootstrap, which are equally likely."""
    each = [[np.array(drawn) for drawn in itertools.product(x, repeat=len(x))] for x in samples]
    return [list(drawn) for drawn in itertools.product(*each)]


def test_intervals_equal_those_of_all_resamples():
    """There are 27 x 27 draws for two environments, and for two algorithms with three seeds."""
    first, second = (
        [np.array([0.0, 0.2, 0.7]), np.array([0.1, 0.5, 2.0])],
        [np.array([0.1, 0.3, 0.4]), np.array([0.4, 0.5, 0.6])],
    )
    drawn = every_resample(first)
    means = [stats.trim_mean(np.concatenate(one), 0.25) for one in drawn]
    found = aggregates.estimate_interquartile_mean(first)
    np.testing.assert_allclose(
        (found.low, found.high), np.percentile(means, (2.5, 97.5)), atol=0.07
    )
    at = np.array([0.15])
    shares = [np.mean([(x > at).mean() for x in one]) for one in drawn]
    found = aggregates.estimate_performance_profile(first, at)
    np.testing.assert_allclose(
        (found.low[0], found.high[0]), np.percentile(shares, (2.5, 97.5)), atol=0.01
    )
    both = every_resample([first[0], second[0]])
    chances = [np.mean(np.greater.outer(a, b) + 0.5 * np.equal.outer(a, b)) for a, b in both]
    found = aggregates.estimate_probability_of_improvement(first[:1], second[:1])
    np.testing.assert_allclose(
        (found.low, found.high), np.percentile(chances, (2.5, 97.5)), atol=0.06
    )


def test_environments_are_not_resampled():
    """Scores that differ only between environments have an interval of width 0."""
    found = aggregates.estimate_interquartile_mean([np.zeros(4), np.full(4, 10.0)])
    assert found.low == found.value == found.high == 5


def test_resampling_in_blocks_equals_resampling_at_once(monkeypatch):
    whole = aggregates.estimate_interquartile_mean(scores())
    monkeypatch.setattr(aggregates, "MAX_RESAMPLED_VALUES", 1000)
    pieces = aggregates.estimate_interquartile_mean(scores())
    np.testing.assert_allclose((pieces.low, pieces.high), (whole.low, whole.high), atol=0.1)
    assert pieces.value == whole.value


def test_one_seed_has_no_interval():
    for found in (
        aggregates.estimate_interquartile_mean([np.ones(3), np.ones(1)]),
        aggregates.estimate_probability_of_improvement([np.ones(1)], [np.zeros(4)]),
    ):
        assert np.isnan(found.low) and np.isnan(found.high) and found.value == 1


def test_bootstrap_intervals_equal_those_of_each_sample():
    samples = np.random.default_rng(0).normal(size=(3, 2, 6))
    low, high = bootstrap_intervals(samples)
    for index in np.ndindex(3, 2):
        assert (low[index], high[index]) == pytest.approx(bootstrap_interval(samples[index]))
    low, high = bootstrap_intervals(samples[..., :1])
    np.testing.assert_array_equal((low, high), (samples[..., 0],) * 2)
