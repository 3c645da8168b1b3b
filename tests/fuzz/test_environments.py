"""Tests of about sixty broken environments, which are refused before anything is written."""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax
from fuzz.conftest import Answer
from rollax.environments import registry
from rollax.spaces import Box, Dict, Discrete
from support.runs import NETWORK, SMALL


class Good(eqx.Module):
    """Valid environment that counts its steps and ends after ten."""

    name = "mine/good"
    observation_space = Box(0.0, 1.0, (2,))
    action_space = Discrete(2)
    num_agents = None
    time_limit = 10

    def reset(self, key: jax.Array) -> Any:
        return jnp.zeros((), jnp.int32), jnp.zeros(2)

    def step(self, key: jax.Array, state: Any, action: Any) -> Any:
        return self.transition(state + 1)

    def transition(self, state: Any, **changed: Any) -> Any:
        values = {
            "obs": jnp.zeros(2),
            "reward": jnp.ones(()),
            "terminated": jnp.zeros((), bool),
            "truncated": state >= 10,
            "info": {},
        }
        return rollax.Transition(state, **(values | changed))


def with_members(**members: Any) -> Good:
    return type(Good)("Changed", (Good,), members)()


def with_reset(function: Callable[..., Any]) -> Good:
    return with_members(reset=function)


def with_step(function: Callable[..., Any]) -> Good:
    return with_members(step=function)


def with_signals(**changed: Any) -> Good:
    return with_step(lambda self, key, state, action: self.transition(state + 1, **changed))


class Other(NamedTuple):
    state: Any


_counter = iter(range(10**9))
_draws = random.Random(0)
_numpy = np.random.default_rng(0)
_leaked: list[Any] = []


def counting(self: Any, key: jax.Array) -> Any:
    return jnp.asarray(next(_counter), jnp.int32), jnp.zeros(2)


def leaking(self: Any, key: jax.Array, state: Any, action: Any) -> Any:
    _leaked.append(state)
    return self.transition(_leaked[0] + 1)


def branching(self: Any, key: jax.Array, state: Any, action: Any) -> Any:
    return self.transition(state + 1) if action > 0 else self.transition(state)


def looping(self: Any, key: jax.Array, state: Any, action: Any) -> Any:
    while state < 3:
        state = state + 1
    return self.transition(state)


def raising(self: Any, *_: Any) -> Any:
    raise KeyError("nothing there")


