"""Tests of summary statistics of returns."""

import math
import warnings

import numpy as np
import pytest
from scipy import stats

from rollax.training.evaluation.statistics import bootstrap_interval, interquartile_mean, summarize

NUMBERS = ("mean", "std", "min", "max", "median", "iqm", "iqm_low", "iqm_high")


@pytest.fixture(autouse=True)
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_summary_of_known_values():
    summary = summarize([1, 2, 3, 4, 5, 6, 7, 100])
    assert summary["count"] == 8 and summary["any_nan"] == 0
    assert (
        summary["mean"] == 16
        and summary["min"] == 1
        and summary["max"] == 100
        and summary["median"] == 4.5
    )
    assert summary["iqm"] == 4.5  # of 3, 4, 5, 6
    assert summary["std"] == pytest.approx(np.std([1, 2, 3, 4, 5, 6, 7, 100], ddof=1))
    assert summary["iqm_low"] < 4.5 < summary["iqm_high"]


def test_the_interval_does_not_depend_on_the_order():
    values = np.random.default_rng(0).normal(size=40)
    assert summarize(values) == summarize(values[::-1]) == summarize(list(values))


def test_the_coverage_of_intervals():
    generator = np.random.default_rng(1)
    intervals = [bootstrap_interval(generator.normal(size=40), confidence=0.9) for _ in range(150)]
    covered = np.mean([low <= 0 <= high for low, high in intervals])
    assert 0.8 < covered < 0.97


def test_a_higher_confidence_gives_a_wider_interval():
    values = np.random.default_rng(2).normal(size=30)
    widths = [np.diff(bootstrap_interval(values, confidence))[0] for confidence in (0.5, 0.8, 0.99)]
    assert widths[0] < widths[1] < widths[2]


def test_one_value_equals_its_interval():
    summary = summarize([3.5])
    assert summary["std"] == 0 and summary["count"] == 1
    assert all(summary[name] == 3.5 for name in NUMBERS if name != "std")


def test_summary_of_constant_values():
    summary = summarize([0.1] * 10)
    assert summary["iqm_low"] == summary["iqm_high"] == 0.1
    assert summary["std"] == pytest.approx(0)


def test_nonfinite_values_are_flagged_and_left_out():
    summary = summarize([1.0, math.nan, 3.0, math.inf])
    assert (
        summary["any_nan"] == 1
        and summary["count"] == 2
        and summary["mean"] == 2
        and summary["max"] == 3
    )


@pytest.mark.parametrize(("values", "flag"), [([math.nan, math.nan], 1.0), ([], 0.0)])
def test_without_finite_values_the_summary_is_nan(values, flag):
    summary = summarize(values)
    assert summary["any_nan"] == flag and summary["count"] == 0
    assert all(math.isnan(summary[name]) for name in NUMBERS)


def test_the_interquartile_mean_is_over_the_last_axis():
    assert interquartile_mean(np.array([[0.0, 1, 2, 9], [4, 4, 4, 4]])).tolist() == [1.5, 4.0]


@pytest.mark.parametrize("size", [2, 3, 4, 7, 128])
def test_the_interval_equals_that_of_scipy(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes resampling in blocks. The interquartile mean is SciPy's trimmed mean."""
    monkeypatch.setattr("rollax.training.evaluation.statistics.MAX_RESAMPLED_VALUES", 300 * size)
    values = np.random.default_rng(size).normal(size=size)
    theirs = stats.bootstrap(
        (values,),
        lambda x, axis: stats.trim_mean(x, 0.25, axis=axis),
        n_resamples=2000,
        batch=300,
        vectorized=True,
        confidence_level=0.9,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    np.testing.assert_allclose(
        bootstrap_interval(values, 0.9), (theirs.low, theirs.high), rtol=1e-12
    )
    np.testing.assert_allclose(
        interquartile_mean(values), stats.trim_mean(values, 0.25), rtol=1e-12
    )
