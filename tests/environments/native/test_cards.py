"""Tests of the card games: decks, returns in closed form, ends and images."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.canvas import scene
from rollax.checks.environment_check import check_environment
from rollax.environments import make
from rollax.environments.native.memory.cards import GAMES, shuffle_decks
from rollax.errors import UsageError
from rollax.visualization.render import drawings

Play = Callable[
    [jax.Array, jax.Array, jax.Array], Any
]  # (key, observations so far, time) -> action


def played(env: Any, policy: Play, episodes: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Run episodes of a policy that sees all observations so far.

    Returns rewards and ends, `[episodes, T]`, and observations, `[episodes, T + 1, ...]`.
    """
    limit = env.time_limit

    def episode(key: jax.Array) -> Any:
        state, obs = env.reset(jax.random.fold_in(key, limit))
        seen = jnp.zeros((limit + 1, *obs.shape), obs.dtype).at[0].set(obs)

        def act(carry: Any, time: jax.Array) -> Any:
            state, seen = carry
            action_key, step_key = jax.random.split(jax.random.fold_in(key, time))
            after = env.step(
                step_key, state, jnp.asarray(policy(action_key, seen, time), jnp.int32)
            )
            return (after.state, seen.at[time + 1].set(after.obs)), (
                after.reward,
                after.terminated,
                after.truncated,
            )

        (_, seen), (reward, terminated, truncated) = jax.lax.scan(
            act, (state, seen), jnp.arange(limit)
        )
        return reward, terminated & ~truncated, seen

    return jax.device_get(jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(1), episodes)))


def recited(seen: jax.Array, time: jax.Array, cards: int) -> jax.Array:
    return seen[jnp.clip(2 * (cards - 1) - time, 0, cards - 1), 1]


def counted(seen: jax.Array, time: jax.Array) -> jax.Array:
    return jnp.sum((jnp.arange(len(seen)) <= time) & (seen[:, 0] == seen[time, 1]))


PERFECT: dict[str, Callable[[Any], Play]] = {
    "repeat-first": lambda env: lambda key, seen, time: seen[0],
    "autoencode": lambda env: lambda key, seen, time: recited(seen, time, env.num_cards),
    "count-recall": lambda env: lambda key, seen, time: counted(seen, time),
}


@pytest.mark.parametrize("decks", [1, 3])
@pytest.mark.parametrize("name", PERFECT)
def test_perfect_memory_has_return_1(name: str, decks: int) -> None:
    for deck_type in ("colors", "suits", "ranks") if name == "count-recall" else (None,):
        env = make(
            f"memory/{name}", decks=decks, **({} if deck_type is None else {"deck_type": deck_type})
        )
        rewards, ends, _ = played(env, PERFECT[name](env), episodes=3)
        np.testing.assert_allclose(rewards.sum(axis=1), 1.0, rtol=1e-5)
        np.testing.assert_array_equal(
            ends, np.arange(env.time_limit) == env.time_limit - 1 + np.zeros((3, 1))
        )


@pytest.mark.parametrize(
    ("name", "mean", "spread"), [("repeat-first", -0.5, 0.121), ("autoencode", -0.5, 0.12)]
)
def test_returns_of_uniform_actions(name: str, mean: float, spread: float) -> None:
    """Independent guesses of one of four have a mean of -1/2.

    The standard deviation is 2 sqrt(3 / 16 / number of answers).
    """
    env = make(f"memory/{name}")
    returns = played(env, lambda key, seen, time: env.action_space.sample(key), 3000)[0].sum(axis=1)
    assert abs(returns.mean() - mean) < 4 * spread / np.sqrt(3000)
    np.testing.assert_allclose(returns.std(), spread, rtol=0.06)


