"""The starts of episodes, drawn before they are needed, many together."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax.environments.core import Environment
from rollax.environments.once import once

FEWEST = 16  # drawn together, where there are as many environments
_TASK = np.uint32(2**32 - 1)


class Starts(NamedTuple):
    """The starts of the episodes of E environments. The n-th of an environment is a pure function of its own key and n.

    Every environment keeps the start of one episode in stock; empty stocks are drawn anew, many together, when one of them is
    needed. So starts cost about as much as episodes are many, not steps, and do not depend on how environments are spread over
    devices.
    """

    key: jax.Array  # key [E]: the n-th episode of an environment begins with `reset(fold_in(key, n))`
    episode: jax.Array  # int32 [E]: how many episodes have begun
    spare: Any  # (env_state, obs) [E, ...]: the start of one episode to come, a cache of the rule above
    spare_episode: jax.Array  # int32 [E]: the number of that episode


def first_starts(environment: Environment, key: jax.Array, num_envs: int) -> tuple[Any, Starts]:
    """The states and observations `[E, ...]` with which each environment begins, and the starts that follow them."""
    keys, first = jax.random.split(key, num_envs), jnp.zeros(num_envs, jnp.int32)
    begun = _draw(environment, keys, first)
    return begun, Starts(keys, first + 1, _draw(environment, keys, first + 1), first + 1)


def refill(environment: Environment, starts: Starts, ended: jax.Array) -> Starts:
    """Draws new stocks, for a share of the environments at a time, until none that ended has an empty one.

    Those that ended come first, then others whose stock is empty: so a draw is seldom needed, and never larger than useful.
    A `while_loop` rather than a `cond`: under `vmap` a `cond` would draw at every step.
    """
    size = ended.shape[0]
    share = min(size, max(FEWEST, size // 4))

    def urgent(spare_episode: jax.Array) -> jax.Array:
        return ended & (spare_episode != starts.episode)

    def draw(loop: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
        spare, spare_episode = loop
        first, empty = urgent(spare_episode), spare_episode != starts.episode
        # The rank of each environment among those to draw for: compaction by sums, as sorting is slow.
        rank = jnp.where(first, jnp.cumsum(first), jnp.sum(first) + jnp.cumsum(empty & ~first)) - 1
        place = jnp.where(empty & (rank < share), rank, share)
        # What is left of the share beyond those that need one falls out of range, and is dropped.
        chosen = jnp.full(share, size).at[place].set(jnp.arange(size), mode="drop")
        keys, episode = (x.at[chosen].get(mode="clip") for x in (starts.key, starts.episode))
        put = lambda all, some: all.at[chosen].set(some, mode="drop")  # noqa: E731
        return jax.tree.map(put, spare, _draw(environment, keys, episode)), put(spare_episode, episode)

    loop = starts.spare, starts.spare_episode
    spare, spare_episode = jax.lax.while_loop(lambda loop: jnp.any(urgent(loop[1])), draw, loop)
    return starts._replace(spare=spare, spare_episode=spare_episode)


def _draw(environment: Any, keys: jax.Array, episode: jax.Array) -> Any:
    """The start of the given episode of every environment."""
    start_keys = jax.vmap(jax.random.fold_in)(keys, episode)
    if not getattr(environment, "keeps_task", False):
        return jax.vmap(once(environment, "reset"))(start_keys)
    # The task of an environment follows from its own key, by a number that no episode has.
    tasks = jax.vmap(lambda key: environment.sample_task(jax.random.fold_in(key, _TASK)))(keys)
    return jax.vmap(once(environment, "reset_task"))(start_keys, tasks)
