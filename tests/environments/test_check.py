"""What `check_environment` says about environments that are broken on purpose."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.acting.check_environment import FaultyEnvironmentError, check_environment
from rollax.environments import Transition, make
from rollax.environments.core import agent_types
from rollax.environments.views import Identified
from rollax.spaces import Ball, Box, Dict, Discrete


class Clock(eqx.Module):
    """A sound environment, of which one part at a time is replaced: five steps, then the end."""

    start: Callable[[jax.Array], Any] = eqx.field(static=True, default=lambda key: Clock.begin(key))
    advance: Callable[..., Transition] = eqx.field(static=True, default=lambda key, state, action: Clock.go(key, state, action))
    observation_space: Any = eqx.field(static=True, default=Box(0.0, 5.0, (2,)))
    action_space: Any = eqx.field(static=True, default=Discrete(2))
    num_agents: Any = eqx.field(static=True, default=None)
    time_limit: Any = eqx.field(static=True, default=5)
    name: Any = eqx.field(static=True, default="test/clock")
    leaf: Any = None

    def reset(self, key: jax.Array) -> Any:
        return self.start(key)

    def step(self, key: jax.Array, state: Any, action: Any) -> Any:
        return self.advance(key, state, action)

    @staticmethod
    def begin(key: jax.Array) -> Any:
        state = {"time": jnp.zeros((), jnp.int32), "place": jax.random.uniform(key)}
        return state, Clock.see(state)

    @staticmethod
    def go(key: jax.Array, state: Any, action: Any) -> Transition:
        state = {"time": state["time"] + 1, "place": state["place"]}
        end = state["time"] >= 5
        return Transition(state, Clock.see(state), jnp.float32(1.0), end, end & False, {})

    @staticmethod
    def see(state: Any) -> jax.Array:
        return jnp.stack([state["time"].astype(jnp.float32), state["place"]])


def _changed(**parts: Any) -> Callable[..., Transition]:
    """`Clock.go` with parts of its transition replaced by functions of that transition."""

    def advance(key: jax.Array, state: Any, action: Any) -> Transition:
        after = Clock.go(key, state, action)
        return after._replace(**{name: part(after) for name, part in parts.items()})

    return advance


def _self_resetting(key: jax.Array, state: Any, action: Any) -> Transition:
    after = Clock.go(key, state, action)
    fresh, obs = Clock.begin(key)
    select = lambda new, old: jnp.where(after.terminated, new, old)  # noqa: E731
    return after._replace(state=jax.tree.map(select, fresh, after.state), obs=select(obs, after.obs))


def _branching(key: jax.Array, state: Any, action: Any) -> Transition:
    return Clock.go(key, state, action if state["time"] > 3 else action + 1)


def _drawing(key: jax.Array) -> Any:
    state = {"time": jnp.zeros((), jnp.int32), "place": jnp.asarray(np.random.rand(), jnp.float32)}
    return state, Clock.see(state)


def _start(**values: Any) -> Callable[[jax.Array], Any]:
    def start(key: jax.Array) -> Any:
        state, obs = Clock.begin(key)
        return state | values, obs

    return start


MASKED = Dict({"action_mask": Box(0, 1, (3,), "bool"), "features": Box(0, 5, (2,))})

BROKEN = {
    "wrong space": (Clock(action_space=2), ["action_space is 2", "it must be a rollax.spaces Ball"]),
    "Python number in the state": (
        Clock(start=_start(time=0)),
        ["state['time'] is the Python number 0", "jnp.asarray(0, jnp.int32)"],
    ),
    "state changes its type": (
        Clock(
            start=_start(time=jnp.zeros((), jnp.float32)), advance=_changed(state=lambda t: t.state | {"time": jnp.int32(1)})
        ),
        ["state['time'] is float32[] after reset and int32[] after step"],
    ),
    "state changes its structure": (Clock(start=_start(extra=jnp.zeros(1))), ["changes its structure", "['extra']"]),
    "weak type": (Clock(start=_start(place=jnp.asarray(0.5))), ["state['place'] is weakly typed"]),
    "observation of another shape": (Clock(observation_space=Box(0, 5, (3,))), ["float32[2]", "the space says float32[3]"]),
    "observation out of bounds": (
        Clock(observation_space=Box(0, 3, (2,))),
        ["after step, obs leaves its space", "widen the bounds"],
    ),
    "reward of another type": (Clock(advance=_changed(reward=lambda t: t.state["time"])), ["reward is int32[]", "float32[]"]),
    "reward is a Python number": (Clock(advance=_changed(reward=lambda t: 1.0)), ["reward is 1.0 (float)"]),
    "end is no boolean": (
        Clock(advance=_changed(terminated=lambda t: t.terminated.astype(jnp.float32))),
        ["terminated is float32[]", "bool[]"],
    ),
    "info is no array": (Clock(advance=_changed(info=lambda t: {"map": "4x4"})), ["info['map'] is '4x4' (str)"]),
    "NaN": (
        Clock(advance=_changed(reward=lambda t: jnp.sqrt(2.0 - t.state["time"]).astype(jnp.float32))),
        ["reward is NaN, first at step 2"],
    ),
    "not a function of the key": (Clock(start=_drawing), ["reset is not a function of its key", "numpy.random"]),
    "resets itself": (Clock(advance=_self_resetting), ["step resets by itself"]),
    "branches on an array": (Clock(advance=_branching), ["tracing step", "use jnp.where"]),
    "beyond the time limit": (Clock(time_limit=4), ["lasted 5 steps", "time_limit is 4"]),
    "agents": (Clock(num_agents=2), ["for each of 2 agents", "reward is float32[]: it must be an array float32[2]"]),
    "mask of a ball": (Clock(observation_space=MASKED, action_space=Ball(2)), ["Ball(size=2", "cannot be masked"]),
    "mask of another shape": (Clock(observation_space=MASKED), ['"action_mask" is', '(2,), "bool"']),
    "Python number in the environment": (Clock(leaf=9.8), ["the environment.leaf is the Python number 9.8", "static"]),
    "old step": (Clock(advance=lambda key, state, action: (state, 0.0, False)), ["step returns tuple", "Transition"]),
    "raises": (Clock(start=lambda key: {}["missing"]), ["reset(key) fails with KeyError: 'missing'"]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_fault_is_named_and_mended(name: str) -> None:
    env, messages = BROKEN[name]
    with pytest.raises(FaultyEnvironmentError) as error:
        check_environment(env, steps=12)
    for message in messages:
        assert message in str(error.value)


def test_all_faults_are_listed_at_once() -> None:
    broken = _changed(reward=lambda t: 1, truncated=lambda t: 0, info=lambda t: None)
    with pytest.raises(FaultyEnvironmentError, match="in 5 ways") as error:
        check_environment(Clock(start=_start(place=0.5), advance=broken))
    assert len(error.value.faults) == 5


def test_missing_members() -> None:
    with pytest.raises(FaultyEnvironmentError) as error:
        check_environment(object())  # type: ignore[arg-type]
    for member in ("name", "observation_space", "action_space", "num_agents", "reset", "step"):
        assert f"{member} is missing" in str(error.value)


def test_a_sound_environment_passes_with_notes() -> None:
    report = check_environment(Clock(), steps=12)
    assert (report.steps, report.episodes, report.notes) == (48, 8, ())
    report = check_environment(make("probe/truncation"), steps=4)
    assert any("same start" in note for note in report.notes) and any("no episode ended" in note for note in report.notes)
    assert "probe/truncation keeps the contract" in str(report)


class Runners(eqx.Module):
    """A sound environment with three agents: each one ends a step after the one before, and is paid until its end."""

    once: bool = eqx.field(static=True, default=False)  # an end is reported at its step alone
    pays: bool = eqx.field(static=True, default=False)  # also after the end

    name = "test/runners"
    observation_space = Box(0.0, 5.0, (1,))
    action_space = Discrete(2)
    num_agents = 3
    time_limit = 5

    def reset(self, key: jax.Array) -> Any:
        return jnp.zeros((), jnp.int32), jnp.zeros((3, 1))

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        time, end = state + 1, jnp.arange(3) + 2
        over = (time == end) if self.once else (time >= end)
        reward = jnp.where(self.pays | (time <= end), 1.0, 0.0)
        return Transition(time, jnp.full((3, 1), jnp.minimum(time, 5), jnp.float32), reward, over, over & False, {})


class Named(Runners):
    agent_types = ("runner", "runner")


def test_agents_report_their_end_until_the_last() -> None:
    report = check_environment(Runners(), steps=12)
    assert report.episodes == 12 and not any("own end" in note for note in report.notes)
    with pytest.raises(FaultyEnvironmentError, match="agent 0 reports its end and then no longer.* keep in the state who"):
        check_environment(Runners(once=True), steps=4)
    assert any("rewards after their own end" in note for note in check_environment(Runners(pays=True), steps=12).notes)


def test_kinds_of_agents_may_be_left_out() -> None:
    """All are then of one; but a number of names that is not that of the agents is none."""
    assert agent_types(Runners()) == ("agent",) * 3 and agent_types(Clock()) == ()
    assert Identified(Runners()).agent_types == ("agent",) * 3
    with pytest.raises(FaultyEnvironmentError, match="agent_types is .* a tuple of 3 names, or left out"):
        check_environment(Named(), steps=4)
