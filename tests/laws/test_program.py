"""What holds for the compiled step of every algorithm, whatever it learns."""

import dataclasses
from collections.abc import Iterator
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax
from laws.programs import assert_close, assert_equal, fresh, plain, programs
from laws.table import BY_NAME, NAMES, first
from laws.walk import Counted, Counter
from rollax import algorithms
from rollax.algorithms import ALGORITHMS
from rollax.populations import population


def jaxprs(jaxpr: Any) -> Iterator[Any]:
    """A jaxpr and all those inside it."""
    yield jaxpr
    for equation in jaxpr.eqns:
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            if hasattr(inner, "eqns"):
                yield from jaxprs(inner)
            elif hasattr(inner, "jaxpr"):
                yield from jaxprs(inner.jaxpr)


@cache
def traced(name: str) -> tuple[Any, Any]:
    """The row's state and its step, neither computed nor compiled."""
    row = BY_NAME[name]
    algorithm = row.make(row.environment)
    state = jax.eval_shape(lambda key: algorithm.init(key, row.config), jax.random.key(0))
    return state, jax.jit(algorithm.step).trace(state)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_where_an_algorithm_is_found(name: str) -> None:
    """Its module among the algorithms, so that its pure functions can be called; its constructor and settings at the top."""
    kinds, module = ALGORITHMS[name], getattr(algorithms, name)
    assert callable(module.learn if hasattr(module, "learn") else module.update)
    assert getattr(rollax, name) is getattr(module, name) is kinds.make
    assert getattr(rollax, kinds.config.__name__) is getattr(module, kinds.config.__name__) is kinds.config
    assert {name, kinds.config.__name__} <= set(rollax.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_no_callback(name: str) -> None:
    """The device never calls the host: no callback, print or feed anywhere in the step."""
    primitives = {equation.primitive.name for part in jaxprs(traced(name)[1].jaxpr.jaxpr) for equation in part.eqns}
    assert {"scan", "dot_general"} <= primitives, "the walk does not reach the inside"
    assert not {p for p in primitives if any(word in p for word in ("callback", "print", "feed", "token"))}


@pytest.mark.parametrize("name", NAMES)
def test_the_state_keeps_its_form(name: str) -> None:
    """Structure, shapes, types and weak types of the state are the same before and after a step; metrics are scalars."""
    before, step = traced(name)
    after, metrics = step.out_info
    assert jax.tree.structure(before) == jax.tree.structure(after)
    avals = step.jaxpr.out_avals[: len(jax.tree.leaves(after))]
    for (path, old), new in zip(jax.tree_util.tree_leaves_with_path(before), avals, strict=True):
        assert (old.shape, old.dtype, False) == (new.shape, new.dtype, new.weak_type), jax.tree_util.keystr(path)
        assert not old.weak_type, jax.tree_util.keystr(path)
    assert all(m.shape == () for m in jax.tree.leaves(metrics))


@pytest.mark.parametrize("name", first("ppo-gru", "dqn-rainbow"))
def test_jit_is_no_jit(name: str) -> None:
    """The smallest update there is, operation by operation."""
    row = BY_NAME[name]
    algorithm = row.make(row.environment)
    config = dataclasses.replace(row.config, **dict(row.smallest))
    if row.memory:
        config = dataclasses.replace(config, sequence_length=2, num_minibatches=1)
    state = jax.jit(lambda key: algorithm.init(key, config))(jax.random.key(0))
    compiled = jax.jit(algorithm.step)(fresh(state))
    with jax.disable_jit():
        interpreted = algorithm.step(fresh(state))
    assert_close(compiled, interpreted, row.rounding)


def test_one_trace_for_all_settings_and_seeds() -> None:
    """16 seeds x 4 learning rates trace the environment's step once, and so do other numbers afterwards."""
    row = BY_NAME["ppo"]
    counter = Counter()
    many = population(row.make(Counted(row.environment, counter)))
    step, init = jax.jit(many.step), jax.jit(many.init)
    for scale in (1.0, 0.5):
        rates = scale * jnp.repeat(jnp.array([1e-2, 3e-3, 1e-3, 3e-4]), 16)
        config = jax.tree.map(lambda x: jnp.full(64, x), row.config)
        config = dataclasses.replace(config, learning_rate=rates, gamma=jnp.linspace(0.5, 0.99, 64) * scale)
        state = init(jax.random.split(jax.random.key(int(2 * scale)), 64), config)
        for _ in range(2):
            state, metrics = step(state)
    assert counter.count == 1
    assert metrics.values["loss"].shape == (64,)
    weights = plain(state.train.network.actor.head.layer.weight).reshape(64, -1)
    assert len(np.unique(weights, axis=0)) == 64, "every member is a run of its own"


@pytest.mark.parametrize("name", first("ppo-gru", "ppo-separate-epochs", "impala-gru", "td3"))
def test_a_member_is_the_same_run_alone(name: str) -> None:
    """Within rounding, as batched products add in another order; whole numbers are equal. Other members change no bit."""
    row = BY_NAME[name]
    step = programs(name).step
    step_all = jax.jit(population(row.make(row.environment)).step)

    def member(seed: int, rate: float) -> Any:
        state = programs(name).init(jax.random.key(seed))
        return state._replace(config=dataclasses.replace(state.config, learning_rate=jnp.float32(rate)))

    def run(*members: Any) -> Any:
        states = jax.tree.map(lambda *x: jnp.stack(x), *members)
        for _ in range(2):
            states, metrics = step_all(fresh(states))
        return jax.tree.map(lambda x: x[0], fresh((states, metrics)))

    alone = member(1, 1e-2)
    together = run(fresh(alone), member(2, 1e-1))
    assert_equal(together, run(fresh(alone), member(3, 0.0)))
    for _ in range(2):
        alone, metrics = step(alone)
    assert_close((alone, metrics), together, 1e-4)
