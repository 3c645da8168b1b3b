"""Tests of population-based training: selection, copies, and states that do not change."""

import functools
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax import Algorithm, NetworkConfig, PPOConfig, actor_critic, make, population, ppo
from rollax.populations.evolution import (
    EvolutionConfig,
    Range,
    evolve,
    evolving,
    explore_setting,
    num_selected,
    rank_members,
    sample_setting,
    select_parents,
)

MEMBERS = 8
RANGES = {"learning_rate": Range(1e-4, 1e-1, "log"), "entropy_coefficient": Range(0.0, 0.1)}
SETTINGS = PPOConfig(num_envs=4, num_steps=4, num_minibatches=2, num_epochs=1)


def programs() -> tuple[Any, Any, Any]:
    """Return a population of PPO: its state after one update, the update, and the generation."""
    state, step, generation = _programs()
    return again(state), step, generation


def again(state: Any) -> Any:
    """Return the same state with cloned keys, because of the check against key reuse."""
    return jax.tree.map(
        lambda x: jax.random.clone(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, state
    )


@functools.cache
def many() -> Algorithm:
    environment = make("probe/action-reward")
    return population(
        ppo(environment, lambda key: actor_critic(environment, NetworkConfig(hidden=(4,)), key))
    )


@functools.cache
def _programs() -> tuple[Any, Any, Any]:
    running = evolving(many(), RANGES)
    run_key, child_key = jax.random.split(jax.random.key(0))
    keys = jax.random.split(run_key, MEMBERS), jax.random.split(child_key, MEMBERS)
    configs = jax.tree.map(lambda value: jnp.full(MEMBERS, value), SETTINGS)
    step = jax.jit(running.step)
    state, _ = step(jax.jit(running.init)(keys, configs))
    return state, step, jax.jit(lambda state: evolve(many(), state, RANGES))


def scored(state: Any, fitness: Any, is_well: Any = None) -> Any:
    """Return the state with the given mean returns of training."""
    fitness, well = jnp.asarray(fitness, jnp.float32), jnp.ones(MEMBERS, bool)
    return state._replace(
        total_return=3 * fitness,
        episodes=3 * jnp.ones(MEMBERS),
        is_finite=well if is_well is None else jnp.asarray(is_well),
    )


def raw(leaf: jax.Array) -> np.ndarray:
    return np.asarray(
        jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
    )


def member(state: Any, index: int) -> list[bytes]:
    return [raw(leaf)[index].tobytes() for leaf in jax.tree.leaves(state.members)]


RISING = np.arange(MEMBERS) / 10


def test_survivors_keep_every_bit() -> None:
    before, _, generation = programs()
    after, happened = generation(scored(before, RISING))
    replaced = np.flatnonzero(np.asarray(happened.parent) != np.arange(MEMBERS))
    assert replaced.tolist() == [0, 1]
    for index in range(2, MEMBERS):
        assert member(after, index) == member(before, index)


@pytest.mark.quick
def test_parents_are_the_best_and_children_are_copies() -> None:
    """Copies differ from their parents in settings, keys, and starts drawn with previous keys."""
    before, _, generation = programs()
    after, happened = generation(scored(before, RISING))
    paths = [
        jax.tree_util.keystr(path)
        for path, _ in jax.tree_util.tree_leaves_with_path(before.members)
    ]
    for child in (0, 1):
        parent = int(happened.parent[child])
        assert parent in (6, 7)
        same = [
            new == old
            for new, old in zip(member(after, child), member(before, parent), strict=True)
        ]
        differing = {path for path, is_same in zip(paths, same, strict=True) if not is_same}
        own = {".key", ".actor.reset_pool.key", ".actor.reset_pool.pooled_episode"}
        assert differing == own | {f".config.{name}" for name in RANGES}
    np.testing.assert_array_equal(
        after.fitness, RISING.astype(np.float32)[np.asarray(happened.parent)]
    )
    assert not np.any(after.episodes) and not np.any(after.total_return)


def test_children_of_one_parent_differ() -> None:
    """They have different keys and settings, and different parameters after one update."""
    state, step, generation = programs()
    only_one = np.where(np.arange(MEMBERS) == 5, 1.0, np.nan)
    after, happened = generation(scored(state, only_one, is_well=np.isfinite(only_one)))
    assert set(happened.parent.tolist()) == {5}, (
        "all others are broken, so all become copies of the one that is not"
    )
    for name in RANGES:
        assert len(set(happened.settings[name].tolist())) == MEMBERS
        np.testing.assert_array_equal(getattr(after.members.config, name), happened.settings[name])
    for keys in (after.key, after.members.key, after.members.actor.reset_pool.key):
        data = raw(keys)
        assert len(np.unique(data.reshape(-1, data.shape[-1]), axis=0)) == keys.size
    stepped, _ = step(after)
    weights = max(jax.tree.leaves(stepped.members.train.network), key=lambda leaf: leaf.size)
    assert len({raw(weights)[index].tobytes() for index in range(MEMBERS)}) == MEMBERS
    starts = raw(stepped.members.actor.reset_pool.key)
    assert len({starts[index].tobytes() for index in range(MEMBERS)}) == MEMBERS


def test_children_differ_even_with_equal_settings() -> None:
    """Different keys alone make different runs."""
    state, step, _ = programs()
    only_one = np.where(np.arange(MEMBERS) == 5, 1.0, np.nan)
    still = jax.jit(
        lambda state: evolve(
            many(), state, RANGES, EvolutionConfig(resample=0.0, factor=1.0, step=0.0)
        )
    )
    after, happened = still(scored(state, only_one, is_well=np.isfinite(only_one)))
    for name in RANGES:
        np.testing.assert_allclose(
            happened.settings[name], getattr(state.members.config, name)[5], rtol=1e-5
        )
    for _ in range(12):  # because the few actions of two members may be equal in one update
        after, _ = step(after)
    weights = max(jax.tree.leaves(after.members.train.network), key=lambda leaf: leaf.size)
    assert len({raw(weights)[index].tobytes() for index in range(MEMBERS)}) == MEMBERS


def test_a_nonfinite_member_is_replaced() -> None:
    """It is replaced whatever its return. A member with a nonfinite return is also replaced."""
    state, _, generation = programs()
    well = np.arange(MEMBERS) > 2
    broken = scored(state, np.where(well, RISING, 100.0), is_well=well)
    after, happened = generation(broken)
    assert np.isnan(happened.fitness).tolist() == (~well).tolist()
    assert [index for index in range(MEMBERS) if happened.parent[index] != index] == [0, 1, 2]
    assert set(happened.parent[:3].tolist()) <= {6, 7}
    assert np.all(after.is_finite)
    _, happened = generation(
        scored(again(state), np.where(np.arange(MEMBERS) == 7, np.nan, RISING))
    )
    assert happened.parent[7] in (5, 6)


def test_updates_detect_nonfinite_members() -> None:
    state, step, generation = programs()
    train = state.members.train
    broken = train._replace(network=jax.tree.map(lambda x: x.at[3].set(jnp.nan), train.network))
    after, _ = step(state._replace(members=state.members._replace(train=broken)))
    assert after.is_finite.tolist() == [index != 3 for index in range(MEMBERS)]
    after, happened = generation(after)
    assert happened.parent[3] != 3
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(after.members.train.network))


