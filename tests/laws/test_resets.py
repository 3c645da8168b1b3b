"""Tests of every recurrent core: resets separate episodes, and a sequence equals its steps."""

from functools import cache
from typing import Any

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from carries import batch_carry
from laws.programs import assert_close
from rollax.networks import StepwiseNetwork, recurrent
from rollax.networks.network import step_network
from support.parameters import mark_quick

LENGTH, BATCH, INPUTS = 6, 3, 4


class Sum(eqx.Module):
    """Custom network that sums observations.

    It has only the two methods that `StepwiseNetwork` needs.
    """

    weight: jax.Array

    def initial_carry(self) -> jax.Array:
        return jnp.ones(INPUTS)

    def __call__(self, carry: jax.Array, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        carry = carry + self.weight * obs
        return carry, carry**2


class Product(eqx.Module):
    """Custom network without memory."""

    weight: jax.Array

    def initial_carry(self) -> tuple[()]:
        return ()

    def __call__(self, carry: tuple[()], obs: jax.Array) -> tuple[tuple[()], jax.Array]:
        return (), self.weight * obs


def stack(is_sum: bool, *kinds: str) -> recurrent.StackedCore:
    """Return a stack of memories of several kinds."""
    keys = jax.random.split(jax.random.key(0), len(kinds))
    sizes = (INPUTS, *[5] * (len(kinds) - 1))
    return recurrent.StackedCore(
        tuple(
            recurrent.CORE_CLASSES[kind](n, 5, key=k)
            for kind, n, k in zip(kinds, sizes, keys, strict=True)
        ),
        is_sum,
    )


CORES = {
    "none": recurrent.MemorylessCore(),
    **{
        name: make(INPUTS, 5, key=jax.random.key(0))
        for name, make in recurrent.CORE_CLASSES.items()
    },
    "stack": stack(False, "lstm", "mingru"),
    "stack, sum": stack(True, "mingru", "gru", "mingru"),
    "residual": recurrent.make_recurrent_core(
        "mingru", INPUTS, 5, 2, "residual", jax.random.key(0)
    ),
    "transformer": recurrent.make_transformer_core(
        INPUTS, 6, num_layers=2, heads=2, memory=4, key=jax.random.key(0)
    ),
    "transformer, long": recurrent.make_transformer_core(
        INPUTS, 6, num_layers=1, heads=3, memory=20, key=jax.random.key(0)
    ),
    "stepwise": StepwiseNetwork(Sum(jnp.full(INPUTS, 0.3))),
    "stepwise, none": StepwiseNetwork(Product(jnp.full(INPUTS, 0.3))),
}


@pytest.fixture(params=CORES)
def core(request: pytest.FixtureRequest) -> Any:
    return CORES[request.param]


def inputs() -> tuple[jax.Array, jax.Array]:
    """Return observations `[L, B, n]`, and resets in the middle, at the start, and nowhere."""
    obs = jax.random.normal(jax.random.key(1), (LENGTH, BATCH, INPUTS))
    reset = jnp.zeros((LENGTH, BATCH), bool).at[3, 0].set(True).at[0, 1].set(True)
    return obs, reset


def used(core: Any) -> Any:
    """Return a memory that differs from the initial one."""
    return core.unroll(batch_carry(core, BATCH), *drawn(5, 0.3, 2))[0]


def drawn(length: int, often: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return observations and resets of a random sequence."""
    numbers = np.random.default_rng(seed)
    obs = numbers.normal(size=(length, BATCH, INPUTS)).astype(np.float32)
    return obs, numbers.random((length, BATCH)) < often


def test_resets_separate_episodes(core: Any) -> None:
    obs, reset = inputs()
    never = jnp.zeros((LENGTH, 1), bool)
    last, outputs = core.unroll(used(core), obs, reset)

    def at(tree, i):
        return jax.tree.map(lambda x: x[i : i + 1], tree)

    _, first = core.unroll(at(used(core), 0), obs[:3, :1], never[:3])
    end, second = core.unroll(batch_carry(core, 1), obs[3:, :1], never[3:])
    assert_close(outputs[:, :1], jnp.concatenate([first, second]))
    assert_close(at(last, 0), end)

    end, whole = core.unroll(batch_carry(core, 1), obs[:, 1:2], never)
    assert_close(outputs[:, 1:2], whole)
    assert_close(at(last, 1), end)

    _, unbroken = core.unroll(at(used(core), 2), obs[:, 2:], never)
    assert_close(outputs[:, 2:], unbroken)


@cache
def compiled(name: str) -> tuple[Any, Any]:
    """Return the compiled unroll and the compiled step of a core."""
    core = CORES[name]
    return jax.jit(lambda *a: core.unroll(*a)), jax.jit(
        jax.vmap(lambda c, o, r: step_network(core, c, o, r))
    )


@pytest.mark.parametrize("name", mark_quick(CORES, "gru"))
@settings(max_examples=10, deadline=None)
@given(
    length=st.sampled_from([1, 3, 8]),
    seed=st.integers(0, 2**31 - 1),
    often=st.sampled_from([0.0, 0.2, 0.7, 1.0]),
)
def test_a_sequence_equals_its_steps(name: str, length: int, seed: int, often: float) -> None:
    """Start from any memory, with resets at any steps."""
    unroll, one = compiled(name)
    carry, _ = unroll(batch_carry(CORES[name], BATCH), *drawn(length, often, seed + 1))
    obs, reset = drawn(length, often, seed)
    last, outputs = unroll(carry, obs, reset)
    for t in range(length):
        carry, output = one(carry, obs[t], reset[t])
        assert_close(outputs[t], output)
    assert_close(last, carry)


def test_no_gradient_through_a_reset(core: Any) -> None:
    """Observations of the previous episode do not affect outputs after a reset."""
    obs, reset = inputs()

    def late(obs):
        return jnp.sum(core.unroll(used(core), obs, reset)[1][3:, 0])

    gradient = jax.grad(late)(obs)
    assert not jnp.any(gradient[:3, 0])
    assert jnp.any(gradient[3:, 0])


@pytest.mark.parametrize(
    "name",
    mark_quick(
        [
            *recurrent.CORE_CLASSES,
            "stack",
            "stack, sum",
            "residual",
            "transformer",
            "transformer, long",
        ],
        "gru",
    ),
)
def test_memory_covers_the_whole_sequence(name: str) -> None:
    """Without a reset the first observation affects the last output."""
    obs, reset = inputs()

    def late(obs):
        return jnp.sum(CORES[name].unroll(used(CORES[name]), obs, reset)[1][-1, 2])

    assert jnp.any(jax.grad(late)(obs)[0, 2])
