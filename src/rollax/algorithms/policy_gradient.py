"""Children by policy gradients: what archives of policies that learn from their own episodes share (PGA-ME, DCRL-ME).

Nilsson and Cully 2021, doi:10.1145/3449639.3459304, algorithms 1 to 3. What the policies of a batch experience goes to a
replay, from which the critics and an actor of TD3 learn by `td3.update` itself, targets and delays included; a child is a
policy after some steps up the critic.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.acting.exploration import example_action
from rollax.algorithms import td3
from rollax.algorithms.off_policy import AgentFns, learn_once
from rollax.algorithms.quality_diversity import QDConfig
from rollax.config import number, settings, static
from rollax.emitters.core import Told
from rollax.environments.core import Environment
from rollax.errors import UsageError
from rollax.learning.train_state import adam, apply_gradients
from rollax.networks.critics import Actor, ActorCritics
from rollax.replay.ring import ReplayBuffer, Step
from rollax.spaces import zeros


@settings
class PolicyGradientConfig(QDConfig):
    """Settings of all that make children by policy gradients."""

    batch_size: int = static(64)
    """Solutions of an iteration. (static)"""
    num_iterations: int = static(1)
    """Iterations of an update. (static)"""
    gradient_fraction: float = static(0.5, low=0)
    """Share of the solutions that are made by gradients. (static)"""
    critic_updates: int = static(300)
    """Gradient steps of critics and actor in an iteration. (static)"""
    policy_updates: int = static(100)
    """Gradient steps that make a child. (static)"""
    samples: int = static(100)
    """Samples of a gradient step. (static)"""
    capacity: int = static(200_000)
    """Steps that the replay holds. (static)"""
    critic_hidden: tuple[int, ...] = static((256, 256))
    """Sizes of the critics' dense layers. (static)"""
    iso_sigma: float = number(0.005, low=0)
    """Standard deviation of the noise of Iso+LineDD."""
    line_sigma: float = number(0.05, low=0)
    """Standard deviation of its step along the line, in units of the distance to the other elite."""
    policy_learning_rate: float = number(1e-3, low=0)
    """Adam's step size for children."""
    learning_rate: float = number(3e-4, low=0)
    """Adam's step size for critics and actor."""
    gamma: float = number(0.99, 0, 1)
    """Discount."""
    policy_delay: float = number(2.0, low=1)
    """Gradient steps of the critics for each of the actor, as a whole number."""
    tau: float = number(0.005, 0, 1)
    """How far targets move towards their networks each time."""
    target_noise: float = number(0.2, low=0)
    """Deviation of what is added to the target policy's actions."""
    target_noise_clip: float = number(0.5, low=0)
    """Most that is added to them."""
    reward_scale: float = number(1.0)
    """What rewards are multiplied by."""


class LearnerState(NamedTuple):
    """What the emitter of gradients carries."""

    agent: td3.TD3Agent
    replay: Any
    initial: Any  # solutions [B], for as long as the archive is empty
    loss: jax.Array  # float32 []: of the critics, the mean of the last iteration


def learner_config(config: PolicyGradientConfig) -> td3.TD3Config:
    """The settings of TD3 that the critics learn with."""
    names = ("learning_rate", "gamma", "policy_delay", "tau", "target_noise", "target_noise_clip", "reward_scale", "capacity")
    return td3.TD3Config(batch_size=config.samples, **{name: getattr(config, name) for name in names})


def check_policies(algorithm: str, environment: Environment, solutions: Any) -> None:
    """Raises UsageError when solutions are no policies to play."""
    if not isinstance(solutions, Actor):
        raise UsageError(
            f"{algorithm} needs policies to play, but {environment.name} is a closed form: use cma_mae or map_elites"
        )


def begin(
    environment: Environment,
    config: PolicyGradientConfig,
    buffer: ReplayBuffer,
    network: ActorCritics,
    solutions: Any,
    memory: Any,
) -> LearnerState:
    """Before any experience. `memory`: an example of what the replay holds of a step besides, as its carry."""
    learner = learner_config(config)
    obs, no, zero = zeros(environment.observation_space), jnp.zeros((), bool), jnp.zeros(())
    example = Step(obs, example_action(environment.action_space), zero, no, no, obs, no, memory)
    num_policies = jax.tree.leaves(solutions)[0].shape[0]
    return LearnerState(td3.init(network, learner), buffer.init(example, num_policies, learner), solutions, zero)


def learnt(
    config: PolicyGradientConfig, buffer: ReplayBuffer, state: LearnerState, told: Told, memory: Any, key: jax.Array
) -> LearnerState:
    """The learner after it has remembered what policies experienced, and learnt from all that it remembers.

    `memory`: what the replay holds besides of each policy's steps, `[B, ...]`. What comes of a policy whose fitness or
    descriptor is not finite is not remembered.
    """
    fns = AgentFns(init=lambda key, config: None, explore=td3.explore, act=td3.act, update=td3.update)
    steps, mask = told.experience
    finite = jnp.isfinite(told.scored.fitness) & jnp.all(jnp.isfinite(told.scored.descriptor), axis=-1)

    def add(replay: Any, row: tuple[Step, jax.Array]) -> tuple[Any, None]:
        step, there_is = row
        return buffer.add(replay, step._replace(carry=memory), there_is & finite), None

    replay = jax.lax.scan(add, state.replay, (steps, mask))[0]
    yes, progress = jnp.ones((), bool), jnp.zeros(())
    learn = functools.partial(learn_once, fns, buffer, learner_config(config), progress, yes, key)
    (agent, replay), metrics = jax.lax.scan(learn, (state.agent, replay), jnp.arange(config.critic_updates))
    return state._replace(agent=agent, replay=replay, loss=jnp.mean(metrics["loss"]))


def climbed(
    config: PolicyGradientConfig, buffer: ReplayBuffer, replay: Any, critic: tuple[Any, ...], policy: Any, key: jax.Array
) -> Any:
    """A policy after `policy_updates` steps of Adam along grad Q_1(s, pi(s)), each with samples of its own; the policy itself
    while there is nothing to learn from."""
    learner = learner_config(config)
    optimizer = adam(config.policy_learning_rate, learner.adam_epsilon, learner.max_grad_norm)

    def step(loop: tuple[Any, Any], index: jax.Array) -> tuple[tuple[Any, Any], None]:
        policy, optimizer_state = loop
        batch, _ = buffer.sample(replay, learner, jax.random.fold_in(key, index), jnp.zeros(()))
        gradient = jax.grad(td3.policy_loss)(policy, critic, batch)
        return apply_gradients(optimizer, optimizer_state, policy, gradient), None

    child = jax.lax.scan(step, (policy, optimizer.init(policy)), jnp.arange(config.policy_updates))[0][0]
    return tree.where(buffer.can_sample(replay, learner), child, policy)
