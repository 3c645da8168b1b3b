"""DCRL-MAP-Elites: PGA-ME whose critics and actor depend on the descriptor that a policy is after.

Faldor, Chalumeau, Flageolat and Cully 2024, arXiv:2401.08632; without injected actors it is DCG-MAP-Elites (Faldor et
al. 2023, arXiv:2303.03832). Every policy plays for a target descriptor d': that of its parent, that at which the
actor was injected, or, of a child by variation, its own. Steps are remembered with the descriptor d that the episode then had
and with d', and TD3 learns Q(s, a | d') and pi(s | d') of the rewards S(d, d') r by `td3.update` itself, with

    S(d, d') = exp(-|d - d'| / lengthscale), descriptors in units where the bounds are -1 and 1.

That leads to the target where rewards are positive, as those of the paper mostly are; where they are negative, S favors what
misses it, and `reward_offset` makes them positive (a task that ends early is then worth less).

A third kind of child beside those of PGA-ME is pi(. | d) at the descriptors d of random elites, as an ordinary policy.
Deviations: while there is no elite yet, policies have no target but what they do; with several episodes d is their mean.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax.acting.scoring import Watched
from rollax.algorithm import Algorithm
from rollax.algorithms.policy_gradient import LearnerState, PolicyGradientConfig, begin, check_policies, climbed, learnt
from rollax.algorithms.quality_diversity import cells, quality_diversity
from rollax.archives.core import Archive
from rollax.config import number, settings, static
from rollax.emitters.core import Emitter, Told, or_initial
from rollax.emitters.variation import iso_line
from rollax.environments.core import Environment
from rollax.errors import UsageError
from rollax.networks.conditioned import at_descriptor, conditioned
from rollax.networks.critics import ActorCriticsConfig, Conditioned
from rollax.replay.ring import Batch, ReplayBuffer, uniform


@settings
class DCRLMEConfig(PolicyGradientConfig):
    """Settings of DCRL-ME. Those marked (static) shape the program; all others are data, so they can be swept over."""

    gradient_fraction: float = static(0.25, low=0)
    """Share of the solutions that are made by gradients. (static)"""
    injected_fraction: float = static(0.25, low=0)
    """Share of the solutions that are the actor at some descriptor; all others are by Iso+LineDD. (static)"""
    lengthscale: float = number(0.1, low=1e-6)
    """Distance of descriptors, whose bounds are -1 and 1, at which a reward counts 1 / e."""
    reward_offset: float = number(0.0)
    """Added to every reward before it counts by similarity: where rewards are negative, minus the lowest one."""


class DCRLState(NamedTuple):
    """What the emitter carries."""

    learner: LearnerState
    target: jax.Array  # float32 [n, K]: of the children by gradients and injected ones that were asked for last
    is_targeted: jax.Array  # bool []: whether these have targets


class Descriptors(NamedTuple):
    """What is remembered of a policy with its steps, in units where the bounds are -1 and 1."""

    observed: jax.Array  # float32 [K]
    target: jax.Array  # float32 [K]


def similarity(observed: jax.Array, target: jax.Array, lengthscale: Any) -> jax.Array:
    """S(d, d') = exp(-|d - d'| / lengthscale) of descriptors `[..., K]`: 1 where they are the same."""
    return jnp.exp(-jnp.linalg.norm(observed - target, axis=-1) / lengthscale)


def targeted(lengthscale: Any, reward_offset: Any) -> ReplayBuffer:
    """A uniform replay whose samples are as a learner that depends on the target descriptor sees them."""
    buffer = uniform()

    def sample(replay: Any, config: Any, key: jax.Array, progress: jax.Array) -> tuple[Batch, jax.Array]:
        batch, index = buffer.sample(replay, config, key, progress)
        target = batch.carry.target
        reward = similarity(batch.carry.observed, target, lengthscale) * (batch.reward + reward_offset)
        obs, next_obs = Conditioned(batch.obs, target), Conditioned(batch.next_obs, target)
        return batch._replace(obs=obs, next_obs=next_obs, reward=reward, carry=()), index

    return buffer._replace(sample=sample)


def numbers(config: DCRLMEConfig) -> tuple[int, int]:
    """How many solutions of a batch are made by gradients, and how many are injected. Raises UsageError for too many."""
    by_gradient, injected = (round(config.batch_size * x) for x in (config.gradient_fraction, config.injected_fraction))
    if by_gradient + injected > config.batch_size:
        raise UsageError(
            f"gradient_fraction ({config.gradient_fraction}) and injected_fraction ({config.injected_fraction}) are more than "
            "the whole batch: their sum must be at most 1"
        )
    return by_gradient, injected


def dcrl_emitter(environment: Environment, config: DCRLMEConfig, archive: Archive) -> Emitter:
    """All solutions of a batch: children by gradients, injected actors, children by variation; it learns from all of them."""
    buffer, (by_gradient, injected) = targeted(config.lengthscale, config.reward_offset), numbers(config)
    variation = iso_line(archive, config.iso_sigma, config.line_sigma)
    low, span = jnp.asarray([archive.low]), jnp.asarray([archive.high]) - jnp.asarray([archive.low])
    in_units = lambda descriptor: 2 * (descriptor - low) / span - 1  # noqa: E731

    def init(key: jax.Array, solutions: Any) -> DCRLState:
        check_policies("dcrl_me", environment, solutions)
        policy, zeros = jax.tree.map(lambda x: x[0], solutions), jnp.zeros(len(archive.low))
        network = conditioned(environment, policy, ActorCriticsConfig(hidden=config.critic_hidden), zeros.shape[0], key)
        learner = begin(environment, config, buffer, network, solutions, Descriptors(zeros, zeros))
        return DCRLState(learner, jnp.zeros((by_gradient + injected, *zeros.shape)), jnp.zeros((), bool))

    def ask(state: DCRLState, archive_state: Any, key: jax.Array, size: int) -> tuple[DCRLState, Any]:
        parent_key, climb_key, vary_key = jax.random.split(key, 3)
        elites = archive.sample(archive_state, parent_key, by_gradient + injected)
        target, network = in_units(elites.descriptor), state.learner.agent.network

        def climb(policy: Any, descriptor: jax.Array, key: jax.Array) -> Any:
            critic = at_descriptor(network.critic, descriptor)
            return climbed(config, uniform(), state.learner.replay, critic, policy, key)

        found = or_initial(archive, archive_state, state.learner.initial, elites.solution)
        first, rest = jax.tree.map(lambda x: x[:by_gradient], found), jax.tree.map(lambda x: x[by_gradient:], found)
        children = jax.vmap(climb)(first, target[:by_gradient], jax.random.split(climb_key, by_gradient))
        is_targeted = archive.num_elites(archive_state) > 0
        at = jax.vmap(network.actor.at)(target[by_gradient:])
        actors = jax.tree.map(lambda x, y: jnp.where(is_targeted, x, y), at, rest)
        _, varied = variation.ask(state.learner.initial, archive_state, vary_key, size - by_gradient - injected)
        solutions = jax.tree.map(lambda *parts: jnp.concatenate(parts), children, actors, varied)
        return DCRLState(state.learner, target, is_targeted), solutions

    def tell(state: DCRLState, archive_state: Any, told: Told, key: jax.Array) -> DCRLState:
        observed = in_units(told.scored.descriptor)
        target = jnp.where(state.is_targeted, observed.at[: state.target.shape[0]].set(state.target), observed)
        learner = learnt(config, buffer, state.learner, told, Descriptors(observed, target), key)
        return state._replace(learner=learner)

    def metrics(state: DCRLState) -> dict[str, jax.Array]:
        return {"critic_loss": state.learner.loss}

    return Emitter(init, ask, tell, metrics)


def dcrl_me(environment: Environment, solution: Callable[[jax.Array], Any]) -> Algorithm:
    """DCRL-ME of the policies that `solution(key)` begins with. `init` raises UsageError when the parts do not fit."""

    def emitter(config: DCRLMEConfig, archive: Archive, score: Any) -> Emitter:
        return dcrl_emitter(environment, config, archive)

    return quality_diversity(environment, solution, cells, emitter, lambda config: Watched(records=True))
