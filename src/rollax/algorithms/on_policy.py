"""What PPO, IMPALA and PQN share outside of an update: the state before the first one, and acting with what was learnt."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.acting import agents
from rollax.acting.streams import Actor, Policy, begin_streams, by_stream, reseed
from rollax.algorithm import Algorithm, InitFn, StepFn, placement_of
from rollax.environments.core import Environment
from rollax.learning import train_state
from rollax.learning.train_state import TrainState
from rollax.networks.core import Network


class OnPolicyState(NamedTuple):
    """Everything that changes. An algorithm that carries more has a state of its own, with these fields among others."""

    key: jax.Array
    config: Any
    train: Any  # TrainState; by group where agents do not share all parameters (`rollax.acting.agents`)
    actor: Actor
    discounted_return: jax.Array  # float [S]: of the running episodes, for the normalization of rewards
    updates: jax.Array  # int32 []


def begin(
    environment: Environment,
    make_network: Callable[[jax.Array], Network],
    make_optimizers: Callable[[Any, float], dict[str, Any]],
    key: jax.Array,
    config: Any,
    layout: Callable[[Any, int], Any] = lambda config, num_streams: None,
    make_train: Callable[..., TrainState] = train_state.new,
) -> OnPolicyState:
    """The state before any update.

    `make_optimizers(config, progress)`; `layout(config, num_streams)` raises ValueError when the sizes in the config do not
    divide; `make_train(network, optimizers, obs, config)`. The config has `num_envs`, `sharing`, `normalize_observations` and
    `normalize_rewards`.
    """
    config, team = tree.as_leaves(config), agents.team(environment, config.sharing)
    for size in agents.num_streams(team, config.num_envs):
        layout(config, size)
    key, network_key, actor_key = jax.random.split(key, 3)
    optimizers, networks = make_optimizers(config, 0.0), agents.make(team, make_network, network_key)
    carry = agents.initial_carry(team, lambda network: network.initial_carry(), networks)
    actor = begin_streams(environment, actor_key, config.num_envs, carry)

    def new(network: Network, obs: Any) -> tuple[TrainState]:
        return (make_train(network, optimizers, jax.tree.map(lambda x: x[0], obs), config),)

    obs = agents.split(team, jax.tree.map(lambda x: x[: team.num_agents], by_stream(environment, actor.obs)))
    (train,) = agents.each(team, new, networks, obs)
    discounted_return = jnp.zeros(config.num_envs * team.num_agents)
    return OnPolicyState(key, config, train, actor, discounted_return, jnp.zeros((), jnp.int32))


def to_algorithm(
    environment: Environment,
    init: InitFn,
    step: StepFn,
    choose: Callable[..., tuple[Any, Any]],
    explore: Callable[[Any], Policy],
) -> Algorithm:
    """The algorithm of states like `OnPolicyState` that acts by `choose(config, greedy, train, carry, obs, key)`, and in
    training by `explore(state)`."""

    def act(state: Any, obs: Any, carry: Any, key: jax.Array, greedy: bool | jax.Array) -> tuple[Any, Any]:
        team = agents.team(environment, state.config.sharing)
        return agents.act(team, functools.partial(choose, state.config, jnp.asarray(greedy)), state.train, obs, carry, key)

    def initial_carry(state: Any) -> Any:
        team = agents.team(environment, state.config.sharing)
        return agents.initial_carry(team, lambda train: train.network.initial_carry(), state.train)

    def acting_state(state: Any) -> Any:
        return state._replace(actor=None)

    def rollouts(state: Any) -> tuple[Policy, Actor, jax.Array, int]:
        return explore(state), state.actor, jax.random.split(state.key, 3)[1], state.config.num_steps  # as `step` splits it

    placement = placement_of(("actor", "discounted_return"), {})
    return Algorithm(init, step, act, initial_carry, acting_state, reseed, rollouts=rollouts, placement=placement)
