"""What algorithms share that learn from rollouts of their own policy: acting, and teaching every group of agents apart."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rollax import tree
from rollax.acting import agents, rollout
from rollax.algorithm import Algorithm
from rollax.environments.core import Environment, Streams
from rollax.learning import normalization, optimizers
from rollax.networks.core import Network


class State(NamedTuple):
    """Everything that changes. With several groups of agents, the four parts of a learner are dictionaries by group."""

    key: jax.Array
    config: Any
    network: Any
    optimizer: dict[str, Any]  # by part of the network: "actor", "critic"
    observations: Any  # Moments of observations, or ()
    returns: Any  # Moments of discounted returns, or ()
    actor: rollout.Actor
    updates: jax.Array  # int32 []


class Learner(NamedTuple):
    """One set of parameters and what belongs to it."""

    network: Any
    optimizer: dict[str, Any]
    observations: Any
    returns: Any


class Happened(NamedTuple):
    """What one set of parameters learns from."""

    trajectory: rollout.Trajectory  # [T, S, ...]
    carry: Any  # [S, ...] the memory after it
    discounted_return: jax.Array  # float [S] that the rollout before left, and after learning the one that this leaves


# (config, progress from 0 to 1 over the run, learner, happened, key) -> (learner, discounted return, metrics)
Learn = Callable[[Any, jax.Array, Learner, Happened, jax.Array], tuple[Learner, jax.Array, dict[str, jax.Array]]]


# (network, config, progress) -> the network as it acts, with outputs `ActorCriticOutput`
Acting = Callable[[Any, Any, jax.Array], Any]


def as_it_is(network: Network, config: Any, progress: jax.Array) -> Network:
    """How a network acts that gives a policy and a value."""
    return network


def on_policy(
    environment: Environment,
    network: Callable[[jax.Array], Network],
    transformations: Callable[[Any, Any], dict[str, Any]],
    cut: Callable[[Any, int], Any],
    learn: Learn,
    acting: Acting = as_it_is,
) -> Algorithm:
    """The algorithm that acts with networks of `network(key)`, by `acting`, and learns by `learn`.

    `transformations(config, progress)`: by part of the network; `cut(config, number of streams)` raises ValueError for
    sizes that do not divide. The config has `num_envs`, `num_steps`, `sharing`, `normalize_observations`, `normalize_rewards`,
    `learning_rate`, `learning_rate_final_fraction` and `total_updates`.
    """

    def streams(config: Any) -> Streams:
        return Streams(environment, config.num_envs)

    def team(config: Any) -> agents.Team:
        return agents.team(environment, config.sharing)

    def policy(state: State, progress: jax.Array) -> Any:
        def one(network: Network, observations: Any) -> tuple[Network]:
            return (normalization.view(observations)(acting(network, state.config, progress)),)

        return agents.each(team(state.config), one, state.network, state.observations)[0]

    def init(key: jax.Array, config: Any) -> State:
        config = tree.as_leaves(config)
        everyone = team(config)
        state_key, network_key, actor_key = jax.random.split(key, 3)
        model = agents.make(everyone, network, network_key)
        carry = rollout.initial_carry(everyone, model, config.num_envs)
        actor = rollout.start(streams(config), carry, actor_key)

        def begin(model: Any, obs: Any) -> tuple[Any, Any, Any]:
            cut(config, jax.tree.leaves(obs)[0].shape[0])
            one_obs = jax.tree.map(lambda x: x[0], obs)
            observations = normalization.initial(one_obs) if config.normalize_observations else ()
            returns = normalization.initial(0.0) if config.normalize_rewards else ()
            return optimizers.init(transformations(config, 0.0), model), observations, returns

        obs = agents.split(everyone, streams(config).by_stream(actor.streams.obs), 0)
        learner = Learner(model, *agents.each(everyone, begin, model, obs))
        return State(state_key, config, *learner, actor, jnp.zeros((), jnp.int32))

    def step(state: State) -> tuple[State, dict[str, jax.Array]]:
        config, everyone = state.config, team(state.config)
        key, act_key, learn_key = jax.random.split(state.key, 3)
        progress = state.updates / config.total_updates
        run = rollout.rollout(streams(config), everyone, policy(state, progress), state.actor, act_key, config.num_steps)
        actor, trajectory, episodes = run

        # Every group learns from its own streams.
        learner = Learner(state.network, state.optimizer, state.observations, state.returns)
        left = agents.split(everyone, (actor.carry, actor.discounted_return), 0)
        keys = agents.keys(everyone, learn_key)
        teach = functools.partial(_teach, learn, config, progress)
        *parts, discounted, metrics = agents.each(everyone, teach, *learner, agents.split(everyone, trajectory, 1), left, keys)

        actor = actor._replace(discounted_return=agents.join(everyone, discounted, 0))
        metrics = agents.metrics(everyone, metrics)
        metrics |= {f"episodes/{name}": value for name, value in episodes._asdict().items()}
        return State(key, config, *Learner(*parts), actor, state.updates + 1), metrics

    def act(state: State, carry: Any, obs: Any, key: jax.Array, greedy: bool | jax.Array) -> tuple[Any, jax.Array]:
        last = policy(state, jnp.ones(()))  # as it will act when it has learnt: what explores less and less, explores least
        return rollout.act_together(environment, team(state.config), last, carry, obs, key, jnp.asarray(greedy))

    def initial_carry(state: State) -> Any:
        return rollout.first_carry(environment, team(state.config), state.network)

    return Algorithm(init, step, act, initial_carry, lambda state: state._replace(actor=()))


def actor_and_critic(config: Any, progress: jax.Array | float) -> dict[str, optax.GradientTransformation]:
    """The optimizer of each part of an actor-critic; `progress` goes from 0 to 1 over the run."""
    decay = optimizers.anneal(config.learning_rate_final_fraction, progress)
    critic_rate = jnp.where(config.critic_learning_rate > 0, config.critic_learning_rate, config.learning_rate)
    rates = {"actor": config.learning_rate, "critic": critic_rate}
    return {name: optimizers.adam(rate * decay, config.adam_epsilon, config.max_grad_norm) for name, rate in rates.items()}


def passes(config: Any, learner: Learner) -> tuple[int, int]:
    """Epochs of the policy and of a separate critic, 0 where there is none."""
    return config.num_epochs, (config.critic_epochs or config.num_epochs) if "critic" in learner.optimizer else 0


def _teach(learn: Learn, config: Any, progress: jax.Array, *parts: Any) -> tuple[Any, ...]:
    """`learn` with a tuple of parts, for `agents.each`; statistics of observations take in the rollout after it."""
    *learner, trajectory, (carry, discounted), key = parts
    learner, discounted, metrics = learn(config, progress, Learner(*learner), Happened(trajectory, carry, discounted), key)
    if config.normalize_observations:
        seen = normalization.update(learner.observations, trajectory.obs, axes=2, weight=trajectory.present)
        learner = learner._replace(observations=seen)
    metrics["learning_rate"] = config.learning_rate * optimizers.anneal(config.learning_rate_final_fraction, progress)
    metrics |= rollout.summary(trajectory, metrics["loss"], learner.network)
    return *learner, discounted, metrics
