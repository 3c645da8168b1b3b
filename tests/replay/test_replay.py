"""Tests of replay: rows, types, streams, sequences and priorities."""

import collections
import dataclasses
import re
from functools import cache
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings

from rollax.errors import UsageError
from rollax.replay import prioritized, ring
from rollax.replay.ring import ReplayStep
from rollax.training.compile import device_memory, program, run_check
from rollax.training.spec import RunOptions, make_spec

few = settings(max_examples=10, deadline=None)


def example() -> dict[str, Any]:
    return {
        "picture": jnp.zeros((2, 2), jnp.uint8),
        "half": jnp.zeros((), jnp.bfloat16),
        "number": jnp.zeros((), jnp.int32),
    }


def row(streams: int, time: int) -> dict[str, Any]:
    """Return a row whose number encodes the stream and the time."""
    number = 1000 * jnp.arange(streams, dtype=jnp.int32) + time
    picture = jnp.broadcast_to(number[:, None, None] % 256, (streams, 2, 2)).astype(jnp.uint8)
    return {"picture": picture, "half": number.astype(jnp.bfloat16), "number": number}


@cache
def compiled(name: str) -> Any:
    return {
        "add": jax.jit(ring.add_row_per_stream),
        "sample": jax.jit(ring.sample_indices, static_argnums=(2, 3)),
        "sequences": jax.jit(ring.gather_sequences, static_argnums=2),
    }[name]


def filled(streams: int, places: int, keeps: Any) -> tuple[ring.ReplayState, list[list[int]]]:
    """Return a replay state with a row per time, and the numbers of each stream from the oldest.

    `keeps` has for each time the streams that store their row.
    """
    replay, kept = (
        ring.init_replay(example(), streams, streams * places),
        [[] for _ in range(streams)],
    )
    for time, keep in enumerate(keeps):
        replay = compiled("add")(replay, row(streams, time), jnp.asarray(keep))
        for stream in range(streams):
            kept[stream] += [1000 * stream + time] if keep[stream] else []
    return replay, [numbers[-places:] for numbers in kept]


@pytest.mark.quick
@few
@given(
    streams=st.sampled_from([1, 3]),
    places=st.sampled_from([1, 5]),
    seed=st.integers(0, 9999),
    time=st.integers(1, 15),
)
def test_samples_are_the_stored_rows(streams: int, places: int, seed: int, time: int) -> None:
    """All stored rows are drawn with their types, and no overwritten or skipped rows."""
    keeps = np.random.default_rng(seed).random((time, streams)) < 0.7
    replay, kept = filled(streams, places, keeps)
    everything = sorted(number for numbers in kept for number in numbers)
    assert int(jnp.sum(replay.size)) == len(everything)
    if not everything:
        return
    index = compiled("sample")(replay, jax.random.key(seed), 400, 1)
    drawn = ring.gather_rows(replay, index)
    assert sorted(set(np.asarray(drawn["number"]).tolist())) == everything
    assert {name: x.dtype for name, x in drawn.items()} == {
        name: x.dtype for name, x in example().items()
    }
    assert np.array_equal(drawn["picture"][:, 1, 1], np.asarray(drawn["number"]) % 256)
    assert np.array_equal(drawn["half"], drawn["number"].astype(jnp.bfloat16))


@few
@given(
    streams=st.sampled_from([1, 3]),
    length=st.sampled_from([1, 3]),
    seed=st.integers(0, 9999),
    time=st.integers(1, 15),
)
def test_sequences_are_consecutive_rows(streams: int, length: int, seed: int, time: int) -> None:
    """Every complete sequence is drawn, and none across the write position of the ring."""
    keeps = np.random.default_rng(seed).random((time, streams)) < 0.8
    replay, kept = filled(streams, 6, keeps)
    whole = {
        tuple(numbers[i : i + length]) for numbers in kept for i in range(len(numbers) - length + 1)
    }
    assert bool(ring.can_sample(replay, 1, length)) == bool(whole)
    assert bool(ring.can_sample(replay, len(whole), length))
    assert not bool(ring.can_sample(replay, len(whole) + 1, length))
    if whole:
        index = compiled("sample")(replay, jax.random.key(seed), 400, length)
        drawn = np.asarray(compiled("sequences")(replay, index, length)["number"])
        assert {tuple(column) for column in drawn.T.tolist()} == whole


