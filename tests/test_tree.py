"""Tests of settings classes and pytree helpers."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax import tree
from rollax.config import settings_dataclass, static_field, traced_field, traced_field_names
from rollax.errors import UsageError
from rollax.user_input.settings_validation import validate_settings


@settings_dataclass
class Settings:
    size: int = static_field(4, low=2)
    kind: Literal["a", "b"] = static_field("a")
    rate: float = traced_field(0.5, 0, 1)
    free: float = traced_field(1.0)


def test_static_settings_are_structure_and_others_leaves() -> None:
    assert jax.tree.leaves(Settings(rate=0.25, free=3.0)) == [0.25, 3.0]
    assert jax.tree.structure(Settings(rate=0.1)) == jax.tree.structure(Settings(rate=0.2))
    assert jax.tree.structure(Settings(size=2)) != jax.tree.structure(Settings(size=3))
    assert traced_field_names(Settings) == ["rate", "free"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rate": 1.5}, r"rate \(1.5\) must be between 0 and 1"),
        ({"rate": float("nan")}, r"rate \(nan\)"),
        ({"rate": float("inf")}, r"rate \(inf\) must be between 0 and 1"),
        ({"free": float("inf")}, r"free \(inf\) must be finite"),
        ({"free": "1"}, r"free \('1'\) must be a number, not a string. Write 1 without quotes"),
        ({"size": 2.5}, r"size \(2.5\) must be an integer. Use 2 or 3"),
        ({"size": 2**31}, r"size \(2147483648\) must be at most 2147483647"),
        ({"size": 1}, r"size \(1\) must be at least 2"),
        ({"kind": "c"}, r"kind \('c'\) must be one of a, b"),
        ({"kind": "aa"}, r"kind \('aa'\) must be one of a, b: did you mean a\?"),
    ],
)
def test_settings_out_of_range_raise_usage_error(change: dict[str, Any], message: str) -> None:
    validate_settings(Settings())
    with pytest.raises(UsageError, match=message):
        validate_settings(Settings(**change))


def test_leaves_have_strong_types() -> None:
    """Python numbers, integers and arrays therefore use the same compiled program."""
    for value in (0.5, jnp.asarray(0.5), np.float32(0.5)):
        leaf = tree.to_arrays(Settings(rate=value)).rate
        assert (leaf.dtype, leaf.weak_type) == (jnp.float32, False)
    leaf = jax.jit(lambda x: tree.to_arrays(x))(0.5)
    assert not leaf.weak_type


def test_where_selects_whole_trees() -> None:
    keys, others = jax.random.split(jax.random.key(0), 3), jax.random.split(jax.random.key(1), 3)
    condition = jnp.array([True, False, True])
    chosen = tree.where(
        condition,
        {"x": jnp.ones((3, 2, 2)), "key": keys},
        {"x": jnp.zeros((3, 2, 2)), "key": others},
    )
    assert chosen["x"].sum(axis=(1, 2)).tolist() == [4.0, 0.0, 4.0]
    numbers = jax.random.key_data(chosen["key"])
    assert np.array_equal(
        numbers[1], jax.random.key_data(jax.random.split(jax.random.key(1), 3))[1]
    )
    assert np.array_equal(
        numbers[2], jax.random.key_data(jax.random.split(jax.random.key(0), 3))[2]
    )


def test_vmap_over_steps_equals_two_vmaps() -> None:
    """Every step of every stream has its own result."""
    data = {"a": jnp.arange(24.0).reshape(3, 4, 2), "b": jnp.arange(12.0).reshape(3, 4)}

    def function(d):
        return {"sum": jnp.sum(d["a"]) + d["b"], "same": d["a"]}

    expected = jax.vmap(jax.vmap(function))(data)
    jax.tree.map(np.testing.assert_array_equal, tree.vmap_over_steps(function)(data), expected)


def test_any_member_under_nested_vmap() -> None:
    """Without `vmap` it returns the condition, with nested `vmap` whether any member meets it."""
    conditions = jnp.array([[False, True], [False, False]])
    assert tree.any_member(conditions).tolist() == conditions.tolist()
    assert jax.vmap(tree.any_member, out_axes=None)(conditions[0]).tolist() is True
    assert (
        jax.vmap(jax.vmap(tree.any_member, out_axes=None), out_axes=None)(conditions).tolist()
        is True
    )
    assert jax.vmap(tree.any_member, out_axes=None)(conditions[1]).tolist() is False


def test_cond_any_member_changes_only_selected_members() -> None:
    """Members change as if they were alone, and the change does not run if no member needs it.

    `jax.lax.cond` would become a selection under `vmap`.
    """
    before = {"x": jnp.arange(3.0), "n": jnp.zeros((3, 2), jnp.int32)}

    def change(one):
        return {"x": one["x"] + 1, "n": one["n"] - 1}

    def run(due, one):
        return tree.cond_any_member(due, change, one)

    for due in ([True, False, True], [False] * 3, [True] * 3):
        together = jax.jit(jax.vmap(run))(jnp.array(due), before)
        for place, one in enumerate(due):
            alone = jax.jit(run)(jnp.asarray(one), jax.tree.map(lambda x: x[place], before))  # noqa: B023 - called here
            assert float(together["x"][place]) == float(alone["x"]) == place + one
            assert together["n"][place].tolist() == alone["n"].tolist() == [-int(one)] * 2
    assert "case" in jax.jit(jax.vmap(run)).lower(jnp.array(due), before).as_text()


def test_all_finite_of_trees() -> None:
    assert bool(tree.all_finite({"x": jnp.ones(3), "n": jnp.arange(3)}))
    assert not bool(tree.all_finite({"x": jnp.array([1.0, jnp.nan]), "n": jnp.arange(3)}))
    assert not bool(tree.all_finite([jnp.array(-jnp.inf)]))
    assert bool(tree.all_finite({"n": jnp.arange(3)}))
