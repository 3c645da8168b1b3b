"""PGA-ME: MAP-Elites with half of the offspring created by policy gradients.

Nilsson and Cully 2021, doi:10.1145/3449639.3459304 (PGA-MAP-Elites), algorithms 1 to 3. Policies
are evaluated for whole episodes, and their transitions are stored in a replay buffer. TD3 trains
critics and a greedy actor from this buffer. Each batch contains the greedy actor, gradient
offspring, and offspring by Iso+LineDD. A gradient offspring is an elite after `policy_updates`
steps along the gradient of Q_1(s, pi(s)), each with a new batch of samples. Deviation: Policies act
without exploration noise, as in the paper's code.
"""

import functools
from collections.abc import Callable

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
from rollax.config import settings_dataclass
from rollax.emitters.emitter import Emitter, EvaluatedBatch, sample_parents
from rollax.emitters.variation import iso_line_emitter
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.networks.critics import (
    ActorCritics,
    ActorCriticsConfig,
    make_deterministic_actor_critics,
)
from rollax.replay.ring import make_uniform_replay
from rollax.types import Solution, State


@settings_dataclass
class PGAMEConfig(PolicyGradientConfig):
    """Settings of PGA-ME.

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """


def num_gradient_offspring(config: PGAMEConfig) -> int:
    """Return the number of gradient offspring in a batch, including the greedy actor."""
    return round(config.batch_size * config.gradient_fraction)


def make_pga_emitter(environment: Environment, config: PGAMEConfig, archive: Archive) -> Emitter:
    """Build the emitter of PGA-ME, which also trains the critics and the greedy actor.

    Each batch consists of the greedy actor, gradient offspring and offspring by Iso+LineDD.

    Args:
        environment: Environment to train in.
        config: Settings of the algorithm.
        archive: Archive with the parents.

    Returns:
        The emitter. Its `init` raises a `UsageError` if the solutions are not policies, or if
        `gradient_fraction` selects less than 1 or more than `batch_size` solutions.
    """
    buffer, number = make_uniform_replay(), num_gradient_offspring(config)
    variation = iso_line_emitter(archive, config.iso_sigma, config.line_sigma)

    def init(key: jax.Array, solutions: Solution) -> LearnerState:
        check_policies("pga_me", environment, solutions)
        if not 1 <= number <= config.batch_size:
            raise UsageError(
                "gradient_fraction must select between 1 and batch_size "
                f"({config.batch_size}) solutions, got {config.gradient_fraction}."
            )
        network = make_deterministic_actor_critics(
            environment, ActorCriticsConfig(hidden=config.critic_hidden), key
        )
        actor = jax.tree.map(lambda x: x[0], solutions)
        return init_learner(
            environment, config, buffer, ActorCritics(actor, network.critic), solutions, ()
        )

    def ask(
        state: LearnerState, archive_state: State, key: jax.Array, size: int
    ) -> tuple[LearnerState, Solution]:
        parent_key, child_key, vary_key = jax.random.split(key, 3)
        elites = sample_parents(
            archive, archive_state, state.initial_solutions, parent_key, number - 1
        )
        climb = functools.partial(
            policy_gradient_variation, config, buffer, state.replay, state.agent.network.critic
        )
        children = jax.vmap(climb)(elites, jax.random.split(child_key, number - 1))
        _, varied = variation.ask(state.initial_solutions, archive_state, vary_key, size - number)
        greedy = jax.tree.map(lambda x: x[None], state.agent.network.actor)
        return state, jax.tree.map(lambda *parts: jnp.concatenate(parts), greedy, children, varied)

    def tell(
        state: LearnerState, archive_state: State, evaluated: EvaluatedBatch, key: jax.Array
    ) -> LearnerState:
        return update_learner(environment, config, buffer, state, evaluated, (), key)

    return Emitter(init, ask, tell, lambda state: {"critic_loss": state.loss})


def pga_me(environment: Environment, solution: Callable[[jax.Array], Solution]) -> Algorithm:
    """Build PGA-MAP-Elites, which creates a fraction of the offspring by policy gradients.

    Args:
        environment: Environment with state descriptors (`DescriptorEnvironment`).
        solution: Function from a random key to an initial policy.

    Returns:
        The algorithm. Its `init` raises a `UsageError` if the settings are inconsistent.
    """
    return policy_gradient_algorithm(environment, solution, make_pga_emitter)
