"""PPO with random network distillation (RND), an exploration bonus for sparse rewards.

Burda et al. 2018, arXiv:1810.12894. Intrinsic rewards have a separate critic and discount factor,
and intrinsic returns continue across episodes. The policy loss uses a weighted sum of the intrinsic
advantage and the advantage of the task's rewards. Deviations: The intrinsic critic is a separate
network without memory. Observations are normalized with statistics of the training rollouts,
starting with the first rollout. The paper first collects statistics with a random policy. All
agents that share parameters also share the novelty networks. docs/algorithms/ppo_rnd.md explains
when RND is useful.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.acting import parameter_sharing
from rollax.acting.streams import Experience
from rollax.algorithm import Algorithm
from rollax.algorithms import ppo
from rollax.algorithms.on_policy import (
    LearnResult,
    OnPolicyState,
    RolloutEnd,
    on_policy,
)
from rollax.config import settings_dataclass, static_field, traced_field
from rollax.environments.environment import Environment
from rollax.learning import minibatches, normalization, train_state
from rollax.learning import novelty as novelties
from rollax.learning.novelty import NoveltyState
from rollax.learning.train_state import TrainState
from rollax.networks.interop.network_checks import check_actor_critic
from rollax.networks.network import Network


@settings_dataclass
class PPORNDConfig(ppo.PPOConfig):
    """Settings of PPO and of the exploration bonus.

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """

    intrinsic_coefficient: float = traced_field(1.0, low=0)
    """Weight of the intrinsic advantage. With 0, and extrinsic_coefficient 1, the algorithm is
    PPO.
    """
    extrinsic_coefficient: float = traced_field(2.0, low=0)
    """Weight of the advantage of the task's reward. 0 explores without the task's reward."""
    intrinsic_gamma: float = traced_field(0.99, 0, 1)
    """Discount of intrinsic rewards, which continue across episode ends."""
    novelty_learning_rate: float = traced_field(1e-4, low=0)
    """Learning rate of the predictor and the intrinsic critic (Adam)."""
    predictor_share: float = traced_field(0.25, 0, 1)
    """Fraction of the samples on which the predictor is trained. Smaller values make novelty
    decay more slowly.
    """
    novelty_hidden: int = static_field(64)
    """(static) Units of each layer of the random network, the predictor and the intrinsic
    critic."""
    novelty_outputs: int = static_field(64)
    """(static) Outputs of the random network."""


class NoveltyTrainState(NamedTuple):
    """Train state of an actor-critic with the networks that measure novelty.

    Attributes:
        network: Actor-critic network.
        optimizer: Optimizer states, keyed by "actor" and, if the critic is separate, "critic".
        observations: Observation statistics, or None if observations are not normalized.
        returns: Statistics of discounted returns, or None if rewards are not normalized.
        values: Statistics of the value targets, or None if values are not normalized.
        rate_scale: Factor of the learning rates, float `[]`, or None if they do not adapt to the
            KL divergence.
        novelty: Novelty networks and their optimizer states.
    """

    network: Network
    optimizer: train_state.NetworkParts
    observations: normalization.Moments | None
    returns: normalization.Moments | None
    values: normalization.Moments | None
    rate_scale: jax.Array | None
    novelty: NoveltyState


def ppo_rnd(environment: Environment, network: Callable[[jax.Array], Network]) -> Algorithm:
    """Build PPO with random network distillation.

    Args:
        environment: Environment to train in.
        network: Function from a random key to a network that outputs `ActorCriticOutput`.

    Returns:
        The algorithm. Its `init` raises a `ValueError` if a rollout cannot be divided evenly.
    """
    network = check_actor_critic("ppo_rnd", environment, network)
    algorithm = on_policy(
        environment, network, learn, make_layout=minibatches.make_minibatch_layout
    )

    def add_novelty(train: TrainState, novelty: NoveltyState) -> NoveltyTrainState:
        return NoveltyTrainState(*train, novelty=novelty)

    def init(key: jax.Array, config: PPORNDConfig) -> OnPolicyState:
        key, novelty_key = jax.random.split(key)
        state = algorithm.init(key, config)
        groups = parameter_sharing.make_agent_groups(environment, config.sharing)
        make_novelty = functools.partial(
            novelties.init_novelty, environment.observation_space, state.config
        )
        novelty = parameter_sharing.init_groups(groups, make_novelty, novelty_key)
        train = parameter_sharing.map_groups(groups, add_novelty, state.train, novelty)
        # Discounted returns of the rewards of the task, and of intrinsic rewards.
        returns = state.discounted_return, jnp.copy(state.discounted_return)
        return state._replace(train=train, discounted_return=returns)

    return algorithm._replace(init=init)


def learn(
    config: PPORNDConfig,
    progress: jax.Array,
    train: NoveltyTrainState,
    rollout: Experience,
    end: RolloutEnd,
    key: jax.Array,
) -> LearnResult:
    """Update one set of parameters from a rollout `[T, S]`.

    Args:
        config: Settings of the algorithm.
        progress: Completed fraction of training, from 0 to 1.
        train: Parameters, optimizer states, statistics and novelty networks.
        rollout: Experience of the S streams, `[T, S, ...]`.
        end: `RolloutEnd` of the streams. Its `discounted_return` is a pair of extrinsic and
            intrinsic discounted returns.
        key: Random key.

    Returns:
        New train state, discounted returns, metrics and `FiniteChecks`.
    """
    extrinsic_return, intrinsic_return = end.discounted_return
    policy_key, novelty_key = jax.random.split(key)
    intrinsic = novelties.estimate_intrinsic_advantages(
        config, train.novelty, rollout, end.obs, intrinsic_return, end.agent_done
    )

    def combine(advantage: jax.Array) -> jax.Array:
        extrinsic = config.extrinsic_coefficient * advantage
        return extrinsic + config.intrinsic_coefficient * intrinsic.advantage

    end = end._replace(discounted_return=extrinsic_return)
    actor_critic = TrainState(
        network=train.network,
        optimizer=train.optimizer,
        observations=train.observations,
        returns=train.returns,
        values=train.values,
        rate_scale=train.rate_scale,
    )
    result = ppo.learn(config, progress, actor_critic, rollout, end, policy_key, combine)
    layout = minibatches.make_minibatch_layout(config, intrinsic.target.shape[1])
    novelty, novelty_losses = novelties.learn_novelty(
        config, intrinsic.novelty, rollout, intrinsic.target, layout, novelty_key
    )
    learned = tree.all_finite((novelty.predictor, novelty.critic))
    return LearnResult(
        train=NoveltyTrainState(*result.train, novelty=novelty),
        discounted_return=(result.discounted_return, intrinsic.discounted_return),
        metrics=result.metrics | intrinsic.metrics | novelty_losses,
        finite=result.finite._replace(parameters=result.finite.parameters & learned),
    )
