"""Tests of IMPALA's settings in one update."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from laws.programs import assert_equal, differs, fresh
from laws.table import BY_NAME


def updated(name: str, settings: dict[str, Any], *numbers: dict[str, float]) -> list[Any]:
    """Return the network after one update of a row, for each of `numbers` in its config."""
    row = BY_NAME[name]
    algorithm = row.make(row.environment)
    config = dataclasses.replace(row.config, **settings)
    state = jax.jit(lambda key: algorithm.init(key, config))(jax.random.key(0))
    step = jax.jit(algorithm.step)
    told = [{field: jnp.float32(value) for field, value in each.items()} for each in numbers]
    configs = [dataclasses.replace(state.config, **each) for each in told]
    return [step(fresh(state)._replace(config=config))[0].train.network for config in configs]


def test_priorities_apply_with_one_segment_per_rollout() -> None:
    """By default there is one segment per stream and one minibatch, so streams compete."""
    settings = {"sequence_length": 8, "num_minibatches": 1, "objective": "gradient"}
    none, some = updated(
        "impala-priority", settings, {"priority_exponent": 0.0}, {"priority_exponent": 2.0}
    )
    assert differs(none, some)


def test_the_trace_clip_is_at_most_the_difference_clip() -> None:
    """A c-bar above rho-bar counts as rho-bar, as the paper assumes (section 4.1)."""
    low = [{"rho_clip": 0.5, "c_clip": c} for c in (0.5, 2.0, 0.2)]
    same, higher, lower = updated("impala", {}, *low)
    assert_equal(same, higher)
    assert differs(same, lower)


def test_no_gradient_flows_through_targets() -> None:
    """Without a value loss the critic does not change, although advantages depend on it."""
    without = {"value_coefficient": 0.0}
    learned, before = updated("impala", {}, without, without | {"learning_rate": 0.0})
    assert_equal(learned.critic, before.critic)
    assert differs(learned.actor, before.actor)


def test_devices_that_do_not_divide_a_minibatch_are_refused() -> None:
    """The error comes before compilation, with the sizes and the settings to change."""
    row = BY_NAME["impala"]
    config = dataclasses.replace(
        row.config, num_envs=6, num_steps=8, sequence_length=8, num_minibatches=1
    )
    key = jax.random.key(0)  # created outside of the abstract mesh

    def begin():
        return jax.eval_shape(lambda key: row.make(row.environment).init(key, config), key)

    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((2,), ("environments",))):
        begin()
    with (
        jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((4,), ("environments",))),
        pytest.raises(
            ValueError,
            match=r"sequences in a minibatch .* must be a multiple of devices \(4\), "
            r"got 6\. Lower num_",
        ),
    ):
        begin()
