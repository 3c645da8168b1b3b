"""Tests of the terms of policy-gradient losses, and of running moments."""

from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from rollax.learning import losses, normalization

few = settings(max_examples=30, deadline=None)
small = st.floats(-3.0, 3.0, width=32)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("ratio", "advantage", "objective"), [(1.1, 1.0, 1.1), (1.5, 1.0, 1.2), (0.5, -1.0, -0.8)]
)
def test_clipped_objective_by_hand(ratio: float, advantage: float, objective: float) -> None:
    """min(r A, clip(r) A) with epsilon 0.2."""
    assert float(
        losses.clipped_objective(jnp.log(ratio), jnp.float32(advantage), 0.2)
    ) == pytest.approx(objective)


@pytest.mark.parametrize(
    ("ratio", "advantage", "slope"),
    [
        (1.1, 1.0, 1.1),
        (1.5, 1.0, 0.0),
        (0.5, 1.0, 0.5),
        (0.5, -1.0, 0.0),
        (1.5, -1.0, -1.5),
        (0.9, -1.0, -0.9),
    ],
)
def test_clipping_stops_the_gradient_in_one_direction(
    ratio: float, advantage: float, slope: float
) -> None:
    """The gradient is zero only if the ratio would move further out of the clipping range."""
    gradient = jax.grad(losses.clipped_objective)(jnp.log(ratio), advantage, 0.2)
    assert float(gradient) == pytest.approx(slope, rel=1e-5)


@few
@given(small, small, st.floats(0.0, 1.0, width=32))
def test_the_objective_is_a_lower_bound(log_ratio: float, advantage: float, clip: float) -> None:
    objective = float(
        losses.clipped_objective(jnp.float32(log_ratio), jnp.float32(advantage), clip)
    )
    assert (
        objective
        <= np.exp(np.float32(log_ratio)) * np.float32(advantage) * (1 + 1e-5 * np.sign(advantage))
        + 1e-6
    )


@few
@given(small)
def test_kl_estimate_is_not_negative(log_ratio: float) -> None:
    """r - 1 - log r is zero for equal policies and positive for others."""
    estimate = float(losses.estimate_kl(jnp.float32(log_ratio)))
    assert estimate >= 0
    assert estimate == pytest.approx(np.exp(log_ratio) - 1 - log_ratio, rel=1e-4, abs=1e-6)
    assert float(losses.estimate_kl(jnp.float32(0))) == 0


def test_kl_estimate_of_two_normals() -> None:
    """The mean over samples of the old policy is KL(N(0, 1) || N(1/2, 1)) = 1/8.

    The tolerance for 10^5 samples is 0.005.
    """
    x = jax.random.normal(jax.random.key(0), (100_000,))
    assert float(jnp.mean(losses.estimate_kl(0.5 * x - 0.125))) == pytest.approx(0.125, abs=0.005)


@few
@given(small, small, small, st.floats(0.0, 1.0, width=32))
def test_squared_value_error(value: float, old: float, target: float, clip: float) -> None:
    """Clipping never lowers the error, and does not change it near the old value."""
    plain = float(losses.squared_value_error(*map(jnp.float32, (value, old, target)), None))
    clipped = float(losses.squared_value_error(*map(jnp.float32, (value, old, target)), clip))
    assert plain == pytest.approx(0.5 * (value - target) ** 2, rel=1e-4, abs=1e-6)
    assert clipped >= plain
    if abs(value - old) < clip:
        assert clipped == pytest.approx(plain, rel=1e-4, abs=1e-5)


@pytest.mark.quick
def test_value_clipping_by_hand() -> None:
    """Old value 0, new value 1, clip 0.2: for target 2, the error is that of 0.2."""
    error, slope = jax.value_and_grad(losses.squared_value_error)(
        jnp.float32(1), jnp.float32(0), jnp.float32(2), 0.2
    )
    assert float(error) == pytest.approx(0.5 * 1.8**2)
    assert float(slope) == 0
    away = jax.grad(losses.squared_value_error)(
        jnp.float32(1), jnp.float32(0), jnp.float32(-2), 0.2
    )
    assert float(away) == pytest.approx(3.0), "back towards the target, the gradient is whole"


