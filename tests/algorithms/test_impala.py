"""IMPALA's settings do what they say, in one update."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from laws.programs import assert_equal, differs, fresh
from laws.table import BY_NAME


def updated(name: str, settings: dict[str, Any], *numbers: dict[str, float]) -> list[Any]:
    """The network after one update of a row, for each of the `numbers` in its config."""
    row = BY_NAME[name]
    algorithm = row.make(row.environment)
    config = dataclasses.replace(row.config, **settings)
    state = jax.jit(lambda key: algorithm.init(key, config))(jax.random.key(0))
    step = jax.jit(algorithm.step)
    told = [{field: jnp.float32(value) for field, value in each.items()} for each in numbers]
    configs = [dataclasses.replace(state.config, **each) for each in told]
    return [step(fresh(state)._replace(config=config))[0].train.network for config in configs]


def test_priorities_count_where_a_trajectory_is_a_rollout() -> None:
    """One segment a stream and one minibatch, as by default: streams compete."""
    settings = {"sequence_length": 8, "num_minibatches": 1, "objective": "gradient"}
    none, some = updated(
        "impala-priority", settings, {"priority_exponent": 0.0}, {"priority_exponent": 2.0}
    )
    assert differs(none, some)


def test_traces_are_clipped_no_higher_than_differences() -> None:
    """c-bar above rho-bar counts as rho-bar, which the source takes for granted (section 4.1)."""
    low = [{"rho_clip": 0.5, "c_clip": c} for c in (0.5, 2.0, 0.2)]
    same, higher, lower = updated("impala", {}, *low)
    assert_equal(same, higher)
    assert differs(same, lower)


def test_no_gradient_flows_through_targets() -> None:
    """Without a value loss the critic stays as it is, though advantages depend on it. The policy learns."""
    without = {"value_coefficient": 0.0}
    learned, before = updated("impala", {}, without, without | {"learning_rate": 0.0})
    assert_equal(learned.critic, before.critic)
    assert differs(learned.actor, before.actor)


def test_devices_that_do_not_divide_a_minibatch_are_refused_before_compiling() -> None:
    """With the sizes that it has, and settings that change it."""
    row = BY_NAME["impala"]
    config = dataclasses.replace(
        row.config, num_envs=6, num_steps=8, sequence_length=8, num_minibatches=1
    )
    key = jax.random.key(0)  # made where there are devices

    def begin():
        return jax.eval_shape(lambda key: row.make(row.environment).init(key, config), key)

    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((2,), ("environments",))):
        begin()
    with (
        jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((4,), ("environments",))),
        pytest.raises(
            ValueError,
            match=r"sequences in a minibatch .* must be a multiple of devices \(4\), got 6\. Lower num_",
        ),
    ):
        begin()
