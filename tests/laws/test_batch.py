"""From trajectories to minibatches: each sequence once an epoch, whole, in order, and all its parts together."""

import math
import re

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings

from rollax import batch


@st.composite
def layouts(draw: st.DrawFn) -> tuple[int, int, batch.Layout]:
    """Sizes that divide: steps, streams and how they are cut."""
    length, sequences = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    streams = draw(st.sampled_from([1, 2, 3, 8, 24, 128]))
    minibatches = draw(st.integers(1, 16))
    assume((streams * sequences) % minibatches == 0)
    return length * sequences, streams, batch.layout(length * sequences, streams, length, minibatches)


def epoch(steps: int, streams: int, cut: batch.Layout, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """All minibatches `[M, L, B]` of an epoch over numbered samples, and over numbered sequences `[M, 1, B]`."""
    samples = jnp.arange(steps * streams).reshape(steps, streams)
    rows = batch.to_rows({"sample": samples, "sequence": samples[:: cut.length]}, cut)
    order = batch.shuffle(jax.random.key(seed), cut)
    taken = jax.vmap(lambda o: batch.take(rows, o))(order)
    return np.asarray(taken["sample"]), np.asarray(taken["sequence"])


@settings(max_examples=15, deadline=None)
@given(layouts(), st.integers(0, 99))
def test_an_epoch(sizes: tuple[int, int, batch.Layout], seed: int) -> None:
    steps, streams, cut = sizes
    samples, sequences = epoch(steps, streams, cut, seed)
    size = steps * streams // cut.length // cut.num_minibatches
    assert samples.shape == (cut.num_minibatches, cut.length, size)
    assert np.array_equal(np.sort(samples.reshape(-1)), np.arange(steps * streams)), "each sample is used exactly once"
    time, stream = samples // streams, samples % streams
    assert np.all(stream == stream[:, :1]), "a sequence is of one stream"
    assert np.all(np.diff(time, axis=1) == 1), "time goes on within a sequence"
    assert np.all(time[:, 0] % cut.length == 0), "sequences begin where the memory was stored"
    assert np.array_equal(sequences[:, 0], samples[:, 0]), "what is kept once a sequence stays with its sequence"


def test_epochs_are_shuffled_anew() -> None:
    cut = batch.layout(8, 16, 1, 4)
    first, second = epoch(8, 16, cut, 0)[0], epoch(8, 16, cut, 1)[0]
    assert not np.array_equal(np.sort(first[0], axis=None), np.sort(second[0], axis=None)), "minibatches change"
    streams = np.sort(first[0].reshape(-1) % 16)
    assert np.array_equal(streams, np.repeat(np.arange(16), 2)), "a minibatch takes the same share of every stream"


def test_every_step_reaches_every_minibatch() -> None:
    """Over many epochs a sample falls into each minibatch about equally often: 400 epochs, 4 minibatches, deviation below 9."""
    cut = batch.layout(8, 4, 1, 4)
    orders = jax.vmap(lambda key: batch.shuffle(key, cut))(jax.random.split(jax.random.key(0), 400))
    rows = jnp.arange(cut.rows)
    counts = jnp.sum(jnp.any(orders[:, :, :, 0, None] == jnp.expand_dims(rows, (0, 1, 2)), axis=2), axis=0)
    assert np.all(np.abs(counts - 100) < 5 * 9), counts


def test_parts_of_a_sample_stay_together() -> None:
    """Leaves of every shape and type are permuted alike."""
    cut = batch.layout(6, 8, 3, 4)
    number = jnp.arange(48.0).reshape(6, 8)
    data = {"vector": number[..., None] * jnp.ones((1, 1, 5)), "flag": number % 2 == 0, "number": number}
    rows = batch.to_rows(data, cut)
    for order in batch.shuffle(jax.random.key(0), cut):
        taken = batch.take(rows, order)
        assert taken["vector"].shape == (3, 4, 5)
        assert np.array_equal(taken["vector"][..., 2], taken["number"])
        assert np.array_equal(taken["flag"], taken["number"] % 2 == 0)


def suggestions(message: str, name: str) -> list[int]:
    """The values that a message recommends for a setting."""
    found = re.search(rf"{name} (\d+)(?: or (\d+))?", message.split("try", 1)[1])
    assert found, message
    return [int(number) for number in found.groups() if number]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 200), st.integers(1, 64))
def test_bad_sequence_length(steps: int, length: int) -> None:
    """The error recommends values that work."""
    assume(steps % length)
    with pytest.raises(ValueError, match=rf"num_steps \({steps}\).*sequence_length \({length}\)") as error:
        batch.layout(steps, 8, length, 1)
    for value in suggestions(str(error.value), "sequence_length"):
        assert batch.layout(steps, 8, value, 1).length == value
    for value in suggestions(str(error.value), "num_steps"):
        assert batch.layout(value, 8, length, 1).length == length


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(1, 40), st.integers(1, 40))
def test_bad_minibatches(sequences: int, streams: int, minibatches: int) -> None:
    """The error recommends values that work."""
    assume((streams * sequences) % minibatches)
    with pytest.raises(ValueError, match=rf"num_minibatches \({minibatches}\)") as error:
        batch.layout(sequences, streams, 1, minibatches)
    for value in suggestions(str(error.value), "num_minibatches"):
        assert batch.layout(sequences, streams, 1, value).num_minibatches == value
    for value in suggestions(str(error.value), "num_envs"):
        cut = batch.layout(sequences, value, 1, minibatches)
        assert cut.groups * cut.parts * cut.block == value


@settings(max_examples=40, deadline=None)
@given(layouts())
def test_streams_are_never_refused_needlessly(sizes: tuple[int, int, batch.Layout]) -> None:
    """Whatever divides is accepted, and the layout covers all of it."""
    steps, streams, cut = sizes
    assert cut.groups * cut.parts * cut.block == streams
    assert cut.sequences * cut.length == steps
    assert cut.rows % cut.num_minibatches == 0
    assert math.gcd(cut.block, batch.LARGEST_BLOCK) == cut.block
