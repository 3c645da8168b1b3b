"""Comparison of distributions with SciPy and with integrals, for wide and narrow distributions."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import given, settings

from rollax.networks import distributions
from rollax.networks.distributions import Gaussian, RadiallySquashedGaussian
from rollax.spaces import Ball, Box, MultiDiscrete

few = settings(max_examples=20, deadline=None)
seeds = st.integers(0, 9999)
WIDE = Box(-1.0, 3.0, (1,))


def logits(seed: int, shape: tuple[int, ...]) -> jax.Array:
    return jnp.asarray(3 * np.random.default_rng(seed).normal(size=shape), jnp.float32)


def gaussian(mean: float, log_std: float) -> distributions.Gaussian:
    return distributions.Gaussian(
        jnp.array([mean], jnp.float32), jnp.array([log_std], jnp.float32), WIDE
    )


@pytest.mark.quick
@few
@given(seeds)
def test_categorical_equals_scipy(seed: int) -> None:
    policy = distributions.Categorical(logits(seed, (5,)))
    probabilities = scipy.special.softmax(np.asarray(policy.logits, np.float64))
    ours = jax.vmap(policy.log_prob)(jnp.arange(5))
    np.testing.assert_allclose(ours, np.log(probabilities), rtol=1e-4, atol=1e-5)
    assert float(policy.entropy()) == pytest.approx(
        scipy.stats.entropy(probabilities), rel=1e-4, abs=1e-6
    )
    assert int(policy.mode()) == np.argmax(probabilities)


def test_several_choices_are_independent() -> None:
    """Log-densities and entropies of the choices add up, and padding is never drawn."""
    space = MultiDiscrete((2, 4, 3))
    policy = distributions.masked_categorical(
        logits(0, (3, 4)), jnp.asarray(distributions.valid_choices_mask(space))
    )
    draws = jax.vmap(policy.sample)(jax.random.split(jax.random.key(0), 500))
    assert draws.shape == (500, 3)
    assert jnp.all(draws < jnp.array([[2, 4, 3]]))
    parts = [distributions.Categorical(policy.logits[i, :n]) for i, n in enumerate(space.sizes)]
    alone = sum(float(part.log_prob(draws[0, i])) for i, part in enumerate(parts))
    assert float(policy.log_prob(draws[0])) == pytest.approx(alone, rel=1e-5)
    assert float(policy.entropy()) == pytest.approx(
        sum(float(part.entropy()) for part in parts), rel=1e-5
    )
    every = [jnp.array([a, b, c]) for a in range(2) for b in range(4) for c in range(3)]
    assert sum(float(jnp.exp(policy.log_prob(draw))) for draw in every) == pytest.approx(
        1, rel=1e-4
    )


@pytest.mark.parametrize("size", [127, 128, 129, 300, 1000])
def test_many_actions(size: int) -> None:
    """There are more actions than fit into 8-bit integers."""
    certain = distributions.Categorical(jnp.where(jnp.arange(size) == size - 1, 50.0, 0.0))
    assert int(certain.sample(jax.random.key(0))) == size - 1
    assert int(certain.mode()) == size - 1
    assert float(certain.log_prob(jnp.int32(size - 1))) == pytest.approx(0, abs=1e-4)
    even = distributions.Categorical(jnp.zeros(size))
    draws = jax.vmap(even.sample)(jax.random.split(jax.random.key(1), 200))
    assert int(jnp.min(draws)) >= 0
    assert int(jnp.max(draws)) > size // 2
    assert float(even.entropy()) == pytest.approx(np.log(size), rel=1e-5)


@pytest.mark.quick
def test_samples_follow_the_density() -> None:
    """Frequencies of 20,000 draws are within four standard deviations."""
    policy = distributions.Categorical(jnp.array([0.0, 1.0, -1.0]))
    draws = np.asarray(jax.vmap(policy.sample)(jax.random.split(jax.random.key(0), 20_000)))
    probabilities = np.exp(np.asarray(policy.log_probabilities))
    frequencies = np.bincount(draws, minlength=3) / 20_000
    assert np.all(np.abs(frequencies - probabilities) < 4 * np.sqrt(probabilities / 20_000))


@pytest.mark.quick
@few
@given(seeds, st.integers(1, 31))
def test_illegal_actions_are_never_drawn(seed: int, number: int) -> None:
    """Illegal actions do not change the entropy.

    Gradients are finite, and zero for illegal actions.
    """
    legal = (np.int64(number) >> np.arange(5)) % 2 == 1
    scores = logits(seed, (5,))
    policy = distributions.masked_categorical(scores, jnp.asarray(legal))
    draws = jax.vmap(policy.sample)(jax.random.split(jax.random.key(seed), 64))
    assert np.all(legal[np.asarray(draws)])
    assert legal[int(policy.mode())]
    expected = scipy.stats.entropy(
        scipy.special.softmax(np.asarray(scores)[legal].astype(np.float64))
    )
    assert float(policy.entropy()) == pytest.approx(expected, rel=1e-4, abs=1e-5)

    def objective(scores: jax.Array) -> jax.Array:
        policy = distributions.masked_categorical(scores, jnp.asarray(legal))
        return policy.log_prob(draws[0]) + policy.entropy()

    gradient = np.asarray(jax.grad(objective)(scores))
    assert np.all(np.isfinite(gradient))
    assert not np.any(gradient[~legal])


@pytest.mark.quick
@few
@given(seeds, st.floats(-5.0, 2.0, width=32))
def test_gaussian_equals_scipy(seed: int, log_std: float) -> None:
    numbers = np.random.default_rng(seed)
    mean, spread = numbers.normal(size=3).astype(np.float32), np.full(3, log_std, np.float32)
    policy = distributions.Gaussian(jnp.asarray(mean), jnp.asarray(spread), Box(-1.0, 1.0, (3,)))
    draw = policy.sample(jax.random.key(seed))
    theirs = scipy.stats.norm(mean.astype(np.float64), np.exp(spread.astype(np.float64)))
    assert float(policy.log_prob(draw)) == pytest.approx(
        theirs.logpdf(np.asarray(draw)).sum(), rel=1e-3, abs=1e-3
    )
    assert float(policy.entropy()) == pytest.approx(theirs.entropy().sum(), rel=1e-4, abs=1e-4)
    action = policy.action(jnp.array([-9.0, 0.5, 9.0]))
    assert action.tolist() == [-1.0, 0.5, 1.0], "the environment gets it clipped"


SHAPES = [
    (mean, log_std) for mean in (0.0, 0.5, -2.0) for log_std in (-3.0, -1.0, 0.0, 0.5, 1.0, 2.0)
]


@pytest.mark.parametrize(("mean", "log_std"), SHAPES)
def test_squashed_density_integrates_to_one(mean: float, log_std: float) -> None:
    """The integral is over the action, on a grid that is fine where the squashing is steep."""
    policy = distributions.SquashedGaussian(gaussian(mean, log_std))
    normal = scipy.stats.norm(mean, np.exp(log_std))
    draw = np.linspace(
        max(mean - 8 * np.exp(log_std), -8), min(mean + 8 * np.exp(log_std), 8), 20_001
    )
    # Beyond 8, an action in single precision equals the bound.
    within = normal.cdf(draw[-1]) - normal.cdf(draw[0])
    single = jnp.asarray(draw[:, None], jnp.float32)
    action = 1 + 2 * np.tanh(draw)
    np.testing.assert_allclose(jax.vmap(policy.action)(single)[:, 0], action, atol=1e-5)
    density = np.exp(np.asarray(jax.vmap(policy.log_prob)(single), np.float64))
    assert np.trapezoid(density, action) == pytest.approx(within, abs=2e-3)


@pytest.mark.parametrize(("mean", "log_std"), SHAPES)
def test_squashed_entropy_equals_the_integral(mean: float, log_std: float) -> None:
    """Compare the entropy with the integral of -p log p on a fine grid.

    The 32 nodes of the library lose precision for standard deviations above 1.6, as documented.
    """
    policy = distributions.SquashedGaussian(gaussian(mean, log_std))
    normal = scipy.stats.norm(mean, np.exp(log_std))
    draw = np.linspace(mean - 12 * np.exp(log_std), mean + 12 * np.exp(log_std), 200_001)
    # The action space has a width of 4.
    log_slope = 2 * (np.log(2) - draw - np.logaddexp(0, -2 * draw)) + np.log(2)
    expected = np.trapezoid(normal.pdf(draw) * log_slope, draw) + normal.entropy()
    tolerance = 1e-4 if log_std <= 0.5 else 2e-3 if log_std <= 1 else 0.1
    assert float(policy.entropy()) == pytest.approx(expected, abs=tolerance)


@few
@given(seeds, st.integers(1, 7), st.booleans())
def test_a_masked_box_equals_the_smaller_box(seed: int, number: int, squash: bool) -> None:
    """Density, entropy and actions are those of the legal dimensions alone.

    Values of the other dimensions change nothing.
    """
    numbers = np.random.default_rng(seed)
    legal = (np.int64(number) >> np.arange(3)) % 2 == 1
    mean, log_std, draw, low = (numbers.normal(size=3).astype(np.float32) for _ in range(4))

    def policy(
        keep: np.ndarray, mask: jax.Array | None
    ) -> Gaussian | distributions.SquashedGaussian:
        space = Box(tuple(low[keep]), tuple(low[keep] + 3), (int(keep.sum()),))
        base = Gaussian(jnp.asarray(mean[keep]), jnp.asarray(log_std[keep]), space, mask)
        return distributions.SquashedGaussian(base) if squash else base

    masked, smaller = policy(np.ones(3, bool), jnp.asarray(legal)), policy(legal, None)
    assert float(masked.entropy()) == pytest.approx(float(smaller.entropy()), rel=1e-5, abs=1e-5)
    found = float(masked.log_prob(jnp.asarray(draw)))
    assert found == pytest.approx(
        float(smaller.log_prob(jnp.asarray(draw[legal]))), rel=1e-5, abs=1e-5
    )
    assert float(masked.log_prob(jnp.asarray(np.where(legal, draw, draw + 1)))) == found
    action = np.asarray(masked.action(jnp.asarray(draw)))
    np.testing.assert_allclose(action[legal], smaller.action(jnp.asarray(draw[legal])), rtol=1e-6)
    assert not action[~legal].any()
    slopes = jax.grad(
        lambda policy: policy.log_prob(jnp.asarray(draw)) + policy.entropy(), allow_int=True
    )(masked)
    assert not any(
        np.asarray(x)[~legal].any() for x in jax.tree.leaves(slopes) if x.dtype == np.float32
    )


def test_squashed_actions_stay_within_bounds() -> None:
    """The log-density and its gradient are finite, also for actions at the bound."""
    space = Box((-2.0, 0.0), (2.0, 10.0), (2,))
    base = distributions.Gaussian(jnp.zeros(2), jnp.full(2, 2.0), space)
    policy = distributions.SquashedGaussian(base)
    for draw in (jnp.array([40.0, -40.0]), jnp.array([0.0, 0.0])):
        action = policy.action(draw)
        assert bool(space.contains(action))
        log_prob, slope = jax.value_and_grad(policy.log_prob)(draw)
        assert jnp.isfinite(log_prob)
        assert jnp.all(jnp.isfinite(slope))
    assert policy.action(policy.mode()).tolist() == [0.0, 5.0]


def ball(size: int, mean: float, std: float, radius: float = 2.0) -> RadiallySquashedGaussian:
    direction = jnp.arange(1.0, size + 1)
    center = mean * direction / jnp.linalg.norm(direction)
    return RadiallySquashedGaussian(center, jnp.log(jnp.float32(std)), Ball(size, radius))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_actions_of_a_ball_stay_inside(size: int) -> None:
    policy = ball(size, 1.0, 3.0)
    draws = jax.vmap(policy.sample)(jax.random.split(jax.random.key(0), 500))
    actions = jax.vmap(policy.action)(draws)
    assert bool(jnp.all(jax.vmap(policy.space.contains)(actions)))
    cosine = jnp.sum(draws * actions, axis=1) / (
        jnp.linalg.norm(draws, axis=1) * jnp.linalg.norm(actions, axis=1)
    )
    np.testing.assert_allclose(cosine, 1.0, atol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("scale", [0.0, 1e-4, 0.3, 2.0])
def test_density_of_a_ball_is_that_of_the_action(size: int, scale: float) -> None:
    """log p(action) = log N(draw) - log |det d action / d draw|, with the full Jacobian."""
    policy = ball(size, 0.4, 0.7)
    draw = scale * jnp.linspace(-1.0, 1.3, size)
    determinant = jnp.linalg.slogdet(jax.jacobian(policy.action)(draw))[1]
    normal = Gaussian(
        policy.mean, jnp.broadcast_to(policy.log_std, (size,)), Box(-1.0, 1.0, (size,))
    )
    assert float(policy.log_prob(draw)) == pytest.approx(
        float(normal.log_prob(draw) - determinant), abs=2e-4
    )


@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.5), (0.6, 0.4)])
def test_density_on_a_disc_integrates_to_one(mean: float, std: float) -> None:
    """A sum over a polar grid of the actions, whose samples before squashing are recomputed."""
    policy = ball(2, mean, std)
    norms = (np.arange(400) + 0.5) / 400
    angles = 2 * np.pi * np.arange(64) / 64
    norm, angle = (a.ravel() for a in np.meshgrid(norms, angles, indexing="ij"))
    directions = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    draws = jnp.asarray(np.arctanh(norm)[:, None] * directions, jnp.float32)
    actions = jax.vmap(policy.action)(draws)
    np.testing.assert_allclose(actions, 2.0 * norm[:, None] * directions, atol=1e-5)
    density = np.exp(np.asarray(jax.vmap(policy.log_prob)(draws), np.float64))
    areas = (2.0 / 400) * (2.0 * norm) * (2 * np.pi / 64)
    assert np.sum(density * areas) == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.5, 0.3), (2.0, 1.6)])
def test_entropy_of_a_ball_equals_a_sum_over_a_grid(size: int, mean: float, std: float) -> None:
    """The sum of -p log p is over draws along the mean and perpendicular to it."""
    policy = ball(size, mean, std)
    axis = np.linspace(-7, 7, 401)
    if size == 1:
        points, weights = mean + std * axis[:, None], np.exp(-(axis**2) / 2)
    else:
        # The perpendicular component enters by its length alone, whose density has the power size -
        # 2.
        across = np.linspace(0, 7, 300) + 7 / 600
        x, y = (a.ravel() for a in np.meshgrid(axis, across, indexing="ij"))
        weights = np.exp(-(x**2 + y**2) / 2) * y ** (size - 2)
        points = np.zeros((len(x), size))
        points[:, 0], points[:, 1] = mean + std * x, std * y
    centerd = RadiallySquashedGaussian(
        jnp.zeros(size).at[0].set(mean), policy.log_std, policy.space
    )
    densities = np.asarray(jax.vmap(centerd.log_prob)(jnp.asarray(points, jnp.float32)), np.float64)
    expected = -np.sum(densities * weights) / np.sum(weights)
    assert float(policy.entropy()) == pytest.approx(expected, abs=5e-3)
    gradient = jax.grad(lambda p: p.entropy())(policy)
    assert all(bool(jnp.all(jnp.isfinite(g))) for g in jax.tree.leaves(gradient))
