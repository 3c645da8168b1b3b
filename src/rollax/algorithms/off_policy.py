"""Learning from replay: collect, remember, learn. TD3, SAC and DQN are a `Learner` each; the rest is here, once.

A cycle is `c` steps of every environment followed by `g` gradient steps, the smallest whole numbers with
g / (c num_envs) = `replay_ratio`; an update of the algorithm is as many cycles as make `num_steps`. The first `warmup` frames
are of random actions, and nothing is learnt until they are over. The step of an agent that ended before the others of its
environment is never kept. Nothing here knows which algorithm learns.
"""

import dataclasses
import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from rollax import optimise, tree
from rollax.algorithm import Algorithm
from rollax.environments.core import Environment, Streams, StreamState
from rollax.errors import UsageError
from rollax.networks.critics import legal, to_space, values
from rollax.replay import Batch, Memory, Step
from rollax.rollout import Episodes
from rollax.spaces import Box

# Ratios are taken for the nearest fraction with at most so many steps in a cycle.
LONGEST_CYCLE = 64


class Config(Protocol):
    """What the settings of every learner have. All but the sizes are data."""

    num_envs: int
    num_steps: int
    capacity: int
    batch_size: int
    replay_ratio: float
    warmup: Any
    learning_rate: Any
    learning_rate_end: Any
    gamma: Any
    total_updates: Any

    @property
    def frames_per_update(self) -> int: ...


class Learner(NamedTuple):
    """Pure functions of an agent, a pytree that holds everything that learning changes."""

    init: Callable[[jax.Array, Any], Any]  # (key, config) -> agent
    explore: Callable[..., jax.Array]  # (agent, config, obs, noise, key, progress) -> action of one stream, as it is kept
    act: Callable[..., jax.Array]  # (agent, obs, key, greedy) -> action of one stream, as it is kept
    update: Callable[..., tuple[Any, Any]]  # (agent, config, batch, key) -> (agent, metrics with "error" [B])


class Actor(NamedTuple):
    """What acting carries on. Every leaf leads with environments or streams."""

    streams: StreamState
    noise: Any  # float [S, ...]: what drives the exploration of continuous actions, else ()
    is_over: jax.Array  # bool [S]: the stream has ended, its environment's episode has not
    episode_return: jax.Array  # float [S]
    episode_length: jax.Array  # int32 [S]


