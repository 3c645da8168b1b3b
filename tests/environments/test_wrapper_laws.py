"""Tests of all wrappers: tasks are kept, and the inner environment can be described and drawn."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.acting.opponent_pool import PoolOpponents, PoolPolicies, PoolRuns
from rollax.canvas.drawing import Drawing
from rollax.checks.environment_check import check_environment
from rollax.environments import Transition
from rollax.environments.native.memory.partial_observation import PartialObservation
from rollax.environments.randomization import DomainRandomization
from rollax.environments.wrapper import (
    Wrapper,
    innermost_environment,
    state_to_render,
    trial_episode,
    unwrap,
)
from rollax.environments.wrappers import (
    ActionRepeat,
    AgentId,
    FixedOpponents,
    FrameStack,
    PreviousActionReward,
    TimeLimit,
    Trials,
)
from rollax.errors import UsageError
from rollax.spaces import Box, Dict, Discrete
from rollax.visualization.render import drawings

LIMIT = 4


class Tasks(eqx.Module):
    """Environment whose task is a number, which is observed and is the descriptor.

    It has one agent, or two agents that also observe their own index.
    """

    num_agents: int | None = eqx.field(static=True, default=None)
    keeps_task: bool = eqx.field(static=True, default=True)
    reward: jax.Array | None = None  # 1 by default, without a leaf

    name = "test/tasks"
    action_space = Discrete(3)
    time_limit = LIMIT
    observation_space = Box(0.0, 1e6, (3,))
    descriptor_space = Box(0.0, 1e6, (1,))
    descriptor_extraction = "final"

    @property
    def agent_types(self) -> tuple[str, ...]:
        return ("runner", "chaser")[: self.num_agents or 0]

    def sample_task(self, key: jax.Array) -> jax.Array:
        return jax.random.randint(key, (), 0, 1_000_000)

    def reset_task(self, key: jax.Array, task: jax.Array) -> tuple[Any, Any]:
        state = {"task": task, "time": jnp.zeros((), jnp.int32), "start": jax.random.uniform(key)}
        return state, self.observe(state)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        task_key, start_key = jax.random.split(key)
        return self.reset_task(start_key, self.sample_task(task_key))

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        state = {**state, "time": state["time"] + 1}
        shape = () if self.num_agents is None else (self.num_agents,)
        end = jnp.broadcast_to(state["time"] >= LIMIT, shape)
        return Transition(
            state,
            self.observe(state),
            jnp.ones(shape) * (1.0 if self.reward is None else self.reward),
            end & False,
            end,
            {},
        )

    def observe(self, state: Any) -> jax.Array:
        def of(agent: jax.Array) -> jax.Array:
            return jnp.stack(
                [state["task"].astype(jnp.float32), state["time"] + agent, state["start"]]
            )

        return (
            of(jnp.zeros(()))
            if self.num_agents is None
            else jax.vmap(of)(jnp.arange(self.num_agents, dtype=jnp.float32))
        )

    def descriptor(self, state: Any) -> jax.Array:
        return state["task"].astype(jnp.float32)[None]


class Policy(NamedTuple):
    """Algorithm whose carry counts its steps and which always takes the first action."""

    def initial_carry(self, state: Any) -> Any:
        return jnp.zeros((), jnp.int32)

    def act(self, state: Any, obs: Any, carry: Any, key: Any, greedy: Any) -> tuple[Any, Any]:
        return jnp.zeros(obs.shape[0], jnp.int32), carry + 1


class Clock(Wrapper):
    """Custom wrapper that adds the number of steps to the state and the observation."""

    @property
    def observation_space(self) -> Any:
        return Dict({"inside": self.env.observation_space, "clock": Box(0.0, 100.0, ())})

    def after_reset(self, state: Any, obs: Any) -> tuple[Any, Any]:
        return {"inside": state, "clock": jnp.zeros(())}, {"inside": obs, "clock": jnp.zeros(())}

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        after, clock = self.env.step(key, state["inside"], action), state["clock"] + 1
        return after._replace(
            state={"inside": after.state, "clock": clock}, obs={"inside": after.obs, "clock": clock}
        )

    def inner_state(self, state: Any) -> Any:
        return state["inside"]

    def inner_obs(self, state: Any, obs: Any) -> Any:
        return obs["inside"]


ONE, TWO = Tasks(), Tasks(2)
VIEWS = {
    "none": Wrapper(ONE),
    "previous action": PreviousActionReward(ONE),
    "agents": AgentId(TWO),
    "opponents": FixedOpponents(TWO, {"chaser": ()}, (("chaser", Policy(), (0, 1)),)),
    "identified opponents": AgentId(
        FixedOpponents(TWO, {"chaser": ()}, (("chaser", Policy(), (0, 1)),))
    ),
    "pool of opponents": PoolOpponents(
        env=TWO,
        policies=(jnp.zeros(2),),
        log_weights=jnp.zeros(2),
        fraction=jnp.ones(()),
        functions=(PoolPolicies(Policy(), (0, 1)),),
        seats=((False, True), (True, False)),
    ),
    "runs of a pool": PoolRuns(TWO, (), ()),
    "trials": Trials(ONE, 2),
    "trials of limits": PreviousActionReward(TimeLimit(Trials(TimeLimit(ONE, 3), 2), 5)),
    "limit": TimeLimit(ONE, 3),
    "repeat": ActionRepeat(ONE, 2),
    "frames": FrameStack(ONE, 3),
    "randomized": DomainRandomization(Tasks(reward=jnp.ones(())), {"reward": (0.5, 1.5)}),
    "part": PartialObservation(ONE, (0, 1, 2)),
    "own": Clock(ONE),
    "own within": TimeLimit(Clock(PreviousActionReward(ONE)), 3),
}


def subclasses(kind: type) -> set[type]:
    return {found for child in kind.__subclasses__() for found in (child, *subclasses(child))}


def test_every_wrapper_is_in_the_table() -> None:
    listed = set()
    for view in VIEWS.values():
        while isinstance(view, Wrapper):
            listed.add(type(view))
            view = view.env
    assert {kind for kind in subclasses(Wrapper) if kind.__module__.startswith("rollax.")} <= listed


@pytest.mark.parametrize("name", VIEWS)
def test_a_wrapper_keeps_the_task(name: str) -> None:
    """`reset_task` starts an episode of that task, with the structure and types of `reset`."""
    view = VIEWS[name]
    assert view.keeps_task
    task = view.sample_task(jax.random.key(1))
    state, obs = view.reset_task(jax.random.key(2), task)
    assert int(unwrap(view, state, obs)[1]["task"]) == int(task)
    other = view.reset(jax.random.key(2))
    assert jax.tree.structure((state, obs)) == jax.tree.structure(other)
    assert [(x.shape, x.dtype) for x in jax.tree.leaves((state, obs))] == [
        (x.shape, x.dtype) for x in jax.tree.leaves(other)
    ]
    action = jnp.zeros(() if view.num_agents is None else view.num_agents, jnp.int32)
    after = view.step(jax.random.key(3), state, action)
    assert int(unwrap(view, after.state, after.obs)[1]["task"]) == int(task)


@pytest.mark.parametrize("name", VIEWS)
def test_the_inner_state_of_a_wrapper_is_found(name: str) -> None:
    """Environment, state and observation are found at every step, and the descriptor is equal."""
    view = VIEWS[name]
    state, obs = view.reset(jax.random.key(0))
    action = jnp.zeros(() if view.num_agents is None else view.num_agents, jnp.int32)
    for number in range(3):
        env, inner, inside = unwrap(view, state, obs)
        assert env is innermost_environment(view) and set(inner) == {"task", "time", "start"}
        np.testing.assert_array_equal(inside, env.observe(inner))
        np.testing.assert_array_equal(view.descriptor(state), env.descriptor(inner))
        after = view.step(jax.random.key(number), state, action)
        state, obs = after.state, after.obs


# The results against other opponents are NaN, which the check would report.
@pytest.mark.parametrize("name", [name for name in VIEWS if name != "pool of opponents"])
def test_a_wrapper_passes_the_check(name: str) -> None:
    assert check_environment(VIEWS[name], steps=8).episodes >= 4


@pytest.mark.parametrize("name", VIEWS)
def test_a_wrapper_is_drawn_as_its_inner_environment(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, shown = VIEWS[name], []
    monkeypatch.setitem(
        drawings.DRAWINGS, "test/tasks", Drawing(lambda *scene: shown.append(scene), 10)
    )
    state, obs = view.reset(jax.random.key(0))
    drawings.find_drawing(view).draw(view, state, obs)
    ((env, inner, inside),) = shown
    assert env is innermost_environment(view)
    np.testing.assert_array_equal(inside, env.observe(inner))


def test_the_end_of_an_episode_within_a_trial_is_rendered() -> None:
    """This works through wrappers that do not change actions.

    The trial continues from its next episode.
    """
    view = PreviousActionReward(TimeLimit(Trials(ONE, 2), 100))
    state, obs = view.reset(jax.random.key(0))
    shown, episodes = [], []
    for number in range(2 * LIMIT):
        key = jax.random.key(number)
        after = view.step(key, state, jnp.zeros((), jnp.int32))
        drawn = state_to_render(view, key, state, jnp.zeros((), jnp.int32), after.state)
        shown.append(int(unwrap(view, drawn, after.obs)[1]["time"]))
        episodes.append(trial_episode(view, drawn))
        state = after.state
    assert shown == [1, 2, 3, 4, 1, 2, 3, 4]
    assert episodes == [(1, 2)] * LIMIT + [(2, 2)] * LIMIT
    assert (
        trial_episode(ONE, state) is None
        and trial_episode(PreviousActionReward(ONE), state) is None
    )


class Aimless(eqx.Module):
    name, num_agents, time_limit = "test/aimless", None, 3


@pytest.mark.parametrize("env", [Aimless(), TimeLimit(Aimless(), 2)], ids=["bare", "limited"])
def test_trials_need_tasks(env: Any) -> None:
    with pytest.raises(
        UsageError, match="test/aimless: trials need an environment with tasks. Add sample_task"
    ):
        Trials(env, 2)
