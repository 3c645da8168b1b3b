"""Tests of the reductions of `info` over an episode, and of results per task."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax
from rollax.acting.episode_metrics import info_shapes
from rollax.acting.streams import init_actor, unroll
from rollax.environments import Transition
from rollax.environments.wrappers import PreviousActionReward, TimeLimit
from rollax.errors import UsageError
from rollax.spaces import Box, Discrete
from rollax.training.evaluation import task_results
from support.counting_environment import Counting, evaluated
from support.fixtures import compile_once, train  # noqa: F401
from support.runs import evaluations, metrics


@pytest.mark.parametrize("agents", [None, 3])
def test_info_is_reduced_by_the_chosen_method(agents: int | None) -> None:
    """Only steps until the end count. The default is the environment's choice, or else the mean."""
    played = evaluated(Counting(agents), info={"steps": "mean", "place": "last"})
    np.testing.assert_array_equal(played.info["steps"], 1)
    np.testing.assert_array_equal(played.info["place"], np.arange(8) == played.length[:, None] - 1)
    np.testing.assert_array_equal(played.info["right"], played.length)
    unsaid = evaluated(Counting(agents, names=("a", "b", "c")))
    np.testing.assert_array_equal(unsaid.info["a"], 1)
    np.testing.assert_allclose(
        unsaid.info["c"], (np.arange(8) < played.length[:, None]) / played.length[:, None]
    )


@pytest.mark.parametrize("info", [{"stepz": "sum"}, {"steps": "median"}])
def test_an_unknown_info_name_or_reduction_is_refused(info: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"did you mean steps\?|must be one of mean, sum, last"):
        evaluated(Counting(), info=info)


def test_a_run_stores_its_info_reductions(train: Callable, tmp_path: Path) -> None:
    """They apply to its evaluations and to those of its policy, unless overridden there.

    Invalid ones are refused before a folder is created.
    """
    environment = Counting()
    result = train(environment=environment, eval_info=("steps=mean", "right=last"))
    kept = evaluations(result.folder)
    assert (kept["info/steps"] == 1).all() and (kept["info/right"] <= 1).all()
    policy = rollax.load(result.folder, environment=environment)
    _, played = policy.evaluate(16, jax.random.key(0))
    assert (played.info["steps"] == 1).all()
    _, played = policy.evaluate(16, jax.random.key(0), info={"steps": "sum"})
    np.testing.assert_array_equal(played.info["steps"], played.length)
    for wrong in ("steps", "steps=most", "=sum", "length=sum"):
        with pytest.raises(UsageError, match=r"NAME=HOW|unknown number in the info"):
            train("wrong", environment=environment, eval_info=(wrong,))
    assert not (tmp_path / "wrong").exists()


@pytest.mark.parametrize("agents", [None, 3])
def test_training_sums_info_over_episodes_that_ended(agents: int | None) -> None:
    """Across the boundary of two rollouts, and once for an environment with several agents."""
    environment = Counting(agents)
    actor = init_actor(environment, jax.random.key(0), 6, ())
    policy = constant_policy(agents)
    roll = jax.jit(lambda actor, key: unroll(environment, policy, actor, key, 4)[::2])
    totals: dict[str, float] = {}
    for key in jax.random.split(jax.random.key(1), 5):
        actor, sums = roll(actor, key)
        for name, (number, total) in sums.info.items():
            assert number == sums.number / (agents or 1)
            totals[name] = totals.get(name, 0.0) + float(total)
        # Agent i of three ends i steps after agent 0, and the episode with the last agent.
        length = float(sums.total_length) / (agents or 1) + (float(number) if agents else 0.0)
        assert float(sums.info["steps"][1]) == length
    places = [totals.pop(f"place/{index}") for index in range(8)]
    assert places == sorted(places, reverse=True) and places[0] > places[4] > 0
    assert sum(places) == totals["steps"] == totals["right"]


def constant_policy(agents: int | None) -> Callable:
    """Return a policy without memory that always takes action 1."""
    action = jnp.ones(() if agents is None else (agents,), jnp.int32)
    return lambda carry, obs, reset, key: (carry, action, ())


