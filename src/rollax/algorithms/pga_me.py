"""PGA-ME: MAP-Elites half of whose children are made by the gradient of a critic that learns from all experience.

Nilsson and Cully 2021, doi:10.1145/3449639.3459304 (PGA-MAP-Elites), algorithms 1 to 3. Policies play whole episodes; what they
experience goes to a replay, from which the critics and a greedy actor of TD3 learn by `td3.update` itself, targets and delays
included. A child is an elite after `policy_updates` steps along grad Q_1(s, pi(s)), each with samples of its own; one is the
greedy actor. Deviation: exploration is that of the archive alone, as in the paper's code.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.acting.exploration import example_action
from rollax.acting.scoring import Watched
from rollax.algorithm import Algorithm
from rollax.algorithms import td3
from rollax.algorithms.off_policy import AgentFns, learn_once
from rollax.algorithms.quality_diversity import QDConfig, cells, quality_diversity
from rollax.archives.core import Archive
from rollax.config import number, settings, static
from rollax.emitters.core import Emitter, Told, parents
from rollax.emitters.variation import iso_line
from rollax.environments.core import Environment
from rollax.errors import UsageError
from rollax.learning.train_state import adam, apply_gradients
from rollax.networks.critics import Actor, ActorCritics, ActorCriticsConfig, deterministic
from rollax.replay.ring import Step, uniform
from rollax.spaces import zeros


@settings
class PGAMEConfig(QDConfig):
    """Settings of PGA-ME. Those marked (static) shape the program; all others are data, so they can be swept over."""

    batch_size: int = static(64)
    """Solutions of an iteration. (static)"""
    num_iterations: int = static(1)
    """Iterations of an update. (static)"""
    gradient_fraction: float = static(0.5, low=0)
    """Share of the solutions that are made by gradients; the others are by Iso+LineDD. (static)"""
    critic_updates: int = static(300)
    """Gradient steps of critics and greedy actor in an iteration. (static)"""
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
    """Adam's step size for critics and greedy actor."""
    gamma: float = number(0.99, 0, 1)
    """Discount."""
    policy_delay: float = number(2.0, low=1)
    """Gradient steps of the critics for each of the greedy actor, as a whole number."""
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


def learner_config(config: PGAMEConfig) -> td3.TD3Config:
    """The settings of TD3 that the critics learn with."""
    names = ("learning_rate", "gamma", "policy_delay", "tau", "target_noise", "target_noise_clip", "reward_scale", "capacity")
    return td3.TD3Config(batch_size=config.samples, **{name: getattr(config, name) for name in names})


def num_by_gradient(config: PGAMEConfig) -> int:
    """How many solutions of a batch are made by gradients."""
    return round(config.batch_size * config.gradient_fraction)


def gradient_emitter(environment: Environment, config: PGAMEConfig, archive: Archive) -> Emitter:
    """All solutions of a batch: the greedy actor, children by gradients, children by variation; it learns from all of them."""
    settings, buffer, number = learner_config(config), uniform(), num_by_gradient(config)
    fns = AgentFns(init=lambda key, config: None, explore=td3.explore, act=td3.act, update=td3.update)
    variation = iso_line(archive, config.iso_sigma, config.line_sigma)

    def init(key: jax.Array, solutions: Any) -> LearnerState:
        if not isinstance(solutions, Actor):
            raise UsageError(
                f"pga_me needs policies to play, but {environment.name} is a closed form: use cma_mae or map_elites"
            )
        if not 1 <= number <= config.batch_size:
            raise UsageError(f"gradient_fraction ({config.gradient_fraction}) must leave 1 of batch_size ({config.batch_size})")
        network = deterministic(environment, ActorCriticsConfig(hidden=config.critic_hidden), key)
        actor = jax.tree.map(lambda x: x[0], solutions)
        agent = td3.init(ActorCritics(actor, network.critic), settings)
        obs, no, zero = zeros(environment.observation_space), jnp.zeros((), bool), jnp.zeros(())
        example = Step(obs, example_action(environment.action_space), zero, no, no, obs, no, ())
        return LearnerState(agent, buffer.init(example, config.batch_size, settings), solutions, zero)

    def ask(state: LearnerState, archive_state: Any, key: jax.Array, size: int) -> tuple[LearnerState, Any]:
        parent_key, child_key, vary_key = jax.random.split(key, 3)
        elites = parents(archive, archive_state, state.initial, parent_key, number - 1)
        climb = functools.partial(climbed, config, settings, state)
        children = jax.vmap(climb)(elites, jax.random.split(child_key, number - 1))
        _, varied = variation.ask(state.initial, archive_state, vary_key, size - number)
        greedy = jax.tree.map(lambda x: x[None], state.agent.network.actor)
        return state, jax.tree.map(lambda *parts: jnp.concatenate(parts), greedy, children, varied)

    def tell(state: LearnerState, archive_state: Any, told: Told, key: jax.Array) -> LearnerState:
        add = lambda replay, row: (buffer.add(replay, *row), None)  # noqa: E731
        replay = jax.lax.scan(add, state.replay, told.experience)[0]
        yes, progress = jnp.ones((), bool), jnp.zeros(())
        learn = functools.partial(learn_once, fns, buffer, settings, progress, yes, key)
        (agent, replay), metrics = jax.lax.scan(learn, (state.agent, replay), jnp.arange(config.critic_updates))
        return state._replace(agent=agent, replay=replay, loss=jnp.mean(metrics["loss"]))

    return Emitter(init, ask, tell, lambda state: {"critic_loss": state.loss})


def climbed(config: PGAMEConfig, settings: td3.TD3Config, state: LearnerState, policy: Any, key: jax.Array) -> Any:
    """A policy after `policy_updates` steps of Adam along grad Q_1(s, pi(s)); the policy itself while there is nothing to learn
    from."""
    buffer, optimizer = uniform(), adam(config.policy_learning_rate, settings.adam_epsilon, settings.max_grad_norm)

    def step(loop: tuple[Any, Any], index: jax.Array) -> tuple[tuple[Any, Any], None]:
        policy, optimizer_state = loop
        batch, _ = buffer.sample(state.replay, settings, jax.random.fold_in(key, index), jnp.zeros(()))
        gradient = jax.grad(td3.policy_loss)(policy, state.agent.network.critic, batch)
        return apply_gradients(optimizer, optimizer_state, policy, gradient), None

    child = jax.lax.scan(step, (policy, optimizer.init(policy)), jnp.arange(config.policy_updates))[0][0]
    return tree.where(buffer.can_sample(state.replay, settings), child, policy)


def pga_me(environment: Environment, solution: Callable[[jax.Array], Any]) -> Algorithm:
    """PGA-ME of the policies that `solution(key)` begins with. `init` raises UsageError when the parts do not fit."""

    def emitter(config: PGAMEConfig, archive: Archive, score: Any) -> Emitter:
        return gradient_emitter(environment, config, archive)

    return quality_diversity(environment, solution, cells, emitter, lambda config: Watched(records=True))
