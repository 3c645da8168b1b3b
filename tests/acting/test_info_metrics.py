"""Tests of the reductions of `info` over an episode, and of results per task."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax
from rollax.environments import Transition
from rollax.environments.wrappers import PreviousActionReward, TimeLimit
from rollax.errors import UsageError
from rollax.spaces import Box, Discrete
from rollax.training.evaluation import task_results
from support.counting_environment import Counting, evaluated
from support.fixtures import compile_once, train  # noqa: F401
from support.runs import evaluations


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


def test_a_run_stores_its_info_reductions(train: Callable) -> None:
    """They apply to its evaluations and to those of its policy, unless overridden there.

    Invalid ones are refused before compilation.
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
