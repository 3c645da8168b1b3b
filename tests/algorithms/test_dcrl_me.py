"""Tests of DCRL-ME: the descriptor-conditioned policy and critics, and their replay."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax import make
from rollax.acting.scoring import ScoringOptions, make_scorer
from rollax.algorithms import td3
from rollax.algorithms.dcrl_me import (
    DCRLMEConfig,
    DescriptorPair,
    make_conditioned_buffer,
    make_dcrl_emitter,
    similarity,
)
from rollax.algorithms.quality_diversity import to_scored_solutions
from rollax.algorithms.registry import ALGORITHMS
from rollax.algorithms.replay_updates import AgentFns, update_from_replay
from rollax.archives.archive import InsertionResult, ScoredSolutions
from rollax.archives.grid import grid_archive
from rollax.emitters.emitter import Emitter, EvaluatedBatch, multi_emitter
from rollax.environments.wrapper import Wrapper
from rollax.errors import UsageError
from rollax.networks.conditioned import bind_descriptor, first_layer, make_conditioned_actor_critics
from rollax.networks.critics import Actor, ActorCriticsConfig, ConditionedObservation, masked_action
from rollax.networks.solutions import PolicyConfig, make_solution
from rollax.replay.ring import ReplayStep
from rollax.spaces import Discrete

WORLD: Any = make("control/point-maze", time_limit=10)
SMALL = {
    "batch_size": 12,
    "critic_updates": 2,
    "policy_updates": 2,
    "samples": 4,
    "capacity": 240,
    "critic_hidden": (8,),
    "grid": (5, 5),
}


def policy(hidden: tuple[int, ...] = (8,)) -> Any:
    return make_solution(WORLD, PolicyConfig(hidden=hidden), jax.random.key(7))


def network(hidden: tuple[int, ...] = (8,)) -> Any:
    return make_conditioned_actor_critics(
        WORLD, policy(hidden), ActorCriticsConfig(hidden=(8,)), 2, jax.random.key(3)
    )


@pytest.mark.parametrize("hidden", [(8,), (8, 6), ()])
def test_the_actor_at_a_descriptor_is_a_policy(hidden: tuple[int, ...]) -> None:
    """The ordinary policy for d equals pi(s | d) exactly, and one layer over [features, d]."""
    actor = network(hidden).actor
    obs, descriptor = jax.random.normal(jax.random.key(0), (4,)), jnp.asarray([0.3, -0.7])
    at = actor.with_descriptor(descriptor)
    assert isinstance(at, Actor) and jax.tree.structure(at) == jax.tree.structure(policy(hidden))
    np.testing.assert_array_equal(at(obs), actor(ConditionedObservation(obs, descriptor)))
    layer = first_layer(actor.policy)
    weight = np.concatenate([layer.weight, actor.weight])
    x = np.concatenate([actor.policy.encoder(obs), descriptor]) @ weight + np.asarray(layer.bias)
    if not hidden:
        np.testing.assert_allclose(at(obs), np.tanh(x), rtol=1e-5)
    for next_layer in (*at.dense.layers[1:], at.head.layer) if hidden else ():
        x = np.tanh(x) @ np.asarray(next_layer.weight) + np.asarray(next_layer.bias)
    np.testing.assert_allclose(at(obs), np.tanh(x), rtol=1e-5)
    assert not np.allclose(at(obs), actor.with_descriptor(-descriptor)(obs))


def test_critics_depend_on_the_descriptor() -> None:
    critic = network().critic
    obs, action = jax.random.normal(jax.random.key(0), (4,)), jnp.asarray([0.5, -0.5])
    here, there = jnp.asarray([0.1, 0.2]), jnp.asarray([-0.9, 0.4])
    assert critic[0](ConditionedObservation(obs, here), action) == bind_descriptor(critic, here)[0](
        obs, action
    )
    assert critic[1](ConditionedObservation(obs, here), action) == bind_descriptor(critic, here)[1](
        obs, action
    )
    assert critic[0](ConditionedObservation(obs, here), action) != critic[0](
        ConditionedObservation(obs, there), action
    )


def test_similarity() -> None:
    """It is 1 for equal descriptors and 1 / e at the length scale, in any number of dimensions."""
    here = jnp.asarray([[0.3, 0.4], [0.0, 0.0]])
    np.testing.assert_array_equal(similarity(here, here, 0.1), [1.0, 1.0])
    np.testing.assert_allclose(
        similarity(here, jnp.zeros((2, 2)), 0.5), [np.exp(-1), 1.0], rtol=1e-6
    )


def test_action_masks_are_found_in_conditioned_observations() -> None:
    obs = {"action_mask": jnp.asarray([1, 0])}
    np.testing.assert_array_equal(
        masked_action(jnp.ones(2), ConditionedObservation(obs, jnp.zeros(2))), [1, 0]
    )


@functools.cache
def after_some() -> tuple[Any, Any, Any]:
    """Return the algorithm, its state after two updates, and the emitter."""
    made = ALGORITHMS["dcrl_me"].make(
        WORLD, lambda key: make_solution(WORLD, PolicyConfig(hidden=(8,)), key)
    )
    config = DCRLMEConfig(**SMALL)
    state, step = jax.jit(made.init)(jax.random.key(0), config), jax.jit(made.step)
    for _ in range(2):
        state, _ = step(state)
    return (
        made,
        state,
        make_dcrl_emitter(WORLD, config, grid_archive((5, 5), (0.0, 0.0), (1.0, 1.0))),
    )


def test_injected_policies_are_the_actor() -> None:
    """A quarter of the batch is pi(. | d) at descriptors of elites."""
    _, state, emitter = after_some()
    asked, solutions = jax.jit(emitter.ask, static_argnums=3)(
        state.emitter, state.archive, jax.random.key(5), 12
    )
    elites = (
        np.asarray(state.archive.elites.descriptor[state.archive.elites.fitness > -np.inf]) * 2 - 1
    )
    obs = jax.random.normal(jax.random.key(1), (4,))
    for i in range(3, 6):
        target = asked.target[i]
        mine = jax.tree.map(lambda x, i=i: x[i], solutions)
        np.testing.assert_allclose(
            mine(obs),
            asked.learner.agent.network.actor(ConditionedObservation(obs, target)),
            rtol=1e-6,
        )
        assert np.min(np.max(np.abs(elites - target[None]), axis=1)) < 1e-6
    assert len({float(x) for x in asked.target[3:6, 0]}) > 1 and bool(asked.has_targets)


def test_the_replay_stores_target_descriptors() -> None:
    """Children of the actor have the target that they were given.

    Those of variation have the observed descriptor as target.
    """
    _, state, emitter = after_some()
    asked, solutions = jax.jit(emitter.ask, static_argnums=3)(
        state.emitter, state.archive, jax.random.key(5), 12
    )
    score = jax.jit(make_scorer(WORLD, 1, 10, ScoringOptions(records=True)))(
        solutions, jax.random.key(6)
    )
    told = EvaluatedBatch(
        to_scored_solutions(solutions, score),
        InsertionResult(jnp.zeros(12, jnp.int32), jnp.zeros(12)),
        score.experience,
    )
    replay = jax.jit(emitter.tell)(asked, state.archive, told, jax.random.key(8)).learner.replay
    newest = jax.tree.map(
        lambda x: x[0, (replay.cursor[0] - 12 + jnp.arange(12)) % 240], replay.data.carry
    )  # 12 policies
    np.testing.assert_allclose(newest.observed, 2 * score.descriptor - 1, rtol=1e-6)
    np.testing.assert_array_equal(newest.target[:6], asked.target)
    np.testing.assert_array_equal(newest.target[6:], newest.observed[6:])


def test_nonfinite_solutions_are_not_stored_in_the_replay() -> None:
    _, state, emitter = after_some()
    _, solutions = jax.jit(emitter.ask, static_argnums=3)(
        state.emitter, state.archive, jax.random.key(5), 12
    )
    score = jax.jit(make_scorer(WORLD, 1, 10, ScoringOptions(records=True)))(
        solutions, jax.random.key(6)
    )
    score = score._replace(
        fitness=score.fitness.at[0].set(jnp.nan), descriptor=score.descriptor.at[1].set(jnp.inf)
    )
    told = EvaluatedBatch(
        to_scored_solutions(solutions, score),
        InsertionResult(jnp.zeros(12, jnp.int32), jnp.zeros(12)),
        score.experience,
    )
    before = state.emitter.learner.replay
    after = jax.jit(emitter.tell)(state.emitter, state.archive, told, jax.random.key(8)).learner
    assert (after.replay.cursor - before.cursor)[0] % 240 == 10 * 10 and np.isfinite(
        after.loss
    )  # 10 of 12 policies
    newest = np.asarray(after.replay.data.obs)[
        0, (int(after.replay.cursor[0]) - 100 + np.arange(100)) % 240
    ]
    np.testing.assert_array_equal(newest.reshape(10, 10, 4), score.experience[0].obs[:, 2:])


def test_the_emitter_without_elites() -> None:
    """It proposes the initial solutions and has no targets."""
    _, state, emitter = after_some()
    archive = grid_archive((5, 5), (0.0, 0.0), (1.0, 1.0))
    empty = archive.init(jax.random.key(0), jax.tree.map(lambda x: x[0], state.archive.elites))
    asked, solutions = jax.jit(emitter.ask, static_argnums=3)(
        state.emitter, empty, jax.random.key(5), 12
    )
    assert not asked.has_targets
    initial = state.emitter.learner.initial_solutions
    injected = jax.tree.map(
        lambda x, y: np.testing.assert_array_equal(x[3:6], y[3:6]), solutions, initial
    )
    assert jax.tree.leaves(injected) == []


def test_the_emitter_learns_from_its_own_solutions_only() -> None:
    """Experience of another emitter's solutions is not stored in the replay."""
    archive = grid_archive((5, 5), (0.0, 0.0), (1.0, 1.0))
    mine = make_dcrl_emitter(WORLD, DCRLMEConfig(**SMALL), archive)
    rest = Emitter(lambda key, x: x, lambda s, a, k, n: (s, s), lambda s, a, told, k: s)
    both = multi_emitter({"other": rest, "mine": mine}, {"other": 4, "mine": 12})
    solutions = jax.lax.map(
        lambda key: make_solution(WORLD, PolicyConfig(hidden=(8,)), key),
        jax.random.split(jax.random.key(0), 16),
    )
    state = both.init(jax.random.key(1), solutions)
    no, obs = jnp.zeros((1, 16), bool), jnp.zeros((1, 16, 4)) + jnp.arange(16.0)[None, :, None]
    steps = ReplayStep(obs, jnp.zeros((1, 16, 2)), jnp.zeros((1, 16)), no, no, obs, no, ())
    batch = ScoredSolutions(solutions, jnp.zeros(16), jnp.zeros((16, 2)))
    told = EvaluatedBatch(
        batch, InsertionResult(jnp.zeros(16, jnp.int32), jnp.zeros(16)), (steps, ~no)
    )
    replay = jax.jit(both.tell)(state, None, told, jax.random.key(2))["mine"].learner.replay
    np.testing.assert_array_equal(replay.data.obs[0, :12, 0], jnp.arange(4.0, 16.0))
    assert replay.size[0] == 12


