"""PPO that also seeks what it has not seen: random network distillation, for tasks whose reward is rare.

Burda et al. 2018, arXiv:1810.12894: an intrinsic reward with a critic and a discount of its own and without ends. Its advantage
is added to that of the task. Deviations: the intrinsic critic is a network apart, without memory; observations are normalized
by what the rollouts have met, the first one included, instead of by a random policy before training; all agents of one set of
parameters share what they find novel. docs/algorithms/ppo_rnd.md says when it helps.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.acting import agents
from rollax.acting.streams import Actor, Experience, Policy, by_stream, unroll
from rollax.algorithm import Algorithm, Finite, Metrics
from rollax.algorithms import ppo
from rollax.algorithms.on_policy import begin, to_algorithm
from rollax.config import number, settings, static
from rollax.environments.core import Environment
from rollax.learning import novelty as novelties
from rollax.learning import train_state
from rollax.learning.novelty import Novelty
from rollax.learning.train_state import TrainState
from rollax.networks.core import Network


@settings
class PPORNDConfig(ppo.PPOConfig):
    """Settings of PPO and of novelty. Those marked (static) shape the program; all others are data, to be swept over."""

    intrinsic_coefficient: float = number(1.0, low=0)
    """Weight of the intrinsic advantage; with 0, and 1 for the extrinsic one, it is PPO."""
    extrinsic_coefficient: float = number(2.0, low=0)
    """Weight of the advantage of the task's own reward; 0 explores alone."""
    intrinsic_gamma: float = number(0.99, 0, 1)
    """Discount of intrinsic rewards, which go on through the ends of episodes."""
    novelty_learning_rate: float = number(1e-4, low=0)
    """Adam's step size of the predictor and of the intrinsic critic."""
    predictor_share: float = number(0.25, 0, 1)
    """Share of the samples that the predictor learns from: less keeps what is new new for longer."""
    novelty_hidden: int = static(64)
    """(static) Units of each layer of the random network, the predictor and the intrinsic critic."""
    novelty_outputs: int = static(64)
    """(static) Outputs of the random network."""


class PPORNDState(NamedTuple):
    """As `OnPolicyState`, with the novelty."""

    key: jax.Array
    config: Any
    train: Any
    actor: Actor
    discounted_return: tuple[jax.Array, jax.Array]  # float [S] each: of the task's rewards, of the intrinsic ones
    updates: jax.Array
    novelty: Any  # Novelty; by group where agents do not share all parameters


def ppo_rnd(environment: Environment, network: Callable[[jax.Array], Network]) -> Algorithm:
    """PPO with random network distillation in `environment`. Raises as `ppo`."""

    def init(key: jax.Array, config: PPORNDConfig) -> PPORNDState:
        key, novelty_key = jax.random.split(key)
        optimizers, make_train = train_state.actor_and_critic, train_state.new_actor_critic
        state = begin(environment, network, optimizers, key, config, layout=ppo.layout, make_train=make_train)
        team = agents.team(environment, config.sharing)
        new = functools.partial(novelties.new, environment.observation_space, state.config)
        fields: dict[str, Any] = state._asdict()
        fields["discounted_return"] = state.discounted_return, jnp.copy(state.discounted_return)
        return PPORNDState(**fields, novelty=agents.make(team, new, novelty_key))

    def explore(state: PPORNDState) -> Policy:
        return agents.policy(agents.team(environment, state.config.sharing), train_state.sample, state.train)

    def step(state: PPORNDState) -> tuple[PPORNDState, Metrics]:
        config, team = state.config, agents.team(environment, state.config.sharing)
        key, act_key, learn_key = jax.random.split(state.key, 3)
        actor, rollout, episodes = unroll(environment, explore(state), state.actor, act_key, config.num_steps)

        last = by_stream(environment, (actor.carry, actor.obs, actor.agent_done)), state.discounted_return
        parts = state.train, state.novelty, agents.split(team, rollout, axis=1), agents.split(team, last)
        update = functools.partial(learn, config, state.updates / config.total_updates)
        train, novelty, last, *metrics = agents.each(team, update, *parts, agents.make(team, lambda key: key, learn_key))

        values, finite = agents.summarize(team, *metrics)
        state = PPORNDState(key, config, train, actor, agents.join(team, last), state.updates + 1, novelty)
        return state, Metrics(values, episodes, finite)

    return to_algorithm(environment, init, step, train_state.choose, explore)


def learn(
    config: PPORNDConfig,
    progress: jax.Array,
    train: TrainState,
    novelty: Novelty,
    rollout: Experience,
    last: tuple[tuple[Any, Any, jax.Array | None], tuple[jax.Array, jax.Array]],
    key: jax.Array,
) -> tuple[TrainState, Novelty, tuple[jax.Array, jax.Array], dict[str, jax.Array], Finite]:
    """One update of one set of parameters from a rollout `[T, S]`.

    `last`: memory, observation and whether agents are done after the rollout, and both discounted returns before it, `[S]`
    each.
    """
    (carry, obs, agent_done), (discounted_return, intrinsic_return) = last
    policy_key, novelty_key = jax.random.split(key)
    credit = novelties.credit(config, novelty, rollout, obs, intrinsic_return, agent_done)
    novelty, advantage, target, intrinsic_return, measured = credit
    both = lambda extrinsic: config.extrinsic_coefficient * extrinsic + config.intrinsic_coefficient * advantage  # noqa: E731
    train, discounted_return, metrics, finite = ppo.learn(
        config, progress, train, rollout, (carry, discounted_return), policy_key, both
    )
    cut = ppo.layout(config, target.shape[1])
    novelty, losses = novelties.learn(config, novelty, rollout, target, cut, novelty_key)
    finite = finite._replace(parameters=finite.parameters & tree.all_finite((novelty.predictor, novelty.critic)))
    return train, novelty, (discounted_return, intrinsic_return), metrics | measured | losses, finite