def test_equal_members_are_not_replaced() -> None:
    """Nor are members before any fitness is known."""
    state, _, generation = programs()
    for fitness in (np.full(MEMBERS, -500.0), np.full(MEMBERS, np.nan)):
        after, happened = generation(scored(again(state), fitness))
        assert happened.parent.tolist() == list(range(MEMBERS))
        assert [member(after, index) for index in range(MEMBERS)] == [
            member(state, index) for index in range(MEMBERS)
        ]


def test_fitness_is_the_return_since_the_last_generation() -> None:
    """A member without a new episode keeps its last fitness and is left out.

    Its episodes continue to count.
    """
    state, step, generation = programs()
    state, first = generation(scored(state, RISING))
    state, metrics = step(state)
    expected = metrics.episodes.total_return / metrics.episodes.number
    state = state._replace(
        episodes=state.episodes.at[4].set(0.0), total_return=state.total_return.at[4].set(-50.0)
    )
    after, second = generation(state)
    np.testing.assert_allclose(
        second.fitness, jnp.asarray(expected).at[4].set(first.fitness[4]), rtol=1e-6
    )
    assert second.parent[4] == 4 and 4 not in np.delete(np.asarray(second.parent), 4)
    assert after.total_return.tolist() == [-50.0 if index == 4 else 0.0 for index in range(MEMBERS)]
    assert not np.any(after.episodes)


def test_a_generation_is_deterministic_and_the_next_one_differs() -> None:
    state, _, generation = programs()
    state = scored(state, RISING)
    (after, first), (_, repeated) = generation(state), generation(again(state))
    _, second = generation(scored(after, RISING))
    assert [raw(x).tobytes() for x in jax.tree.leaves(first)] == [
        raw(x).tobytes() for x in jax.tree.leaves(repeated)
    ]
    assert not np.isclose(
        first.settings["learning_rate"][:2], second.settings["learning_rate"][:2]
    ).any()


