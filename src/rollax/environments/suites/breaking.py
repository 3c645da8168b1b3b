"""Simulations that break: their numbers are no longer finite, and nothing could learn from any of them."""

from typing import Any

import jax
import jax.numpy as jnp

from rollax import tree


def as_finite(before: Any, after: Any, physics: Any) -> Any:
    """The state of brax or Playground after a step. Where the simulation, whose arrays are `physics`, has broken, it has ended:
    with the observation of `before`, and without reward."""
    numbers = jax.tree.leaves((physics, after.obs, after.reward))
    is_broken = ~jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in numbers]))
    none = jax.tree.map(jnp.zeros_like, (after.reward, after.metrics))
    reward, metrics = tree.where(is_broken, none, (after.reward, after.metrics))
    obs, done = tree.where(is_broken, (before.obs, jnp.ones_like(after.done)), (after.obs, after.done))
    return after.replace(obs=obs, reward=reward, done=done, metrics=metrics)
