"""Acting: the streams of experience that an on-policy algorithm learns from."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax import networks, tree
from rollax.acting import agents
from rollax.environments.core import Environment, Streams, StreamState
from rollax.learning import normalization
from rollax.learning.returns import discounted_returns
from rollax.networks.core import batch_carry, step


class Actor(NamedTuple):
    """What acting carries from one rollout to the next. Every leaf leads with environments or streams."""

    streams: StreamState
    carry: Any  # [S, ...] the memory as the last step left it, before any reset
    episode_return: jax.Array  # float [S] of the running episode
    episode_length: jax.Array  # int32 [S]
    discounted_return: jax.Array  # float [S], for reward normalization
    is_gone: Any  # bool [S]: this agent's episode has ended before that of the others; () where no agent is left behind


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
    present: Any  # bool [T, S]: False where an agent only waits for the others to end; () where none ever does


class Episodes(NamedTuple):
    """Sums over the episodes that ended in a rollout, for the progress display."""

    number: jax.Array
    total_return: jax.Array
    total_length: jax.Array


def start(streams: Streams, carry: Any, key: jax.Array) -> Actor:
    """The beginning of the first episode of every environment, with the memory `carry` `[S, ...]`."""
    size = streams.num_streams
    # An array for each: a state whose leaves share one cannot be donated.
    length = jnp.zeros(size, jnp.int32)
    is_gone = jnp.zeros(size, bool) if (streams.env.num_agents or 1) > 1 else ()
    return Actor(streams.init(key), carry, jnp.zeros(size), length, jnp.zeros(size), is_gone)


def initial_carry(team: agents.Team, network: Any, size: int) -> Any:
    """The memory that `size` environments begin with, `[S, ...]`, by the networks of every group."""

    def group_carry(network: networks.Network, places: jax.Array) -> tuple[Any]:
        return (batch_carry(network, places.shape[0]),)

    (carry,) = agents.each(team, group_carry, network, agents.split(team, jnp.zeros(size * team.num_agents), 0))
    return agents.join(team, carry, 0)


def first_carry(environment: Environment, team: agents.Team, network: Any) -> Any:
    """The memory that an episode of one environment begins with, of each agent where it has agents."""
    return network.initial_carry() if environment.num_agents is None else initial_carry(team, network, 1)


def rollout(
    streams: Streams, team: agents.Team, network: Any, actor: Actor, key: jax.Array, num_steps: int
) -> tuple[Actor, Trajectory, Episodes]:
    """T steps of every stream with the policy of `network` (of each group; outputs `ActorCriticOutput`)."""
    keys = jax.random.split(key, streams.num_envs)

    def act(streams: Streams, network: Any, actor: Actor, keys: jax.Array) -> tuple[Actor, tuple[Trajectory, Episodes]]:
        local = Streams(streams.env, keys.shape[0])
        body = lambda actor, time: _step(local, team, network, actor, keys, time)  # noqa: E731
        return jax.lax.scan(body, actor, jnp.arange(num_steps))

    run = tree.over_devices(act, in_axes=(None, None, 0, 0), out_axes=(0, (1, 1)))
    actor, (trajectory, episodes) = run(streams, network, actor, keys)
    return actor, trajectory, jax.tree.map(jnp.sum, episodes)


def _step(
    streams: Streams, team: agents.Team, network: Any, actor: Actor, keys: jax.Array, time: jax.Array
) -> tuple[Actor, tuple[Trajectory, Episodes]]:
    """One step of every stream. Keys are per environment, so a device's share does not depend on the others."""
    act_keys, env_keys = jax.vmap(lambda k: tuple(jax.random.split(jax.random.fold_in(k, time))))(keys)
    act_keys = jax.vmap(lambda k: agent_keys(k, team.num_agents))(act_keys).reshape(-1)
    obs, reset = streams.by_stream(actor.streams.obs), streams.spread(actor.streams.reset)

    def act(network: networks.Network, carry: Any, obs: Any, reset: jax.Array, key: jax.Array) -> Any:
        carry, output = step(network, carry, obs, reset)
        draw = output.policy.sample(key)
        return carry, draw, output.policy.action(draw), output.policy.log_prob(draw), output.value

    parts = agents.split(team, (actor.carry, obs, reset, act_keys), 0)
    acted = agents.each(team, lambda network, part: jax.vmap(lambda *x: act(network, *x))(*part), network, parts)
    carry, draw, action, log_prob, value = (agents.join(team, values, 0) for values in acted)
    stream_state, after = streams.step(env_keys, actor.streams, action)
    waits = not isinstance(actor.is_gone, tuple)
    present: Any = ~actor.is_gone if waits else ()
    reward = jnp.where(present, after.reward, 0.0) if waits else after.reward
    happened = Trajectory(
        obs, reset, actor.carry, draw, log_prob, value, reward, after.terminated, after.truncated, after.final_obs, present
    )
    ended = streams.spread(stream_state.reset)
    total, length = actor.episode_return + reward, actor.episode_length + (present if waits else 1)
    episodes = Episodes(
        ended.astype(jnp.float32), jnp.where(ended, total, 0.0), jnp.where(ended, length, 0).astype(jnp.float32)
    )
    total, length = jnp.where(ended, 0.0, total), jnp.where(ended, 0, length)
    is_gone = (actor.is_gone | after.terminated | after.truncated) & ~ended if waits else ()
    return Actor(stream_state, carry, total, length, actor.discounted_return, is_gone), (happened, episodes)


