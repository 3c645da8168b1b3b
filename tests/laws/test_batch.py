"""Tests of minibatches: each sequence occurs once per epoch, complete and in order."""

import math
import re
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings

from rollax.learning import minibatches, priorities


@st.composite
def layouts(draw: st.DrawFn) -> tuple[int, int, minibatches.MinibatchLayout]:
    """Draw the number of steps and streams, and a layout that divides them."""
    length, sequences = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    streams = draw(st.sampled_from([1, 2, 3, 8, 24, 128]))
    number = draw(st.integers(1, 16))
    assume((streams * sequences) % number == 0)
    return (
        length * sequences,
        streams,
        minibatches.make_layout(length * sequences, streams, length, number),
    )


def epoch(
    steps: int, streams: int, cut: minibatches.MinibatchLayout, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the minibatches of an epoch over numbered samples and over numbered sequences.

    The shapes are `[M, L, B]` for samples and `[M, 1, B]` for sequences.
    """
    samples = jnp.arange(steps * streams).reshape(steps, streams)
    rows = minibatches.to_rows({"sample": samples, "sequence": samples[:: cut.length]}, cut)
    order = minibatches.shuffle_rows(jax.random.key(seed), cut)
    taken = jax.vmap(lambda o: minibatches.gather_minibatch(rows, o))(order)
    return np.asarray(taken["sample"]), np.asarray(taken["sequence"])


@settings(max_examples=15, deadline=None)
@given(layouts(), st.integers(0, 99))
def test_an_epoch_has_each_sequence_once(
    sizes: tuple[int, int, minibatches.MinibatchLayout], seed: int
) -> None:
    steps, streams, cut = sizes
    samples, sequences = epoch(steps, streams, cut, seed)
    size = steps * streams // cut.length // cut.num_minibatches
    assert samples.shape == (cut.num_minibatches, cut.length, size)
    assert np.array_equal(np.sort(samples.reshape(-1)), np.arange(steps * streams)), (
        "each sample is used exactly once"
    )
    time, stream = samples // streams, samples % streams
    assert np.all(stream == stream[:, :1]), "a sequence is of one stream"
    assert np.all(np.diff(time, axis=1) == 1), "time goes on within a sequence"
    assert np.all(time[:, 0] % cut.length == 0), "sequences begin where the memory was stored"
    assert np.array_equal(sequences[:, 0], samples[:, 0]), (
        "what is kept once a sequence stays with its sequence"
    )


def test_the_order_depends_on_the_key() -> None:
    cut = minibatches.make_layout(8, 16, 1, 4)
    first, second = epoch(8, 16, cut, 0)[0], epoch(8, 16, cut, 1)[0]
    assert not np.array_equal(np.sort(first[0], axis=None), np.sort(second[0], axis=None)), (
        "minibatches change"
    )
    streams = np.sort(first[0].reshape(-1) % 16)
    assert np.array_equal(streams, np.repeat(np.arange(16), 2)), (
        "a minibatch takes the same share of every stream"
    )


def test_every_epoch_of_an_update_has_another_order() -> None:
    """`run_epochs` passes every row once per epoch, each time in another order."""
    cut = minibatches.make_layout(8, 16, 1, 4)
    shape = minibatches.shuffle_rows(jax.random.key(0), cut).shape

    def take(taken: Any, order: jax.Array, active: Any) -> tuple[Any, dict[str, jax.Array]]:
        count, orders = taken
        return (count + 1, orders.at[count].set(order)), {"approx_kl": jnp.zeros(())}

    start = jnp.zeros((), jnp.int32), jnp.zeros((3 * shape[0], *shape[1:]), jnp.int32)
    (count, orders), _ = minibatches.run_epochs(take, start, cut, jax.random.key(0), 3, 0, jnp.inf)
    assert count == 3 * cut.num_minibatches
    epochs = np.asarray(orders).reshape(3, cut.rows, cut.groups)
    assert np.array_equal(np.sort(epochs, axis=1)[:, :, 0], np.tile(np.arange(cut.rows), (3, 1)))
    assert not np.array_equal(epochs[0], epochs[1]) and not np.array_equal(epochs[1], epochs[2])


def test_every_row_occurs_in_every_minibatch() -> None:
    """A row is in each of 4 minibatches about equally often.

    The expected count over 400 epochs is 100, with a standard deviation below 9.
    """
    cut = minibatches.make_layout(8, 4, 1, 4)
    orders = jax.vmap(lambda key: minibatches.shuffle_rows(key, cut))(
        jax.random.split(jax.random.key(0), 400)
    )
    rows = jnp.arange(cut.rows)
    counts = jnp.sum(
        jnp.any(orders[:, :, :, 0, None] == jnp.expand_dims(rows, (0, 1, 2)), axis=2), axis=0
    )
    assert np.all(np.abs(counts - 100) < 5 * 9), counts


@pytest.mark.parametrize("rows", [1, 3, 8, 128])
def test_ranks_are_a_permutation(rows: int) -> None:
    """The ranks are those of a stable sort, also for equal numbers and the largest integer."""
    some = jax.random.randint(jax.random.key(rows), (rows, 64), 0, 9)
    for numbers in (some, jnp.where(some > 4, jnp.iinfo(jnp.int32).max, 0)):
        order = np.argsort(np.asarray(numbers), axis=0, kind="stable")
        np.testing.assert_array_equal(minibatches.rank_columns(numbers), np.argsort(order, axis=0))


def test_leaves_of_a_sample_stay_together() -> None:
    """Leaves of all shapes and types have the same permutation."""
    cut = minibatches.make_layout(6, 8, 3, 4)
    number = jnp.arange(48.0).reshape(6, 8)
    data = {
        "vector": number[..., None] * jnp.ones((1, 1, 5)),
        "flag": number % 2 == 0,
        "number": number,
    }
    rows = minibatches.to_rows(data, cut)
    for order in minibatches.shuffle_rows(jax.random.key(0), cut):
        taken = minibatches.gather_minibatch(rows, order)
        assert taken["vector"].shape == (3, 4, 5)
        assert np.array_equal(taken["vector"][..., 2], taken["number"])
        assert np.array_equal(taken["flag"], taken["number"] % 2 == 0)


@pytest.mark.quick
def test_prioritized_minibatches_contain_complete_sequences() -> None:
    """If one sequence has all the priority, only this one is drawn, complete and in order."""
    cut = minibatches.make_layout(8, 32, 4, 2, is_pooled=True)
    assert cut.rows == 64 and cut.groups == cut.block_size == 1
    rows = minibatches.to_rows(jnp.arange(256).reshape(8, 32), cut)
    for stream, segment in ((0, 0), (5, 1), (31, 1)):
        wanted = stream + 32 * jnp.arange(4 * segment, 4 * segment + 4)
        priority = jnp.any(rows.reshape(64, -1) == wanted[0], axis=1).astype(jnp.float32)
        taken = jax.vmap(lambda o: minibatches.gather_minibatch(rows, o))(
            priorities.sample_rows(priority, 0.8, jax.random.key(0), cut)
        )
        assert taken.shape == (2, 4, 32)
        np.testing.assert_array_equal(taken, np.broadcast_to(wanted[:, None], taken.shape))


PRIORITIES = st.lists(st.floats(1e-6, 100.0), min_size=2, max_size=8)


@settings(max_examples=40, deadline=None)
@given(PRIORITIES, st.floats(0.0, 2.0), st.floats(0.0, 1.0), st.integers(0, 99))
def test_importance_weights_correct_the_sampling(
    values: list[float], exponent: float, beta: float, seed: int
) -> None:
    """With beta 1 the expected loss of the draws is the mean over all samples."""
    numbers = np.random.default_rng(seed)
    size = numbers.integers(1, 9, len(values)).astype(np.float32)
    loss = numbers.normal(size=len(size))
    absent = len(size) // 2
    size[absent] = 0
    priority = jnp.where(jnp.arange(len(size)) == absent, 0.0, jnp.asarray(values, jnp.float32))
    chance = np.exp(np.asarray(priorities.log_probabilities(priority, exponent), np.float64))
    drawn = np.sum(chance * size)

    def expected(beta: float, loss: np.ndarray) -> float:
        weight = np.asarray(
            priorities.importance_weights(priority, exponent, beta, jnp.asarray(size)), np.float64
        )
        assert weight[absent] == chance[absent] == 0, (
            "an absent row is not drawn, and changes no other"
        )
        return float(np.sum(chance * weight * size * loss) / drawn)

    assert expected(1.0, loss) == pytest.approx(
        np.sum(size * loss) / np.sum(size), rel=1e-3, abs=1e-3
    )
    assert expected(beta, np.ones(len(size))) == pytest.approx(1.0, rel=1e-3)


@pytest.mark.quick
def test_importance_weights_by_hand() -> None:
    """P = 3/4 and 1/4.

    With beta 0 the weights are 1, with beta 1 they are 2/3 and 2, with mean 1.
    """
    priority, size = jnp.array([3.0, 1.0, 0.0]), jnp.array([1.0, 1.0, 0.0])
    assert priorities.importance_weights(priority, 1.0, 0.0, size).tolist() == pytest.approx(
        [1, 1, 0]
    )
    assert priorities.importance_weights(priority, 1.0, 1.0, size).tolist() == pytest.approx(
        [2 / 3, 2, 0]
    )
    nothing = priorities.importance_weights(jnp.zeros(3), 1.0, 1.0, jnp.zeros(3))
    assert nothing.tolist() == [0, 0, 0], (
        "where nobody is present nothing counts, and all is finite"
    )
    assert jnp.all(jnp.isfinite(priorities.log_probabilities(jnp.zeros(3), 1.0)))


def suggestions(message: str, name: str) -> list[int]:
    """Return the values that a message recommends for a setting."""
    found = re.search(rf"{name} (\d+)(?: or (\d+))?", message.split("Use", 1)[1])
    assert found, message
    return [int(number) for number in found.groups() if number]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 200), st.integers(1, 64))
def test_the_error_of_sequence_length_recommends_values(steps: int, length: int) -> None:
    """The recommended values are valid."""
    assume(steps % length)
    with pytest.raises(
        ValueError, match=rf"num_steps \({steps}\).*sequence_length \({length}\)"
    ) as error:
        minibatches.make_layout(steps, 8, length, 1)
    for value in suggestions(str(error.value), "sequence_length"):
        assert minibatches.make_layout(steps, 8, value, 1).length == value
    for value in suggestions(str(error.value), "num_steps"):
        assert minibatches.make_layout(value, 8, length, 1).length == length


@pytest.mark.quick
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(1, 40), st.integers(1, 40))
def test_the_error_of_num_minibatches_recommends_values(
    sequences: int, streams: int, number: int
) -> None:
    """The recommended values are valid."""
    assume((streams * sequences) % number)
    with pytest.raises(ValueError, match=rf"num_minibatches \({number}\)") as error:
        minibatches.make_layout(sequences, streams, 1, number)
    for value in suggestions(str(error.value), "num_minibatches"):
        assert minibatches.make_layout(sequences, streams, 1, value).num_minibatches == value
    for value in suggestions(str(error.value), "num_envs"):
        cut = minibatches.make_layout(sequences, value, 1, number)
        assert cut.groups * cut.parts * cut.block_size == value


@settings(max_examples=40, deadline=None)
@given(layouts())
def test_sizes_that_divide_are_accepted(
    sizes: tuple[int, int, minibatches.MinibatchLayout],
) -> None:
    """The layout covers all samples."""
    steps, streams, cut = sizes
    assert cut.groups * cut.parts * cut.block_size == streams
    assert cut.num_sequences * cut.length == steps
    assert cut.rows % cut.num_minibatches == 0
    assert math.gcd(cut.block_size, minibatches.MAX_BLOCK_SIZE) == cut.block_size
