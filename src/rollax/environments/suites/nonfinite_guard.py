"""Termination of simulations that become non-finite."""

from typing import Any

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.types import PyTree, State


def terminate_nonfinite(old_state: State, new_state: State, physics: PyTree) -> Any:
    """Return the state after a step, and terminate the episode if the simulation is non-finite.

    Args:
        old_state: State of brax or MuJoCo Playground before the step.
        new_state: State after the step.
        physics: Pytree of simulation arrays after the step, to check for non-finite values.

    Returns:
        The state after the step. If `physics`, the observation or the reward are not finite, the
        state is terminal, with the observation of `old_state` and with zero reward and metrics.
    """
    numbers = jax.tree.leaves((physics, new_state.obs, new_state.reward))
    is_broken = ~jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in numbers]))
    zero_outputs = jax.tree.map(jnp.zeros_like, (new_state.reward, new_state.metrics))
    reward, metrics = tree.where(is_broken, zero_outputs, (new_state.reward, new_state.metrics))
    obs, done = tree.where(
        is_broken, (old_state.obs, jnp.ones_like(new_state.done)), (new_state.obs, new_state.done)
    )
    return new_state.replace(obs=obs, reward=reward, done=done, metrics=metrics)
