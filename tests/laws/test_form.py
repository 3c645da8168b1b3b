"""Properties of the traced step of every algorithm."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import jax
import pytest

from laws.table import BY_NAME, NAMES
from support.parameters import mark_quick


def jaxprs(jaxpr: Any) -> Iterator[Any]:
    """Yield a jaxpr and all jaxprs inside it."""
    yield jaxpr
    for equation in jaxpr.eqns:
        for inner in jax.tree.leaves(
            list(equation.params.values()),
            is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr"),
        ):
            if hasattr(inner, "eqns"):
                yield from jaxprs(inner)
            elif hasattr(inner, "jaxpr"):
                yield from jaxprs(inner.jaxpr)


@cache
def traced(name: str) -> tuple[Any, Any]:
    """Return the row's abstract state and its traced step, without compiling it."""
    row = BY_NAME[name]
    algorithm = row.make(row.environment)
    state = jax.eval_shape(lambda key: algorithm.init(key, row.config), jax.random.key(0))
    return state, jax.jit(algorithm.step).trace(state)


@pytest.mark.parametrize("name", mark_quick(NAMES, "ppo-gru", "dqn-rainbow", "sac"))
def test_the_step_has_no_callback(name: str) -> None:
    """The device never calls the host: the step has no callback, print or feed."""
    primitives = {
        equation.primitive.name
        for part in jaxprs(traced(name)[1].jaxpr.jaxpr)
        for equation in part.eqns
    }
    inside = {"scan"} if BY_NAME[name].family == "archive" else {"scan", "dot_general"}
    assert inside <= primitives, "the walk does not reach the inside"
    assert not {
        p for p in primitives if any(word in p for word in ("callback", "print", "feed", "token"))
    }


@pytest.mark.parametrize("name", mark_quick(NAMES, "ppo-gru", "dqn-rainbow", "sac"))
def test_a_step_keeps_the_form_of_the_state(name: str) -> None:
    """Structure, shapes, types and weak types of the state do not change. Metrics are scalars."""
    before, step = traced(name)
    after, metrics = step.out_info
    assert jax.tree.structure(before) == jax.tree.structure(after)
    avals = step.jaxpr.out_avals[: len(jax.tree.leaves(after))]
    for (path, old), new in zip(jax.tree_util.tree_leaves_with_path(before), avals, strict=True):
        assert (old.shape, old.dtype, False) == (new.shape, new.dtype, new.weak_type), (
            jax.tree_util.keystr(path)
        )
        assert not old.weak_type, jax.tree_util.keystr(path)
    assert all(m.shape == () for m in jax.tree.leaves(metrics))
