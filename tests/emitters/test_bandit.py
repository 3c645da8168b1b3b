"""Tests of the bandit over emitters: assignment of slots and updates of the emitters."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax import make
from rollax.algorithms.registry import ALGORITHMS
from rollax.archives.archive import InsertionResult, ScoredSolutions
from rollax.emitters.bandit import bandit_emitter, choose_emitters, split_by_slot, update_counts
from rollax.emitters.emitter import Emitter, EvaluatedBatch
from rollax.errors import UsageError
from rollax.networks.solutions import PolicyConfig, make_solution


def giving(value: float, lasts: int = 0) -> Emitter:
    """Return an emitter that always proposes one number.

    It stores the sum of its solutions and the number of updates, and restarts every `lasts`
    updates.
    """

    def init(key: jax.Array, solutions: Any) -> Any:
        return {"total": jnp.zeros(()), "times": jnp.zeros(()), "restarts": jnp.zeros(())}

    def ask(state: Any, archive_state: Any, key: jax.Array, number: int) -> tuple[Any, Any]:
        return state, jnp.full(number, value)

    def tell(state: Any, archive_state: Any, told: EvaluatedBatch, key: jax.Array) -> Any:
        times = state["times"] + 1
        restarts = jnp.floor(times / max(lasts, 1))
        return {
            "total": state["total"] + jnp.sum(told.solutions.solution),
            "times": times,
            "restarts": restarts,
        }

    names = ("restarts",) if lasts else ()
    return Emitter(init, ask, tell, lambda state: {name: state[name] for name in names})


def told(solutions: jax.Array, taken: jax.Array) -> EvaluatedBatch:
    number = solutions.shape[0]
    scored = ScoredSolutions(solutions, jnp.zeros(number), jnp.zeros((number, 1)))
    return EvaluatedBatch(scored, InsertionResult(taken.astype(jnp.int32), jnp.zeros(number)))


def played(
    made: Emitter, rewards: dict[float, float], iterations: int, number: int
) -> tuple[Any, np.ndarray]:
    """Run a bandit with a given acceptance rate per emitter.

    Returns the state after some iterations and the emitters of all slots in each iteration.
    """
    state = made.init(jax.random.key(0), jnp.zeros(number))
    actives = []
    ask, tell = jax.jit(made.ask, static_argnums=3), jax.jit(made.tell)
    for i in range(iterations):
        actives.append(np.asarray(state.active_emitter))
        state, solutions = ask(state, None, jax.random.key(i), number)
        share = jnp.asarray([rewards[float(x)] for x in solutions])
        taken = jax.random.uniform(jax.random.key(1000 + i), (number,)) < share
        state = tell(state, None, told(solutions, taken), jax.random.key(2000 + i))
    return state, np.stack(actives)


def test_slots_are_assigned_in_turn_at_first() -> None:
    """Every emitter is tried once before any is tried twice, and ties go to the first."""
    made = bandit_emitter({"a": giving(1.0), "b": giving(2.0), "c": giving(3.0)}, 7, 0, 0.1)
    state = made.init(jax.random.key(0), jnp.zeros(28))
    assert state.active_emitter.tolist() == [0, 1, 2, 0, 1, 2, 0]
    _, solutions = made.ask(state, None, jax.random.key(0), 28)
    assert solutions.reshape(7, 4)[:, 0].tolist() == [1, 2, 3, 1, 2, 3, 1]


@pytest.mark.quick
def test_the_rule_is_ucb1() -> None:
    """The reference in NumPy counts solutions that are still to be evaluated in n."""
    given, taken, share, zeta = np.array([40.0, 80.0, 20.0]), np.array([10.0, 30.0, 2.0]), 10, 1.0
    active, over = np.array([0, 1, 1, 2, 0]), np.array([True, False, True, True, True])
    n, expected = given.copy(), active.copy()
    np.add.at(n, active[~over], share)
    for slot in np.flatnonzero(over):
        expected[slot] = np.argmax(taken / given + zeta * np.sqrt(np.log(n.sum()) / n))
        n[expected[slot]] += share
    found = choose_emitters(
        jnp.asarray(active), jnp.asarray(over), jnp.asarray(given), jnp.asarray(taken), share, zeta
    )
    np.testing.assert_array_equal(found, expected)
    assert len(set(expected.tolist())) > 1


def test_the_best_emitter_gets_most_slots() -> None:
    """If its solutions enter four times as often, it gets nearly all slots.

    Others are still tried.
    """
    emitters = {"a": giving(1.0), "b": giving(2.0), "c": giving(3.0)}
    _, actives = played(
        bandit_emitter(emitters, 4, 0, 0.05), {1.0: 0.1, 2.0: 0.4, 3.0: 0.1}, 60, 40
    )
    assert np.mean(actives[10:] == 1) > 0.85 and set(np.unique(actives)) == {0, 1, 2}


def test_a_window_forgets_old_results() -> None:
    """If the best emitter's solutions stop entering, a window makes another be chosen sooner."""
    emitters = {"a": giving(1.0), "b": giving(2.0)}

    def turned(window: int) -> int:
        made = bandit_emitter(emitters, 2, window, 0.01)
        state = made.init(jax.random.key(0), jnp.zeros(20))
        ask = jax.jit(lambda state, key: made.ask(state, None, key, 20))
        tell = jax.jit(
            lambda state, solutions, good, key: made.tell(state, None, told(solutions, good), key)
        )
        for i in range(80):
            state, solutions = ask(state, jax.random.key(i))
            good = jnp.where(solutions == 1.0, i < 40, jnp.arange(20) % 3 == 0)
            state = tell(state, solutions, good, jax.random.key(i))
            if i >= 40 and np.all(state.active_emitter == 1):
                return i - 40
        return 80

    assert turned(5) <= 5 < 20 < turned(0)


