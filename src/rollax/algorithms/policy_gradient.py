"""Offspring by policy gradients, shared by PGA-ME and DCRL-ME.

Nilsson and Cully 2021, doi:10.1145/3449639.3459304, algorithms 1 to 3. The transitions of evaluated
policies are stored in a replay buffer. `td3.update` trains critics and an actor from this buffer,
with target networks and delayed updates. An offspring is a policy after several gradient steps on
the critic.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from rollax import tree
from rollax.acting.scoring import Scorer, ScoringOptions
from rollax.algorithm import Algorithm
from rollax.algorithms import td3
from rollax.algorithms.descriptor_cells import make_cells_archive
from rollax.algorithms.quality_diversity import QDConfig, quality_diversity
from rollax.algorithms.replay_updates import example_step, update_from_replay
from rollax.archives.archive import Archive
from rollax.config import settings_dataclass, static_field, traced_field
from rollax.emitters.emitter import Emitter, EvaluatedBatch
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.learning.optimizers import clipped_adam
from rollax.learning.train_state import apply_gradients
from rollax.networks.critics import Actor, ActorCritics
from rollax.replay.ring import ReplayBuffer, add_rows
from rollax.spaces import make_zeros
from rollax.types import PyTree, Settings, Solution, State


@settings_dataclass
class PolicyGradientConfig(QDConfig):
    """Settings of algorithms that create offspring by policy gradients.

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """

    batch_size: int = static_field(64)
    """(static) Solutions per iteration."""
    num_iterations: int = static_field(1)
    """(static) Iterations per update."""
    gradient_fraction: float = static_field(0.5, low=0)
    """(static) Fraction of each batch that is created by policy gradients."""
    critic_updates: int = static_field(300)
    """(static) Gradient steps of critics and actor per iteration."""
    policy_updates: int = static_field(100)
    """(static) Gradient steps per offspring."""
    samples: int = static_field(100)
    """(static) Samples per gradient step."""
    capacity: int = static_field(200_000)
    """(static) Capacity of the replay buffer in transitions. A full buffer overwrites its oldest
    transitions.
    """
    critic_hidden: tuple[int, ...] = static_field((256, 256))
    """(static) Sizes of the critics' dense layers."""
    iso_sigma: float = traced_field(0.005, low=0)
    """Standard deviation of the isotropic noise of Iso+LineDD."""
    line_sigma: float = traced_field(0.05, low=0)
    """Standard deviation of the step along the line of Iso+LineDD, relative to the distance to
    the other elite.
    """
    policy_learning_rate: float = traced_field(1e-3, low=0)
    """Learning rate of offspring (Adam)."""
    learning_rate: float = traced_field(3e-4, low=0)
    """Learning rate of critics and actor (Adam)."""
    gamma: float = traced_field(0.99, 0, 1)
    """Discount factor."""
    policy_delay: float = traced_field(2.0, low=1)
    """Gradient steps of the critics per update of the actor. Rounded to an integer."""
    tau: float = traced_field(0.005, 0, 1)
    """Step size of the targets toward their networks."""
    target_noise: float = traced_field(0.2, low=0)
    """Standard deviation of the noise added to actions of the target policy."""
    target_noise_clip: float = traced_field(0.5, low=0)
    """Maximum absolute value of the target policy's noise."""
    reward_scale: float = traced_field(1.0)
    """Factor applied to rewards."""


class LearnerState(NamedTuple):
    """State of the critics and the actor of a policy-gradient emitter.

    Attributes:
        agent: Critics and greedy actor of TD3.
        replay: State of the replay buffer.
        initial_solutions: Solutions `[B]` that replace elites while the archive is empty.
        loss: Mean critic loss of the last iteration, float32 `[]`.
    """

    agent: td3.TD3Agent
    replay: State
    initial_solutions: Solution
    loss: jax.Array


def policy_gradient_algorithm(
    environment: Environment,
    solution: Callable[[jax.Array], Solution],
    make_emitter: Callable[[Environment, Settings, Archive], Emitter],
) -> Algorithm:
    """Build a quality-diversity algorithm with an emitter that learns from recorded transitions.

    Args:
        environment: Environment with state descriptors (`DescriptorEnvironment`).
        solution: Function from a random key to an initial policy.
        make_emitter: Function `(environment, config, archive)` that returns the emitter.

    Returns:
        The algorithm. Its `init` raises a `UsageError` if the settings are inconsistent.
    """

    def emitter(config: PolicyGradientConfig, archive: Archive, score: Scorer) -> Emitter:
        return make_emitter(environment, config, archive)

    def scoring_options(config: PolicyGradientConfig) -> ScoringOptions:
        return ScoringOptions(records=True)

    return quality_diversity(environment, solution, make_cells_archive, emitter, scoring_options)


def learner_config(config: PolicyGradientConfig) -> td3.TD3Config:
    """Return the TD3 settings for training the critics."""
    names = (
        "learning_rate",
        "gamma",
        "policy_delay",
        "tau",
        "target_noise",
        "target_noise_clip",
        "reward_scale",
        "capacity",
    )
    return td3.TD3Config(
        batch_size=config.samples, **{name: getattr(config, name) for name in names}
    )


