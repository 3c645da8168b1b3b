"""Tests of advantages, discounted returns and V-trace."""

from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from hypothesis import given, settings

from laws.programs import assert_close
from rollax.learning.normalization import discounted_returns
from rollax.learning.returns import gae, vmap_over_streams
from rollax.learning.vtrace import vtrace

STEPS = 12  # one length, so that each function is compiled once
seeds = st.integers(0, 2**31 - 1)
shares = st.floats(0.0, 1.0, width=32)
few = settings(max_examples=25, deadline=None)
compiled_gae, compiled_sums = jax.jit(gae), jax.jit(discounted_returns)
rlax_gae = jax.jit(rlax.truncated_generalized_advantage_estimation)


def trajectory(seed: int) -> dict[str, np.ndarray]:
    """Return rewards, values and ends of episodes.

    Within an episode, the next value is the value of the next step.
    """
    numbers = np.random.default_rng(seed)

    def normal():
        return numbers.normal(size=STEPS).astype(np.float32)

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
    return np.asarray(
        compiled_gae(**arrays, gamma=jnp.float32(gamma), gae_lambda=jnp.float32(gae_lambda))
    )


def part(t: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
    return {name: x[start:stop] for name, x in t.items()}


@pytest.mark.quick
@few
@given(seeds, shares, shares)
def test_gae_equals_rlax(seed: int, gamma: float, gae_lambda: float) -> None:
    """There is no truncation, which rlax does not support."""
    t = trajectory(seed)
    t["terminated"], t["truncated"] = t["terminated"] | t["truncated"], np.zeros(STEPS, bool)
    values = jnp.append(t["value"], t["next_value"][-1])
    discount = jnp.asarray(gamma * ~t["terminated"], jnp.float32)
    theirs = rlax_gae(jnp.asarray(t["reward"]), discount, jnp.float32(gae_lambda), values)
    assert_close(advantage(t, gamma, gae_lambda), theirs)


@few
@given(seeds, shares)
def test_lambda_one_is_monte_carlo(seed: int, gamma: float) -> None:
    """The advantage is the discounted return minus the value, with a bootstrap at truncations."""
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
def test_an_exact_critic_has_no_advantage(seed: int, gamma: float, gae_lambda: float) -> None:
    t = trajectory(seed)
    t["reward"] = t["value"] - np.float32(gamma) * np.where(t["terminated"], 0, t["next_value"])
    np.testing.assert_allclose(advantage(t, gamma, gae_lambda), 0, atol=2e-6)


@few
@given(seeds, shares, shares, st.integers(1, STEPS - 1))
def test_a_truncation_separates_advantages(
    seed: int, gamma: float, gae_lambda: float, cut: int
) -> None:
    """The parts before and after it have the same advantages alone.

    Only a truncation uses the value of the final observation.
    """
    for kind, other in (("truncated", "terminated"), ("terminated", "truncated")):
        t = trajectory(seed)
        t[kind][cut - 1], t[other][cut - 1] = True, False
        apart = [
            compiled_gae(**part(t, *ends), gamma=gamma, gae_lambda=gae_lambda)
            for ends in ((0, cut), (cut, STEPS))
        ]
        assert_close(advantage(t, gamma, gae_lambda), np.concatenate(apart))
        changed = dict(
            t,
            next_value=np.where(np.arange(STEPS) == cut - 1, t["next_value"] + 1, t["next_value"]),
        )
        difference = (
            advantage(changed, gamma, gae_lambda)[cut - 1]
            - advantage(t, gamma, gae_lambda)[cut - 1]
        )
        assert difference == pytest.approx(gamma if kind == "truncated" else 0, abs=1e-5)


@few
@given(seeds, shares, st.floats(0.125, 8.0, width=32))
def test_advantages_scale_with_rewards_and_values(seed: int, gamma: float, scale: float) -> None:
    """Twice the rewards and values give twice the advantages."""
    t = trajectory(seed)
    scaled = {name: x * np.float32(scale) if x.dtype == np.float32 else x for name, x in t.items()}
    assert_close(advantage(scaled, gamma, 0.9), advantage(t, gamma, 0.9) * scale, 1e-4)


@pytest.mark.quick
def test_two_steps_by_hand() -> None:
    """r = (1, 2), V = (1/2, 1/2), gamma = lambda = 1: returns are 3 and 2, so A = (5/2, 3/2)."""
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
def test_discounted_returns_continue_between_rollouts(seed: int, gamma: float) -> None:
    """They restart after the end of an episode."""
    t = trajectory(seed)
    ended = t["terminated"] | t["truncated"]
    running, expected = 0.7, []
    for reward, end in zip(t["reward"], ended, strict=True):
        running = gamma * running + float(reward)
        expected.append(running)
        running = 0.0 if end else running
    last, sums = compiled_sums(
        jnp.asarray(t["reward"]), jnp.asarray(ended), jnp.float32(0.7), gamma
    )
    np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-5)
    assert float(last) == pytest.approx(running, abs=1e-5)


