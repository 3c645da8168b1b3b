"""Tests of selection in evolving populations with episodes of different lengths."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax import (
    Algorithm,
    Metrics,
    NetworkConfig,
    PPOConfig,
    Transition,
    actor_critic,
    make,
    population,
    ppo,
    tree,
)
from rollax.acting.evaluation import make_evaluator
from rollax.acting.streams import init_actor, unroll
from rollax.populations.evolution import EvolutionConfig, Range, evolve, evolving
from rollax.spaces import Box, Discrete

NUM_ENVS, NUM_STEPS = 4, 64
HAZARDS = (0.001, 0.02)  # probability that the episode ends in a step, by action
RANGES = {"noise": Range(0.0, 1.0)}


class Hazard:
    """Environment with a constant reward, where the action determines the probability of an end."""

    name, num_agents, time_limit, info_reductions = "hazard", None, None, {}
    observation_space, action_space = Box(0, 1, (1,)), Discrete(2)

    def __init__(self, reward: float = 1.0) -> None:
        self.reward = reward

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return jnp.zeros(()), jnp.zeros(1)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        ended = jax.random.bernoulli(key, jnp.asarray(HAZARDS)[action])
        return Transition(
            state, jnp.zeros(1), jnp.asarray(self.reward), ended, jnp.zeros((), bool), {}
        )


class Config(NamedTuple):
    """Settings of `fixed_policy`."""


class State(NamedTuple):
    """State of `fixed_policy`."""

    key: jax.Array
    config: Any
    actor: Any


def fixed_policy(environment: Any) -> Algorithm:
    """Return an algorithm that learns nothing and takes the action of its config in every step."""

    def init(key: jax.Array, config: Any) -> State:
        key, actor_key = jax.random.split(key)
        return State(key, config, init_actor(environment, actor_key, NUM_ENVS, ()))

    def step(state: State) -> tuple[State, Metrics]:
        key, act_key = jax.random.split(state.key)
        action = state.config.action.astype(jnp.int32)

        def policy(carry, obs, reset, key):
            return (carry, action, ())

        actor, rollout, episodes = unroll(environment, policy, state.actor, act_key, NUM_STEPS)
        return State(key, state.config, actor), Metrics(
            {}, episodes, reward=jnp.sum(rollout.reward)
        )

    return Algorithm(init, step, act=lambda *_: None, initial_carry=lambda state: ())  # pyright: ignore


def replaced(reward: float, generations: int, seed: int) -> tuple[np.ndarray, ...]:
    """Return how often members with long and with short episodes became copies of the other kind.

    The counts are over 64 runs, by generation. A run is a population of 8 members, and the first
    half has long episodes.
    """
    from rollax.config import settings_dataclass, traced_field

    @settings_dataclass
    class Settings:
        action: float = traced_field(0.0)
        noise: float = traced_field(0.5, 0, 1)

    many = population(fixed_policy(Hazard(reward)))
    running, actions = evolving(many, RANGES), jnp.repeat(jnp.arange(2.0), 4)

    def begin(key: jax.Array) -> Any:
        keys = tuple(jax.random.split(each, 8) for each in jax.random.split(key))
        return running.init(keys, Settings(action=actions, noise=jnp.full(8, 0.5)))  # pyright: ignore

    def one_generation(state: Any) -> tuple[Any, jax.Array]:
        before = state.members.config.action
        state, generation = evolve(many, running.step(state)[0], RANGES)
        is_other = before[generation.parent] != before
        return state, jnp.stack([jnp.sum(is_other & (before == kind)) for kind in (0.0, 1.0)])

    counts = []
    # The check takes a vmapped loop over keys for a second use of them.
    with jax.debug_key_reuse(False):
        state = jax.jit(jax.vmap(begin))(jax.random.split(jax.random.key(seed), 64))
        go = jax.jit(jax.vmap(one_generation))
        for _ in range(generations):
            state, number_of_each = go(state)
            counts.append(np.asarray(number_of_each).sum(axis=0))
    return tuple(np.transpose(counts))


def test_long_episodes_are_no_disadvantage() -> None:
    """Most members with a hazard of 0.001 have not ended an episode yet."""
    good, bad = replaced(reward=1.0, generations=6, seed=0)
    assert good[0] == 0 and good.sum() <= bad.sum() / 40, (
        f"replaced although better: {good}, although worse: {bad}"
    )
    assert bad.sum() > 64, "members that do badly are replaced all the same"


def test_long_episodes_are_no_advantage() -> None:
    """With a cost per step, members with long episodes are the worse ones."""
    bad, good = replaced(reward=-1.0, generations=6, seed=1)
    assert good.sum() <= bad.sum() / 40, f"replaced although better: {good}, although worse: {bad}"
    assert bad.sum() > 32


def test_ppo_on_cartpole_does_not_replace_better_members() -> None:
    """There is a generation every 64 steps, while episodes are longer than that."""
    size, environment = 12, make("gymnax/CartPole-v1")
    ranges = {"learning_rate": Range(1e-5, 1e-2, "log")}
    config = PPOConfig(num_envs=8, num_steps=64, num_minibatches=4, num_epochs=4)
    algorithm = ppo(
        environment, lambda key: actor_critic(environment, NetworkConfig(hidden=(32,)), key)
    )
    many = population(algorithm)
    running, play = (
        evolving(many, ranges),
        make_evaluator(environment, algorithm, 64, 500, greedy=False),
    )
    step, evaluate = jax.jit(running.step), jax.jit(jax.vmap(play))
    # As in a run, fitness needs at least one episode per environment.
    generation = jax.jit(
        lambda state: evolve(many, state, ranges, EvolutionConfig(min_episodes=config.num_envs))
    )
    keys = tuple(jax.random.split(key, size) for key in jax.random.split(jax.random.key(5)))
    state = jax.jit(running.init)(
        keys, jax.tree.map(lambda x: jnp.full(size, x), tree.to_arrays(config))
    )
    wrong = number = 0
    for index in range(8):
        # Values of the policies that acted. Differences of less than a fifth may be chance.
        value = np.asarray(
            evaluate(state.members, jax.random.split(jax.random.key(index), size)).returns
        ).mean(axis=1)
        state, _ = step(state)
        state, happened = generation(state)
        children = np.flatnonzero(happened.parent != np.arange(size))
        number += children.size
        wrong += int(np.sum(value[children] > 1.2 * value[np.asarray(happened.parent)[children]]))
    assert number >= 12
    assert wrong <= number / 10, (
        f"{wrong} of {number} replaced members were better than their parents"
    )
