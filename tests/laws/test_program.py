"""What holds for the compiled step of every algorithm, whatever it learns."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax
from counting import forget
from laws.programs import assert_close, assert_equal, fresh, plain, programs
from laws.table import BY_NAME, first
from laws.walk import Counted, Counter
from rollax import algorithms
from rollax.algorithms import ALGORITHMS
from rollax.populations import population


@pytest.mark.parametrize("name", ALGORITHMS)
def test_where_an_algorithm_is_found(name: str) -> None:
    """Its module among the algorithms, so that its pure functions can be called; its constructor and settings at the top."""
    kinds, module = ALGORITHMS[name], getattr(algorithms, name)
    if kinds.unit != "evaluations":  # archives and emitters are found by themselves
        assert callable(module.learn if hasattr(module, "learn") else module.update)
    assert getattr(rollax, name) is getattr(module, name) is kinds.make
    assert getattr(rollax, kinds.config.__name__) is getattr(module, kinds.config.__name__) is kinds.config
    assert {name, kinds.config.__name__} <= set(rollax.__all__)


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
    forget()  # every operation alone is a program of its own


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