def test_vmap_over_streams_equals_each_stream() -> None:
    parts = [trajectory(seed) for seed in range(3)]
    arrays = [jnp.stack([jnp.asarray(p[name]) for p in parts], axis=1) for name in parts[0]]
    together = vmap_over_streams(gae, 2)(*arrays, 0.9, 0.8)
    for i, p in enumerate(parts):
        assert_close(together[:, i], advantage(p, 0.9, 0.8))


clips = st.floats(0.125, 3.0, width=32)
compiled_vtrace = jax.jit(vtrace)
rlax_vtrace = jax.jit(rlax.vtrace_td_error_and_advantage)


def credit(t: dict[str, Any], log_ratio: Any, *numbers: float) -> tuple[np.ndarray, np.ndarray]:
    """Return targets and advantages. `numbers` are gamma, lambda, rho-bar and c-bar."""
    arrays = {name: jnp.asarray(x) for name, x in t.items()}
    names = ("gamma", "vtrace_lambda", "rho_clip", "c_clip")
    found = compiled_vtrace(
        **arrays,
        log_ratio=jnp.asarray(log_ratio, jnp.float32),
        **dict(zip(names, map(jnp.float32, numbers), strict=True)),
    )
    return np.asarray(found[0]), np.asarray(found[1])


def log_ratios(seed: int) -> np.ndarray:
    return np.random.default_rng(seed + 1).normal(size=STEPS).astype(np.float32)


@pytest.mark.quick
@few
@given(seeds, shares, shares, clips)
def test_vtrace_equals_rlax(seed: int, gamma: float, decay: float, clip: float) -> None:
    """Compare errors, and advantages times their clipped ratio.

    rlax has no truncation, and clips traces at 1.
    """
    t = trajectory(seed)
    t["terminated"], t["truncated"] = t["terminated"] | t["truncated"], np.zeros(STEPS, bool)
    log_ratio = log_ratios(seed)
    ratio = np.exp(log_ratio)
    discount = jnp.asarray(gamma * ~t["terminated"], jnp.float32)
    arrays = (jnp.asarray(t[name]) for name in ("value", "next_value", "reward"))
    lambdas = jnp.full(STEPS, decay, jnp.float32)
    theirs = rlax_vtrace(
        *arrays, discount, jnp.asarray(ratio), lambdas, jnp.float32(clip), jnp.float32(clip)
    )
    target, advantage = credit(t, log_ratio, gamma, decay, clip, 1.0)
    assert_close(target - t["value"], theirs.errors, 1e-4)
    assert_close(np.minimum(clip, ratio) * advantage, theirs.pg_advantage, 1e-4)


@few
@given(seeds, shares, shares)
def test_vtrace_on_policy_equals_gae(seed: int, gamma: float, gae_lambda: float) -> None:
    t = trajectory(seed)
    expected = advantage(t, gamma, gae_lambda)
    target, found = credit(t, np.zeros(STEPS), gamma, gae_lambda, 1.0, 1.0)
    assert_close(found, expected, 1e-4)
    assert_close(target - t["value"], expected, 1e-4)


@few
@given(seeds, clips, clips, shares)
def test_vtrace_of_an_exact_critic_has_no_advantage(
    seed: int, rho_clip: float, c_clip: float, decay: float
) -> None:
    """Targets equal the values, for any clipping."""
    t = trajectory(seed)
    t["reward"] = (t["value"] - 0.9 * np.where(t["terminated"], 0.0, t["next_value"])).astype(
        np.float32
    )
    target, found = credit(t, log_ratios(seed), 0.9, decay, rho_clip, c_clip)
    assert_close(found, np.zeros(STEPS), 1e-5)
    assert_close(target, t["value"], 1e-5)


@few
@given(seeds, clips, clips)
def test_vtrace_equals_its_definition(seed: int, rho_clip: float, c_clip: float) -> None:
    """Equation 1: v_s = V(s) + sum_t gamma^(t - s) (prod c) delta_t, within an episode."""
    t, log_ratio = trajectory(seed), log_ratios(seed)
    rho, c = np.minimum(rho_clip, np.exp(log_ratio)), 0.8 * np.minimum(c_clip, np.exp(log_ratio))
    delta = rho * (t["reward"] + 0.9 * np.where(t["terminated"], 0.0, t["next_value"]) - t["value"])
    ended = t["terminated"] | t["truncated"]
    expected = t["value"].astype(float).copy()
    for start in range(STEPS):
        weight = 1.0
        for step in range(start, STEPS):
            expected[start] += weight * delta[step]
            weight *= 0.9 * c[step]
            if ended[step]:
                break
    assert_close(
        credit(t, log_ratio, 0.9, 0.8, rho_clip, c_clip)[0], expected.astype(np.float32), 1e-4
    )


def test_a_truncation_separates_vtrace() -> None:
    t, log_ratio = trajectory(3), log_ratios(3)
    t["terminated"][5], t["truncated"][5] = False, True
    whole = credit(t, log_ratio, 0.9, 0.8, 1.0, 1.0)
    compiled_vtrace.clear_cache()
    first, second = (
        credit(part(t, *cut), log_ratio[slice(*cut)], 0.9, 0.8, 1.0, 1.0)
        for cut in ((0, 6), (6, STEPS))
    )
    for i in range(2):
        assert_close(whole[i], np.concatenate([first[i], second[i]]))