class OffPolicyState(NamedTuple):
    """Everything that changes."""

    key: jax.Array
    config: Any
    agent: Any
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

    def streams(config: Config) -> Streams:
        return Streams(environment, config.num_envs)

    def init(key: jax.Array, config: Any) -> OffPolicyState:
        cycle(config)
        config = tree.as_leaves(config)
        state_key, agent_key, stream_key, noise_key = jax.random.split(key, 4)
        size = streams(config).num_streams
        actor = Actor(
            streams(config).init(stream_key),
            first_noise(space, noise_key, size),
            jnp.zeros(size, bool),
            jnp.zeros(size),
            jnp.zeros(size, jnp.int32),
        )
        obs = jax.tree.map(lambda x: x[0], streams(config).by_stream(actor.streams.obs))
        no, nothing = jnp.zeros((), bool), jnp.zeros(())
        example = Step(obs, kept_action(space), nothing, no, no, obs)
        replay = memory(config).init(example, size, config)
        return OffPolicyState(state_key, config, learner.init(agent_key, config), actor, replay, jnp.zeros((), jnp.int32))

    def step(state: OffPolicyState) -> tuple[OffPolicyState, dict[str, jax.Array]]:
        config, remember = state.config, memory(state.config)
        num_steps, num_updates = cycle(config)
        key, run_key = jax.random.split(state.key)
        progress = state.updates / config.total_updates
        rate = config.learning_rate * optimise.anneal(config.learning_rate_end, progress)
        learning = dataclasses.replace(config, learning_rate=rate)

        def collect(agent: Any, key: jax.Array, carry: Any, time: jax.Array) -> tuple[Any, Any]:
            actor, replay = carry
            explore = lambda *a: learner.explore(agent, config, *a, progress)  # noqa: E731
            is_random = frames_before(state, time) < config.warmup
            actor, kept, keep, happened = act_once(
                streams(config), actor, explore, jax.random.fold_in(key, time), is_random, config
            )
            return (actor, remember.add(replay, kept, keep)), happened

        def once(carry: Any, number: jax.Array) -> tuple[Any, Any]:
            agent, actor, replay = carry
            act_key, learn_key = jax.random.split(jax.random.fold_in(run_key, number))
            times = number * num_steps + jnp.arange(num_steps)
            acting = functools.partial(collect, agent, act_key)
            (actor, replay), happened = jax.lax.scan(acting, (actor, replay), times)
            is_warm = frames_before(state, times[-1] + 1) >= config.warmup
            learn = functools.partial(
                learn_once, learner, remember, learning, progress, is_warm & remember.is_ready(replay, config), learn_key
            )
            (agent, replay), metrics = jax.lax.scan(learn, (agent, replay), jnp.arange(num_updates))
            return (agent, actor, replay), (happened, metrics)

        carry = state.agent, state.actor, state.replay
        carry, (happened, metrics) = jax.lax.scan(once, carry, jnp.arange(config.num_steps // num_steps))
        agent, actor, replay = carry
        metrics = means(metrics) | summary(happened, agent) | {"learning_rate": rate}
        return OffPolicyState(key, config, agent, actor, replay, state.updates + 1), metrics

    def act(state: OffPolicyState, carry: Any, obs: Any, key: jax.Array, greedy: bool | jax.Array) -> tuple[Any, jax.Array]:
        one = lambda obs, key: given_action(space, learner.act(state.agent, obs, key, greedy))  # noqa: E731
        if environment.num_agents is None:
            return carry, one(obs, key)
        return carry, jax.vmap(one)(obs, jax.random.split(key, environment.num_agents))

    return Algorithm(init, step, act, lambda state: ())


def cycle(config: Config) -> tuple[int, int]:
    """Steps of every environment, and gradient steps, of one cycle. Raises UsageError when the sizes do not fit together."""
    wanted = Fraction(config.replay_ratio * config.num_envs)
    ratio = wanted.limit_denominator(LONGEST_CYCLE)
    steps, updates = ratio.denominator, ratio.numerator
    if updates < 1:
        raise UsageError(
            f"replay_ratio ({config.replay_ratio}) with num_envs ({config.num_envs}) is less than one gradient step in "
            f"{LONGEST_CYCLE} steps: try {1 / (LONGEST_CYCLE * config.num_envs):.3g} or more"
        )
    if config.num_steps % steps:
        raise UsageError(
            f"num_steps ({config.num_steps}) must be a multiple of {steps}, the steps between gradient steps that replay_ratio "
            f"({config.replay_ratio}) and num_envs ({config.num_envs}) ask for: try {-(-config.num_steps // steps) * steps}"
        )
    if config.capacity < config.batch_size:
        raise UsageError(f"capacity ({config.capacity}) must be at least batch_size ({config.batch_size})")
    return steps, updates


def frames_before(state: OffPolicyState, time: jax.Array) -> jax.Array:
    """Environment frames before a step of this update, as a float: exact while they are few, which is when they matter."""
    updates = state.updates.astype(jnp.float32)
    return updates * state.config.frames_per_update + time.astype(jnp.float32) * state.config.num_envs


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
    total, length = actor.episode_return + after.reward, actor.episode_length + 1
    ended = streams.spread(state.reset)
    happened = {
        "episodes": Episodes(jnp.sum(ended), jnp.sum(jnp.where(ended, total, 0.0)), jnp.sum(jnp.where(ended, length, 0))),
        "reward": jnp.mean(after.reward),
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
        return jax.scipy.special.erf(noise / jnp.sqrt(2.0))  # 2 Phi(z) - 1
    return jax.random.categorical(key, legal(jnp.zeros(space.n), obs)).astype(space.dtype)


def kept_action(space: Any) -> jax.Array:
    """An action as it is kept: within -1 ... 1 for a box, as it is for a discrete space."""
    return jnp.zeros(space.shape, jnp.float32 if isinstance(space, Box) else space.dtype)


def given_action(space: Any, action: jax.Array) -> jax.Array:
    """A kept action as the environment takes it."""
    return to_space(space, action).astype(space.dtype) if isinstance(space, Box) else action


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


def descend(optimiser: optax.GradientTransformation, state: Any, part: Any, gradient: Any) -> tuple[Any, Any]:
    """One step down the gradient: the part of a network after it, and the optimiser's state."""
    changes, state = optimiser.update(gradient, state, part)
    return eqx.apply_updates(part, changes), state


def blend(target: Any, network: Any, share: jax.Array | float) -> Any:
    """The target moved towards the network: (1 - share) target + share network."""
    return jax.tree.map(lambda t, n: t + share * (n - t), target, network)


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
        "reward": jnp.mean(happened["reward"]),
        **{f"episodes/{name}": value for name, value in episodes._asdict().items()},
        **{name: jnp.all(happened[name]) for name in ("finite/observation", "finite/reward")},
        "finite/parameters": tree.all_finite(agent.network),
    }
