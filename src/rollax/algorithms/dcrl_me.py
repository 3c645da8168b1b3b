"""DCRL-MAP-Elites: PGA-ME with critics and an actor conditioned on a target descriptor.

Faldor, Chalumeau, Flageolat and Cully 2024, arXiv:2401.08632. Without injected actors, it is
DCG-MAP-Elites (Faldor et al. 2023, arXiv:2303.03832). Every policy has a target descriptor d':

- for gradient offspring, the descriptor of the parent,
- for injected actors, the descriptor on which the actor is conditioned,
- for offspring by variation, the observed descriptor.

Transitions are stored with d' and with the observed descriptor d of the episode. TD3 learns
Q(s, a | d') and pi(s | d') with `td3.update` from the rewards S(d, d') r, where

    S(d, d') = exp(-|d - d'| / lengthscale)

and descriptors are scaled so that their bounds are -1 and 1. If r is positive, as in most
environments of the paper, these rewards lead toward the target. If r is negative, they lead away
from the target. `reward_offset` is added to r to make it positive, which makes early termination
less attractive.

In addition to the offspring of PGA-ME, a batch contains injected actors pi(. | d) that are
conditioned on the descriptors d of random elites. Deviations: While the archive is empty, the
target is the observed descriptor. With several episodes per evaluation, d is their mean.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rollax.algorithm import Algorithm
from rollax.algorithms.policy_gradient import (
    LearnerState,
    PolicyGradientConfig,
    check_policies,
    init_learner,
    policy_gradient_algorithm,
    policy_gradient_variation,
    update_learner,
)
from rollax.archives.archive import Archive
from rollax.config import settings_dataclass, static_field, traced_field
from rollax.emitters.emitter import Emitter, EvaluatedBatch, use_initial_if_empty
from rollax.emitters.variation import iso_line_emitter
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.networks.conditioned import bind_descriptor, make_conditioned_actor_critics
from rollax.networks.critics import ActorCriticsConfig, ConditionedObservation
from rollax.replay.ring import (
    ReplayBatch,
    ReplayBuffer,
    ReplaySettings,
    ReplayState,
    make_uniform_replay,
)
from rollax.types import Scalar, Solution, State


@settings_dataclass
class DCRLMEConfig(PolicyGradientConfig):
    """Settings of DCRL-ME.

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """

    gradient_fraction: float = static_field(0.25, low=0)
    """(static) Fraction of each batch that is created by policy gradients."""
    injected_fraction: float = static_field(0.25, low=0)
    """(static) Fraction of each batch that consists of injected actors. All other solutions are
    created by Iso+LineDD.
    """
    lengthscale: float = traced_field(0.1, low=1e-6)
    """Distance between scaled descriptors at which rewards are multiplied by 1 / e. The bounds
    of descriptors are scaled to -1 and 1.
    """
    reward_offset: float = traced_field(0.0)
    """Offset added to every reward before it is multiplied by the similarity. Use minus the
    lowest reward if rewards are negative.
    """


class DCRLState(NamedTuple):
    """State of the emitter of DCRL-ME.

    Attributes:
        learner: Critics, actor and replay buffer.
        target: Target descriptors of the last n gradient offspring and injected actors, float32
            `[n, K]`.
        has_targets: Whether `target` is valid, bool `[]`. It is false while the archive is empty.
    """

    learner: LearnerState
    target: jax.Array
    has_targets: jax.Array


class DescriptorPair(NamedTuple):
    """Descriptors that are stored with each transition, scaled so that their bounds are -1 and 1.

    Attributes:
        observed: Observed descriptor d of the policy, float32 `[K]`.
        target: Target descriptor d' of the policy, float32 `[K]`.
    """

    observed: jax.Array
    target: jax.Array


def similarity(observed: jax.Array, target: jax.Array, lengthscale: Scalar) -> jax.Array:
    """Return S(d, d') = exp(-|d - d'| / lengthscale), which is 1 for equal descriptors.

    Args:
        observed: Observed descriptors d, `[..., K]`.
        target: Target descriptors d', `[..., K]`.
        lengthscale: Distance at which the similarity is 1 / e.

    Returns:
        Similarities, `[...]`.
    """
    return jnp.exp(-jnp.linalg.norm(observed - target, axis=-1) / lengthscale)


def make_conditioned_buffer(lengthscale: Scalar, reward_offset: Scalar) -> ReplayBuffer:
    """Build a uniform replay buffer whose samples are conditioned on the target descriptor.

    Args:
        lengthscale: Length scale of the similarity.
        reward_offset: Offset added to rewards.

    Returns:
        The buffer. Sampled observations are `ConditionedObservation`s with the target descriptor.
        Sampled rewards are S(d, d') (r + `reward_offset`).
    """
    buffer = make_uniform_replay()

    def sample(
        replay: ReplayState, config: ReplaySettings, key: jax.Array, progress: jax.Array
    ) -> tuple[ReplayBatch, jax.Array]:
        batch, index = buffer.sample(replay, config, key, progress)
        target = batch.carry.target
        reward = similarity(batch.carry.observed, target, lengthscale) * (
            batch.reward + reward_offset
        )
        conditioned = batch._replace(
            obs=ConditionedObservation(batch.obs, target),
            next_obs=ConditionedObservation(batch.next_obs, target),
            reward=reward,
            carry=(),
        )
        return conditioned, index

    return buffer._replace(sample=sample)


def num_gradient_and_injected(config: DCRLMEConfig) -> tuple[int, int]:
    """Return the number of gradient offspring and the number of injected actors in a batch.

    Args:
        config: Settings of the algorithm.

    Raises:
        UsageError: If the sum of both numbers exceeds the batch size.
    """
    by_gradient = round(config.batch_size * config.gradient_fraction)
    injected = round(config.batch_size * config.injected_fraction)
    if by_gradient + injected > config.batch_size:
        raise UsageError(
            "The sum of gradient_fraction and injected_fraction must be at most 1, got "
            f"{config.gradient_fraction} and {config.injected_fraction}. Lower one of them."
        )
    return by_gradient, injected


def to_units(archive: Archive, descriptor: jax.Array) -> jax.Array:
    """Return descriptors `[B, K]` scaled so that the bounds of the archive are -1 and 1."""
    low = jnp.asarray([archive.low])
    span = jnp.asarray([archive.high]) - low
    return 2 * (descriptor - low) / span - 1


def init_emitter(
    environment: Environment,
    config: DCRLMEConfig,
    archive: Archive,
    key: jax.Array,
    solutions: Solution,
) -> DCRLState:
    """Return the initial state of the emitter, with an empty replay buffer.

    Args:
        environment: Environment to train in.
        config: Settings of the algorithm.
        archive: Archive with the parents.
        key: Random key.
        solutions: Initial solutions, `[B, ...]`.

    Returns:
        The state.

    Raises:
        UsageError: If the solutions are not policies.
    """
    check_policies("dcrl_me", environment, solutions)
    policy, zeros = jax.tree.map(lambda x: x[0], solutions), jnp.zeros(len(archive.low))
    network = make_conditioned_actor_critics(
        environment, policy, ActorCriticsConfig(hidden=config.critic_hidden), zeros.shape[0], key
    )
    buffer = make_conditioned_buffer(config.lengthscale, config.reward_offset)
    learner = init_learner(
        environment, config, buffer, network, solutions, DescriptorPair(zeros, zeros)
    )
    number = sum(num_gradient_and_injected(config))
    return DCRLState(
        learner=learner,
        target=jnp.zeros((number, *zeros.shape)),
        has_targets=jnp.zeros((), bool),
    )


def gradient_offspring(
    config: DCRLMEConfig,
    learner: LearnerState,
    parents: Solution,
    target: jax.Array,
    key: jax.Array,
) -> Solution:
    """Create offspring by gradient ascent on the critic, conditioned on target descriptors.

    Args:
        config: Settings of the algorithm.
        learner: Critics and replay buffer.
        parents: Parent policies `[n, ...]`.
        target: Target descriptors d', `[n, K]`.
        key: Random key.

    Returns:
        The offspring, `[n, ...]`.
    """

    def climb(policy: Solution, descriptor: jax.Array, key: jax.Array) -> Solution:
        critic = bind_descriptor(learner.agent.network.critic, descriptor)
        return policy_gradient_variation(
            config, make_uniform_replay(), learner.replay, critic, policy, key
        )

    return jax.vmap(climb)(parents, target, jax.random.split(key, target.shape[0]))


def make_dcrl_emitter(environment: Environment, config: DCRLMEConfig, archive: Archive) -> Emitter:
    """Build the emitter of DCRL-ME, which also trains the critics and the actor.

    Each batch consists of gradient offspring, injected actors and offspring by Iso+LineDD.

    Args:
        environment: Environment to train in.
        config: Settings of the algorithm.
        archive: Archive with the parents.

    Returns:
        The emitter.

    Raises:
        UsageError: If the numbers of gradient offspring and injected actors exceed the batch size.
    """
    buffer = make_conditioned_buffer(config.lengthscale, config.reward_offset)
    by_gradient, injected = num_gradient_and_injected(config)
    variation = iso_line_emitter(archive, config.iso_sigma, config.line_sigma)

    def ask(
        state: DCRLState, archive_state: State, key: jax.Array, size: int
    ) -> tuple[DCRLState, Solution]:
        parent_key, climb_key, vary_key = jax.random.split(key, 3)
        elites = archive.sample(archive_state, parent_key, by_gradient + injected)
        target, learner = to_units(archive, elites.descriptor), state.learner
        policies = use_initial_if_empty(
            archive, archive_state, learner.initial_solutions, elites.solution
        )
        parents = jax.tree.map(lambda x: x[:by_gradient], policies)
        others = jax.tree.map(lambda x: x[by_gradient:], policies)
        children = gradient_offspring(config, learner, parents, target[:by_gradient], climb_key)
        # Actors are injected once there are elites whose descriptors they can be conditioned on.
        is_targeted = archive.num_elites(archive_state) > 0
        conditioned = jax.vmap(learner.agent.network.actor.with_descriptor)(target[by_gradient:])
        actors = jax.tree.map(lambda x, y: jnp.where(is_targeted, x, y), conditioned, others)
        _, varied = variation.ask(
            learner.initial_solutions, archive_state, vary_key, size - by_gradient - injected
        )
        solutions = jax.tree.map(lambda *parts: jnp.concatenate(parts), children, actors, varied)
        return DCRLState(learner, target, is_targeted), solutions

    def tell(
        state: DCRLState, archive_state: State, evaluated: EvaluatedBatch, key: jax.Array
    ) -> DCRLState:
        observed = to_units(archive, evaluated.solutions.descriptor)
        target = jnp.where(
            state.has_targets, observed.at[: state.target.shape[0]].set(state.target), observed
        )
        memory = DescriptorPair(observed, target)
        learner = update_learner(environment, config, buffer, state.learner, evaluated, memory, key)
        return state._replace(learner=learner)

    return Emitter(
        init=functools.partial(init_emitter, environment, config, archive),
        ask=ask,
        tell=tell,
        metrics=lambda state: {"critic_loss": state.learner.loss},
    )


def dcrl_me(environment: Environment, solution: Callable[[jax.Array], Solution]) -> Algorithm:
    """Build DCRL-MAP-Elites, which is PGA-ME with descriptor-conditioned critics and actor.

    Args:
        environment: Environment with state descriptors (`DescriptorEnvironment`).
        solution: Function from a random key to an initial policy.

    Returns:
        The algorithm. Its `init` raises a `UsageError` if the settings are inconsistent.
    """
    return policy_gradient_algorithm(environment, solution, make_dcrl_emitter)
