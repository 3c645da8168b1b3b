"""The mathematics of credit."""

from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from hypothesis import given, settings

from laws.programs import assert_close
from rollax.returns import discounted_returns, gae, over_streams

STEPS = 12  # one shape, so that each function is compiled once
seeds = st.integers(0, 2**31 - 1)
shares = st.floats(0.0, 1.0, width=32)
few = settings(max_examples=25, deadline=None)
compiled_gae, compiled_sums = jax.jit(gae), jax.jit(discounted_returns)
rlax_gae = jax.jit(rlax.truncated_generalized_advantage_estimation)


def trajectory(seed: int) -> dict[str, np.ndarray]:
    """Rewards, values and ends; the next value is that of the next step where the episode goes on."""
    numbers = np.random.default_rng(seed)
    normal = lambda: numbers.normal(size=STEPS).astype(np.float32)  # noqa: E731
    ended = numbers.random(STEPS) < 0.4
    terminated = ended & (numbers.random(STEPS) < 0.5)
    value, other = normal(), normal()
    next_value = np.where(ended, other, np.append(value[1:], other[-1])).astype(np.float32)
    return {
        "reward": normal(),
        "value": value,
        "next_value": next_value,
        "terminated": terminated,
        "truncated": ended & ~terminated,
    }


def advantage(t: dict[str, Any], gamma: float, gae_lambda: float) -> np.ndarray:
    arrays = {name: jnp.asarray(x) for name, x in t.items()}
    return np.asarray(compiled_gae(**arrays, gamma=jnp.float32(gamma), gae_lambda=jnp.float32(gae_lambda)))


def part(t: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
    return {name: x[start:stop] for name, x in t.items()}


@few
@given(seeds, shares, shares)
def test_gae_is_rlax(seed: int, gamma: float, gae_lambda: float) -> None:
    """Without truncation, which rlax does not know."""
    t = trajectory(seed)
    t["terminated"], t["truncated"] = t["terminated"] | t["truncated"], np.zeros(STEPS, bool)
    values = jnp.append(t["value"], t["next_value"][-1])
    discount = jnp.asarray(gamma * ~t["terminated"], jnp.float32)
    theirs = rlax_gae(jnp.asarray(t["reward"]), discount, jnp.float32(gae_lambda), values)
    assert_close(advantage(t, gamma, gae_lambda), theirs)


@few
@given(seeds, shares)
def test_lambda_one_is_monte_carlo(seed: int, gamma: float) -> None:
    """The advantage is the discounted sum to the end of the episode, with what lies beyond a truncation, minus the value."""
    t = trajectory(seed)
    expected = np.zeros(STEPS)
    following = float(t["next_value"][-1])
    for i in reversed(range(STEPS)):
        if t["terminated"][i]:
            following = 0.0
        elif t["truncated"][i]:
            following = float(t["next_value"][i])
        following = float(t["reward"][i]) + gamma * following
        expected[i] = following - t["value"][i]
    np.testing.assert_allclose(advantage(t, gamma, 1.0), expected, rtol=1e-5, atol=1e-5)


@few
@given(seeds, shares, shares)
def test_an_exact_critic_leaves_no_advantage(seed: int, gamma: float, gae_lambda: float) -> None:
    t = trajectory(seed)
    t["reward"] = t["value"] - np.float32(gamma) * np.where(t["terminated"], 0, t["next_value"])
    np.testing.assert_allclose(advantage(t, gamma, gae_lambda), 0, atol=2e-6)


@few
@given(seeds, shares, shares, st.integers(1, STEPS - 1))
def test_a_truncation_cuts_in_two(seed: int, gamma: float, gae_lambda: float, cut: int) -> None:
    """Each part alone, with its own bootstrap, has the same advantages; a termination does the same without a bootstrap."""
    for kind, other in (("truncated", "terminated"), ("terminated", "truncated")):
        t = trajectory(seed)
        t[kind][cut - 1], t[other][cut - 1] = True, False
        apart = [compiled_gae(**part(t, *ends), gamma=gamma, gae_lambda=gae_lambda) for ends in ((0, cut), (cut, STEPS))]
        assert_close(advantage(t, gamma, gae_lambda), np.concatenate(apart))
        changed = dict(t, next_value=np.where(np.arange(STEPS) == cut - 1, t["next_value"] + 1, t["next_value"]))
        difference = advantage(changed, gamma, gae_lambda)[cut - 1] - advantage(t, gamma, gae_lambda)[cut - 1]
        assert difference == pytest.approx(gamma if kind == "truncated" else 0, abs=1e-5)


@few
@given(seeds, shares, st.floats(0.125, 8.0, width=32))
def test_rewards_and_values_scale(seed: int, gamma: float, scale: float) -> None:
    """Credit is linear: twice the rewards and values are twice the advantage."""
    t = trajectory(seed)
    scaled = {name: x * np.float32(scale) if x.dtype == np.float32 else x for name, x in t.items()}
    assert_close(advantage(scaled, gamma, 0.9), advantage(t, gamma, 0.9) * scale, 1e-4)


def test_two_steps_by_hand() -> None:
    """r = (1, 2), V = (1/2, 1/2), then the end, gamma = lambda = 1: the sums to the end are 3 and 2, so A = (5/2, 3/2)."""
    t = {
        "reward": np.array([1.0, 2.0], np.float32),
        "value": np.full(2, 0.5, np.float32),
        "next_value": np.array([0.5, 100.0], np.float32),
        "terminated": np.array([False, True]),
        "truncated": np.array([False, False]),
    }
    assert advantage(t, 1.0, 1.0).tolist() == [2.5, 1.5]


@few
@given(seeds, shares)
def test_running_sums(seed: int, gamma: float) -> None:
    """Discounted sums go on from one rollout to the next, and start afresh after an end."""
    t = trajectory(seed)
    ended = t["terminated"] | t["truncated"]
    running, expected = 0.7, []
    for reward, end in zip(t["reward"], ended, strict=True):
        running = gamma * running + float(reward)
        expected.append(running)
        running = 0.0 if end else running
    last, sums = compiled_sums(jnp.asarray(t["reward"]), jnp.asarray(ended), jnp.float32(0.7), gamma)
    np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-5)
    assert float(last) == pytest.approx(running, abs=1e-5)


def test_over_streams_is_each_alone() -> None:
    parts = [trajectory(seed) for seed in range(3)]
    arrays = [jnp.stack([jnp.asarray(p[name]) for p in parts], axis=1) for name in parts[0]]
    together = over_streams(gae, 2)(*arrays, 0.9, 0.8)
    for i, p in enumerate(parts):
        assert_close(together[:, i], advantage(p, 0.9, 0.8))