def agent_keys(key: jax.Array, num_agents: int) -> jax.Array:
    """A key for each agent, `[num_agents]`; that of a single one is the key itself."""
    return key[None] if num_agents == 1 else jax.random.split(key, num_agents)


def act_together(
    environment: Environment, team: agents.Team, network: Any, carry: Any, obs: Any, key: jax.Array, greedy: jax.Array
) -> tuple[Any, jax.Array]:
    """The memory and the action after one observation of one environment, of each agent where it has agents."""

    def act(network: networks.Network, carry: Any, obs: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        carry, output = network(carry, obs)
        draw = tree.where(greedy, output.policy.mode(), output.policy.sample(key))
        return carry, output.policy.action(draw)

    if environment.num_agents is None:
        return act(network, carry, obs, key)
    parts = agents.split(team, (carry, obs, agent_keys(key, team.num_agents)), 0)
    acted = agents.each(team, lambda network, part: jax.vmap(lambda *x: act(network, *x))(*part), network, parts)
    carry, action = (agents.join(team, values, 0) for values in acted)
    return carry, action


def scale_rewards(
    trajectory: Trajectory, discounted_return: jax.Array, returns: Any, gamma: jax.Array | float
) -> tuple[jax.Array, jax.Array, Any]:
    """Rewards `[T, S]` over the running deviation of discounted returns; those returns and the statistics after this rollout.

    `discounted_return`: `[S]`, as the rollout before left it. `returns` is `()` when rewards are to stay as they are.
    """
    if returns == ():
        return trajectory.reward, discounted_return, returns
    ended = trajectory.terminated | trajectory.truncated
    run = jax.vmap(discounted_returns, in_axes=(1, 1, 0, None), out_axes=(0, 1))
    last, running = run(trajectory.reward, ended, discounted_return, gamma)
    returns = normalization.update(returns, running, axes=2, weight=trajectory.present)
    scaled = trajectory.reward * jax.lax.rsqrt(returns.variance + 1e-8)
    return scaled, last, returns


def next_values(network: networks.Network, trajectory: Trajectory, carry: Any) -> jax.Array:
    """V of the true observation after every step, `[T, S]`. `carry`: the memory after the last one, `[S, ...]`.

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
    return run(network, trajectory, carry)


def fit(trajectory: Trajectory, advantage: jax.Array, target: jax.Array) -> dict[str, jax.Array]:
    """Metrics of an update: how well values, at the time of acting, fit what they are to be."""
    present, value = trajectory.present, trajectory.value
    spread = lambda x: normalization.mean((x - normalization.mean(x, present)) ** 2, present)  # noqa: E731
    return {
        "explained_variance": 1 - spread(target - value) / jnp.maximum(spread(target), 1e-12),
        "finite/advantage": tree.all_finite(advantage),
    }


def summary(trajectory: Trajectory, loss: jax.Array, network: Any) -> dict[str, jax.Array]:
    """Metrics of an update: what acting met, and what a run's host needs to name what is no longer finite."""
    return {
        "value": normalization.mean(trajectory.value, trajectory.present),
        "reward": normalization.mean(trajectory.reward, trajectory.present),
        "finite/observation": tree.all_finite((trajectory.obs, trajectory.final_obs)),
        "finite/reward": tree.all_finite(trajectory.reward),
        "finite/loss": jnp.isfinite(loss),
        "finite/parameters": tree.all_finite(network),
    }
