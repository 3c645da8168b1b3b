"""Random episodes in environments of JaxMARL."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.spaces import Discrete


def random_actions(env: Any, key: jax.Array, obs: Any) -> jax.Array:
    """Return random actions `[A, ...]`, which are legal if there is a mask."""
    keys = jax.random.split(key, env.num_agents)
    if isinstance(obs, dict) and "action_mask" in obs and isinstance(env.action_space, Discrete):
        return jax.vmap(jax.random.categorical)(
            keys, jnp.where(obs["action_mask"], 0.0, -jnp.inf)
        ).astype(jnp.int32)
    return jax.vmap(env.action_space.sample)(keys)


@functools.partial(jax.jit, static_argnums=1)
def play(key: jax.Array, num_steps: int, policy_key: jax.Array, env: Any) -> Any:
    """Return (state before, observation before, action, transition) of random steps, `[T, ...]`."""

    def step(carry: Any, time: jax.Array) -> Any:
        state, obs = carry
        action = random_actions(env, jax.random.fold_in(policy_key, time), obs)
        after = env.step(jax.random.fold_in(key, time), state, action)
        return (after.state, after.obs), (state, obs, action, after)

    return jax.lax.scan(step, env.reset(key), jnp.arange(num_steps))[1]


def episode(env: Any, num_steps: int, seed: int = 0) -> Any:
    with jax.debug_key_reuse(False):
        return jax.tree.map(
            np.asarray, play(jax.random.key(seed), num_steps, jax.random.key(seed + 1000), env)
        )