FLOAT, HALF = jnp.ones(()), jnp.ones((), jnp.float16)
MASKED = Dict({"x": Box(0, 1, (2,)), "action_mask": Box(0, 1, (3,), "bool")})
# Broken environments, with a part of the message.
BROKEN: dict[str, tuple[Any, str]] = {
    "name is a number": (with_members(name=5), "name"),
    "name is empty": (with_members(name=""), "name"),
    "name is ..": (with_members(name=".."), "must not lead to another folder"),
    "name leads out": (with_members(name="../../x"), "must not lead to another folder"),
    "name is absolute": (with_members(name="/tmp/x"), "must not lead to another folder"),
    "name is long": (with_members(name="x" * 300), "1 to 100 characters"),
    "name has a zero byte": (with_members(name="a\0b"), "printable"),
    "name has lines": (with_members(name="a\nb"), "printable"),
    "name is None": (with_members(name=None), "name"),
    "no observation space": (with_members(observation_space=None), "observation_space"),
    "a shape for a space": (with_members(observation_space=(2,)), "observation_space"),
    "a number for actions": (with_members(action_space=2), "action_space"),
    "a space of another library": (with_members(action_space=SimpleNamespace(n=2)), "action_space"),
    "time limit 0": (with_members(time_limit=0), "time_limit"),
    "time limit -1": (with_members(time_limit=-1), "time_limit"),
    "time limit 2.5": (with_members(time_limit=2.5), "time_limit"),
    "time limit True": (with_members(time_limit=True), "time_limit"),
    "time limit an array": (with_members(time_limit=jnp.ones((), jnp.int32)), "time_limit"),
    "time limit beyond int32": (with_members(time_limit=10**12), "time_limit"),
    "no agents": (with_members(num_agents=0), "num_agents"),
    "agents 1.0": (with_members(num_agents=1.0), "num_agents"),
    "agents that are not there": (with_members(num_agents=3), "obs"),
    "types of agents": (with_members(num_agents=2, agent_types=("a",)), "agent_types"),
    "reset is no method": (with_members(reset=5), "environment ("),
    "step is missing": (with_members(step=None), "environment ("),
    "reset without key": (with_reset(lambda self: (jnp.zeros(()), jnp.zeros(2))), "reset"),
    "reset gives None": (
        with_reset(lambda self, key: None),
        "reset must return the tuple (state, obs), got None",
    ),
    "reset gives obs alone": (
        with_reset(lambda self, key: jnp.zeros(2)),
        "reset must return the tuple (state, obs), got",
    ),
    "reset gives three": (
        with_reset(lambda self, key: (jnp.zeros(()), jnp.zeros(2), {})),
        "reset must return the tuple (state, obs), got",
    ),
    "reset gives a list": (
        with_reset(lambda self, key: (jnp.zeros((), jnp.int32), [0.0, 0.0])),
        "obs",
    ),
    "reset gives another shape": (
        with_reset(lambda self, key: (jnp.zeros((), jnp.int32), jnp.zeros(3))),
        "obs must be float32[2], as its space declares, got float32[3]",
    ),
    "reset gives another type": (
        with_reset(lambda self, key: (jnp.zeros((), jnp.int32), jnp.zeros(2, jnp.int32))),
        "int32[2]",
    ),
    "reset gives a dictionary": (
        with_reset(lambda self, key: (jnp.zeros((), jnp.int32), {"x": jnp.zeros(2)})),
        "obs",
    ),
    "reset raises": (with_reset(raising), "KeyError"),
    "reset counts": (with_reset(counting), "reset is not a function of its key"),
    "reset draws by random": (
        with_reset(
            lambda self, key: (jnp.zeros((), jnp.int32), jnp.full(2, _draws.random(), jnp.float32))
        ),
        "changes the variable",
    ),
    "reset draws by numpy": (
        with_reset(
            lambda self, key: (jnp.zeros((), jnp.int32), jnp.asarray(_numpy.random(2), jnp.float32))
        ),
        "changes the variable",
    ),
    "state with a text": (with_reset(lambda self, key: ({"x": "text"}, jnp.zeros(2))), "reset"),
    "state weakly typed": (
        with_reset(lambda self, key: (jnp.asarray(0), jnp.zeros(2))),
        "weakly typed",
    ),
    "state is a number": (with_reset(lambda self, key: (0, jnp.zeros(2))), "state"),
    "state changes its type": (
        with_step(lambda self, key, state, action: self.transition(state + 1.0)),
        "state",
    ),
    "state changes its shape": (
        with_step(lambda self, key, state, action: self.transition(jnp.zeros(3, jnp.int32))),
        "state",
    ),
    "state changes its structure": (
        with_step(lambda self, key, state, action: self.transition(state)._replace(state={})),
        "state",
    ),
    "step without action": (with_step(lambda self, key, state: self.transition(state)), "step"),
    "step gives None": (
        with_step(lambda self, key, state, action: None),
        "step must return rollax.environments.Transition, got NoneType",
    ),
    "step as gymnax": (
        with_step(lambda self, key, state, action: (jnp.zeros(2), state, FLOAT, FLOAT > 2, {})),
        "step must return rollax.environments.Transition, got tuple",
    ),
    "step gives another tuple": (
        with_step(lambda self, key, state, action: Other(state)),
        "step must return rollax.environments.Transition, got Other",
    ),
    "step raises": (with_step(raising), "KeyError"),
    "step branches": (with_step(branching), "step"),
    "step loops": (with_step(looping), "step"),
    "step leaks": (with_step(leaking), "changes the variable"),
    "step counts": (
        with_step(
            lambda self, key, state, action: self.transition(
                state + 1, reward=jnp.float32(next(_counter))
            )
        ),
        "step is not a function of its arguments",
    ),
    "step converts": (
        with_step(lambda self, key, state, action: self.transition(state + int(action))),
        "step",
    ),
    "step by numpy": (
        with_step(lambda self, key, state, action: self.transition(np.asarray(state))),
        "step",
    ),
    "reward whole": (
        with_signals(reward=jnp.ones((), jnp.int32)),
        "reward must be an array float32[], got int32",
    ),
    "reward half": (with_signals(reward=HALF), "reward must be an array float32[], got float16"),
    "reward a number": (
        with_signals(reward="much"),
        "reward must be an array float32[], got 'much'",
    ),
    "reward with an axis": (
        with_signals(reward=jnp.ones(1)),
        "reward must be an array float32[], got float32[1]",
    ),
    "reward None": (with_signals(reward=None), "reward"),
    "end as float": (
        with_signals(terminated=FLOAT),
        "terminated must be an array bool[], got float32",
    ),
    "end with an axis": (
        with_signals(truncated=jnp.zeros(1, bool)),
        "truncated must be an array bool[], got bool[1]",
    ),
    "end None": (with_signals(terminated=None), "terminated"),
    "info a list": (with_signals(info=[FLOAT]), "info must be a dictionary of arrays, got list"),
    "info a text": (with_signals(info={"x": "text"}), "info["),
    "info None": (with_signals(info=None), "info"),
    "observation grows": (with_signals(obs=jnp.zeros(4)), "after step, obs"),
    "observation None": (with_signals(obs=None), "obs"),
    "mask of another size": (with_members(observation_space=MASKED), "action_mask"),
    "no actions": (with_members(action_space=Discrete(0)), ""),
    "empty observation": (
        with_members(
            observation_space=Box(0, 1, (0,)), reset=lambda s, k: (jnp.int32(0), jnp.zeros(0))
        ),
        "",
    ),
}