def test_returns_without_memory() -> None:
    """Policies use the last observation: another suit, the last card, the middle of the ranks."""
    first = played(make("memory/repeat-first"), lambda key, seen, time: (seen[time] + 1) % 4, 3000)[
        0
    ][:, 1:].sum(axis=1)
    np.testing.assert_allclose(
        first.mean(), 50 / 51 * (2 * 13 / 51 - 1), atol=4 * first.std() / np.sqrt(3000)
    )
    coder = make("memory/autoencode")

    def said(key: jax.Array, seen: jax.Array, time: jax.Array) -> jax.Array:
        return jnp.where(time == 51, seen[51, 1], (seen[51, 1] + 1) % 4)

    coded = played(coder, said, 3000)[0].sum(axis=1)
    np.testing.assert_allclose(
        coded.mean(), (1 + 51 * (2 * 13 / 51 - 1)) / 52, atol=4 * coded.std() / np.sqrt(3000)
    )
    higher = played(make("memory/higher-lower"), lambda key, seen, time: seen[time] > 6, 3000)[
        0
    ].sum(axis=1)
    ranks = np.arange(13)
    np.testing.assert_allclose(
        higher.mean(),
        np.abs(4 * (12 - 2 * ranks)).mean() / 52,
        atol=4 * higher.std() / np.sqrt(3000),
    )


def test_counting_the_remaining_cards_improves_the_return() -> None:
    env = make("memory/higher-lower")

    def guess(key: jax.Array, seen: jax.Array, time: jax.Array) -> jax.Array:
        is_seen = jnp.arange(len(seen)) <= time
        left = 4 - jnp.sum(is_seen[:, None] & (seen[:, None] == jnp.arange(13)[None]), axis=0)
        ranks = jnp.arange(13)
        return jnp.sum(left * (ranks > seen[time])) < jnp.sum(left * (ranks < seen[time]))

    returns = played(env, guess, 3000)[0].sum(axis=1)
    np.testing.assert_allclose(returns.mean(), 0.53, atol=0.01)


@pytest.mark.parametrize("decks", [1, 2])
@pytest.mark.parametrize("symbols", [2, 4, 13])
def test_a_deck_has_equal_numbers_of_all_symbols(decks: int, symbols: int) -> None:
    cards = shuffle_decks(jax.random.key(0), decks, symbols)
    np.testing.assert_array_equal(np.bincount(cards), np.full(symbols, 52 * decks // symbols))
    assert (np.asarray(cards) != np.asarray(shuffle_decks(jax.random.key(1), decks, symbols))).any()


def test_cards_are_hidden_in_the_recall_phase() -> None:
    env = make("memory/autoencode")
    seen = played(env, lambda key, seen, time: 0)[2][0]
    np.testing.assert_array_equal(seen[:, 0], np.arange(104) >= 51)
    assert not seen[52:, 1].any() and seen[:52, 1].any()


@pytest.mark.parametrize("name", GAMES)
def test_environments_with_more_decks_pass_the_check(name: str) -> None:
    env = make(f"memory/{name}", decks="2")
    assert env.time_limit in (103, 207)
    assert check_environment(env, steps=2 * env.time_limit + 2).episodes >= 2


def test_invalid_arguments_are_refused() -> None:
    for name in GAMES:
        with pytest.raises(UsageError, match=r"decks \(0\) must be at least 1"):
            make(f"memory/{name}", decks=0)
    with pytest.raises(UsageError, match="deck_type"):
        make("memory/count-recall", deck_type="aces")


def test_images_show_the_dealt_cards() -> None:
    env = make("memory/autoencode")
    state, obs = jax.device_get(env.reset(jax.random.key(0)))
    state = state._replace(time=np.asarray(2))
    picture, edge = drawings.find_drawing(env).draw(env, state, obs), (scene.SCENE_WIDTH - 8) / 13
    colors = [
        picture.getpixel((round(4 + (place + 0.2) * edge), round(4 + 0.2 * edge)))
        for place in range(4)
    ]
    assert colors == [
        *(scene.CHANNEL_COLORS[symbol] for symbol in state.cards[:3]),
        scene.BACKGROUND,
    ]
    frames = {
        time: _framed(env, state._replace(time=np.asarray(time)), obs)
        for time in (0, 3, 51, 60, 102)
    }
    assert frames == {0: 0, 3: 3, 51: 51, 60: 42, 102: 0}


def _framed(env: Any, state: Any, obs: Any) -> int:
    picture, edge = drawings.find_drawing(env).draw(env, state, obs), (scene.SCENE_WIDTH - 8) / 13
    corners = [(round(5 + place % 13 * edge), round(5 + place // 13 * edge)) for place in range(52)]
    return [picture.getpixel(corner) for corner in corners].index(scene.DARK_GRAY)
