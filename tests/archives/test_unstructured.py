"""Tests of archives with learned descriptors.

They are compared with plain Python, and codes of the autoencoder are checked to be informative.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollax.archives.archive import STATUS_IMPROVED, STATUS_NEW, STATUS_REJECTED, ScoredSolutions
from rollax.archives.unstructured import (
    AutoencoderSettings,
    remove_near_elites,
    unstructured_archive,
)
from rollax.errors import UsageError
from rollax.learning import autoencoder

TARGET, SIZE = 4, 5
EXAMPLE = ScoredSolutions({"x": jnp.zeros(())}, jnp.zeros(()), jnp.zeros(2), jnp.zeros(3))


def archive(target: int = TARGET, **settings: Any) -> Any:
    learning = AutoencoderSettings(
        **(
            {"code_size": 2, "hidden": (), "num_steps": 50, "batch_size": 16, "learning_rate": 1e-2}
            | settings
        )
    )
    return unstructured_archive(target, (0.0, 0.0), (1.0, 1.0), 0.1, learning, (4, 4))


ARCHIVE = archive()
ADD, REFRESH = jax.jit(ARCHIVE.add), jax.jit(ARCHIVE.refresh)
FITNESS = st.sampled_from([0.0, 1.0, 1.0, 2.0, 3.0, float("nan")])
SEEN = st.tuples(*[st.sampled_from([-1.0, 0.0, 0.3, 1.0, 2.0, float("inf")])] * 3)
BATCHES = st.lists(
    st.lists(st.tuples(FITNESS, SEEN), min_size=1, max_size=SIZE), min_size=1, max_size=4
)


def scored(rows: list[Any], start: int) -> ScoredSolutions:
    padded = [*rows, *[(float("nan"), (0.0, 0.0, 0.0))] * (SIZE - len(rows))]
    fitness, seen = (jnp.asarray(np.array(x, np.float32)) for x in zip(*padded, strict=True))
    descriptor = jnp.clip(jnp.nan_to_num(seen[:, :2], posinf=0.0), 0.0, 1.0)
    return ScoredSolutions(
        {"x": start + jnp.arange(SIZE, dtype=jnp.float32)}, fitness, descriptor, seen
    )


def brute_add(
    kept: list[Any], distance: float, rows: list[Any], start: int, codes: np.ndarray
) -> list[int]:
    """Add one row after the other to `kept`, as (number, fitness, code). Return their status."""
    told = []
    for index, (fitness, seen) in enumerate(rows):
        told.append(STATUS_REJECTED)
        if not np.all(np.isfinite([fitness, *seen])):
            continue
        away = [
            np.sqrt(np.sum((code - codes[index]) ** 2, dtype=np.float32)) for _, _, code in kept
        ]
        nearest = int(np.argmin(away)) if away else -1
        row = start + index, fitness, codes[index]
        if not away or away[nearest] > distance:
            if len(kept) < 2 * TARGET:
                kept.append(row)
                told[-1] = STATUS_NEW
        elif fitness > kept[nearest][1] and all(
            a > distance for i, a in enumerate(away) if i != nearest
        ):
            kept[nearest] = row
            told[-1] = STATUS_IMPROVED
    return told


def kept_in(state: Any) -> list[Any]:
    found = jax.device_get((state.elites.solution["x"], state.elites.fitness, state.code))
    return [row for row in zip(*found, strict=True) if row[1] > -np.inf]


@settings(deadline=None, max_examples=100)
@given(BATCHES)
def test_archive_equals_the_brute_force_archive(batches: list[Any]) -> None:
    state, kept = ARCHIVE.init(jax.random.key(0), EXAMPLE), []
    for number, rows in enumerate(batches):
        start = 1 + number * SIZE
        batch = scored(rows, start)
        finite = np.all(np.isfinite(batch.extras), axis=1)[:, None]
        codes = np.asarray(
            autoencoder.encode_rows(state.autoencoder, jnp.where(finite, batch.extras, 0.0))
        )
        told = brute_add(kept, float(state.distance), rows, start, codes)
        state, added, counts = ADD(state, batch)
        assert added.status.tolist() == told + [STATUS_REJECTED] * (SIZE - len(rows))
        assert counts.new == told.count(STATUS_NEW) and counts.better == told.count(STATUS_IMPROVED)
        found = kept_in(state)
        assert [(x, f) for x, f, _ in found] == [(x, f) for x, f, _ in kept]
        assert int(state.filled) == len(kept) == int(ARCHIVE.num_elites(state))
        if kept:
            assert ARCHIVE.best(state).fitness == max(f for _, f, _ in kept)
        state = REFRESH(state, jax.random.key(number))
        check_apart(state)
        kept = kept_in(state)


def check_apart(state: Any) -> None:
    """Check that all elites are the minimum distance apart and have up-to-date codes."""
    codes = (
        np.stack([code for _, _, code in kept_in(state)]) if kept_in(state) else np.zeros((0, 2))
    )
    away = np.linalg.norm(codes[:, None] - codes[None], axis=-1) + 1e9 * np.eye(len(codes))
    assert np.all(away > state.distance * (1 - 1e-5))
    seen = autoencoder.encode_rows(state.autoencoder, state.elites.extras)
    np.testing.assert_allclose(seen, state.code, rtol=1e-5, atol=1e-5)


def test_the_fittest_of_near_elites_remains() -> None:
    state = ARCHIVE.init(jax.random.key(0), EXAMPLE)
    rows = [(1.0, (0.0, 0.0, 0.0)), (3.0, (2.0, 0.0, 0.0)), (2.0, (0.0, 2.0, 0.0))]
    state, added, _ = ADD(state._replace(distance=jnp.float32(1e-3)), scored(rows, 1))
    assert added.status[:3].tolist() == [STATUS_NEW] * 3
    state = remove_near_elites(state._replace(distance=jnp.float32(1e3)))
    assert [(x, f) for x, f, _ in kept_in(state)] == [(2.0, 3.0)]


def test_the_number_of_elites_follows_the_target() -> None:
    """Of thousands of solutions, about `target` remain. There are never more than twice as many."""
    made = archive(target=50, num_steps=200)
    state, key = made.init(jax.random.key(0), EXAMPLE), jax.random.key(1)
    add, refresh = jax.jit(made.add), jax.jit(made.refresh)
    for index in range(120):
        key, seen_key, fitness_key, learn_key = jax.random.split(key, 4)
        seen = jax.random.normal(seen_key, (32, 3))
        fitness = jax.random.normal(fitness_key, (32,))
        state, _, _ = add(
            state, ScoredSolutions({"x": fitness}, fitness, jnp.clip(seen[:, :2], 0, 1), seen)
        )
        assert int(state.filled) <= 100
        state = refresh(state, learn_key)
        assert index < 60 or 30 <= int(state.filled) <= 75


def test_codes_have_enough_information_to_restore_rows() -> None:
    """Rows that are linear in two numbers are restored from codes of size two, not of size one."""
    latent = jax.random.normal(jax.random.key(0), (256, 2))
    rows = latent @ jax.random.normal(jax.random.key(1), (2, 6)) * 3.0 + 5.0
    losses = []
    for size in (1, 2):
        state = autoencoder.init_autoencoder(6, size, (), 1e-2, jax.random.key(2))
        learn = jax.jit(autoencoder.train_autoencoder, static_argnums=4)
        state = learn(
            state, rows, jnp.ones(256, bool), jnp.int32(1500), 64, 1e-2, jax.random.key(3)
        )
        losses.append(float(state.loss))
        codes = autoencoder.encode_rows(state, rows)
        np.testing.assert_allclose(jnp.mean(codes, axis=0), 0.0, atol=1e-4)
        np.testing.assert_allclose(jnp.std(codes, axis=0), 1.0, atol=1e-3)
    assert losses[1] < 0.01 < 0.1 < losses[0]


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(UsageError, match="grid must have one number per descriptor dimension"):
        unstructured_archive(
            4, (0.0, 0.0), (1.0, 1.0), 0.1, AutoencoderSettings(2, (), 1, 1, 1e-3), (4,)
        )
    with pytest.raises(UsageError, match="Use fewer cells per dimension"):
        unstructured_archive(
            4,
            (0.0, 0.0),
            (1.0, 1.0),
            0.1,
            AutoencoderSettings(2, (), 1, 1, 1e-3),
            (100_000, 100_000),
        )
    with pytest.raises(UsageError, match="must be the recorded observations of each solution"):
        ARCHIVE.init(jax.random.key(0), EXAMPLE._replace(extras=()))
