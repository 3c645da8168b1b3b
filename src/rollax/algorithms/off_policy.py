"""Learning from replay: collect, remember, learn. TD3, SAC and DQN are a `Learner` each; the rest is here, once.

A cycle is `c` steps of every environment followed by `g` gradient steps, the smallest whole numbers with
g / (c num_envs) = `replay_ratio`; an update of the algorithm is as many cycles as make `num_steps`. The first `warmup` frames
are of random actions, and nothing is learnt until they are over, nor before `learning_starts`. Nothing here knows which
algorithm learns.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.acting.exploration import Actor, act_once, given_action, kept_action, start
from rollax.algorithm import Algorithm
from rollax.algorithms.replay_config import ReplayConfig, cycle
from rollax.environments.core import Environment, Streams
from rollax.learning import normalization, optimizers
from rollax.networks.critics import values
from rollax.replay.ring import Batch, Memory, Step


class Learner(NamedTuple):
    """Pure functions of an agent, a pytree that holds everything that learning changes."""

    init: Callable[[jax.Array, Any], Any]  # (key, config) -> agent
    explore: Callable[..., jax.Array]  # (agent, config, obs, noise, key, progress) -> action of one stream, as it is kept
    act: Callable[..., jax.Array]  # (agent, config, obs, key, greedy) -> action of one stream, as it is kept
    update: Callable[..., tuple[Any, Any]]  # (agent, config, batch, key) -> (agent, metrics with "error" [B])


def seeing(learner: Learner, observations: Any) -> Learner:
    """The learner, seeing observations normalized by their moments, or as they are when there are none (`()`)."""
    if observations == ():
        return learner
    see = functools.partial(normalization.normalize, observations)

    def update(agent: Any, config: Any, batch: Batch, key: jax.Array) -> tuple[Any, Any]:
        obs, next_obs = jax.vmap(see)(batch.obs), jax.vmap(see)(batch.next_obs)
        return learner.update(agent, config, batch._replace(obs=obs, next_obs=next_obs), key)

    return learner._replace(
        explore=lambda agent, config, obs, *rest: learner.explore(agent, config, see(obs), *rest),
        act=lambda agent, config, obs, *rest: learner.act(agent, config, see(obs), *rest),
        update=update,
    )


class OffPolicyState(NamedTuple):
    """Everything that changes."""

    key: jax.Array
    config: Any
    agent: Any
    observations: Any  # Moments of observations, or ()
    actor: Actor
    replay: Any
    updates: jax.Array  # int32 []

    @property
    def network(self) -> Any:
        return self.agent.network


def off_policy(environment: Environment, learner: Learner, memory: Callable[[Any], Memory]) -> Algorithm:
    """The algorithm of a learner that remembers as `memory(config)` says.

    `init` raises UsageError when the sizes in the config do not fit together or the replay does not fit into memory.
    """
    space = environment.action_space

    def streams(config: ReplayConfig) -> Streams:
        return Streams(environment, config.num_envs)

    def init(key: jax.Array, config: Any) -> OffPolicyState:
        cycle(config)
        config = tree.as_leaves(config)
        state_key, agent_key, stream_key, noise_key = jax.random.split(key, 4)
        actor = start(streams(config), stream_key, noise_key)
        obs = jax.tree.map(lambda x: x[0], streams(config).by_stream(actor.streams.obs))
        no, nothing = jnp.zeros((), bool), jnp.zeros(())
        example = Step(obs, kept_action(space), nothing, no, no, obs)
        replay = memory(config).init(example, streams(config).num_streams, config)
        agent, seen = learner.init(agent_key, config), normalization.initial(obs) if config.normalize_observations else ()
        return OffPolicyState(state_key, config, agent, seen, actor, replay, jnp.zeros((), jnp.int32))

    def step(state: OffPolicyState) -> tuple[OffPolicyState, dict[str, jax.Array]]:
        config, remember, student = state.config, memory(state.config), seeing(learner, state.observations)
        num_steps, num_updates = cycle(config)
        key, run_key = jax.random.split(state.key)
        progress = state.updates / config.total_updates
        rate = config.learning_rate * optimizers.anneal(config.learning_rate_final_fraction, progress)
        learning = dataclasses.replace(config, learning_rate=rate)

        def collect(agent: Any, key: jax.Array, carry: Any, time: jax.Array) -> tuple[Any, Any]:
            actor, replay = carry
            explore = lambda *a: student.explore(agent, config, *a, progress)  # noqa: E731
            is_random = frames_before(state, time) < config.warmup
            actor, kept, keep, happened = act_once(
                streams(config), actor, explore, jax.random.fold_in(key, time), is_random, config
            )
            if config.normalize_observations:
                happened["seen"] = kept.obs, keep
            return (actor, remember.add(replay, kept, keep)), happened

        def once(carry: Any, number: jax.Array) -> tuple[Any, Any]:
            agent, actor, replay = carry
            act_key, learn_key = jax.random.split(jax.random.fold_in(run_key, number))
            times = number * num_steps + jnp.arange(num_steps)
            acting = functools.partial(collect, agent, act_key)
            (actor, replay), happened = jax.lax.scan(acting, (actor, replay), times)
            is_warm = frames_before(state, times[-1] + 1) >= jnp.maximum(config.warmup, config.learning_starts)
            learn = functools.partial(
                learn_once, student, remember, learning, progress, is_warm & remember.is_ready(replay, config), learn_key
            )
            (agent, replay), metrics = jax.lax.scan(learn, (agent, replay), jnp.arange(num_updates))
            return (agent, actor, replay), (happened, metrics)

        carry = state.agent, state.actor, state.replay
        carry, (happened, metrics) = jax.lax.scan(once, carry, jnp.arange(config.num_steps // num_steps))
        agent, actor, replay = carry
        observations = state.observations
        if config.normalize_observations:
            obs, counts = happened["seen"]
            observations = normalization.update(observations, obs, axes=3, weight=counts)
        metrics = means(metrics) | summary(happened, agent) | {"learning_rate": rate}
        return OffPolicyState(key, config, agent, observations, actor, replay, state.updates + 1), metrics

    def act(state: OffPolicyState, carry: Any, obs: Any, key: jax.Array, greedy: bool | jax.Array) -> tuple[Any, jax.Array]:
        own = seeing(learner, state.observations)
        one = lambda obs, key: given_action(space, own.act(state.agent, state.config, obs, key, greedy))  # noqa: E731
        if environment.num_agents is None:
            return carry, one(obs, key)
        return carry, jax.vmap(one)(obs, jax.random.split(key, environment.num_agents))

    return Algorithm(init, step, act, lambda state: (), lambda state: state._replace(actor=(), replay=()))


def frames_before(state: OffPolicyState, time: jax.Array) -> jax.Array:
    """Environment frames before a step of this update, as a float: exact while they are few, which is when they matter."""
    updates = state.updates.astype(jnp.float32)
    return updates * state.config.frames_per_update + time.astype(jnp.float32) * state.config.num_envs


def learn_once(
    learner: Learner,
    remember: Memory,
    config: Any,
    progress: jax.Array,
    is_active: jax.Array,
    key: jax.Array,
    carry: Any,
    number: jax.Array,
) -> tuple[Any, dict[str, jax.Array]]:
    """One gradient step of the agent from a batch of the replay, or nothing and zeros for its metrics."""
    agent, replay = carry
    draw_key, update_key = jax.random.split(jax.random.fold_in(key, number))
    batch, index = remember.draw(replay, config, draw_key, progress)
    shapes = jax.eval_shape(learner.update, agent, config, batch, update_key)[1]
    nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    # As its numbers, which the check against reuse of keys does not follow: `vmap` hands a key to both branches.
    kind, data = jax.random.key_impl(update_key), jax.random.key_data(update_key)
    update = lambda: learner.update(agent, config, batch, jax.random.wrap_key_data(data, impl=kind))  # noqa: E731
    agent, metrics = jax.lax.cond(is_active, update, lambda: (agent, nothing))
    replay = remember.rate(replay, config, index, metrics["error"], is_active)
    metrics |= {"error": jnp.mean(metrics["error"]), "active": is_active.astype(jnp.float32)}
    return (agent, replay), metrics


def critic_loss(critic: tuple[Any, ...], batch: Batch, target: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """The sum over critics of mean w (Q(s, a) - y)^2; the mean of Q, and the errors |Q - y| `[B]` averaged over critics."""
    all_values = jnp.stack(values(critic, batch.obs, batch.action))
    difference = all_values - target[None]
    loss = jnp.sum(jnp.mean(batch.weight[None] * difference**2, axis=1))
    return loss, (jnp.mean(all_values), jnp.mean(jnp.abs(difference), axis=0))


def means(metrics: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Means over the gradient steps `[cycles, g]` that were taken; NaN when none was."""
    active = metrics.pop("active")
    number = jnp.sum(active)
    mean = {name: jnp.where(number > 0, jnp.sum(x) / jnp.maximum(number, 1), jnp.nan) for name, x in metrics.items()}
    is_fine = jnp.all(jnp.isfinite(metrics["loss"]))
    return mean | {"gradient_steps": number, "finite/loss": is_fine}


def summary(happened: dict[str, Any], agent: Any) -> dict[str, jax.Array]:
    """What a run's host needs of the steps `[cycles, c]`: sums over episodes, and what to blame when numbers go bad."""
    episodes = jax.tree.map(lambda x: jnp.sum(x).astype(jnp.float32), happened["episodes"])
    return {
        "reward": jnp.sum(happened["reward"]) / jnp.maximum(jnp.sum(happened["rewards"]), 1),
        **{f"episodes/{name}": value for name, value in episodes._asdict().items()},
        **{name: jnp.all(happened[name]) for name in ("finite/observation", "finite/reward")},
        "finite/parameters": tree.all_finite(agent.network),
    }
