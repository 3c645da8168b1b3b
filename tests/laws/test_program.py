"""Properties of the compiled step of every algorithm."""

import dataclasses
import importlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax
from counting import forget
from laws.programs import (
    assert_close,
    assert_equal,
    fresh,
    plain,
    programs,
    with_one_iteration,
)
from laws.table import ARCHIVES, BY_NAME, first, without_row
from laws.walk import Counted, Counter
from rollax import tree
from rollax.algorithms.registry import ALGORITHMS
from rollax.environments.closed_form import Task
from rollax.populations import population
from support.parameters import mark_quick


@pytest.mark.parametrize("name", mark_quick(ALGORITHMS, "ppo", "map_elites"))
def test_names_of_an_algorithm_in_the_package(name: str) -> None:
    """The module has the pure functions. The constructor and config are also at the top level."""
    kinds, module = ALGORITHMS[name], importlib.import_module(f"rollax.algorithms.{name}")
    if kinds.unit != "evaluations":  # archives and emitters have separate modules
        shared = sys.modules[module.FNS.loss.__module__] if hasattr(module, "FNS") else module
        names = {"learn", "update", "loss"} & set(vars(shared))
        assert names and all(callable(vars(shared)[each]) for each in names)
    assert getattr(rollax, name) is getattr(module, name) is kinds.make
    assert (
        getattr(rollax, kinds.config.__name__)
        is getattr(module, kinds.config.__name__)
        is kinds.config
    )
    assert {name, kinds.config.__name__} <= set(rollax.__all__)


def test_every_algorithm_has_a_row() -> None:
    """An algorithm that is registered without a row is found."""
    assert not without_row(ALGORITHMS)
    assert without_row([*ALGORITHMS, "new_algorithm"]) == {"new_algorithm"}


@pytest.mark.parametrize(
    "name",
    first("ppo-gru", "dqn-rainbow", "bc-gru", "map_elites", accelerator=("ppo-gru", "map_elites")),
)
def test_compiled_and_interpreted_steps_are_equal(name: str) -> None:
    """Use the smallest possible update, because each operation runs separately."""
    row = BY_NAME[name]
    algorithm = row.make(row.environment)
    config = dataclasses.replace(row.config, **dict(row.smallest))
    if row.memory:
        config = dataclasses.replace(config, sequence_length=2)
    if row.memory and row.family == "on-policy":
        config = dataclasses.replace(config, num_minibatches=1)
    state = jax.jit(lambda key: algorithm.init(key, config))(jax.random.key(0))
    compiled = jax.jit(algorithm.step)(fresh(state))
    with jax.disable_jit():
        interpreted = algorithm.step(fresh(state))
    assert_close(compiled, interpreted, row.rounding)
    forget()  # every operation was compiled as a separate program


@pytest.mark.quick
def test_one_trace_for_all_settings_and_seeds() -> None:
    """A step of 16 seeds and 4 learning rates is traced once. Other settings do not trace again."""
    row = BY_NAME["ppo"]
    counter = Counter()
    many = population(row.make(Counted(row.environment, counter)))
    step, init = jax.jit(many.step), jax.jit(many.init)
    for scale in (1.0, 0.5):
        rates = scale * jnp.repeat(jnp.array([1e-2, 3e-3, 1e-3, 3e-4]), 16)
        config = jax.tree.map(lambda x: jnp.full(64, x), row.config)
        config = dataclasses.replace(
            config, learning_rate=rates, gamma=jnp.linspace(0.5, 0.99, 64) * scale
        )
        state = init(jax.random.split(jax.random.key(int(2 * scale)), 64), config)
        for _ in range(2):
            state, metrics = step(state)
    assert counter.count == 1
    assert metrics.values["loss"].shape == (64,)
    weights = plain(state.train.network.actor.head.layer.weight).reshape(64, -1)
    assert len(np.unique(weights, axis=0)) == 64, "every member is a run of its own"


@pytest.mark.parametrize(
    "name",
    first(
        "ppo-gru",
        "ppo-separate-epochs",
        "impala-gru",
        "td3",
        "bc-gru",
        *ARCHIVES,
        accelerator=("ppo-gru", "map_elites"),
    ),
)
def test_a_member_equals_the_same_run_alone(name: str) -> None:
    """Results are equal within rounding, and integers are equal.

    Other members do not change any bit.
    """
    row = BY_NAME[name]
    step = programs(name).step
    step_all = jax.jit(population(row.make(row.environment)).step)

    def member(seed: int, value: float) -> Any:
        state = with_one_iteration(name, programs(name).init(jax.random.key(seed)))
        return state._replace(
            config=dataclasses.replace(state.config, **{row.varied: jnp.float32(value)})
        )

    def run(*members: Any) -> Any:
        states = jax.tree.map(lambda *x: jnp.stack(x), *members)
        for _ in range(row.comparable):
            states, metrics = step_all(fresh(states))
        return jax.tree.map(lambda x: x[0], fresh((states, metrics)))

    alone = member(1, 1e-2)
    together = run(fresh(alone), member(2, 1e-1))
    assert_equal(together, run(fresh(alone), member(3, 0.0)))
    for _ in range(row.comparable):
        alone, metrics = step(alone)
    assert_close((alone, metrics), together, 1e-4)
    forget()  # programs of populations are large


def test_one_trace_of_the_score_for_all_settings_and_seeds() -> None:
    """The scoring function of an archive is traced once for all settings and seeds of members."""
    row, calls = BY_NAME["map_elites"], []
    task = row.environment

    def score(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        calls.append(x.shape)
        return task.score(x)

    counted = Task("test/counted", score, task.action_space, task.descriptor_space)
    many = population(row.make(counted))
    step, init = jax.jit(many.step), jax.jit(many.init)
    config = jax.tree.map(lambda x: jnp.full(8, x), tree.to_arrays(row.config))
    for scale in (1.0, 0.5):
        state = init(
            jax.random.split(jax.random.key(int(2 * scale)), 8),
            dataclasses.replace(config, iso_sigma=scale * jnp.linspace(0.1, 2.0, 8)),
        )
        number = len(calls)
        for _ in range(2):
            state, metrics = step(state)
        assert len(calls) - number == (1 if scale == 1.0 else 0)
    assert len(np.unique(metrics.values["qd_score"])) == 8, "every member is a run of its own"
