"""Tests that environments are traced once for all programs, and of lazy imports of suites."""

import gc
import re
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rollax.environments.trace_cache import ObjectCache, trace_once

SUITE = """
import sys
import rollax
env = rollax.make("jaxmarl/MPE_simple_spread_v3")
heavy = {"brax", "mujoco", "distrax", "matplotlib.pyplot", \
"jaxmarl.environments.storm.storm_env", "scipy.special"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
import jaxmarl
assert jaxmarl.__version__ and "MPE_simple_v3" in jaxmarl.registered_envs
from jaxmarl.environments import SMAX, SimpleSpreadMPE
assert isinstance(env.dynamics, SimpleSpreadMPE) and \
isinstance(jaxmarl.make("MPE_simple_spread_v3"), SimpleSpreadMPE)
assert rollax.make("jaxmarl/HeuristicEnemySMAX", scenario="3m").num_agents == 3
"""


class Scaled(eqx.Module):
    """Environment that counts calls of its step, which reads its parameter in an `if`."""

    scale: jax.Array
    calls: list[int] = eqx.field(static=True, default_factory=list)

    def step(self, x: jax.Array) -> jax.Array:
        self.calls.append(1)
        if isinstance(self.scale, jax.core.Tracer) or float(self.scale) > 0:
            return self.scale * x
        return x


def operations(step: Callable[[jax.Array], jax.Array]) -> list[str]:
    """Return the operations of a compiled batch of steps."""
    return re.findall(
        r"= \S+ ([\w-]+)\(", jax.jit(jax.vmap(step)).lower(jnp.ones(4)).compile().as_text()
    )


def test_python_runs_once_for_all_programs() -> None:
    env = Scaled(jnp.asarray(3.0))
    for size in (2, 5):
        np.testing.assert_array_equal(
            jax.jit(jax.vmap(trace_once(env, "step")))(jnp.ones(size)), np.full(size, 3.0)
        )
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    jax.eval_shape(trace_once(env, "step"), shape)
    assert len(env.calls) == 1
    direct, through = (operations(step) for step in (env.step, trace_once(env, "step")))
    assert direct == through and "multiply" in direct


def test_parameters_may_be_traced() -> None:
    """In a batch of environments, each has its own."""

    def step(scale: jax.Array) -> jax.Array:
        env = Scaled(scale)
        return trace_once(env, "step")(jnp.ones(()))

    np.testing.assert_array_equal(jax.jit(jax.vmap(step))(jnp.arange(3.0)), [0, 1, 2])


def test_cached_values_are_freed_with_their_object() -> None:
    kept, made = ObjectCache(), []

    def make() -> Any:
        made.append(Scaled(jnp.ones(())))
        return made[-1]

    owner = Scaled(jnp.ones(()))
    assert (
        kept.get_or_make(owner, "a", make)
        is kept.get_or_make(owner, "a", make)
        is not kept.get_or_make(owner, "b", make)
    )
    assert kept.get_or_make(Scaled(jnp.ones(())), "a", make) is made[2]
    value = weakref.ref(made[0])
    del owner
    made.clear()
    gc.collect()
    assert value() is None


def test_only_one_module_of_a_suite_is_imported() -> None:
    """The suite's own functions can still be used afterwards."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SUITE], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