def check_policies(algorithm: str, environment: Environment, solutions: Solution) -> None:
    """Raise UsageError if the solutions are vectors of a closed-form task instead of policies."""
    if not isinstance(solutions, Actor):
        raise UsageError(
            f"{algorithm} requires an environment with episodes, but {environment.name} is a "
            "closed-form task. Use cma_mae or map_elites."
        )


def init_learner(
    environment: Environment,
    config: PolicyGradientConfig,
    buffer: ReplayBuffer,
    network: ActorCritics,
    solutions: Solution,
    example_carry: PyTree,
) -> LearnerState:
    """Return the initial learner state, with an empty replay buffer.

    Args:
        environment: Environment to train in.
        config: Settings of the algorithm.
        buffer: Functions of the replay buffer. All transitions go to a single stream of it.
        network: Initial actor and critics.
        solutions: Initial solutions, `[B, ...]`.
        example_carry: Example of the values that are stored with each transition in the field
            `carry`, with their shapes and dtypes, or `()`.

    Returns:
        The learner state.
    """
    learner = learner_config(config)
    example = example_step(environment, make_zeros(environment.observation_space), example_carry)
    return LearnerState(
        agent=td3.init_agent(network, learner),
        replay=buffer.init(example, 1, learner),
        initial_solutions=solutions,
        loss=jnp.zeros(()),
    )


def update_learner(
    environment: Environment,
    config: PolicyGradientConfig,
    buffer: ReplayBuffer,
    state: LearnerState,
    evaluated: EvaluatedBatch,
    carry: PyTree,
    key: jax.Array,
) -> LearnerState:
    """Add the transitions of a batch to the replay buffer, and train the critics and the actor.

    The replay buffer is a single queue. A full queue overwrites its oldest transitions. A batch is
    added in the order of time: the first transitions of all policies, then the second transitions
    of all policies, and so on. Policies with a non-finite fitness or descriptor are omitted.

    Args:
        environment: Environment to train in.
        config: Settings of the algorithm.
        buffer: Replay buffer, which is used with one stream.
        state: Learner before the batch.
        evaluated: Scored batch with the experience of its policies.
        carry: Values to store with every transition of a policy, `[B, ...]`, or `()`.
        key: Random key.

    Returns:
        The updated learner.
    """
    fns = td3.make_agent_fns(environment, lambda key, config: state.agent)
    steps, mask = evaluated.experience
    finite = jnp.isfinite(evaluated.solutions.fitness) & jnp.all(
        jnp.isfinite(evaluated.solutions.descriptor), axis=-1
    )
    carry = jax.tree.map(lambda x: jnp.broadcast_to(x, (mask.shape[0], *x.shape)), carry)
    # The queue is replicated on every device, so that sampling needs no communication.
    steps, keep = tree.constrain_sharding((steps._replace(carry=carry), mask & finite[None]), False)
    steps, keep = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (steps, keep))
    replay = add_rows(state.replay, steps, keep)
    is_warm, progress = jnp.ones((), bool), jnp.zeros(())
    learn = functools.partial(
        update_from_replay, fns, buffer, learner_config(config), progress, is_warm, key
    )
    (agent, replay), metrics = jax.lax.scan(
        learn, (state.agent, replay), jnp.arange(config.critic_updates)
    )
    return state._replace(agent=agent, replay=replay, loss=jnp.mean(metrics["loss"]))


def policy_gradient_variation(
    config: PolicyGradientConfig,
    buffer: ReplayBuffer,
    replay: State,
    critic: tuple[Callable[..., jax.Array], ...],
    policy: Solution,
    key: jax.Array,
) -> Solution:
    """Create an offspring by `policy_updates` Adam steps along the gradient of Q_1(s, pi(s)).

    Each step uses a new batch of samples. The policy is returned unchanged while the replay buffer
    contains fewer transitions than a batch.

    Args:
        config: Settings of the algorithm.
        buffer: Replay buffer.
        replay: State of the replay buffer.
        critic: Critics of the learner.
        policy: Parent policy.
        key: Random key of the samples.

    Returns:
        The offspring.
    """
    learner = learner_config(config)
    optimizer = clipped_adam(
        config.policy_learning_rate, learner.adam_epsilon, learner.max_grad_norm
    )

    def step(loop: tuple[Solution, State], index: jax.Array) -> tuple[tuple[Solution, State], None]:
        policy, optimizer_state = loop
        batch, _ = buffer.sample(replay, learner, jax.random.fold_in(key, index), jnp.zeros(()))
        gradient = jax.grad(td3.policy_loss)(policy, critic, batch)
        return apply_gradients(optimizer, optimizer_state, policy, gradient), None

    can_sample = buffer.can_sample(replay, learner)
    if not isinstance(can_sample, Tracer) and not can_sample:
        return policy  # sampling would raise an error in code that is not compiled
    (child, _), _ = jax.lax.scan(
        step, (policy, optimizer.init(policy)), jnp.arange(config.policy_updates)
    )
    return tree.where(can_sample, child, policy)
