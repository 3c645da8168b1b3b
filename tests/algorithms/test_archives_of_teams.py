"""Tests of archives for multi-agent environments.

All agents share the policy, and agents of one type determine the fitness.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laws.programs import plain
from rollax import make
from rollax.acting.scoring import ScoringOptions, make_episode_scorer, make_scorer
from rollax.algorithms.registry import ALGORITHMS
from rollax.environments.environment import Transition
from rollax.errors import UnknownNameError, UsageError
from rollax.networks.solutions import PolicyConfig, make_solution
from rollax.spaces import Box


class Walkers:
    """Environment of agents that move along lines by their actions.

    Agent a is done after 2 + a steps. The reward is its position.
    """

    name, num_agents, time_limit = "test/walkers", 3, 10
    agent_types = ("first", "other", "other")
    observation_space, action_space = Box(-np.inf, np.inf, (2,)), Box(-1.0, 1.0, (1,))
    descriptor_space, descriptor_extraction = Box(-10.0, 10.0, (1,)), "final"

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state = jnp.zeros(3), jnp.zeros((), jnp.int32)
        return state, self.observe(state)

    def observe(self, state: Any) -> jax.Array:
        return jnp.stack([state[0], jnp.arange(3.0)], axis=1)

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> Transition:
        after = state[0] + action[:, 0], state[1] + 1
        done = after[1] >= 2 + jnp.arange(3)
        return Transition(after, self.observe(after), after[0], done, jnp.zeros(3, bool), {})

    def descriptor(self, state: Any) -> jax.Array:
        return state[0][2:]


WORLD: Any = Walkers()


def policies(world: Any, number: int) -> Any:
    return jax.vmap(lambda key: make_solution(world, PolicyConfig(hidden=(4,)), key))(
        jax.random.split(jax.random.key(0), number)
    )


def by_hand(policy: Any) -> tuple[np.ndarray, float]:
    """Return the returns of the three agents and the last position of the third."""
    place, returns = np.zeros(3), np.zeros(3)
    for time in range(4):
        place = place + [
            float(policy(jnp.asarray([place[a], a], jnp.float32))[0]) for a in range(3)
        ]
        returns += np.where(time < 2 + np.arange(3), place, 0.0)
    return returns, place[2]


@pytest.mark.parametrize(("agent_type", "who"), [("first", [0]), ("other", [1, 2])])
def test_fitness_is_the_return_of_the_scoring_agents(agent_type: str, who: list[int]) -> None:
    solutions = policies(WORLD, 4)
    score = jax.jit(make_scorer(WORLD, 1, 10, agent_type=agent_type))(solutions, jax.random.key(1))
    for i in range(4):
        returns, end = by_hand(jax.tree.map(lambda x, i=i: x[i], solutions))
        np.testing.assert_allclose(score.fitness[i], returns[who].mean(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(score.descriptor[i], [end], rtol=1e-5, atol=1e-6)


def test_experience_has_the_steps_of_scoring_agents_until_they_are_done() -> None:
    solutions = policies(WORLD, 4)
    score = jax.jit(make_episode_scorer(WORLD, 2, 10, ScoringOptions(records=True), "other"))(
        solutions, jax.random.key(1)
    )
    steps, mask = jax.device_get(score.experience)
    assert steps.obs.shape == (2 * 2 * 10, 4, 2) and mask.shape == (2 * 2 * 10, 4)
    assert np.all(mask.sum(axis=0) == 2 * (3 + 4))  # two episodes of two agents, with 3 and 4 steps
    assert set(steps.obs[mask][:, 1]) == {1.0, 2.0}
    np.testing.assert_allclose(
        steps.obs[mask][:, 0] + steps.action[mask][:, 0], steps.next_obs[mask][:, 0], rtol=1e-6
    )
    np.testing.assert_allclose(steps.reward[mask], steps.next_obs[mask][:, 0], rtol=1e-6)
    per_policy = (
        np.where(mask, steps.reward, 0.0).sum(axis=0) / 4
    )  # mean over two episodes and two agents
    np.testing.assert_allclose(score.fitness, per_policy, rtol=1e-5)
    assert np.all(steps.terminated[mask].sum() == 4 * 4)


@pytest.mark.parametrize("name", ["map_elites", "pga_me", "dcrl_me", "aurora"])
def test_every_kind_of_archive_supports_teams(name: str) -> None:
    made = ALGORITHMS[name].make(
        WORLD, lambda key: make_solution(WORLD, PolicyConfig(hidden=(4,)), key)
    )
    small: dict[str, Any] = {
        "batch_size": 16,
        "num_iterations": 2,
        "grid": (8,),
        "agent_type": "other",
    }
    if name == "aurora":
        small |= {
            "num_elites": 20,
            "num_frames": 3,
            "encoder_hidden": (8,),
            "encoder_updates": 5,
            "samples": 8,
        }
    elif name != "map_elites":
        small |= {
            "critic_updates": 4,
            "policy_updates": 2,
            "samples": 4,
            "capacity": 960,
            "critic_hidden": (8,),
        }
    state = jax.jit(made.init)(jax.random.key(0), ALGORITHMS[name].config(**small))
    after, metrics = jax.jit(made.step)(state)
    assert metrics.values["new"] >= 2 and np.all(jax.tree.leaves(metrics.finite))
    if name == "pga_me":
        before, learnt = plain(state.emitter.agent.network), plain(after.emitter.agent.network)
        assert not all(map(np.array_equal, jax.tree.leaves(before), jax.tree.leaves(learnt)))


def test_the_best_policy_acts_for_all_agents() -> None:
    world = make("granular/many-navigators", num_agents=3, max_steps=5)
    made = ALGORITHMS["map_elites"].make(
        world, lambda key: make_solution(world, PolicyConfig(hidden=(4,)), key)
    )
    config = ALGORITHMS["map_elites"].config(batch_size=8, num_iterations=1, grid=(4, 4))
    state, _ = jax.jit(made.step)(jax.jit(made.init)(jax.random.key(0), config))
    obs = world.reset(jax.random.key(1))[1]
    action, _ = made.act(state, obs, made.initial_carry(state), jax.random.key(2), True)
    assert action.shape == (3, 2)
    one = made.act(state, jax.tree.map(lambda x: x[::-1], obs), (), jax.random.key(2), True)[0]
    np.testing.assert_allclose(one, action[::-1], rtol=1e-5, atol=1e-6)


def test_the_scoring_type_of_agents_is_required() -> None:
    world = make("hunting/2-players")
    with pytest.raises(
        UsageError,
        match=r"several agent types.*one of prey, predator \(--config.agent-type prey\)",
    ):
        make_scorer(world, 1, 10)
    with pytest.raises(
        UnknownNameError, match="unknown type of agents in hunting/2-players 'wolf'"
    ):
        make_scorer(world, 1, 10, agent_type="wolf")
    with pytest.raises(
        UsageError,
        match="config.agent_type .* must be empty, because control/point-maze has no agents",
    ):
        make_scorer(make("control/point-maze"), 1, 10, agent_type="prey")
