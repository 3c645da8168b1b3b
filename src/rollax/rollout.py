"""Acting: the streams of experience that an on-policy algorithm learns from."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax import moments, networks, tree
from rollax.environments.core import Streams, StreamState
from rollax.networks.core import batch_carry, step
from rollax.returns import discounted_returns


class Actor(NamedTuple):
    """What acting carries from one rollout to the next. Every leaf leads with environments or streams."""

    streams: StreamState
    carry: Any  # [S, ...] the memory as the last step left it, before any reset
    episode_return: jax.Array  # float [S] of the running episode
    episode_length: jax.Array  # int32 [S]
    discounted_return: jax.Array  # float [S], for reward normalisation


class Trajectory(NamedTuple):
    """What happened, time-major."""

    obs: Any  # [T, S, ...]
    reset: jax.Array  # bool [T, S]: obs begins an episode
    carry: Any  # [T, S, ...] the memory before the step, before any reset
    draw: jax.Array  # [T, S, ...] what the policy drew
    log_prob: jax.Array  # float [T, S]
    value: jax.Array  # float [T, S]
    reward: jax.Array  # float [T, S]
    terminated: jax.Array  # bool [T, S]
    truncated: jax.Array  # bool [T, S]
    final_obs: Any  # [T, S, ...] the true observation after the step


class Episodes(NamedTuple):
    """Sums over the episodes that ended in a rollout, for the progress display."""

    number: jax.Array
    total_return: jax.Array
    total_length: jax.Array


def start(streams: Streams, network: networks.Network, key: jax.Array) -> Actor:
    """The beginning of the first episode of every environment."""
    size = streams.num_streams
    # An array for each: a state whose leaves share one cannot be donated.
    length = jnp.zeros(size, jnp.int32)
    return Actor(streams.init(key), batch_carry(network, size), jnp.zeros(size), length, jnp.zeros(size))


def rollout(
    streams: Streams, network: networks.Network, actor: Actor, key: jax.Array, num_steps: int
) -> tuple[Actor, Trajectory, Episodes]:
    """T steps of every stream with the policy of `network` (outputs `ActorCriticOutput`)."""
    keys = jax.random.split(key, streams.num_envs)

    def act(streams: Streams, network: Any, actor: Actor, keys: jax.Array) -> tuple[Actor, tuple[Trajectory, Episodes]]:
        local = Streams(streams.env, keys.shape[0])
        body = lambda actor, time: _step(local, network, actor, keys, time)  # noqa: E731
        return jax.lax.scan(body, actor, jnp.arange(num_steps))

    run = tree.over_devices(act, in_axes=(None, None, 0, 0), out_axes=(0, (1, 1)))
    actor, (trajectory, episodes) = run(streams, network, actor, keys)
    return actor, trajectory, jax.tree.map(jnp.sum, episodes)


def _step(
    streams: Streams, network: networks.Network, actor: Actor, keys: jax.Array, time: jax.Array
) -> tuple[Actor, tuple[Trajectory, Episodes]]:
    """One step of every stream. Keys are per environment, so a device's share does not depend on the others."""
    act_keys, env_keys = jax.vmap(lambda k: tuple(jax.random.split(jax.random.fold_in(k, time))))(keys)
    agents = streams.env.num_agents
    if agents is not None:
        act_keys = jax.vmap(lambda k: jax.random.split(k, agents))(act_keys).reshape(-1)
    obs, reset = streams.by_stream(actor.streams.obs), streams.spread(actor.streams.reset)

    def act(carry: Any, obs: Any, reset: jax.Array, key: jax.Array) -> Any:
        carry, output = step(network, carry, obs, reset)
        draw = output.policy.sample(key)
        return carry, draw, output.policy.action(draw), output.policy.log_prob(draw), output.value

    carry, draw, action, log_prob, value = jax.vmap(act)(actor.carry, obs, reset, act_keys)
    stream_state, after = streams.step(env_keys, actor.streams, action)
    happened = Trajectory(
        obs, reset, actor.carry, draw, log_prob, value, after.reward, after.terminated, after.truncated, after.final_obs
    )
    total, length = actor.episode_return + after.reward, actor.episode_length + 1
    ended = streams.spread(stream_state.reset)
    episodes = Episodes(
        ended.astype(jnp.float32), jnp.where(ended, total, 0.0), jnp.where(ended, length, 0).astype(jnp.float32)
    )
    total, length = jnp.where(ended, 0.0, total), jnp.where(ended, 0, length)
    return Actor(stream_state, carry, total, length, actor.discounted_return), (happened, episodes)


def scale_rewards(trajectory: Trajectory, actor: Actor, returns: Any, gamma: jax.Array | float) -> tuple[jax.Array, Actor, Any]:
    """Rewards `[T, S]` over the running deviation of discounted returns, and the statistics with this rollout in them.

    `returns` is `()` when rewards are to stay as they are.
    """
    if returns == ():
        return trajectory.reward, actor, returns
    ended = trajectory.terminated | trajectory.truncated
    run = jax.vmap(discounted_returns, in_axes=(1, 1, 0, None), out_axes=(0, 1))
    last, running = run(trajectory.reward, ended, actor.discounted_return, gamma)
    returns = moments.update(returns, running, axes=2)
    scaled = trajectory.reward * jax.lax.rsqrt(returns.variance + 1e-8)
    return scaled, actor._replace(discounted_return=last), returns


def next_values(network: networks.Network, trajectory: Trajectory, actor: Actor) -> jax.Array:
    """V of the true observation after every step, `[T, S]`.

    Within an episode that is the next step's value, which is known. Only the last step and truncated ones need the critic:
    those are few, so they are gathered and evaluated in as many batches of S as it takes, usually one.
    """

    def values(network: Any, trajectory: Trajectory, last_carry: Any) -> jax.Array:
        def evaluate(carry: Any, obs: Any) -> jax.Array:
            return jax.vmap(lambda c, o: network(c, o)[1].value)(carry, obs)

        num_steps, size = trajectory.reward.shape
        last = evaluate(last_carry, jax.tree.map(lambda x: x[-1], trajectory.final_obs))
        following = jnp.concatenate([trajectory.value[1:], last[None]])
        needed = (trajectory.truncated & ~trajectory.terminated).at[-1].set(False).reshape(-1)
        rank = jnp.cumsum(needed)
        flat_obs = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), trajectory.final_obs)
        flat_carry = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), trajectory.carry)

        def body(loop: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            done, following = loop
            index = jnp.searchsorted(rank, done + 1 + jnp.arange(size))  # beyond the last one: out of range, dropped
            # The memory after step t is the one stored before step t + 1, one row further on.
            carry = jax.tree.map(lambda x: x.at[index + size].get(mode="clip"), flat_carry)
            obs = jax.tree.map(lambda x: x.at[index].get(mode="clip"), flat_obs)
            return done + size, following.at[index].set(evaluate(carry, obs), mode="drop")

        start = (jnp.zeros((), rank.dtype), following.reshape(-1))
        _, following = jax.lax.while_loop(lambda loop: loop[0] < rank[-1], body, start)
        return following.reshape(num_steps, size)

    run = tree.over_devices(values, in_axes=(None, 1, 0), out_axes=1)
    return run(network, trajectory, actor.carry)