def test_large_entries_of_info_are_not_logged_in_training() -> None:
    environment = TimeLimit(Doors(), 4)
    logged = init_actor(environment, jax.random.key(0), 2, ()).episode_info
    assert set(logged) == set(info_shapes(environment))
    large = Pictures()
    assert set(init_actor(large, jax.random.key(0), 2, ()).episode_info) == {"score"}


class Pictures(Counting):
    """Episodes with an array of 400 numbers in their info."""

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        info = {"picture": jnp.zeros((20, 20)), "score": jnp.ones(())}
        return super().step(key, state, action)._replace(info=info)


def test_a_run_logs_info_in_training(train: Callable) -> None:
    result = train(environment=Counting(agents=None))
    lines = [line for line in metrics(result.folder) if "episode_return" in line]
    assert lines
    for line in lines:
        assert line["episode_info/steps"] == pytest.approx(line["episode_length"])
        assert 0 <= line["episode_info/place/4"] <= 1
    assert "episode_info/steps" in result.metrics


class Doors(eqx.Module):
    """Environment with three doors, numbered 3, 5 and 8.

    Opening the right one, which the observation does not show, ends the episode with reward 1.
    """

    name = "test/doors"
    observation_space = Box(0.0, 1.0, (1,))
    action_space = Discrete(3)
    num_agents = None
    time_limit = 4
    task_numbers = (3, 5, 8)

    def tasks_at(self, places: Any) -> Any:
        return jnp.asarray(places, jnp.int32)

    def describe(self, *numbers: int) -> str:
        return "\n".join(f"door {number}" for number in numbers)

    def sample_task(self, key: jax.Array) -> Any:
        return jax.random.randint(key, (), 0, 3)

    def reset_task(self, key: jax.Array, task: Any) -> tuple[Any, Any]:
        return (task, jnp.zeros((), jnp.int32)), jnp.zeros(1)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return self.reset_task(key, self.sample_task(key))

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        task, time = state[0], state[1] + 1
        opened = action == task
        return Transition(
            (task, time),
            jnp.zeros(1),
            opened.astype(jnp.float32),
            opened,
            ~opened & (time >= 4),
            {},
        )


def test_failed_tasks_are_reported(train: Callable) -> None:
    """Without memory, a policy opens one door greedily.

    The other two tasks fail, also with wrappers.
    """
    for environment in (Doors(), PreviousActionReward(TimeLimit(Doors(), 3))):
        folder = train(f"doors{environment.time_limit}", environment=environment, updates=1).folder
        policy = rollax.load(folder, environment=environment)
        table = policy.evaluate_tasks(5, jax.random.key(0))
        assert table["task"].tolist() == [3, 5, 8]
        if environment.time_limit == 4:
            assert (
                sorted(table["return_mean"].tolist())
                == [0, 0, 1]
                == sorted(table["terminated"].tolist())
            )
        np.testing.assert_array_equal(table["return_mean"] > 0, table["terminated"] > 0)
        words = task_results.format_worst_tasks(table, environment, 2)
        failed = table["task"][table["return_mean"] == 0].tolist()
        assert words.startswith(f"{len(failed)} of 3 tasks")
        assert all(f"door {number}: return 0" in words for number in failed[:2])
        assert len(words.splitlines()) == 3


def test_more_task_episodes_than_run_in_parallel(
    train: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every task has the requested number of episodes, independent of the batch size."""
    folder = train(environment=Doors(), updates=1).folder
    policy = rollax.load(folder, environment=Doors())
    whole = policy.evaluate_tasks(4, jax.random.key(0))
    monkeypatch.setattr(task_results, "MAX_PARALLEL_EPISODES", 5)
    for name, column in policy.evaluate_tasks(4, jax.random.key(0)).items():
        np.testing.assert_array_equal(column, whole[name])


def test_an_environment_without_a_list_of_tasks_is_refused(train: Callable) -> None:
    policy = rollax.load(train(updates=1).folder)
    with pytest.raises(UsageError, match="no list of tasks"):
        policy.evaluate_tasks(4, jax.random.key(0))