def test_critics_learn_rewards_weighted_by_similarity() -> None:
    """With reward -2, offset 3 and no future, Q(s, a | d') becomes S(d, d')."""
    settings = td3.TD3Config(batch_size=64, capacity=512, gamma=0.0, learning_rate=3e-3)
    buffer = make_conditioned_buffer(1.0, 3.0)
    agent = td3.init_agent(
        make_conditioned_actor_critics(
            WORLD, policy(), ActorCriticsConfig(hidden=(32,)), 2, jax.random.key(3)
        ),
        settings,
    )
    no, zeros = jnp.zeros((), bool), jnp.zeros(2)
    row = ReplayStep(
        jnp.zeros(4),
        zeros,
        -2 * jnp.ones(()),
        no,
        no,
        jnp.zeros(4),
        no,
        DescriptorPair(zeros, zeros),
    )
    replay = buffer.init(row, 1, settings)
    targets = jax.random.uniform(jax.random.key(1), (512, 2), minval=-1.0, maxval=1.0)

    def add(replay: Any, target: jax.Array) -> tuple[Any, None]:
        one = jax.tree.map(lambda x: x[None], row._replace(carry=DescriptorPair(zeros, target)))
        return buffer.add(replay, one, jnp.ones(1, bool)), None

    replay = jax.jit(lambda replay: jax.lax.scan(add, replay, targets)[0])(replay)
    fns = AgentFns(lambda key, config: None, td3.explore, td3.act, td3.update)
    yes = jnp.ones((), bool)
    learn = functools.partial(
        update_from_replay, fns, buffer, settings, jnp.zeros(()), yes, jax.random.key(2)
    )
    (agent, _), _ = jax.jit(lambda loop: jax.lax.scan(learn, loop, jnp.arange(1500)))(
        (agent, replay)
    )
    values = jax.vmap(
        lambda d: agent.network.critic[0](ConditionedObservation(jnp.zeros(4), d), zeros)
    )(targets)
    np.testing.assert_allclose(values, np.exp(-np.linalg.norm(targets, axis=1)), atol=0.08)


def test_discrete_actions_are_refused() -> None:
    """Policy gradients need continuous actions."""

    class Choices(Wrapper):
        action_space = Discrete(3)

        def step(self, key: jax.Array, state: Any, action: Any) -> Any:
            return self.env.step(key, state, jnp.full(2, action - 1.0))

    world: Any = Choices(WORLD)
    made = ALGORITHMS["dcrl_me"].make(
        world, lambda key: make_solution(world, PolicyConfig(hidden=(8,)), key)
    )
    with pytest.raises(UsageError, match="must be a Box of floats with finite bounds"):
        jax.eval_shape(made.init, jax.random.key(0), DCRLMEConfig(**SMALL))