def test_rows_of_streams_of_different_lengths_are_drawn_evenly() -> None:
    """Each row has the same probability, not each stream."""
    replay, _ = filled(2, 8, [(True, time >= 6) for time in range(8)])
    drawn = ring.gather_rows(replay, compiled("sample")(replay, jax.random.key(0), 10_000, 1))[
        "number"
    ]
    _, counts = np.unique(np.asarray(drawn), return_counts=True)
    assert len(counts) == 10
    assert scipy.stats.chisquare(counts).pvalue > 0.01


def test_sampling_from_too_few_rows_raises_usage_error() -> None:
    replay = ring.init_replay(example(), 1, 4)
    with pytest.raises(UsageError, match="must contain .* rows of one stream to sample"):
        ring.sample_indices(replay, jax.random.key(0), 2)
    replay = ring.add_row_per_stream(replay, row(1, 0), jnp.ones(1, bool))
    with pytest.raises(UsageError, match="must contain 2 rows of one stream to sample"):
        ring.sample_indices(replay, jax.random.key(0), 2, 2)


def test_size_in_bytes_and_the_error_of_insufficient_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert ring.size_in_bytes(example(), 3, 30) == 30 * (4 + 2 + 4)
    rows = ring.init_replay(example(), 3, 30)
    assert sum(x.nbytes for x in jax.tree.leaves(rows.data)) == 300
    monkeypatch.setattr(device_memory, "available_memory_bytes", lambda: 200)
    with pytest.raises(UsageError, match=r"capacity \(30\) needs .* Use 16"):
        device_memory.check_memory(ring.size_in_bytes(example(), 3, 30), 30, "capacity (30)")
    ring.init_replay(example(), 3, 16)
    with pytest.raises(
        UsageError, match=r"capacity \(2\) must be at least the number of streams \(3\)"
    ):
        ring.init_replay(example(), 3, 2)


@pytest.mark.parametrize(
    "buffer",
    [ring.make_uniform_replay(5), prioritized.make_prioritized_replay(5)],
    ids=["uniform", "prioritized"],
)
def test_a_capacity_too_small_to_sample_raises_usage_error(buffer: ring.ReplayBuffer) -> None:
    """All rings have the same length, so some of the capacity may be unused.

    A ring has to hold complete sequences.
    """
    enough = 64 * (5 + 4) if buffer.sample.__module__ == ring.__name__ else 64 * 5
    config = SimpleNamespace(capacity=enough - 1, batch_size=300, gamma=0.9)
    with pytest.raises(
        UsageError, match=rf"capacity \({enough - 1}\) must be at least {enough} to sample"
    ):
        buffer.init(step(1, 0, 0, False, False), 64, config)
    buffer.init(
        step(1, 0, 0, False, False), 64, SimpleNamespace(capacity=enough, batch_size=300, gamma=0.9)
    )


