"""Learning from replay: act, remember, learn. TD3, SAC and DQN are `AgentFns` each; the rest is here, once.

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
from rollax.acting import agents
from rollax.acting.exploration import Exploring, begin_exploring, denormalize_action, example_action, next_noise, random_action
from rollax.acting.streams import Actor, Experience, Policy, begin_streams, by_stream, reseed, unroll
from rollax.algorithm import Algorithm, Finite, Metrics, marked, placement_of, still_finite
from rollax.environments.core import Environment, is_on_host
from rollax.errors import UsageError
from rollax.learning import normalization
from rollax.learning.train_state import anneal
from rollax.networks.critics import critic_values
from rollax.replay.config import cycle
from rollax.replay.ring import Batch, Replay, ReplayBuffer, Step
from rollax.scopes import scope


class AgentFns(NamedTuple):
    """Pure functions of an agent, a pytree that holds everything that learning changes. Actions are normalized."""

    init: Callable[[jax.Array, Any], Any]  # (key, config) -> agent
    explore: Callable[..., tuple[jax.Array, Any]]  # (agent, config, obs, carry, noise, key, progress) -> (action, carry)
    act: Callable[..., tuple[jax.Array, Any]]  # (agent, config, obs, carry, key, greedy) -> (action, carry)
    update: Callable[..., tuple[Any, Any]]  # (agent, config, batch, key) -> (agent, metrics with "td_error" [B])
    initial_carry: Callable[[Any], Any] = lambda agent: ()  # the memory that an episode begins with


class OffPolicyState(NamedTuple):
    """Everything that changes."""

    key: jax.Array
    config: Any
    agent: Any
    observations: normalization.Moments | None  # None where observations are not normalized
    actor: Actor
    replay: Any
    updates: jax.Array  # int32 []


def critic_loss(critic: tuple[Any, ...], batch: Batch, target: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """The sum over critics of mean w (Q(s, a) - y)^2; the mean of Q, and |Q - y| `[B]` averaged over critics."""
    values = jnp.stack(critic_values(critic, batch.obs, batch.action))
    td_error = values - target[None]
    loss = jnp.sum(jnp.mean(batch.weight[None] * td_error**2, axis=1))
    return loss, (jnp.mean(values), jnp.mean(jnp.abs(td_error), axis=0))


def normalized(agent_fns: AgentFns, observations: normalization.Moments | None) -> AgentFns:
    """The functions of an agent whose observations are normalized, or as they are where there are no moments."""
    if observations is None:
        return agent_fns
    normalize = functools.partial(normalization.normalize, observations)

    def update(agent: Any, config: Any, batch: Any, key: jax.Array) -> tuple[Any, Any]:
        obs, next_obs = jax.vmap(normalize)(batch.obs), jax.vmap(normalize)(batch.next_obs)
        return agent_fns.update(agent, config, batch._replace(obs=obs, next_obs=next_obs), key)

    return agent_fns._replace(
        explore=lambda agent, config, obs, *rest: agent_fns.explore(agent, config, normalize(obs), *rest),
        act=lambda agent, config, obs, *rest: agent_fns.act(agent, config, normalize(obs), *rest),
        update=update,
    )


def begin(
    environment: Environment, agent_fns: AgentFns, buffer: Callable[[Any], ReplayBuffer], key: jax.Array, config: Any
) -> OffPolicyState:
    """The state before any update. Raises UsageError when the sizes in the config do not fit together."""
    team = agents.team(environment, "all")
    num_steps, _ = cycle(config)
    if is_on_host(environment) and config.num_steps != num_steps:
        raise UsageError(
            f"in {environment.name}, which is on the host, an update is one cycle of acting and learning, so that num_steps "
            f"({config.num_steps}) must be {num_steps}"
        )
    config = tree.as_leaves(config)
    state_key, agent_key, stream_key, noise_key = jax.random.split(key, 4)
    agent = agent_fns.init(agent_key, config)
    actor = begin_streams(environment, stream_key, config.num_envs, agents.initial_carry(team, agent_fns.initial_carry, agent))
    exploring = begin_exploring(environment.action_space, noise_key, actor.episode_return.shape, actor.carry)
    obs, memory = jax.tree.map(lambda x: x[0], by_stream(environment, (actor.obs, actor.carry)))
    no, zero = jnp.zeros((), bool), jnp.zeros(())
    example = Step(obs, example_action(environment.action_space), zero, no, no, obs, no, memory)
    replay = buffer(config).init(example, config.num_envs * team.num_agents, config)
    observations = normalization.initial(obs) if config.normalize_observations else None
    actor = actor._replace(carry=exploring)
    return OffPolicyState(state_key, config, agent, observations, actor, replay, jnp.zeros((), jnp.int32))


def off_policy(environment: Environment, agent_fns: AgentFns, buffer: Callable[[Any], ReplayBuffer]) -> Algorithm:
    """The algorithm of an agent that remembers in `buffer(config)`.

    `init` raises UsageError when the sizes in the config do not fit together.
    """
    team = agents.team(environment, "all")
    init = functools.partial(begin, environment, agent_fns, buffer)

    def step(state: OffPolicyState) -> tuple[OffPolicyState, Metrics]:
        config, fns, replay_buffer = state.config, normalized(agent_fns, state.observations), buffer(state.config)
        num_steps, num_updates = cycle(config)
        key, run_key = jax.random.split(state.key)
        progress = state.updates / config.total_updates

        def once(loop: tuple[Any, Actor, Any], index: jax.Array) -> tuple[Any, Any]:
            agent, actor, replay = loop
            act_key, learn_key = cycle_keys(run_key, index)
            # Act
            policy = exploring_policy(environment, fns, config, agent, progress)
            actor, experience, episodes = unroll(environment, policy, actor, act_key, num_steps)
            # Remember
            replay = remember(replay_buffer, replay, experience)
            # Learn
            taken = state.updates.astype(jnp.float32) * config.steps_per_update + (index + 1) * (num_steps * config.num_envs)
            is_warm = taken >= jnp.maximum(config.warmup, config.learning_starts)
            learn = functools.partial(learn_once, fns, replay_buffer, annealed(config, progress), progress, is_warm, learn_key)
            (agent, replay), metrics = jax.lax.scan(learn, (agent, replay), jnp.arange(num_updates))
            return (agent, actor, replay), (experience, episodes, metrics)

        loop = state.agent, state.actor, state.replay
        loop, (experience, episodes, metrics) = jax.lax.scan(once, loop, jnp.arange(config.num_steps // num_steps))
        observations = observe(state.observations, experience)
        values, finite = report(experience, metrics, loop[0])
        values["learning_rate"] = annealed(config, progress).learning_rate
        agent, actor, replay = loop
        state = OffPolicyState(key, config, agent, observations, actor, replay, state.updates + 1)
        return state, Metrics(values, jax.tree.map(jnp.sum, episodes), finite)

    def act(state: OffPolicyState, obs: Any, carry: Any, key: jax.Array, greedy: bool | jax.Array) -> tuple[Any, Any]:
        fns = normalized(agent_fns, state.observations)

        def choose(agent: Any, carry: Any, obs: Any, key: jax.Array) -> tuple[Any, Any]:
            action, carry = fns.act(agent, state.config, obs, carry, key, greedy)
            return carry, denormalize_action(environment.action_space, action)

        return agents.act(team, choose, state.agent, obs, carry, key)

    def initial_carry(state: OffPolicyState) -> Any:
        return agents.initial_carry(team, agent_fns.initial_carry, state.agent)

    acts, placed = functools.partial(rollouts, environment, agent_fns), placement_of(("actor",), {Replay: marked})
    return Algorithm(init, step, act, initial_carry, acting_state, reseed, rollouts=acts, placement=placed)


def acting_state(state: OffPolicyState) -> OffPolicyState:
    """The state without what acting does not need."""
    return state._replace(actor=None, replay=None)


def rollouts(environment: Environment, agent_fns: AgentFns, state: OffPolicyState) -> tuple[Policy, Actor, jax.Array, int]:
    """What acts in the next cycle, as `unroll` takes it."""
    fns, progress = normalized(agent_fns, state.observations), state.updates / state.config.total_updates
    policy = exploring_policy(environment, fns, state.config, state.agent, progress)
    return policy, state.actor, cycle_keys(jax.random.split(state.key)[1], 0)[0], cycle(state.config)[0]


def cycle_keys(key: jax.Array, index: jax.Array | int) -> jax.Array:
    """Keys of acting and of learning in a cycle, from that of the update."""
    return jax.random.split(jax.random.fold_in(key, index))


def exploring_policy(environment: Environment, fns: AgentFns, config: Any, agent: Any, progress: jax.Array) -> Policy:
    """Random actions in the first `warmup` frames, then those of `explore`. Carry: `Exploring`; extra: the normalized one."""
    space = environment.action_space

    def explore(agent: Any, carry: Exploring, obs: Any, reset: jax.Array, key: jax.Array) -> tuple[Exploring, Any, jax.Array]:
        noise_key, random_key, explore_key = jax.random.split(key, 3)
        noise = None if carry.noise is None else next_noise(carry.noise, noise_key, config.noise_correlation)
        memory = tree.where(reset, fns.initial_carry(agent), carry.memory)
        action, memory = fns.explore(agent, config, obs, memory, noise, explore_key, progress)
        is_random = carry.steps.astype(jnp.float32) * config.num_envs < config.warmup
        action = jnp.where(is_random, random_action(space, obs, noise, random_key), action)
        exploring = Exploring(noise, jnp.minimum(carry.steps + 1, 2**30), memory)
        return exploring, denormalize_action(space, action), action

    return agents.policy(agents.team(environment, "all"), explore, agent)


@scope("replay")
def remember(buffer: ReplayBuffer, replay: Any, experience: Experience) -> Any:
    """The replay with the steps `[c, S]` of all agents that were not done."""
    keep = jnp.ones_like(experience.terminated) if experience.mask is None else experience.mask
    ends = experience.terminated, experience.truncated
    memory = experience.reset, experience.carry.memory
    steps = Step(experience.obs, experience.extras, experience.reward, *ends, experience.next_obs, *memory)
    return jax.lax.scan(lambda replay, row: (buffer.add(replay, *row), None), replay, (steps, keep))[0]


def annealed(config: Any, progress: jax.Array) -> Any:
    """The config with the learning rates of this moment."""
    names = [field.name for field in dataclasses.fields(config) if field.name.endswith("learning_rate")]
    rates = {name: anneal(getattr(config, name), config.learning_rate_final_fraction, progress) for name in names}
    return dataclasses.replace(config, **rates)


def learn_once(
    fns: AgentFns,
    buffer: ReplayBuffer,
    config: Any,
    progress: jax.Array,
    is_warm: jax.Array,
    key: jax.Array,
    loop: tuple[Any, Any],
    index: jax.Array,
) -> tuple[Any, dict[str, jax.Array]]:
    """One gradient step of the agent from a batch of the replay, or nothing and zeros for its metrics."""
    agent, replay = loop
    sample_key, update_key = jax.random.split(jax.random.fold_in(key, index))
    is_active = is_warm & buffer.can_sample(replay, config)
    batch, places = scope("replay")(buffer.sample)(replay, config, sample_key, progress)
    shapes = jax.eval_shape(fns.update, agent, config, batch, update_key)[1]
    nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    update = lambda before: fns.update(before[0], config, batch, update_key)  # noqa: E731
    agent, metrics = scope("credit")(tree.when)(is_active, update, (agent, nothing))
    replay = scope("replay")(buffer.update_priorities)(replay, config, places, metrics["td_error"], is_active)
    metrics |= {"td_error": jnp.mean(metrics["td_error"]), "active": is_active.astype(jnp.float32)}
    return (agent, replay), metrics


@scope("bookkeeping")
def observe(observations: normalization.Moments | None, experience: Experience) -> normalization.Moments | None:
    """The moments with the observations of all cycles `[cycles, c, S]`."""
    if observations is None:
        return None
    return normalization.update(observations, experience.obs, axes=3, mask=experience.mask)


@scope("bookkeeping")
def report(experience: Experience, metrics: dict[str, jax.Array], agent: Any) -> tuple[dict[str, jax.Array], Finite]:
    """Means over the gradient steps `[cycles, g]` that were taken, NaN where none was; and what is still finite."""
    active = metrics.pop("active")
    number = jnp.sum(active)
    means = {name: jnp.where(number > 0, jnp.sum(x) / jnp.maximum(number, 1), jnp.nan) for name, x in metrics.items()}
    finite = still_finite(experience.next_obs, experience.reward, None, metrics["loss"], agent.network, on_policy=False)
    return means | {"gradient_steps": number, "reward": jnp.mean(experience.reward, where=experience.mask)}, finite
