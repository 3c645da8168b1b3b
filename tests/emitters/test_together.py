"""Tests of emitters that share a batch."""

from typing import Any

import jax
import jax.numpy as jnp

from rollax.archives.archive import InsertionResult, ScoredSolutions
from rollax.emitters.emitter import Emitter, EvaluatedBatch, multi_emitter


def constant(value: float) -> Emitter:
    """Return an emitter that proposes one number and whose state is its last batch."""

    def ask(state: Any, archive_state: Any, key: jax.Array, number: int) -> tuple[Any, Any]:
        return state, jnp.full(number, value)

    return Emitter(
        lambda key, solutions: solutions, ask, lambda state, archive_state, told, key: told
    )


def test_each_emitter_is_updated_with_its_own_solutions_only() -> None:
    """They are in the proposed order and include their experience."""
    both = multi_emitter({"a": constant(1.0), "b": constant(2.0)}, {"a": 2, "b": 3})
    state = both.init(jax.random.key(0), jnp.arange(5.0))
    assert state["a"].tolist() == [0, 1] and state["b"].tolist() == [2, 3, 4]
    _, solutions = both.ask(state, None, jax.random.key(1), 5)
    assert solutions.tolist() == [1, 1, 2, 2, 2]
    index = jnp.arange(5)
    scored = ScoredSolutions(solutions, index * 1.0, jnp.stack([index, index], axis=1) * 1.0)
    experience = jnp.stack([index, index + 10])  # [T, B]
    told = both.tell(
        state,
        None,
        EvaluatedBatch(scored, InsertionResult(index, index * 0.5), experience),
        jax.random.key(2),
    )
    for name, mine in (("a", [0, 1]), ("b", [2, 3, 4])):
        assert told[name].solutions.fitness.tolist() == told[name].insertion.status.tolist() == mine
        assert told[name].experience.tolist() == [mine, [i + 10 for i in mine]]
        assert set(told[name].solutions.solution.tolist()) == {1.0 if name == "a" else 2.0}