def test_the_state_of_all_members_has_to_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evolving populations need twice the memory.

    A policy can be loaded with less memory.
    """
    config = {"capacity": 1000, "num_envs": 1}
    options = RunOptions(total_steps=10_000)

    def spec(**given):
        return make_spec(
            "sac", "probe/continuous", {}, config, None, dataclasses.replace(options, **given), {}
        )

    one = sum(
        x.size * x.dtype.itemsize
        for x in jax.tree.leaves(
            program.abstract_member_state(
                spec(), program.build_algorithm_and_environment(spec())[0]
            )
        )
    )
    monkeypatch.setattr(device_memory, "available_memory_bytes", lambda: 3 * one)
    run_check.check_run(spec(seeds=3))
    with pytest.raises(
        UsageError, match=r"the state of 4 members \(capacity 1000\) needs .* Use 600"
    ):
        run_check.check_run(spec(seeds=4))
    evolving = make_spec(
        "sac",
        "probe/continuous",
        {},
        config,
        None,
        dataclasses.replace(options, seeds=3),
        {},
        evolve={"gamma": (0.5, 0.9)},
    )
    with pytest.raises(UsageError, match="the state of 3 members"):
        run_check.check_run(evolving)
    monkeypatch.setattr(device_memory, "available_memory_bytes", lambda: 1)
    program.abstract_member_state(spec(), program.build_algorithm_and_environment(spec())[0])


def step(streams: int, obs: Any, reward: Any, terminated: Any, truncated: Any) -> ReplayStep:
    def wide(x, dtype):
        return jnp.broadcast_to(jnp.asarray(x, dtype), streams)

    ends = wide(terminated, bool), wide(truncated, bool)
    acted = wide(obs, jnp.float32), wide(0, jnp.int32), wide(reward, jnp.float32)
    return ReplayStep(
        *acted,
        *ends,
        wide(obs + 0.5, jnp.float32),
        wide(obs % 3 == 0, bool),
        wide(obs + 0.25, jnp.float32),
    )


def expected_return(
    steps: list[tuple[float, bool, bool]], start: int, n: int, gamma: float
) -> tuple[float, float, float]:
    """Return reward, discount and next observation of the n-step return from `start` by definition.

    `step` starts an episode at every third row.
    """
    total, power, i = 0.0, 1.0, start
    while True:
        reward, terminated, truncated = steps[i]
        total, power = total + power * reward, power * gamma
        if terminated or truncated or i + 1 - start == n or i + 1 == len(steps) or (i + 1) % 3 == 0:
            return total, 0.0 if terminated else power, i + 0.5
        i += 1


@few
@given(n=st.integers(1, 4), seed=st.integers(0, 9999), extra=st.integers(0, 7))
def test_returns_of_several_steps(n: int, seed: int, extra: int) -> None:
    """They end after n steps, at an end, or at the newest row, also after the ring has wrapped."""
    numbers, places = np.random.default_rng(seed), 6
    replay = ring.init_replay(
        jax.tree.map(lambda x: x[0], step(1, 0.0, 0.0, False, False)), 1, places
    )
    steps = [
        (float(numbers.normal()), bool(numbers.random() < 0.2), bool(numbers.random() < 0.2))
        for _ in range(3 + extra)
    ]
    for time, (reward, terminated, truncated) in enumerate(steps):
        replay = compiled("add")(
            replay, step(1, float(time), reward, terminated, truncated), jnp.ones(1, bool)
        )
    index = jnp.arange(int(replay.size[0]), dtype=jnp.int32)
    batch = ring.make_nstep_batch(replay, index, n, 0.9)
    for i, obs in enumerate(np.asarray(batch.obs).astype(int)):
        reward, discount, next_obs = expected_return(steps, obs, n, 0.9)
        assert float(batch.reward[i]) == pytest.approx(reward, abs=1e-5)
        assert float(batch.discount[i]) == pytest.approx(discount, abs=1e-6)
        assert float(batch.next_obs[i]) == next_obs
        assert float(batch.carry[i]) == obs + 0.25 and bool(batch.reset[i]) == (obs % 3 == 0)


@pytest.mark.quick
@few
@given(size=st.sampled_from([1, 16, 17, 600]), seed=st.integers(0, 9999))
def test_sums_equal_the_weights(size: int, seed: int) -> None:
    """Weights are changed several times. Skipped weights change nothing."""
    numbers = np.random.default_rng(seed)
    tree, weights = prioritized.init_sum_tree(size), np.zeros(size, np.float32)
    put = jax.jit(prioritized.set_weights)
    for _ in range(3):
        index = numbers.choice(size, min(size, 20), replace=False)
        index = np.resize(index, 20)  # repeated indices have the same weight
        new, keep = numbers.random(size).astype(np.float32) * 10, numbers.random(size) < 0.7
        tree = put(tree, jnp.asarray(index), jnp.asarray(new[index]), jnp.asarray(keep[index]))
        weights[index] = np.where(keep[index], new[index], weights[index])
    assert np.array_equal(tree.levels[-1].ravel()[:size], weights)
    assert float(prioritized.total_weight(tree)) == pytest.approx(weights.sum(), rel=1e-5, abs=1e-6)
    if weights.sum() > 0:
        points = np.concatenate([[0.0, 1.0], numbers.random(98)]).astype(np.float32) * np.float32(
            prioritized.total_weight(tree)
        )
        found, weight = (np.asarray(x) for x in prioritized.find_indices(tree, jnp.asarray(points)))
        assert np.all(weights[found] > 0) and np.array_equal(weight, weights[found])
        running = np.cumsum(weights.astype(np.float64))
        slack = 1e-4 * running[-1]
        assert np.all(running[found] >= points - slack)
        assert np.all(running[found] - weights[found] <= points + slack)


@dataclasses.dataclass(frozen=True)
class Settings:
    capacity: int = 300
    batch_size: int = 50
    gamma: float = 0.9
    priority_exponent: float = 0.7
    importance_exponent: float = 0.4
    priority_epsilon: float = 0.01


def test_priorities_determine_the_distribution() -> None:
    """Probabilities are proportional to (error + epsilon)^exponent.

    Importance weights correct them, and new rows have the largest priority.
    """
    config, buffer = Settings(), prioritized.make_prioritized_replay()
    state = buffer.init(jax.tree.map(lambda x: x[0], step(1, 0.0, 0.0, False, False)), 1, config)
    for time in range(40):
        state = buffer.add(state, step(1, float(time), 0.0, False, False), jnp.ones(1, bool))
    error = jnp.arange(40.0) ** 2 / 100
    state = buffer.update_priorities(state, config, jnp.arange(40), error, jnp.ones((), bool))
    same = buffer.update_priorities(state, config, jnp.arange(40), error * 0, jnp.zeros((), bool))
    assert all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(same), strict=True)
    )
    state = buffer.add(state, step(1, 40.0, 0.0, False, False), jnp.ones(1, bool))
    priority = np.append((np.asarray(error) + 0.01) ** 0.7, (error[-1] + 0.01) ** 0.7)
    draw = jax.jit(jax.vmap(lambda key: buffer.sample(state, config, key, jnp.float32(0.5))))
    batch, index = draw(jax.random.split(jax.random.key(0), 400))
    counts = np.bincount(np.asarray(index).reshape(-1), minlength=41)
    expected = priority / priority.sum() * counts.sum()
    # Sampling is stratified, so counts vary less than for independent draws, and p is close to 1.
    assert (
        scipy.stats.chisquare(
            counts[expected > 5],
            expected[expected > 5] * counts[expected > 5].sum() / expected[expected > 5].sum(),
        ).pvalue
        > 0.05
    )
    assert np.max(np.abs(counts - expected)) < 0.02 * counts.sum()
    weight = priority[np.asarray(index)] ** -0.7  # beta is halfway from 0.4 to 1
    np.testing.assert_allclose(batch.weight, weight / weight.max(axis=1, keepdims=True), rtol=1e-4)


@pytest.mark.parametrize("capacity", [20, 45])
def test_changing_the_priority_exponent(capacity: int) -> None:
    """The tree equals that of a constant exponent, also after exponent 0 with equal weights."""
    memory = prioritized.make_prioritized_replay()

    def play(exponent: jax.Array) -> prioritized.PrioritizedReplayState:
        """Run 18 steps of one stream and 9 of another.

        These are more than the smaller rings hold, and fewer than the larger ones.
        """
        config = SimpleNamespace(
            **(dataclasses.asdict(Settings(capacity, 8)) | {"priority_exponent": exponent})
        )

        def advance(state: Any, time: jax.Array) -> tuple[Any, None]:
            state = memory.add(
                state,
                step(2, time.astype(float), 0.0, False, False),
                jnp.stack([time >= 0, time % 2 == 0]),
            )
            index = jnp.stack([time % (capacity // 2), jnp.array(capacity // 2)])
            return memory.update_priorities(
                state, config, index, jnp.stack([3.0 / (1 + time), jnp.array(0.0)]), time > 2
            ), None

        example = jax.tree.map(lambda x: x[0], step(1, 0.0, 0.0, False, False))
        return jax.lax.scan(advance, memory.init(example, 2, config), jnp.arange(18))[0]

    exponents = jnp.array([0.0, 0.3, 1.0])
    states = jax.jit(jax.vmap(play))(exponents)
    every = jax.jit(
        jax.vmap(
            lambda state: jax.vmap(prioritized.reweight_priorities, (None, 0))(state, exponents)
        )
    )(states)
    for found, expected in zip(jax.tree.leaves(every), jax.tree.leaves(states), strict=True):
        np.testing.assert_allclose(found, jnp.broadcast_to(expected[None], found.shape), rtol=1e-5)
    totals = jax.vmap(prioritized.total_weight)(states.tree)
    assert len(np.unique(np.asarray(totals))) == 3


@pytest.mark.parametrize(
    "buffer",
    [
        ring.make_uniform_replay(),
        ring.make_uniform_replay(3),
        prioritized.make_prioritized_replay(),
    ],
    ids=["uniform", "3 steps", "priority"],
)
def test_steps_copy_no_large_arrays(buffer: ring.ReplayBuffer) -> None:
    """In a compiled loop with a donated state, no step copies the rows or their priorities."""
    places, config = 32_000, Settings(capacity=32_000)
    nothing, no = jnp.zeros(()), jnp.zeros((), bool)
    example = ring.ReplayStep(
        jnp.zeros(3), jnp.zeros(2), nothing, no, no, jnp.zeros(3), no, jnp.zeros(4)
    )
    row = jax.tree.map(lambda x: x[None], example)

    def step(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        state = buffer.add(state, row, jnp.ones(1, bool))
        batch, index = buffer.sample(state, config, key, jnp.float32(0))
        state = buffer.update_priorities(state, config, index, batch.reward, jnp.ones((), bool))
        return state, sum(jnp.sum(x) for x in jax.tree.leaves(batch))

    run = jax.jit(lambda state, keys: jax.lax.scan(step, state, keys), donate_argnums=0)
    keys = jax.random.split(jax.random.key(0), 5)
    program = run.lower(buffer.init(example, 1, config), keys).compile().as_text()
    sizes = (places, -(-places // prioritized.CHILDREN_PER_NODE))
    large = re.compile(rf"= \w+\[(?:1,)?(?:{'|'.join(map(str, sizes))})[,\]]\S* copy\(")
    assert re.search(rf"\[(?:1,)?{places}[,\]]", program), (
        "the test no longer knows the program's words"
    )
    assert [line.strip() for line in program.splitlines() if large.search(line)] == []


@few
@given(
    capacity=st.sampled_from([1, 5, 16]),
    size=st.sampled_from([1, 4, 12]),
    seed=st.integers(0, 9999),
)
def test_rows_of_many_policies_are_one_queue(capacity: int, size: int, seed: int) -> None:
    """Compare with a deque per member: skipped rows take no place, and the oldest are dropped."""
    numbers = np.random.default_rng(seed)
    # Two members with different shares of stored rows.
    keeps = numbers.random((2, 4, size)) < numbers.random((2, 1, 1))
    replay = jax.vmap(lambda _: ring.init_replay(example(), 1, capacity))(jnp.arange(2))
    queues = [collections.deque(maxlen=capacity) for _ in range(2)]
    for time in range(4):
        rows = jax.tree.map(lambda x: jnp.stack([x, x]), row(size, time))
        replay = ADD_ROWS_OF_MEMBERS(replay, rows, jnp.asarray(keeps[:, time]))
        for queue, keep in zip(queues, keeps[:, time], strict=True):
            queue.extend(np.asarray(rows["number"][0])[keep].tolist())
    for member, queue in enumerate(queues):
        mine = jax.tree.map(lambda x, member=member: x[member], replay)
        assert int(mine.size[0]) == len(queue)
        places = (int(mine.cursor[0]) - len(queue) + np.arange(len(queue))) % capacity
        assert np.asarray(mine.data["number"])[0, places].tolist() == list(queue)
        assert np.array_equal(
            mine.data["picture"][0, places, 1, 1], np.asarray(list(queue), np.int64) % 256
        )


ADD_ROWS_OF_MEMBERS = jax.jit(jax.vmap(ring.add_rows))
