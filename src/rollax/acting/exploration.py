"""Acting in order to remember: one step of every environment by actions that explore, and what is kept of it.

The step of an agent that ended before the others of its environment is never kept.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.acting.rollout import Episodes
from rollax.environments.core import Streams, StreamState
from rollax.networks.critics import legal, masked_action, to_space
from rollax.replay.ring import Step
from rollax.spaces import Box


class Actor(NamedTuple):
    """What acting carries on. Every leaf leads with environments or streams."""

    streams: StreamState
    noise: Any  # float [S, ...]: what drives the exploration of continuous actions, else ()
    is_over: jax.Array  # bool [S]: the stream has ended, its environment's episode has not
    episode_return: jax.Array  # float [S]
    episode_length: jax.Array  # int32 [S]


def start(streams: Streams, stream_key: jax.Array, noise_key: jax.Array) -> Actor:
    """The first episodes of all streams."""
    size = streams.num_streams
    nothing = jnp.zeros(size)
    noise = first_noise(streams.env.action_space, noise_key, size)
    return Actor(streams.init(stream_key), noise, jnp.zeros(size, bool), nothing, nothing.astype(jnp.int32))


def act_once(
    streams: Streams, actor: Actor, explore: Callable[..., jax.Array], key: jax.Array, is_random: jax.Array, config: Any
) -> tuple[Actor, Step, jax.Array, dict[str, Any]]:
    """One step of every stream: the actor after it, what to keep of it and which streams to keep it of, and what to report."""
    space = streams.env.action_space
    env_key, noise_key, explore_key = jax.random.split(key, 3)
    obs = streams.by_stream(actor.streams.obs)
    noise = next_noise(actor.noise, noise_key, config)

    def choose(obs: Any, noise: Any, key: jax.Array) -> jax.Array:
        random_key, explore_key = jax.random.split(key)
        return jnp.where(is_random, random_action(space, obs, noise, random_key), explore(obs, noise, explore_key))

    action = jax.vmap(choose)(obs, noise, jax.random.split(explore_key, streams.num_streams))
    given = jax.vmap(lambda a: given_action(space, a))(action)
    state, after = streams.step(jax.random.split(env_key, streams.num_envs), actor.streams, given)
    reward = jnp.where(actor.is_over, 0.0, after.reward)  # nothing is paid to those who only wait for the others
    total, length = actor.episode_return + reward, actor.episode_length + ~actor.is_over
    ended = streams.spread(state.reset)
    happened = {
        "episodes": Episodes(jnp.sum(ended), jnp.sum(jnp.where(ended, total, 0.0)), jnp.sum(jnp.where(ended, length, 0))),
        "reward": jnp.sum(jnp.where(actor.is_over, 0.0, after.reward)),
        "rewards": jnp.sum(~actor.is_over),
        "finite/observation": tree.all_finite(after.final_obs),
        "finite/reward": tree.all_finite(after.reward),
    }
    is_over = actor.is_over | after.terminated | after.truncated
    total, length = jnp.where(ended, 0.0, total), jnp.where(ended, 0, length)
    kept = Step(obs, action, after.reward, after.terminated, after.truncated, after.final_obs)
    return Actor(state, noise, is_over & ~ended, total, length), kept, ~actor.is_over, happened


def first_noise(space: Any, key: jax.Array, num_streams: int) -> Any:
    """Standard normal numbers for every dimension of continuous actions."""
    return jax.random.normal(key, (num_streams, *space.shape)) if isinstance(space, Box) else ()


def next_noise(noise: Any, key: jax.Array, config: Any) -> Any:
    """Standard normal numbers again, correlated with those before: z' = rho z + sqrt(1 - rho^2) N(0, 1).

    That is an Ornstein-Uhlenbeck process; with rho = 0 it is white. Where a task needs a push for a while in one direction,
    white noise never shows what that is good for.
    """
    if isinstance(noise, tuple):
        return noise
    rho = config.noise_correlation
    return rho * noise + jnp.sqrt(1 - rho**2) * jax.random.normal(key, noise.shape)


def random_action(space: Any, obs: Any, noise: Any, key: jax.Array) -> jax.Array:
    """A uniform action, as it is kept; of a discrete space one that is legal, of a box one that moves with the noise."""
    if isinstance(space, Box):
        return masked_action(jax.scipy.special.erf(noise / jnp.sqrt(2.0)), obs)  # 2 Phi(z) - 1
    return jax.random.categorical(key, legal(jnp.zeros(space.n), obs)).astype(space.dtype)


def kept_action(space: Any) -> jax.Array:
    """An action as it is kept: within -1 ... 1 for a box, as it is for a discrete space."""
    return jnp.zeros(space.shape, jnp.float32 if isinstance(space, Box) else space.dtype)


def given_action(space: Any, action: jax.Array) -> jax.Array:
    """A kept action as the environment takes it."""
    return to_space(space, action).astype(space.dtype) if isinstance(space, Box) else action