@pytest.mark.parametrize("name", ["learning_rate", "entropy_coefficient"])
def test_updates_use_the_evolved_settings(name: str) -> None:
    """A learning rate of zero changes no parameter, and the loss includes the entropy bonus."""
    state, step, _ = programs()
    half = np.arange(MEMBERS) % 2 == 0
    config = {name: jnp.where(half, 0.0, getattr(state.members.config, name))}
    members = state.members._replace(
        config=state.members.config.__class__(**{**vars(state.members.config), **config})
    )
    after, metrics = step(state._replace(members=members))
    np.testing.assert_array_equal(metrics.values[f"evolve/{name}"], config[name])
    before, moved = (
        jax.tree.leaves(members.train.network),
        jax.tree.leaves(after.members.train.network),
    )
    changes = sum(
        np.abs(raw(new) - raw(old)).reshape(MEMBERS, -1).sum(axis=1)
        for new, old in zip(moved, before, strict=True)
    )
    if name == "learning_rate":
        assert (changes == 0).tolist() == half.tolist()
    else:
        found = metrics.values
        bonus = found["policy_loss"] + 0.5 * found["value_loss"] - found["loss"]
        np.testing.assert_allclose(bonus, config[name] * found["entropy"], atol=1e-5)


FITNESS = st.lists(
    st.sampled_from([-1.0, 0.0, 0.5, 2.0, float("nan"), 1e30]), min_size=2, max_size=12
)


@pytest.mark.quick
@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(fitness=FITNESS, fraction=st.floats(0.0, 0.5), seed=st.integers(0, 99))
def test_ranks_and_parents(fitness: list[float], fraction: float, seed: int) -> None:
    """Ranks start with the best, with ties by index and NaN last.

    Parents are better than the members that they replace, and are not replaced. Finite members with
    unknown fitness are left out of the comparison.
    """
    size, values = len(fitness), np.array(fitness, np.float32)
    place = np.asarray(rank_members(jnp.asarray(values)))
    worth = np.where(np.isnan(values), -np.inf, values)
    assert np.argsort(place).tolist() == sorted(
        range(size), key=lambda index: (-worth[index], index)
    )
    well = np.random.default_rng(seed).random(size) > 0.2
    values = np.where(well, values, np.nan).astype(np.float32)
    worth, place = (
        np.where(np.isnan(values), -np.inf, values),
        np.asarray(rank_members(jnp.asarray(values))),
    )
    keys = jax.random.split(jax.random.key(seed), size)
    parent = np.asarray(select_parents(keys, jnp.asarray(values), jnp.asarray(well), fraction))
    number = num_selected(size, fraction)
    assert 1 <= number <= size / 2
    num_compared = size - np.sum(np.isnan(values) & well)
    for index in np.flatnonzero(parent != np.arange(size)):
        assert np.isfinite(values[index]) or not well[index], "unknown is not bad"
        assert place[index] >= num_compared - min(number, num_compared // 2) or not well[index]
        assert place[parent[index]] < number and np.isfinite(values[parent[index]])
        assert worth[parent[index]] > worth[index]
        assert parent[parent[index]] == parent[index]
    if np.isfinite(values).any():
        assert all(parent[index] != index for index in np.flatnonzero(~well))


SPANS = [
    Range(1e-5, 1e-1, "log"),
    Range(0.9, 0.999),
    Range(-1.0, 0.0),
    Range(1e-4, 2e-4, "log"),
    Range(0.0, 1e-6),
]


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize(
    "method", [EvolutionConfig(), EvolutionConfig(resample=0.0, factor=100.0, step=1.0)]
)
def test_settings_stay_in_their_range(span: Range, method: EvolutionConfig) -> None:
    """Settings are perturbed a hundred times, starting from both ends of the range."""
    draw_key, walk_key = jax.random.split(jax.random.key(1))
    low, high = np.float32(span.low), np.float32(span.high)
    drawn = jax.vmap(lambda key: sample_setting(key, span))(jax.random.split(draw_key, 100))
    assert np.all((drawn >= low) & (drawn <= high)) and len(set(drawn.tolist())) > 90

    def walk(start: jax.Array, key: jax.Array) -> jax.Array:
        def move(value: jax.Array, time: jax.Array) -> tuple[jax.Array, jax.Array]:
            value = explore_setting(jax.random.fold_in(key, time), value, span, method)
            return value, value

        return jax.lax.scan(move, start, jnp.arange(100))[1]

    starts = jnp.array([span.low, span.high], jnp.float32)
    values = jax.jit(jax.vmap(walk))(starts, jax.random.split(walk_key))
    assert np.all((values >= low) & (values <= high)) and len(set(values.ravel().tolist())) > 180


def test_perturbed_and_resampled_settings() -> None:
    """Perturbations are within the factor, equally often up and down. A share is resampled."""
    span, factor = Range(1e-6, 1.0, "log"), np.log(EvolutionConfig().factor)

    def moved(resample: float) -> np.ndarray:
        keys = jax.random.split(jax.random.key(2), 2000)
        values = jax.vmap(
            lambda key: explore_setting(
                key, jnp.float32(1e-3), span, EvolutionConfig(resample=resample)
            )
        )(keys)
        return np.log(np.asarray(values) / 1e-3) / factor

    assert np.all(np.abs(moved(0.0)) < 1.001) and 0.4 < (moved(0.0) > 0).mean() < 0.6
    assert 0.4 < (np.abs(moved(0.5)) > 1.001).mean() < 0.55
