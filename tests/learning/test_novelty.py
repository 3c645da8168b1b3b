"""Tests of random network distillation: prediction errors, intrinsic returns, and exploration."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.acting.streams import Experience
from rollax.algorithms.ppo_rnd import PPORNDConfig, ppo_rnd
from rollax.environments import make
from rollax.learning import minibatches, novelty
from rollax.networks import NetworkConfig, actor_critic
from rollax.spaces import Box, Dict, Grid

SPACE = Box(-10.0, 10.0, (3,))
CONFIG = PPORNDConfig(
    novelty_hidden=16,
    novelty_outputs=8,
    novelty_learning_rate=1e-3,
    predictor_share=1.0,
    num_epochs=4,
)


def rollout(obs: Any, next_obs: Any, ended: Any = False, mask: Any = None) -> Experience:
    """Return a rollout `[T, S]` without data of a policy."""
    shape = jax.tree.leaves(obs)[0].shape[:2]
    no = jnp.zeros(shape, bool)
    ends = jnp.broadcast_to(jnp.asarray(ended), shape)
    return Experience(obs, no, (), no, (), jnp.zeros(shape), ends, no, next_obs, mask)


def seen(seed: int, steps: int = 32, streams: int = 4) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (steps, streams, 3))


def test_novelty_falls_for_known_observations() -> None:
    """The prediction error falls for observations of the rollout, and stays larger for others."""
    known, far = seen(1), seen(2) - 6 * jnp.asarray([[[1.0, 0.0, 0.0]]])
    state, cut = (
        novelty.init_novelty(SPACE, CONFIG, jax.random.key(0)),
        minibatches.make_layout(32, 4, 1, 4),
    )
    met = rollout(known, known)
    state, *_ = novelty.estimate_intrinsic_advantages(CONFIG, state, met, known[0], jnp.zeros(4))
    errors = jax.jit(jax.vmap(jax.vmap(novelty.prediction_error, (None, 0)), (None, 0)))
    before = errors(state, known).mean()
    learn = jax.jit(
        lambda state, key: novelty.learn_novelty(CONFIG, state, met, jnp.zeros((32, 4)), cut, key)[
            0
        ]
    )
    for key in jax.random.split(jax.random.key(3), 30):
        state = learn(state, key)
    after = errors(state, known).mean(), errors(state, far).mean()
    assert after[0] < 0.1 * before
    assert after[1] > 5 * after[0]


def test_the_target_network_is_not_trained() -> None:
    state, cut = (
        novelty.init_novelty(SPACE, CONFIG, jax.random.key(0)),
        minibatches.make_layout(32, 4, 1, 4),
    )
    learnt, _ = novelty.learn_novelty(
        CONFIG, state, rollout(seen(1), seen(2)), jnp.ones((32, 4)), cut, jax.random.key(1)
    )
    same = jax.tree.map(np.array_equal, learnt.target, state.target)
    assert all(jax.tree.leaves(same))
    for part in ("predictor", "critic"):
        assert not all(
            jax.tree.leaves(
                jax.tree.map(np.array_equal, getattr(learnt, part), getattr(state, part))
            )
        )


@pytest.mark.parametrize("dtype", ["uint8", "bool"])
def test_images_are_normalized(dtype: str) -> None:
    """They are normalized by moments of each pixel, as numbers are."""
    space, floats = Box(0.0, 255.0, (6, 6, 2), dtype), Box(-10.0, 10.0, (6, 6, 2))
    pictures = jax.random.bits(jax.random.key(1), (32, 4, 6, 6, 2), jnp.uint8) % (
        2 if dtype == "bool" else 9
    )
    errors = []
    for kind, obs in ((space, pictures.astype(dtype)), (floats, pictures.astype(jnp.float32))):
        state = novelty.init_novelty(kind, CONFIG, jax.random.key(0))
        state, *_ = novelty.estimate_intrinsic_advantages(
            CONFIG, state, rollout(obs, obs), obs[0], jnp.zeros(4)
        )
        errors.append(jax.vmap(novelty.prediction_error, (None, 0))(state, obs[0]))
    np.testing.assert_allclose(*errors, rtol=1e-5)


@pytest.mark.parametrize("is_part", [False, True])
def test_symbols_are_embedded(is_part: bool) -> None:
    """Cells of grids are categories, although they have 8 bits as pixels have.

    A different symbol in one cell changes the novelty and the intrinsic value.
    """
    grid = Grid((3, 3), (5,))
    space = Dict({"view": grid, "place": SPACE}) if is_part else grid
    symbols = jax.random.randint(jax.random.key(1), (32, 4, 3, 3, 1), 0, 5).astype(jnp.uint8)
    obs = {"view": symbols, "place": seen(2)} if is_part else symbols
    state, cut = (
        novelty.init_novelty(space, CONFIG, jax.random.key(0)),
        minibatches.make_layout(32, 4, 1, 1),
    )
    met = rollout(obs, obs)
    state, *_ = novelty.estimate_intrinsic_advantages(
        CONFIG, state, met, jax.tree.map(lambda x: x[0], obs), jnp.zeros(4)
    )
    first = jax.tree.map(lambda x: x[0, 0], obs)
    other = jax.tree.map(lambda x: (x + 1) % 5 if x.dtype == jnp.uint8 else x, first)
    assert float(novelty.prediction_error(state, first)) > 0
    for function in (novelty.prediction_error, novelty.intrinsic_value):
        assert float(function(state, first)) != float(function(state, other))
    learnt, _ = novelty.learn_novelty(CONFIG, state, met, jnp.ones((32, 4)), cut, jax.random.key(1))
    tables = [jax.tree.leaves(each.predictor.encoder.embeddings) for each in (learnt, state)]
    assert not np.array_equal(*map(np.ravel, tables)), "the embedding of symbols learns"


def test_intrinsic_returns_continue_through_ends() -> None:
    """The sum of r_t + gamma V(s_{t+1}) - V(s_t), with decay gamma lambda, crosses ends."""
    obs, last = seen(1, 5, 2), seen(2, 1, 2)[0]
    next_obs = jnp.concatenate([obs[1:], last[None]])
    state = novelty.init_novelty(SPACE, CONFIG, jax.random.key(0))
    found = novelty.estimate_intrinsic_advantages(
        CONFIG, state, rollout(obs, next_obs), last, jnp.zeros(2)
    )
    ended = novelty.estimate_intrinsic_advantages(
        CONFIG, state, rollout(obs, next_obs, ended=True), last, jnp.zeros(2)
    )
    np.testing.assert_array_equal(found[1], ended[1])
    state, gamma = found[0], CONFIG.intrinsic_gamma

    def each(function, x):
        return np.asarray(jax.vmap(jax.vmap(lambda o: function(state, o)))(x), np.float64)

    value = np.concatenate(
        [each(novelty.intrinsic_value, obs), each(novelty.intrinsic_value, last[None])]
    )
    reward = each(novelty.prediction_error, next_obs) / np.sqrt(
        float(state.returns.variance) + 1e-8
    )
    expected, running = np.zeros((5, 2)), np.zeros(2)
    for t in reversed(range(5)):
        running = reward[t] + gamma * value[t + 1] - value[t] + gamma * CONFIG.gae_lambda * running
        expected[t] = running
    np.testing.assert_allclose(found[1], expected, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(found[2], expected + value[:-1], rtol=2e-4, atol=2e-5)


def test_agents_that_are_done_do_not_affect_novelty() -> None:
    """Their observations change nothing."""
    mask = jnp.arange(4)[None] < jnp.full((32, 1), 2)
    state, cut = (
        novelty.init_novelty(SPACE, CONFIG, jax.random.key(0)),
        minibatches.make_layout(32, 4, 1, 1),
    )
    learnt = []
    for junk in (0.0, 7.0):
        obs = jnp.where(mask[..., None], seen(1), junk)
        data = rollout(obs, obs, mask=mask)
        credited, _, target, *_ = novelty.estimate_intrinsic_advantages(
            CONFIG, state, data, obs[-1], jnp.zeros(4)
        )
        learnt.append(
            novelty.learn_novelty(CONFIG, credited, data, target, cut, jax.random.key(1))[0]
        )
    close = jax.tree.map(lambda x, y: np.allclose(x, y, atol=1e-5), learnt[0], learnt[1])
    assert all(jax.tree.leaves(close))


@pytest.mark.parametrize("begins", [True, False])
def test_steps_between_episodes_do_not_affect_novelty(begins: bool) -> None:
    """An agent is done after two steps and waits for two steps.

    Its observations while it waits change nothing. Its return continues with its next episode. If
    that has not started, the return ends with the value of its last observation before the end.
    """
    own, nexts = seen(1, 6, 1), seen(2, 6, 1)
    waits = jnp.asarray([False, False, True, True, not begins, not begins])
    found = []
    for junk in (0.0, 7.0):
        obs = jnp.where(waits[:, None, None], junk, own)
        next_obs = jnp.where(waits[:, None, None], junk, nexts)
        state = novelty.init_novelty(SPACE, CONFIG, jax.random.key(0))
        met = rollout(obs, next_obs, mask=~waits[:, None])
        last = jnp.full((1, 3), 1.0 if begins else junk)
        found.append(
            novelty.estimate_intrinsic_advantages(
                CONFIG, state, met, last, jnp.zeros(1), jnp.asarray([not begins])
            )
        )
    state, advantage, target, *_ = found[0]
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, found[0], found[1])))
    np.testing.assert_allclose(
        target[1] - advantage[1], novelty.intrinsic_value(state, own[1, 0]), rtol=1e-5
    )
    following = novelty.intrinsic_value(state, own[4 if begins else 1, 0])
    reward = novelty.prediction_error(state, nexts[1, 0]) * jax.lax.rsqrt(
        state.returns.variance + 1e-8
    )
    trace = (CONFIG.intrinsic_gamma * CONFIG.gae_lambda) ** 3 * advantage[4] if begins else 0.0
    expected = (
        reward
        + CONFIG.intrinsic_gamma * following
        - novelty.intrinsic_value(state, own[1, 0])
        + trace
    )
    np.testing.assert_allclose(advantage[1], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_ppo_rnd_solves_a_deep_sea() -> None:
    """One path of 2^16 has a reward, and every step on it has a cost.

    Within 13,000 episodes, PPO without novelty does not find it in any of four seeds.
    """
    environment = make("gymnax/DeepSea-bsuite", size=16, max_steps_in_episode=16)

    def network(key):
        return actor_critic(environment, NetworkConfig(), key)

    algorithm = ppo_rnd(environment, network)
    config = PPORNDConfig(num_envs=16, num_steps=80, learning_rate=1e-3)
    keys, coefficients = (
        jax.vmap(jax.random.key)(jnp.arange(8)),
        jnp.repeat(jnp.asarray([0.0, 1.0]), 4),
    )

    def begin(key, c):
        return algorithm.init(key, dataclasses.replace(config, intrinsic_coefficient=c))

    state, step, found = (
        jax.vmap(begin)(keys, coefficients),
        jax.jit(jax.vmap(algorithm.step)),
        np.zeros(8, bool),
    )
    for _ in range(160):
        state, metrics = step(state)
        found |= np.asarray(metrics.values["reward"]) > 0
    assert not found[:4].any() and found[4:].sum() >= 2, "of four seeds each"