@few
@given(st.integers(0, 999), st.floats(-100.0, 100.0, width=32))
def test_moments_of_batches_equal_those_of_all_data(seed: int, offset: float) -> None:
    """The reference is NumPy over all the data, for a tree of arrays."""
    numbers = np.random.default_rng(seed)
    scale = numbers.uniform(0.1, 10)
    batches = [
        {
            "a": offset + scale * numbers.normal(size=(4, 2, 3)).astype(np.float32),
            "b": numbers.normal(size=(4, 2)),
        }
        for _ in range(3)
    ]
    running = normalization.init_moments({"a": jnp.zeros(3), "b": jnp.zeros(())})
    assert normalization.normalize(running, {"a": jnp.full(3, 0.3), "b": jnp.float32(0.2)})[
        "a"
    ] == pytest.approx(0.3)
    for batch in batches:
        running = normalization.update_moments(running, jax.tree.map(jnp.asarray, batch), axes=2)
    for name in ("a", "b"):
        everything = (
            np.concatenate([b[name] for b in batches])
            .reshape(24, *batches[0][name].shape[2:])
            .astype(np.float64)
        )
        np.testing.assert_allclose(running.mean[name], everything.mean(0), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(running.variance[name], everything.var(0), rtol=1e-3, atol=1e-4)
    assert float(running.size) == 24


def test_normalized_data_has_mean_0_and_variance_1() -> None:
    """Outliers are clipped. Masks are not changed."""
    data = {
        "x": 5 + 3 * jax.random.normal(jax.random.key(0), (500, 2)),
        "mask": jnp.ones((500, 2), bool),
    }
    running = normalization.update_moments(
        normalization.init_moments(jax.tree.map(lambda x: x[0], data)), data, axes=1
    )
    seen = jax.vmap(lambda sample: normalization.normalize(running, sample))(data)
    np.testing.assert_allclose(jnp.mean(seen["x"], 0), 0, atol=1e-5)
    np.testing.assert_allclose(jnp.std(seen["x"], 0), 1, atol=1e-4)
    assert seen["mask"].dtype == bool
    far = normalization.normalize(running, {"x": jnp.array([1e9, -1e9]), "mask": jnp.ones(2, bool)})
    assert far["x"].tolist() == [10.0, -10.0]


@pytest.mark.quick
def test_standardize_with_and_without_mask() -> None:
    x = losses.standardize(jnp.arange(12.0).reshape(3, 4))
    assert float(jnp.mean(x)) == pytest.approx(0, abs=1e-6)
    assert float(jnp.std(x)) == pytest.approx(1, abs=1e-5)
    assert losses.standardize(jnp.array([[-3.0]])).tolist() == [[-3.0]], (
        "what is alone stays as it is"
    )
    alone = losses.standardize(jnp.array([[5.0, -3.0]]), jnp.array([[False, True]]))
    assert float(alone[0, 1]) == -3.0, "also where it is alone because others do not count"
    two = losses.standardize(jnp.array([[5.0, -3.0, 9.0]]), jnp.array([[True, True, False]]))
    assert two[0, :2].tolist() == pytest.approx([1.0, -1.0])


@pytest.mark.parametrize("value", [0.3, -7e-3, 1e4 / 3, 0.0])
@pytest.mark.parametrize("count", [(3, 4), (100_003,)])
def test_equal_numbers_are_standardized_to_zero(value: float, count: tuple[int, ...]) -> None:
    """The mean may be rounded.

    Also check numbers that differ in the last bit, masks and gradients.
    """
    equal = jnp.full(count, value, jnp.float32)
    assert not jnp.any(losses.standardize(equal))
    nearly = equal.at[0].set(jnp.nextafter(equal[0], jnp.float32(jnp.inf)))
    assert not jnp.any(losses.standardize(nearly)) or value == 0
    mask = jnp.ones(count, bool).at[-1].set(False)
    masked = losses.standardize(equal.at[-1].set(jnp.nan), mask)
    assert not jnp.any(jnp.where(mask, masked, 0.0))
    gradient = jax.grad(lambda x: jnp.sum(losses.standardize(x) ** 2))(equal)
    assert not jnp.any(gradient)


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e3])
def test_small_differences_are_standardized(size: float) -> None:
    """Compare -1, 0, 1 on an offset, which float32 resolves, with the closed form.

    NaN is propagated.
    """
    x = losses.standardize(size * (100.0 + jnp.array([-1.0, 0.0, 1.0]) / 100))
    expected = size / 100 * np.sqrt(2 / 3)
    np.testing.assert_allclose(
        x, np.array([-1.0, 0.0, 1.0]) * np.sqrt(1.5) * expected / (expected + 1e-8), atol=2e-3
    )
    assert jnp.all(jnp.isnan(losses.standardize(jnp.array([1.0, jnp.nan, 1.0]))))


def test_moments_are_precise_over_a_million_updates() -> None:
    """The moments equal those of 64-bit NumPy, and samples are counted exactly beyond 2^30."""
    updates, before = 1_000_000, 2**30

    def batch(i: Any) -> Any:
        return ((i * 7919) % 1009) / 512, ((i * 9973) % 503) / 128

    def merge(i: jax.Array, moments: normalization.Moments) -> normalization.Moments:
        return normalization.update_moments(moments, jnp.stack(batch(i % 2**17)), axes=1)

    run = jax.jit(lambda moments: jax.lax.fori_loop(0, updates, merge, moments))
    found = run(normalization.init_moments(0.0))
    x = np.stack(batch(np.arange(updates) % 2**17))
    assert float(found.mean) == pytest.approx(x.mean(), rel=1e-6)
    assert float(found.variance) == pytest.approx(x.var(), rel=1e-6)
    assert int(found.size) == 2 * updates
    counted = run(found._replace(size=jnp.float32(before)))
    assert int(counted.size) == before + 2 * updates
    again = (before * x.mean() + x.sum()) / int(counted.size)
    assert float(counted.mean) == pytest.approx(again, rel=1e-6)


def test_moments_of_a_constant_are_exact() -> None:
    """The mean of a large constant equals it, so it is normalized to 0."""
    data = jnp.full((1000, 37), 12345.678)
    moments = normalization.init_moments(0.0)
    for _ in range(3):
        moments = normalization.update_moments(moments, data, axes=2)
    assert float(normalization.normalize(moments, data[0, 0])) == 0.0
    assert float(moments.variance) == 0.0
