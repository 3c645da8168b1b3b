"""Tests that episode descriptors equal those of a plain loop over one environment.

All extractions, greedy and stochastic actions, and several episode lengths are covered.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax
from rollax.acting.descriptors import Extraction
from rollax.acting.evaluation import Episodes, make_evaluator
from rollax.algorithm import Algorithm
from rollax.checks.environment_check import FaultyEnvironmentError, check_environment
from rollax.environments import Transition, make
from rollax.environments.native.memory.partial_observation import PartialObservation
from rollax.environments.wrappers import PreviousActionReward, Trials
from rollax.errors import UnknownNameError, UsageError
from rollax.spaces import Box, Discrete
from rollax.training.evaluation.metrics import default_metrics
from support.fixtures import compile_once, train  # noqa: F401
from support.runs import NETWORK, SMALL, evaluations, metrics, options

EPISODES, LONGEST = 16, 6


class Walking(eqx.Module):
    """Environment with steps of random size to the left or right and episodes of 1 to 6 steps.

    After the end of the episode, the position is NaN. The descriptor is the position and whether it
    is positive.
    """

    agents: int | None = eqx.field(static=True, default=None)

    name = "test/walking"
    observation_space = Box(-100.0, 100.0, (1,))
    action_space = Discrete(2)
    descriptor_space = Box(-100.0, 100.0, (2,))
    descriptor_extraction = "final"
    time_limit = LONGEST

    @property
    def num_agents(self) -> int | None:
        return self.agents

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        left = jax.random.randint(key, (), 1, LONGEST + 1)
        # outside the reachable range, so a descriptor of the start would be noticed
        place = jnp.float32(50.0)
        return (left, place), self._each(place)[..., None]

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        left, place = state[0] - 1, jnp.where(state[1] == 50.0, 0.0, state[1])
        way = jnp.where(jnp.sum(action) > 0, 1.0, -1.0)
        place = place + way * jax.random.uniform(key)
        place = jnp.where(left < 0, jnp.nan, place)
        ended, is_cut = self._each(left <= 0), self._each(left % 2 == 0)
        after = (left, place)
        return Transition(
            after,
            self._each(place)[..., None],
            self._each(way),
            ended & ~is_cut,
            ended & is_cut,
            {},
        )

    def descriptor(self, state: Any) -> jax.Array:
        return jnp.stack([state[1], jnp.where(state[1] > 0, 1.0, 0.0)])

    def _each(self, value: jax.Array) -> jax.Array:
        return value if self.agents is None else jnp.broadcast_to(value, (self.agents,))


class Silent(eqx.Module):
    """Environment without descriptors."""

    name, num_agents, time_limit = "test/silent", None, 1
    observation_space = Box(0.0, 1.0, ())
    action_space = Discrete(2)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return jnp.zeros(()), jnp.zeros(())

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        return Transition(state, state, jnp.zeros(()), jnp.ones((), bool), jnp.zeros((), bool), {})


def coin(environment: Any) -> Algorithm:
    """Policy that goes right if greedy, and otherwise with the probability in its state."""
    shape = () if environment.num_agents is None else (environment.num_agents,)

    def act(state: Any, obs: Any, carry: Any, key: jax.Array, greedy: Any) -> tuple[Any, Any]:
        return jnp.where(
            greedy, 1, jax.random.bernoulli(key, state, shape).astype(jnp.int32)
        ), carry

    return Algorithm(None, None, act, lambda state: ())  # pyright: ignore


def played(
    environment: Any, greedy: bool, descriptor: Any = None, max_steps: int = LONGEST
) -> Episodes:
    run = jax.jit(
        make_evaluator(environment, coin(environment), EPISODES, max_steps, greedy, descriptor)
    )
    return jax.tree.map(np.asarray, run(jnp.float32(0.5), jax.random.key(3)))


def one_by_one(environment: Any, greedy: bool, max_steps: int = LONGEST) -> list[np.ndarray]:
    """Return the descriptors `[T, 2]` of the same episodes, each run alone in a plain loop."""
    reset_key, run_key = jax.random.split(jax.random.key(3))
    told = []
    for number, start in enumerate(jax.random.split(reset_key, EPISODES)):
        (state, obs), rows = environment.reset(start), []
        for time in range(max_steps):
            act_key, env_key = jax.random.split(
                jax.random.fold_in(jax.random.split(run_key, EPISODES)[number], time)
            )
            action, _ = coin(environment).act(jnp.float32(0.5), obs, (), act_key, greedy)
            after = environment.step(env_key, state, action)
            state, obs = after.state, after.obs
            rows.append(np.asarray(environment.descriptor(state)))
            if np.all(after.terminated | after.truncated):
                break
        told.append(np.stack(rows))
    return told


def spread(descriptors: jax.Array, mask: jax.Array) -> jax.Array:
    """Return the largest position, the smallest position and the number of steps."""
    place = descriptors[:, 0]
    ends = jnp.max(jnp.where(mask, place, -jnp.inf)), jnp.min(jnp.where(mask, place, jnp.inf))
    return jnp.stack([*ends, jnp.sum(mask).astype(jnp.float32)])


FARTHEST = Extraction(
    start=lambda zeros, max_steps: zeros[:1],
    add=lambda memory, descriptor, step, alive: jnp.maximum(
        memory, jnp.where(alive, jnp.abs(descriptor[:1]), 0.0)
    ),
    finish=lambda memory, length: memory,
)

EXPECTED: dict[str, tuple[Any, Callable[[np.ndarray], Any]]] = {
    "own": (None, lambda rows: rows[-1]),
    "final": ("final", lambda rows: rows[-1]),
    "mean": ("mean", lambda rows: rows.mean(axis=0)),
    "function": (spread, lambda rows: [rows[:, 0].max(), rows[:, 0].min(), len(rows)]),
    "extraction": (FARTHEST, lambda rows: [np.abs(rows[:, 0]).max()]),
}


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("name", EXPECTED)
def test_descriptors_equal_those_of_a_plain_loop(name: str, greedy: bool) -> None:
    """Only steps of the first episode count. Later steps of a finished environment are NaN."""
    choice, expected = EXPECTED[name]
    with jax.debug_key_reuse(False):
        alone = one_by_one(Walking(), greedy)
    episodes = played(Walking(), greedy, choice)
    np.testing.assert_array_equal(episodes.length, [len(rows) for rows in alone])
    assert set(episodes.length) >= {1, LONGEST}
    np.testing.assert_allclose(
        episodes.descriptor, [expected(rows) for rows in alone], rtol=1e-5, atol=1e-6
    )
    told = default_metrics(episodes)["descriptor_mean"]
    np.testing.assert_allclose(told, episodes.descriptor.mean(axis=0), rtol=1e-6)


@pytest.mark.parametrize("name", EXPECTED)
def test_an_unfinished_episode_is_described_up_to_the_step_limit(name: str) -> None:
    choice, expected = EXPECTED[name]
    with jax.debug_key_reuse(False):
        alone = one_by_one(Walking(), False, 3)
    episodes = played(Walking(), False, choice, 3)
    assert not (episodes.terminated | episodes.truncated).all()
    np.testing.assert_allclose(
        episodes.descriptor, [expected(rows) for rows in alone], rtol=1e-5, atol=1e-6
    )


def test_a_multi_agent_environment_has_one_descriptor() -> None:
    episodes = played(Walking(agents=3), True)
    assert episodes.descriptor.shape == (EPISODES, 2) and np.isfinite(episodes.descriptor).all()


def test_population_members_have_the_descriptors_of_single_runs() -> None:
    run = make_evaluator(Walking(), coin(Walking()), EPISODES, LONGEST, False, "mean")
    keys, chances = jax.random.split(jax.random.key(0), 3), jnp.asarray([0.1, 0.5, 0.9])
    many = jax.jit(jax.vmap(run))(chances, keys)
    assert many.descriptor.shape == (3, EPISODES, 2)
    for member in range(3):
        alone = jax.jit(run)(chances[member], keys[member])
        np.testing.assert_allclose(many.descriptor[member], alone.descriptor, rtol=1e-6)
    told = default_metrics(jax.tree.map(np.asarray, many))["descriptor_mean"]
    np.testing.assert_allclose(told, np.asarray(many.descriptor).mean(axis=(0, 1)), rtol=1e-5)


def test_wrappers_pass_on_the_descriptors_of_the_wrapped_environment() -> None:
    maze = make("control/point-maze")
    state, _ = maze.reset(jax.random.key(0))
    seen = PartialObservation(maze, (0, 1))
    assert seen.descriptor_space == maze.descriptor_space and seen.descriptor_extraction == "final"
    np.testing.assert_array_equal(seen.descriptor(state), maze.descriptor(state))
    walk = PreviousActionReward(Walking())
    np.testing.assert_array_equal(walk.descriptor(walk.reset(jax.random.key(0))[0]), [50.0, 1.0])
    assert PreviousActionReward(Silent()).descriptor_space is None
    assert played(PreviousActionReward(Silent()), True).descriptor is None

    class Repeated(Walking):  # a task environment
        def sample_task(self, key: jax.Array) -> Any:
            return ()

        def reset_task(self, key: jax.Array, task: Any) -> tuple[Any, Any]:
            return self.reset(key)

    trial = Trials(Repeated(), 2)
    np.testing.assert_array_equal(trial.descriptor(trial.reset(jax.random.key(0))[0]), [50.0, 1.0])


def test_an_environment_without_descriptors_has_none() -> None:
    assert played(Silent(), True).descriptor is None
    assert "descriptor_mean" not in default_metrics(played(Silent(), True))
    with pytest.raises(UsageError, match=r"test/silent must describe behavior.*descriptor_space"):
        played(Silent(), True, "final")
    with pytest.raises(UnknownNameError, match=r"'fnal': did you mean final\?"):
        played(Walking(), True, "fnal")


def test_the_environment_check_validates_descriptors() -> None:
    class Wrong(Walking):
        def descriptor(self, state: Any) -> jax.Array:
            return state[1]

    with pytest.raises(
        FaultyEnvironmentError, match=r"descriptor\(state\) must be float32\[2\].*got float32\[\]"
    ):
        check_environment(Wrong(), steps=3)


def test_a_run_stores_the_descriptors_of_its_evaluations(tmp_path: Path) -> None:
    """The file has one per episode and the metrics have their mean.

    The policy computes others on demand.
    """
    arguments = {"time_limit": 5}
    result = rollax.train(
        "ppo",
        "control/point-maze",
        arguments=arguments,
        config=SMALL,
        network=NETWORK,
        options=options(tmp_path),
        quiet=True,
    )
    stored = evaluations(result.folder)["descriptor"]
    lines = [line for line in metrics(result.folder) if line.get("event") == "evaluation"]
    assert stored.shape[0] == len(lines) and stored.shape[2:] == (2,)
    np.testing.assert_allclose(
        [line["descriptor_mean"] for line in lines], stored.mean(axis=1), rtol=1e-5
    )
    policy = rollax.load(result.folder)
    key = jax.random.key(0)
    numbers, final = policy.evaluate(4, key)
    _, mean = policy.evaluate(4, key, descriptor="mean")
    np.testing.assert_allclose(numbers["descriptor_mean"], final.descriptor.mean(axis=0), rtol=1e-6)
    assert (np.abs(final.descriptor - mean.descriptor) > 1e-5).any()