def train(environment: Any) -> Any:
    return rollax.train("ppo", environment, config=SMALL, network=NETWORK, quiet=True)


def test_a_valid_environment_is_accepted(answer: Answer) -> None:
    assert answer(lambda: train(Good())) is None


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_environment_is_refused(answer: Answer, name: str) -> None:
    environment, part = BROKEN[name]
    _leaked.clear()
    message = answer(lambda: train(environment))
    assert message is not None and part in message, message


FACTORIES: list[tuple[Callable[..., Any], str]] = [
    (lambda: None, "name is missing"),
    (lambda: 5, "name is missing"),
    (lambda: raising(None), "failed with KeyError"),
    (lambda x: Good(), "failed with TypeError"),
    (lambda: Good, "it is the class Good"),
    (lambda: with_members(time_limit=0), "time_limit"),
    (lambda: with_step(branching), "step"),
]


@pytest.mark.parametrize(("factory", "part"), FACTORIES)
def test_a_broken_factory_is_refused(
    answer: Answer, monkeypatch: pytest.MonkeyPatch, factory: Callable[..., Any], part: str
) -> None:
    """The environment is made from its id."""
    monkeypatch.setattr(registry, "_registered_factories", {})
    rollax.register("mine/Broken", factory)
    message = answer(lambda: train("mine/Broken"))
    assert message is not None and part in message, message


NETWORKS: list[Any] = [
    raising,
    lambda key: None,
    lambda: 5,
    lambda key: 5,
    lambda key: lambda carry, obs: (carry, obs),
]


@pytest.mark.parametrize("network", NETWORKS)
def test_a_broken_network_is_refused(answer: Answer, network: Any) -> None:
    """A custom function does not return a network."""
    assert (
        answer(lambda: rollax.train("ppo", Good(), config=SMALL, network=network, quiet=True))
        is not None
    )