def test_counts_are_those_of_the_last_iterations() -> None:
    made = bandit_emitter({"a": giving(1.0), "b": giving(2.0)}, 2, 3, 0.1)
    state = made.init(jax.random.key(0), jnp.zeros(8))
    for i in range(5):
        state = update_counts(
            state._replace(active_emitter=jnp.asarray([0, i % 2])),
            told(jnp.zeros(8), jnp.arange(8) <= i),
            3,
        )
    # Iterations 2, 3 and 4 remain, in rows of a ring. The slots have 4 solutions each, of which 3 +
    # 0, 4 + 0 and 4 + 1 entered.
    np.testing.assert_array_equal(
        state.num_proposed[jnp.asarray([2, 0, 1])], [[8, 0], [4, 4], [8, 0]]
    )
    np.testing.assert_array_equal(
        state.num_accepted[jnp.asarray([2, 0, 1])], [[3, 0], [4, 0], [5, 0]]
    )


def test_an_emitter_keeps_its_slot_until_it_restarts() -> None:
    """This holds for emitters with a metric `restarts`.

    Each is updated with its own solutions only.
    """
    made = bandit_emitter({"short": giving(1.0), "long": giving(2.0, lasts=5)}, 2, 0, 0.5)
    state, actives = played(made, {1.0: 0.9, 2.0: 0.0}, 11, 4)
    assert actives[:5, 1].tolist() == [1] * 5 and actives[5, 1] == 0
    for name, value in (("short", 1.0), ("long", 2.0)):
        mine = state.emitter_states[name]
        np.testing.assert_array_equal(mine["total"], mine["times"] * 2 * value)
    times = np.asarray(
        state.emitter_states["short"]["times"] + state.emitter_states["long"]["times"]
    )
    assert times.tolist() == [11, 11]


def test_batches_are_split_by_slot() -> None:
    """The axis of solutions is the second one of the experience."""
    index = jnp.arange(6)
    all = told(index * 1.0, index)._replace(experience=jnp.stack([index, index + 10]))
    slots = split_by_slot(all, 3)
    assert slots.solutions.solution.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert slots.experience.tolist() == [[[0, 1], [10, 11]], [[2, 3], [12, 13]], [[4, 5], [14, 15]]]


@pytest.mark.parametrize(
    "kinds",
    [("gaussian",), ("objective", "iso_line"), ("random_direction", "improvement", "gaussian")],
)
def test_any_kinds_of_emitters_can_be_combined(kinds: tuple[str, ...]) -> None:
    """Kinds are given by name, in any number. Metrics have the number of slots of each."""
    world: Any = make("task/sphere", dimensions=6)
    entry = ALGORITHMS["me_map_elites"]
    made = entry.make(world, lambda key: make_solution(world, PolicyConfig(), key))
    config = entry.config(batch_size=24, num_emitters=4, grid=(8, 8), kinds=kinds, iso_sigma=0.5)
    state, step = jax.jit(made.init)(jax.random.key(0), config), jax.jit(made.step)
    for _ in range(3):
        state, metrics = step(state)
    assert sum(metrics.values[f"{kind}/slots"] for kind in kinds) == 4
    assert metrics.values["coverage"] > 0 and metrics.finite.parameters


def test_a_slot_needs_two_solutions() -> None:
    made = bandit_emitter({"a": giving(1.0)}, 4, 0, 0.1)
    with pytest.raises(UsageError, match="at least 2 solutions for each"):
        made.init(jax.random.key(0), jnp.zeros(4))
