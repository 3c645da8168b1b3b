"""Termination of simulations that become non-finite."""

from typing import Any

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.types import PyTree, State


def terminate_nonfinite(before: State, after: State, physics: PyTree) -> Any:
    """Terminate the episode if the simulation becomes non-finite.

    Args:
        before: State of brax or MuJoCo Playground before the step.
        after: State after the step.
        physics: Pytree of arrays of the simulation after the step.

    Returns:
        The state after the step. If `physics`, the observation or the reward are not finite, the
        state is terminal, with the observation of `before` and with zero reward and metrics.
    """
    numbers = jax.tree.leaves((physics, after.obs, after.reward))
    is_broken = ~jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in numbers]))
    none = jax.tree.map(jnp.zeros_like, (after.reward, after.metrics))
    reward, metrics = tree.where(is_broken, none, (after.reward, after.metrics))
    obs, done = tree.where(
        is_broken, (before.obs, jnp.ones_like(after.done)), (after.obs, after.done)
    )
    return after.replace(obs=obs, reward=reward, done=done, metrics=metrics)
