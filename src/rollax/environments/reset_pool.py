"""Pool of initial states, which are sampled in batches before episodes start from them."""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from rollax.environments.capabilities import capabilities
from rollax.environments.environment import Environment, TaskEnvironment
from rollax.environments.trace_cache import trace_once
from rollax.types import PyTree

MIN_RESETS_PER_DRAW = 16  # limited by the number of environments
_TASK_KEY_INDEX = np.uint32(2**32 - 1)


class ResetPool(NamedTuple):
    """Initial states for the next episodes of E environments.

    The initial state of episode n in an environment depends only on the environment's key and n.
    Results therefore do not depend on the distribution of environments over devices. The pool
    stores one initial state per environment. A batch of states is sampled when an environment needs
    a state that is not in the pool. The cost is therefore proportional to the number of episodes
    instead of the number of steps.

    Attributes:
        key: Random key of each environment, [E]. Episode n starts with `reset(fold_in(key, n))`.
        episode: Number of episodes that each environment has started, int32 [E].
        pooled_reset: `(env_state, obs)` at the start of one future episode, with leading axis [E].
        pooled_episode: Episode index of `pooled_reset`, int32 [E].
    """

    key: jax.Array
    episode: jax.Array
    pooled_reset: Any
    pooled_episode: jax.Array


def init_reset_pool(
    environment: Environment, key: jax.Array, num_envs: int
) -> tuple[Any, ResetPool]:
    """Return the initial states of the first episodes and the pool for later episodes.

    Args:
        environment: Environment to reset.
        key: Random key.
        num_envs: Number of environments E.

    Returns:
        `(env_state, obs)` with leading axis [E], and the pool, as a tuple.
    """
    keys, first = jax.random.split(key, num_envs), jnp.zeros(num_envs, jnp.int32)
    first_reset = _sample_resets(environment, keys, first)
    return first_reset, ResetPool(
        keys, first + 1, _sample_resets(environment, keys, first + 1), first + 1
    )


def refill_reset_pool(environment: Environment, pool: ResetPool, ended: jax.Array) -> ResetPool:
    """Sample initial states until every environment whose episode ended has one in the pool.

    Each iteration samples states for up to a quarter of the environments. Environments whose
    episode ended have priority over other environments without a pooled state. Sampling is
    therefore rare. A `while_loop` is used instead of a `cond`, because under `vmap` a `cond` would
    sample at every step.

    Args:
        environment: Environment to reset.
        pool: Pool before the refill.
        ended: Mask of the environments whose episode ended, bool [E].

    Returns:
        The refilled pool.
    """
    size = ended.shape[0]
    share = min(size, max(MIN_RESETS_PER_DRAW, size // 4))

    def urgent(pooled_episode: jax.Array) -> jax.Array:
        return ended & (pooled_episode != pool.episode)

    def draw(loop: tuple[PyTree, jax.Array]) -> tuple[Any, jax.Array]:
        pooled_reset, pooled_episode = loop
        first, empty = urgent(pooled_episode), pooled_episode != pool.episode
        # Rank of each environment that needs a state. Cumulative sums are faster than sorting.
        rank = jnp.where(first, jnp.cumsum(first), jnp.sum(first) + jnp.cumsum(empty & ~first)) - 1
        slot = jnp.where(empty & (rank < share), rank, share)
        # Unused entries of the share keep an index out of range, which is dropped.
        indices = jnp.full(share, size).at[slot].set(jnp.arange(size), mode="drop")
        keys, episode = (x.at[indices].get(mode="clip") for x in (pool.key, pool.episode))

        def put(pooled, sampled):
            return pooled.at[indices].set(sampled, mode="drop")

        return jax.tree.map(put, pooled_reset, _sample_resets(environment, keys, episode)), put(
            pooled_episode, episode
        )

    loop = pool.pooled_reset, pool.pooled_episode
    pooled_reset, pooled_episode = jax.lax.while_loop(
        lambda loop: jnp.any(urgent(loop[1])), draw, loop
    )
    return pool._replace(pooled_reset=pooled_reset, pooled_episode=pooled_episode)


def _sample_resets(environment: Environment, keys: jax.Array, episode: jax.Array) -> Any:
    """Return `(env_state, obs)` at the start of the given episode of each environment."""
    start_keys = jax.vmap(jax.random.fold_in)(keys, episode)
    if not capabilities(environment).keeps_task:
        return jax.vmap(trace_once(environment, "reset"))(start_keys)
    environment = cast(TaskEnvironment, environment)
    # The task depends only on the environment's key. No episode has this index.
    tasks = jax.vmap(lambda key: environment.sample_task(jax.random.fold_in(key, _TASK_KEY_INDEX)))(
        keys
    )
    return jax.vmap(trace_once(environment, "reset_task"))(start_keys, tasks)


def discard_pooled_resets(state: PyTree) -> Any:
    """Return a pytree whose reset pools are empty, so that they are filled with their own keys."""

    def discard(part: PyTree) -> PyTree:
        if not isinstance(part, ResetPool):
            return part
        return part._replace(pooled_episode=jnp.full_like(part.pooled_episode, -1))

    return jax.tree.map(discard, state, is_leaf=lambda part: isinstance(part, ResetPool))
