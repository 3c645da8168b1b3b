"""Probes: environments so small that the right answer is known, each for one thing that an algorithm can get wrong.

After Andy Jones, "Debugging reinforcement learning systems" (2021). When an algorithm fails one and passes those before it,
the fault lies in what that probe adds. `gamma` is the discount; "return" is the sum of rewards of one episode.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.environments.convert import convert_all, signature_defaults
from rollax.environments.core import Environment, Transition
from rollax.errors import UsageError
from rollax.spaces import Box, Dict, Discrete, MultiDiscrete

_SIGN = Box(-1.0, 1.0, (1,))


class OneAction(eqx.Module):
    """One action, one observation, one step, reward 1. Tests: the value can be learnt at all.

    Optimal return 1; value 1.
    """

    name = "probe/one-action"
    observation_space = Box(0.0, 0.0, (1,))
    action_space = Discrete(1)
    num_agents = None
    time_limit = 1

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return (), jnp.zeros(1)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        return _last((), jnp.zeros(1), jnp.ones(()))


class TwoObservations(eqx.Module):
    """One action, one step, the observation -1 or 1 is the reward. Tests: the value sees the observation.

    Mean return 0 whatever is done; value of the observation o is o.
    """

    name = "probe/two-observations"
    observation_space = _SIGN
    action_space = Discrete(1)
    num_agents = None
    time_limit = 1

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        sign = _signs(key, (1,))
        return sign, sign

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        return _last(state, state, state[0])


class TwoSteps(eqx.Module):
    """One action, two steps, reward 1 at the second; the observation is the step. Tests: discounting.

    Optimal return 1; the value is gamma at the first step (observation 0) and 1 at the second (observation 1).
    """

    name = "probe/two-steps"
    observation_space = Box(0.0, 1.0, (1,))
    action_space = Discrete(1)
    num_agents = None
    time_limit = 2

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return jnp.zeros((), jnp.int32), jnp.zeros(1)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        second = state >= 1
        return _last(state + 1, jnp.ones(1), second.astype(jnp.float32))._replace(terminated=second)


class ActionReward(eqx.Module):
    """Two actions, one observation, one step; action 1 gives 1 and action 0 gives -1. Tests: the policy improves.

    Optimal return 1.
    """

    name = "probe/action-reward"
    observation_space = Box(0.0, 0.0, (1,))
    action_space = Discrete(2)
    num_agents = None
    time_limit = 1

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return (), jnp.zeros(1)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        return _last((), jnp.zeros(1), _agreement(action == 1))


class ActionObservation(eqx.Module):
    """Two actions, two observations, one step; 1 if the action matches the observation, or else -1.

    Action 1 matches the observation 1 and action 0 matches -1. Tests: the policy sees the observation, and actions,
    observations and rewards of one step belong together. Optimal return 1.
    """

    name = "probe/action-observation"
    observation_space = _SIGN
    action_space = Discrete(2)
    num_agents = None
    time_limit = 1

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        sign = _signs(key, (1,))
        return sign, sign

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        return _last(state, state, _agreement((action == 1) == (state[0] > 0)))


class MemoryState(NamedTuple):
    cue: jax.Array  # float []: -1 or 1
    time: jax.Array  # int32 []


class Memory(eqx.Module):
    """The cue -1 or 1 is seen at the first step only; `delay` blank steps later the action must match it: 1, or else -1.

    Tests: memory and its gradient through time. Earlier actions change nothing. An episode has delay + 1 steps.
    Optimal return 1; without memory the best mean return is 0 (when delay is 0, no memory is needed).
    """

    delay: int = eqx.field(static=True, default=3)

    name = "probe/memory"
    observation_space = _SIGN
    action_space = Discrete(2)
    num_agents = None

    def __check_init__(self) -> None:
        _at_least(self.name, "delay", self.delay, 0)

    @property
    def time_limit(self) -> int:
        return self.delay + 1

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        cue = _signs(key, ())
        return MemoryState(cue, jnp.zeros((), jnp.int32)), cue[None]

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        last = state.time >= self.delay
        reward = jnp.where(last, _agreement((action == 1) == (state.cue > 0)), 0.0)
        after = MemoryState(state.cue, state.time + 1)
        return _last(after, jnp.zeros(1), reward)._replace(terminated=last)


class TwoAgents(eqx.Module):
    """Two agents, one step, a reward each: agent 0 must match its own observation, agent 1 must oppose its own.

    An agent observes its bit (-1 or 1) and its role (-1 for agent 0 and 1 for agent 1), so one network may serve both; the
    best action is then a product of the two. Tests: the axes of agents never mix. Optimal return 1 for each agent.
    """

    name = "probe/two-agents"
    observation_space = Box(-1.0, 1.0, (2,))
    action_space = Discrete(2)
    num_agents = 2
    agent_types = ("agent", "agent")
    time_limit = 1

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        bits = _signs(key, (2,))
        return bits, self._observe(bits)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        match = (action == 1) == (state > 0)
        reward = _agreement(match == jnp.array([True, False]))
        both = jnp.ones(2, bool)
        return Transition(state, self._observe(state), reward, both, ~both, {})

    def _observe(self, bits: jax.Array) -> jax.Array:
        return jnp.stack([bits, jnp.array([-1.0, 1.0])], axis=1)


class Truncation(eqx.Module):
    """Reward 1 a step until `time_limit` T. Tests: bootstrapping after a time limit, and none after a true end.

    By default the episode is truncated and the observation constant: the value is 1 / (1 - gamma), as if it never ended.
    With `terminate` it ends, and the observation is the number of the step one-hot (`[T]`, zero after the last): the value
    at step t is (1 - gamma^(T - t)) / (1 - gamma), at the start (1 - gamma^T) / (1 - gamma). The return is T either way.
    """

    time_limit: int = eqx.field(static=True, default=8)
    terminate: bool = eqx.field(static=True, default=False)

    name = "probe/truncation"
    action_space = Discrete(1)
    num_agents = None

    def __check_init__(self) -> None:
        _at_least(self.name, "time_limit", self.time_limit, 1)

    @property
    def observation_space(self) -> Box:
        return Box(0.0, 1.0, (self.time_limit,)) if self.terminate else Box(0.0, 0.0, (1,))

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        time = jnp.zeros((), jnp.int32)
        return time, self._observe(time)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        time = state + 1
        end = time >= self.time_limit
        terminated = end & self.terminate
        return Transition(time, self._observe(time), jnp.ones(()), terminated, end & ~terminated, {})

    def _observe(self, time: jax.Array) -> jax.Array:
        return jax.nn.one_hot(time, self.time_limit) if self.terminate else jnp.zeros(1)


class Continuous(eqx.Module):
    """One step; the action a in [-1, 1] should be the observation o, uniform in [-1, 1]: reward -(a - o)^2.

    Tests: continuous policies and their gradients. Optimal return 0; the action 0 gives -1/3 in the mean.
    """

    name = "probe/continuous"
    observation_space = _SIGN
    action_space = Box(-1.0, 1.0, (1,))
    num_agents = None
    time_limit = 1

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        goal = jax.random.uniform(key, (1,), minval=-1.0, maxval=1.0)
        return goal, goal

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        return _last(state, state, -jnp.square(action - state)[0].astype(jnp.float32))


class TwoChoices(eqx.Module):
    """One step with two choices of two; each that matches its bit of the observation (-1 or 1) gives 0.5.

    Tests: multi-discrete actions, whose parts must not mix. Optimal return 1; by chance 0.5.
    """

    name = "probe/multi-discrete"
    observation_space = Box(-1.0, 1.0, (2,))
    action_space = MultiDiscrete((2, 2))
    num_agents = None
    time_limit = 1

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        bits = _signs(key, (2,))
        return bits, bits

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        return _last(state, state, 0.5 * jnp.sum((action == 1) == (state > 0)).astype(jnp.float32))


class MaskedState(NamedTuple):
    mask: jax.Array  # bool [4]
    time: jax.Array  # int32 []


class Masked(eqx.Module):
    """Four actions of which a random set (never none) is legal at each of `steps` steps; illegal ones give -10.

    A legal action i gives i / 3, so the highest legal one is best. The features are constant and the mask is no input of
    the network: a policy that keeps to the mask only has to prefer higher actions. Tests: action masks, also in the loss.
    Optimal mean return 34/45 a step, as the highest of a random non-empty set is i with probability 2^i / 15.
    """

    steps: int = eqx.field(static=True, default=4)

    name = "probe/masked"
    observation_space = Dict({"action_mask": Box(0.0, 1.0, (4,), "bool"), "features": Box(0.0, 0.0, (1,))})
    action_space = Discrete(4)
    num_agents = None

    def __check_init__(self) -> None:
        _at_least(self.name, "steps", self.steps, 1)

    @property
    def time_limit(self) -> int:
        return self.steps

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state = MaskedState(_random_set(key), jnp.zeros((), jnp.int32))
        return state, self._observe(state)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        reward = jnp.where(state.mask[action], action / 3, -10.0).astype(jnp.float32)
        after = MaskedState(_random_set(key), state.time + 1)
        return _last(after, self._observe(after), reward)._replace(terminated=after.time >= self.steps)

    def _observe(self, state: MaskedState) -> dict[str, jax.Array]:
        return {"action_mask": state.mask, "features": jnp.zeros(1)}


_PROBES: dict[str, Callable[..., Environment]] = {
    "one-action": OneAction,
    "two-observations": TwoObservations,
    "two-steps": TwoSteps,
    "action-reward": ActionReward,
    "action-observation": ActionObservation,
    "memory": Memory,
    "two-agents": TwoAgents,
    "truncation": Truncation,
    "continuous": Continuous,
    "multi-discrete": TwoChoices,
    "masked": Masked,
}


def make(name: str, arguments: dict[str, Any]) -> Environment:
    """The probe of that name."""
    probe = _PROBES[name]
    return probe(**convert_all(f"probe/{name}", arguments, signature_defaults(probe)))


def arguments(name: str) -> dict[str, Any]:
    """What the probe accepts, with defaults."""
    return signature_defaults(_PROBES[name])


def _last(state: Any, obs: Any, reward: jax.Array) -> Transition:
    """The transition that ends the task."""
    return Transition(state, obs, reward, jnp.ones((), bool), jnp.zeros((), bool), {})


def _signs(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Fair draws of -1.0 and 1.0."""
    return 2.0 * jax.random.bernoulli(key, shape=shape).astype(jnp.float32) - 1.0


def _agreement(agrees: jax.Array) -> jax.Array:
    return jnp.where(agrees, jnp.ones((), jnp.float32), -1.0)


def _random_set(key: jax.Array) -> jax.Array:
    """One of the 15 non-empty sets of four, each as likely: bool [4]."""
    number = jax.random.randint(key, (), 1, 16)
    return (number >> jnp.arange(4)) % 2 == 1


def _at_least(environment: str, name: str, value: int, least: int) -> None:
    if value < least:
        raise UsageError(f"{environment}: {name} ({value}) must be at least {least}.")
