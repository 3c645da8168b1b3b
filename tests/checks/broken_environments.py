"""Environments with one deliberate error each, and parts of the expected message."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rollax.environments import Transition
from rollax.spaces import Ball, Box, Dict, Discrete, Grid, MultiDiscrete


class Clock(eqx.Module):
    """Valid environment with episodes of five steps, in which single parts can be replaced."""

    start: Callable[[jax.Array], Any] = eqx.field(static=True, default=lambda key: Clock.begin(key))
    advance: Callable[..., Any] = eqx.field(
        static=True, default=lambda key, state, action: Clock.go(key, state, action)
    )
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
        return state, Clock.observe(state)

    @staticmethod
    def go(key: jax.Array, state: Any, action: Any) -> Transition:
        state = {**state, "time": state["time"] + 1}
        end = state["time"] >= 5
        return Transition(state, Clock.observe(state), jnp.float32(1.0), end, end & False, {})

    @staticmethod
    def observe(state: Any) -> jax.Array:
        return jnp.stack([state["time"].astype(jnp.float32), state["place"]])


def step_with(**parts: Any) -> Callable[..., Transition]:
    """Return `Clock.go` with parts of its transition replaced by functions of that transition."""

    def advance(key: jax.Array, state: Any, action: Any) -> Transition:
        after = Clock.go(key, state, action)
        return after._replace(**{name: part(after) for name, part in parts.items()})

    return advance


def start_with(**values: Any) -> Callable[[jax.Array], Any]:
    """Return `Clock.begin` with changed or additional entries in the state."""

    def start(key: jax.Array) -> Any:
        state, obs = Clock.begin(key)
        return state | values, obs

    return start


def observing(obs: Callable[[jax.Array], Any], space: Any = None) -> Clock:
    """Return a clock with other observations and their space."""
    given = {} if space is None else {"observation_space": space}

    def start(key: jax.Array) -> Any:
        state, seen = Clock.begin(key)
        return state, obs(seen)

    return Clock(start=start, advance=step_with(obs=lambda t: obs(t.obs)), **given)


def _self_resetting(key: jax.Array, state: Any, action: Any) -> Transition:
    after = Clock.go(key, state, action)
    fresh, obs = Clock.begin(key)

    def select(new, old):
        return jnp.where(after.terminated, new, old)

    return after._replace(
        state=jax.tree.map(select, fresh, after.state), obs=select(obs, after.obs)
    )


def _branching(key: jax.Array, state: Any, action: Any) -> Transition:
    return Clock.go(key, state, action if state["time"] > 3 else action + 1)


def _looping(key: jax.Array, state: Any, action: Any) -> Transition:
    for _ in range(int(state["time"])):
        action = action + 1
    return Clock.go(key, state, action)


def _in_numpy(key: jax.Array, state: Any, action: Any) -> Transition:
    after = Clock.go(key, state, action)
    return after._replace(reward=jnp.asarray(np.sin(np.asarray(state["place"])), jnp.float32))


def _random_start(key: jax.Array) -> Any:
    state = {"time": jnp.zeros((), jnp.int32), "place": jnp.asarray(np.random.rand(), jnp.float32)}
    return state, Clock.observe(state)


def _mixed_start(key: jax.Array) -> Any:
    state, obs = Clock.begin(key)
    return state | {1: jnp.zeros(())}, obs


# Side effects in Python that do not change rewards.


class Counting(Clock):
    """Counts its steps in a list."""

    count: Any = eqx.field(static=True, default=([],))

    def step(self, key: jax.Array, state: Any, action: Any) -> Any:
        self.count[0].append(1)
        return Clock.go(key, state, action)


class Remembering(Clock):
    """Stores its last state as an attribute."""

    def step(self, key: jax.Array, state: Any, action: Any) -> Any:
        object.__setattr__(self, "last", state)
        return Clock.go(key, state, action)


steps_taken = 0


class Global(Clock):
    """Counts its steps in a global variable."""

    def step(self, key: jax.Array, state: Any, action: Any) -> Any:
        global steps_taken
        steps_taken += 1
        return Clock.go(key, state, action)


class Dice(Clock):
    """Draws random numbers of NumPy without using them."""

    def step(self, key: jax.Array, state: Any, action: Any) -> Any:
        np.random.rand()
        return Clock.go(key, state, action)


class Plain:
    """Environment that is not a pytree."""

    name, observation_space, action_space, num_agents, time_limit = (
        "test/plain",
        Box(0, 5, (2,)),
        Discrete(2),
        None,
        5,
    )
    reset, step = staticmethod(Clock.begin), staticmethod(Clock.go)


class Failing(Clock):
    @property
    def agent_types(self) -> Any:
        raise RuntimeError("no types today")


class FailingMember(eqx.Module):
    name, observation_space, num_agents, time_limit = "test/failing", Box(0, 5, (2,)), None, 5
    reset, step = staticmethod(Clock.begin), staticmethod(Clock.go)

    @property
    def action_space(self) -> Any:
        return self.missing  # pyright: ignore[reportAttributeAccessIssue]


class NoKey(Clock):
    def reset(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return Clock.begin(jax.random.key(0))


class Described(Clock):
    """Environment whose descriptor is computed by a given function."""

    descriptor_space: Any = eqx.field(static=True, default=Box(0.0, 1.0, (1,)))
    descriptor_extraction: Any = eqx.field(static=True, default="final")
    description: Any = eqx.field(static=True, default=lambda state: state["place"][None])

    def descriptor(self, state: Any) -> Any:
        return self.description(state)


class Undescribed(Clock):
    descriptor_space = Box(0.0, 1.0, (1,))
    descriptor_extraction = "final"


class Taskless(Clock):
    keeps_task = True


class OtherTask(Clock):
    keeps_task = True

    def sample_task(self, key: jax.Array) -> Any:
        return jax.random.uniform(key)

    def reset_task(self, key: jax.Array, task: Any) -> Any:
        state, obs = Clock.begin(key)
        return state | {"task": task}, obs


class Runners(eqx.Module):
    """Valid environment with three agents that end one step after another.

    Each agent is rewarded until its end.
    """

    once: bool = eqx.field(static=True, default=False)  # report an end at its step only
    pays: bool = eqx.field(static=True, default=False)  # reward agents after their end

    name = "test/runners"
    observation_space = Box(0.0, 5.0, (1,))
    action_space = Discrete(2)
    num_agents = 3
    time_limit = 5

    def reset(self, key: jax.Array) -> Any:
        return jnp.zeros((), jnp.int32), jnp.zeros((3, 1))

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        time, end = state + 1, jnp.arange(3) + 2
        done = (time == end) if self.once else (time >= end)
        reward = jnp.where(self.pays | (time <= end), 1.0, 0.0)
        return Transition(
            time,
            jnp.full((3, 1), jnp.minimum(time, 5), jnp.float32),
            reward,
            done,
            done & False,
            {},
        )


class Named(Runners):
    agent_types = ("runner", "runner")


class Broken(NamedTuple):
    """Broken environment, parts of the message, and whether only random steps show the error."""

    env: Any
    words: tuple[str, ...]
    in_play: bool = False


MASK = Box(0, 1, (2,), "bool")
MASKED = Dict({"action_mask": Box(0, 1, (3,), "bool"), "features": Box(0, 5, (2,))})
NAMES = (
    "",
    "..",
    "mine/..",
    "mine/../../elsewhere",
    "/mine",
    "mine/",
    "mine//Maze",
    ".hidden",
    "a\\b",
    "a\nb",
    " Maze",
    "m" * 300,
)

BROKEN = {
    # Members.
    "class": Broken(Clock, ("it is the class Clock", "such as Clock()")),
    "object": Broken(
        object(),
        ("name is missing", "observation_space is missing", "reset is missing", "step is missing"),
    ),
    "None": Broken(None, ("time_limit is missing. Add the maximum number of steps",)),
    "id": Broken("gymnax/CartPole-v1", ("it is a string. Pass an environment",)),
    **{
        f"name {name[:20]!r}": Broken(
            Clock(name=name), ("name must be", "run folders are named after it")
        )
        for name in NAMES
    },
    "name that is no text": Broken(Clock(name=5), ("name must be a string", "got 5 (int)")),
    **{
        f"time_limit {limit!r}": Broken(
            Clock(time_limit=limit),
            ("time_limit must be", "a positive integer, or None", f"got {limit!r}"),
        )
        for limit in (0, -1, True, 5.0, "5", 2**31)
    },
    "num_agents 0": Broken(
        Clock(num_agents=0), ("num_agents must be", "a positive integer", "got 0")
    ),
    "member that fails": Broken(
        FailingMember(), ("action_space fails with AttributeError", "a rollax.spaces Ball")
    ),
    "agent types that fail": Broken(
        Failing(num_agents=1), ("agent_types fails with RuntimeError", "a tuple of names")
    ),
    "agent types of another number": Broken(Named(), ("agent_types must be a tuple of 3 names",)),
    "tasks that cannot be had": Broken(
        Taskless(), ("keeps_task is True but sample_task and reset_task missing",)
    ),
    "tasks of another state": Broken(
        OtherTask(), ("changes its structure between reset and reset_task", "['task']")
    ),
    # Spaces.
    "wrong space": Broken(
        Clock(action_space=2), ("action_space must be a rollax.spaces Ball", "got 2")
    ),
    "grid of actions": Broken(
        Clock(action_space=Grid((2, 2), (3,))),
        ("action_space must be", "MultiDiscrete, Dict or Tuple", "got Grid"),
    ),
    "no actions": Broken(
        Clock(action_space=Discrete(0)),
        ("sizes of action_space must be positive integers", "got Discrete(n=0"),
    ),
    "no numbers of actions": Broken(
        Clock(action_space=MultiDiscrete(())),
        ("action_space must be positive integers", "got MultiDiscrete"),
    ),
    "ball of no size": Broken(
        Clock(action_space=Ball(2, 0.0)),
        ("radius of action_space must be finite and greater than 0",),
    ),
    "low above high": Broken(
        Clock(observation_space=Box(5, 0, (2,))),
        ("bounds of observation_space must satisfy low <= high", "got Box"),
    ),
    "NaN bounds": Broken(Clock(observation_space=Box(float("nan"), 5, (2,))), ("without NaN",)),
    "bounds of another shape": Broken(
        Clock(observation_space=Box((0, 0, 0), 5, (2,))), ("broadcast to its shape (2,)",)
    ),
    "type of 64 bits": Broken(
        Clock(observation_space=Box(0, 5, (2,), "float64")), ("float64", "at most 32 bits")
    ),
    "no parts": Broken(
        Clock(observation_space=Dict({})), ("observation_space must have at least one part",)
    ),
    "part that is no space": Broken(
        Clock(observation_space=Dict({"a": 5})),
        ("observation_space['a'] must be a space of rollax.spaces", "got 5"),
    ),
    "mask of a ball": Broken(
        Clock(observation_space=MASKED, action_space=Ball(2)), ("Ball(size=2", "cannot be masked")
    ),
    "mask of another shape": Broken(
        Clock(observation_space=MASKED), ('"action_mask" must be', '(2,), "bool"')
    ),
    # Leaves of the environment.
    "Python number in the environment": Broken(
        Clock(leaf=9.8),
        ("the environment.leaf must be", "got the Python number 9.8", "mark it static"),
    ),
    "text in the environment": Broken(
        Clock(leaf="red"),
        ("the environment.leaf must be", "got 'red' (str)", "Mark other fields as static"),
    ),
    "no pytree": Broken(Plain(), ("the environment must be a pytree, got Plain", "equinox.Module")),
    # Starts.
    "reset raises": Broken(
        Clock(start=lambda key: {}["missing"]), ("reset(key) fails with KeyError: 'missing'",)
    ),
    "reset without a key": Broken(NoKey(), ("reset(key) fails with TypeError",)),
    "reset gives nothing": Broken(
        Clock(start=lambda key: None), ("reset must return the tuple (state, obs)", "got NoneType")
    ),
    "reset gives the observation": Broken(
        Clock(start=lambda key: Clock.begin(key)[1]), ("reset must return", "(state, obs)")
    ),
    "Python number in the state": Broken(
        Clock(start=start_with(time=0)),
        ("state['time'] must be", "got the Python number 0", "jnp.asarray(0, jnp.int32)"),
    ),
    "text in the state": Broken(
        Clock(start=start_with(color="red")), ("state['color'] must be an array", "got 'red'")
    ),
    "keys of two types": Broken(
        Clock(start=_mixed_start), ("reading the state after reset fails",)
    ),
    "weak type": Broken(
        Clock(start=start_with(place=jnp.asarray(0.5))),
        ("state['place'] is weakly typed", "Specify it explicitly"),
    ),
    "random start": Broken(
        Clock(start=_random_start), ("changes numpy.random's state", "draw randomness from the key")
    ),
    # Observations.
    "observation of another shape": Broken(
        Clock(observation_space=Box(0, 5, (3,))),
        ("got float32[2]", "must be float32[3], as its space declares", "Change either"),
    ),
    "observation of another type": Broken(
        observing(lambda obs: obs.astype(jnp.int32)), ("got int32[2]", "must be float32[2]")
    ),
    "observation in numpy": Broken(
        observing(lambda obs: np.zeros(2)), ("got float64[2]", "must be float32[2]")
    ),
    "observation in a list": Broken(
        observing(lambda obs: [0.0, 0.0]),
        ("after reset, obs[0] must be an array, got the Python number",),
    ),
    "observation in a tuple": Broken(
        observing(lambda obs: (obs,)), ("obs must be float32[2]", "got tuple")
    ),
    "no observation": Broken(
        observing(lambda obs: None), ("after reset, obs must be float32[2]", "got NoneType")
    ),
    "observation without its parts": Broken(
        observing(lambda obs: {"b": obs}, Dict({"a": Box(0, 5, (2,))})),
        ("obs must be a dictionary of ['a'], got ['b']",),
    ),
    "observation that is NaN": Broken(
        observing(lambda obs: obs * jnp.nan), ("after reset, obs leaves its space", "clip"), True
    ),
    "start out of bounds": Broken(
        observing(lambda obs: obs - 9),
        ("after reset, obs leaves its space", "Widen the bounds"),
        True,
    ),
    "mask of no action": Broken(
        observing(lambda obs: {"action_mask": jnp.zeros(2, bool)}, Dict({"action_mask": MASK})),
        ("action_mask is all False", "Leave at least one"),
        True,
    ),
    "agents": Broken(
        Clock(num_agents=2),
        ("for each of 2 agents", "reward must be an array float32[2], got float32[]"),
    ),
    # Steps.
    "step raises": Broken(
        Clock(advance=lambda key, state, action: 1 / 0),
        ("step(key, state, action) fails with ZeroDivision",),
    ),
    "old step": Broken(
        Clock(advance=lambda key, state, action: (state, 0.0, False)),
        ("step must return", "Transition", "got tuple"),
    ),
    "step gives nothing": Broken(
        Clock(advance=lambda key, state, action: None),
        ("step must return", "Transition", "got NoneType"),
    ),
    "state changes its type": Broken(
        Clock(
            start=start_with(time=jnp.zeros((), jnp.float32)),
            advance=step_with(state=lambda t: t.state | {"time": jnp.int32(1)}),
        ),
        ("state['time'] is float32[] after reset and int32[] after step", ".astype"),
    ),
    "state changes its structure": Broken(
        Clock(advance=step_with(state=lambda t: t.state | {"extra": jnp.zeros(1)})),
        ("changes its structure", "['extra']"),
    ),
    "state is lost": Broken(
        Clock(advance=step_with(state=lambda t: None)), ("changes its structure", "same entries")
    ),
    "reward of another type": Broken(
        Clock(advance=step_with(reward=lambda t: t.state["time"])),
        ("reward must be", "float32[]", "got int32[]"),
    ),
    "reward of another shape": Broken(
        Clock(advance=step_with(reward=lambda t: jnp.ones(1))),
        ("reward must be an array float32[], got float32[1]",),
    ),
    "reward is a Python number": Broken(
        Clock(advance=step_with(reward=lambda t: 1.0)),
        ("reward must be", "got 1.0 (float)", "jnp.asarray"),
    ),
    "no reward": Broken(
        Clock(advance=step_with(reward=lambda t: None)),
        ("reward must be", "got None (NoneType)", "jnp.float32"),
    ),
    "end is no boolean": Broken(
        Clock(advance=step_with(terminated=lambda t: t.terminated.astype(jnp.float32))),
        ("terminated must be", "bool[]", "got float32[]"),
    ),
    "end is a Python boolean": Broken(
        Clock(advance=step_with(truncated=lambda t: False)),
        ("truncated must be an array bool[], got False (bool)",),
    ),
    "no info": Broken(
        Clock(advance=step_with(info=lambda t: None)),
        ("info must be a dictionary", "got NoneType", "{} if there is none"),
    ),
    "info is no array": Broken(
        Clock(advance=step_with(info=lambda t: {"map": "4x4"})),
        ("info['map'] must be an array of numbers, got '4x4' (str)",),
    ),
    "info of objects": Broken(
        Clock(advance=step_with(info=lambda t: {"map": np.array("4x4")})),
        ("info['map'] must be an array of numbers", "Omit"),
    ),
    "info without names": Broken(
        Clock(advance=step_with(info=lambda t: {0: t.reward})),
        ("keys of info must be strings", "got [0]"),
    ),
    # Programs.
    "branches on an array": Broken(
        Clock(advance=_branching), ("tracing step", "use jnp.where, lax.cond")
    ),
    "loops over an array": Broken(Clock(advance=_looping), ("tracing step", "lax.while_loop")),
    "numpy in the step": Broken(Clock(advance=_in_numpy), ("tracing step", "jnp instead of NumPy")),
    "the time of day": Broken(
        Clock(advance=step_with(reward=lambda t: jnp.float32(time.perf_counter_ns() % 2**20))),
        ("step is not a function of its arguments",),
    ),
    "steps in a list": Broken(
        Counting(),
        ("reset or step changes the environment.count", "Store changing values in the state"),
    ),
    "state on the environment": Broken(
        Remembering(),
        ("reset or step changes the environment.last", "Store changing values in the state"),
    ),
    "steps in a variable": Broken(
        Global(),
        ("reset or step changes the variable steps_taken", "Store changing values in the state"),
    ),
    "dice of numpy": Broken(
        Dice(), ("changes numpy.random's state", "draw randomness from the key")
    ),
    # Descriptors.
    "no descriptor": Broken(
        Undescribed(), ("descriptor is missing", "descriptor(state) -> float32 [D]")
    ),
    "descriptor of another shape": Broken(
        Described(description=lambda state: state["place"]),
        ("descriptor(state) must be float32[1], as its space declares, got float32[]",),
    ),
    "descriptor that fails": Broken(
        Described(description=lambda state: state.place), ("descriptor(state) fails with",)
    ),
    "unknown extraction": Broken(
        Described(descriptor_extraction="last"),
        ("descriptor_extraction must be", "final, mean", "got 'last'"),
    ),
    # Errors that only random steps show.
    "observation out of bounds": Broken(
        Clock(observation_space=Box(0, 3, (2,))),
        ("after step, obs leaves its space", "Widen the bounds"),
        True,
    ),
    "NaN": Broken(
        Clock(
            advance=step_with(reward=lambda t: jnp.sqrt(2.0 - t.state["time"]).astype(jnp.float32))
        ),
        ("reward is NaN, first at step 2", "Look for 0/0"),
        True,
    ),
    "resets itself": Broken(
        Clock(advance=_self_resetting),
        ("step resets by itself", "Return the true last state"),
        True,
    ),
    "beyond the time limit": Broken(
        Clock(time_limit=4), ("lasted 5 steps", "time_limit is 4", "raise the limit"), True
    ),
    "agents that forget": Broken(
        Runners(once=True),
        ("agent 0 reports its end and then no longer", "Keep in the state which"),
        True,
    ),
}
