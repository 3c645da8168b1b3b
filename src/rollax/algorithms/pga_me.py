"""PGA-ME: MAP-Elites half of whose children are made by the gradient of a critic that learns from all experience.

Nilsson and Cully 2021, doi:10.1145/3449639.3459304 (PGA-MAP-Elites), algorithms 1 to 3. Policies play whole episodes; what
they experience goes to a replay, from which the critics and a greedy actor of TD3 learn. A child is an elite after
`policy_updates` steps along grad Q_1(s, pi(s)), each with samples of its own; one is the greedy actor. Deviation: exploration
is that of the archive alone, as in the paper's code.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rollax.acting.scoring import Watched
from rollax.algorithm import Algorithm
from rollax.algorithms.policy_gradient import LearnerState, PolicyGradientConfig, begin, check_policies, climbed, learnt
from rollax.algorithms.quality_diversity import cells, quality_diversity
from rollax.archives.core import Archive
from rollax.config import settings
from rollax.emitters.core import Emitter, Told, parents
from rollax.emitters.variation import iso_line
from rollax.environments.core import Environment
from rollax.errors import UsageError
from rollax.networks.critics import ActorCritics, ActorCriticsConfig, deterministic
from rollax.replay.ring import uniform


@settings
class PGAMEConfig(PolicyGradientConfig):
    """Settings of PGA-ME. Those marked (static) shape the program; all others are data, so they can be swept over."""


def num_by_gradient(config: PGAMEConfig) -> int:
    """How many solutions of a batch are made by gradients; the others are by Iso+LineDD."""
    return round(config.batch_size * config.gradient_fraction)


def gradient_emitter(environment: Environment, config: PGAMEConfig, archive: Archive) -> Emitter:
    """All solutions of a batch: the greedy actor, children by gradients, children by variation; it learns from all of them."""
    buffer, number = uniform(), num_by_gradient(config)
    variation = iso_line(archive, config.iso_sigma, config.line_sigma)

    def init(key: jax.Array, solutions: Any) -> LearnerState:
        check_policies("pga_me", environment, solutions)
        if not 1 <= number <= config.batch_size:
            raise UsageError(f"gradient_fraction ({config.gradient_fraction}) must leave 1 of batch_size ({config.batch_size})")
        network = deterministic(environment, ActorCriticsConfig(hidden=config.critic_hidden), key)
        actor = jax.tree.map(lambda x: x[0], solutions)
        return begin(environment, config, buffer, ActorCritics(actor, network.critic), solutions, ())

    def ask(state: LearnerState, archive_state: Any, key: jax.Array, size: int) -> tuple[LearnerState, Any]:
        parent_key, child_key, vary_key = jax.random.split(key, 3)
        elites = parents(archive, archive_state, state.initial, parent_key, number - 1)
        climb = functools.partial(climbed, config, buffer, state.replay, state.agent.network.critic)
        children = jax.vmap(climb)(elites, jax.random.split(child_key, number - 1))
        _, varied = variation.ask(state.initial, archive_state, vary_key, size - number)
        greedy = jax.tree.map(lambda x: x[None], state.agent.network.actor)
        return state, jax.tree.map(lambda *parts: jnp.concatenate(parts), greedy, children, varied)

    def tell(state: LearnerState, archive_state: Any, told: Told, key: jax.Array) -> LearnerState:
        return learnt(config, buffer, state, told, (), key)

    return Emitter(init, ask, tell, lambda state: {"critic_loss": state.loss})


def pga_me(environment: Environment, solution: Callable[[jax.Array], Any]) -> Algorithm:
    """PGA-ME of the policies that `solution(key)` begins with. `init` raises UsageError when the parts do not fit."""

    def emitter(config: PGAMEConfig, archive: Archive, score: Any) -> Emitter:
        return gradient_emitter(environment, config, archive)

    return quality_diversity(environment, solution, cells, emitter, lambda config: Watched(records=True))
