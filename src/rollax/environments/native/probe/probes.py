"""Probe environments: minimal tasks with known solutions that test single parts of an algorithm.

They follow Andy Jones, "Debugging reinforcement learning systems" (2021). If an algorithm passes
all earlier probes and fails a probe, the bug is in the feature that this probe tests. `gamma` is
the discount factor, and "return" is the sum of rewards of one episode.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.environments.environment import Transition
from rollax.environments.environment_text import format_environment_html
from rollax.errors import UsageError
from rollax.spaces import Box, Dict, Discrete, MultiDiscrete
from rollax.types import Action, Observation, State

_SIGN_SPACE = Box(-1.0, 1.0, (1,))


class OneAction(eqx.Module):
    """Probe with one action, one observation, one step and reward 1.

    Tests whether the algorithm learns the value. The optimal return and the value are 1.
    """

    name = "probe/one-action"
    observation_space = Box(0.0, 0.0, (1,))
    action_space = Discrete(1)
    num_agents = None
    time_limit = 1
    _repr_html_ = format_environment_html

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        return (), jnp.zeros(1)

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        return _final_transition((), jnp.zeros(1), jnp.ones(()))


class TwoObservations(eqx.Module):
    """Probe with one action and one step whose reward is the observation, -1 or 1.

    Tests whether the value depends on the observation. The mean return is 0 for every policy, and
    the value of the observation o is o.
    """

    name = "probe/two-observations"
    observation_space = _SIGN_SPACE
    action_space = Discrete(1)
    num_agents = None
    time_limit = 1
    _repr_html_ = format_environment_html

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        sign = _sample_signs(key, (1,))
        return sign, sign

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        return _final_transition(state, state, state[0])


class TwoSteps(eqx.Module):
    """Probe with one action and two steps, with reward 1 at the second step.

    Tests discounting. The observation is the step index. The optimal return is 1. The value is
    gamma at the first step (observation 0) and 1 at the second (observation 1).
    """

    name = "probe/two-steps"
    observation_space = Box(0.0, 1.0, (1,))
    action_space = Discrete(1)
    num_agents = None
    time_limit = 2
    _repr_html_ = format_environment_html

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        return jnp.zeros((), jnp.int32), jnp.zeros(1)

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        second = state >= 1
        return _final_transition(state + 1, jnp.ones(1), second.astype(jnp.float32))._replace(
            terminated=second
        )


class ActionReward(eqx.Module):
    """Probe with two actions and one step. Action 1 gives 1, and action 0 gives -1.

    Tests whether the policy improves. The optimal return is 1.
    """

    name = "probe/action-reward"
    observation_space = Box(0.0, 0.0, (1,))
    action_space = Discrete(2)
    num_agents = None
    time_limit = 1
    _repr_html_ = format_environment_html

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        return (), jnp.zeros(1)

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        return _final_transition((), jnp.zeros(1), _match_reward(action == 1))


class ActionObservation(eqx.Module):
    """Probe with two observations and one step. The matching action gives 1, the other gives -1.

    Action 1 matches the observation 1, and action 0 matches -1. Tests whether the policy depends on
    the observation, and whether the algorithm combines actions, observations and rewards of the
    same step. The optimal return is 1.
    """

    name = "probe/action-observation"
    observation_space = _SIGN_SPACE
    action_space = Discrete(2)
    num_agents = None
    time_limit = 1
    _repr_html_ = format_environment_html

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        sign = _sample_signs(key, (1,))
        return sign, sign

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        return _final_transition(state, state, _match_reward((action == 1) == (state[0] > 0)))


class MemoryState(NamedTuple):
    """State of the memory probe: the cue, -1 or 1, and the number of steps so far."""

    cue: jax.Array  # float []: -1 or 1
    time: jax.Array  # int32 []


class Memory(eqx.Module):
    """Probe with a cue that is visible at the first step and must be matched `delay` steps later.

    Tests recurrent policies and backpropagation through time. Later observations are blank. The
    last action gives 1 if it matches the cue, otherwise -1, and earlier actions have no effect. An
    episode has delay + 1 steps. The optimal return is 1. The best mean return without memory is 0,
    unless `delay` is 0, which needs no memory.

    Args:
        delay: (static) Number of blank steps, at least 0.

    Raises:
        UsageError: If `delay` is below 0.
    """

    delay: int = eqx.field(static=True, default=3)

    name = "probe/memory"
    observation_space = _SIGN_SPACE
    action_space = Discrete(2)
    num_agents = None
    _repr_html_ = format_environment_html

    def __check_init__(self) -> None:
        _check_minimum(self.name, "delay", self.delay, 0)

    @property
    def time_limit(self) -> int:
        return self.delay + 1

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        cue = _sample_signs(key, ())
        return MemoryState(cue, jnp.zeros((), jnp.int32)), cue[None]

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        last = state.time >= self.delay
        reward = jnp.where(last, _match_reward((action == 1) == (state.cue > 0)), 0.0)
        after = MemoryState(state.cue, state.time + 1)
        return _final_transition(after, jnp.zeros(1), reward)._replace(terminated=last)


class TwoAgents(eqx.Module):
    """Probe with two agents and one step. Agent 0 must match its bit, agent 1 must oppose it.

    Tests whether an algorithm mixes up values of different agents. Each agent observes its bit (-1
    or 1) and its role (-1 for agent 0, 1 for agent 1), so one network can control both. The best
    action then depends on the product of the two. The optimal return is 1 for each agent.
    """

    name = "probe/two-agents"
    observation_space = Box(-1.0, 1.0, (2,))
    action_space = Discrete(2)
    num_agents = 2
    agent_types = ("agent", "agent")
    time_limit = 1
    _repr_html_ = format_environment_html

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        bits = _sample_signs(key, (2,))
        return bits, self._observe(bits)

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        match = (action == 1) == (state > 0)
        reward = _match_reward(match == jnp.array([True, False]))
        done = jnp.ones(2, bool)
        return Transition(state, self._observe(state), reward, done, ~done, {})

    def _observe(self, bits: jax.Array) -> jax.Array:
        return jnp.stack([bits, jnp.array([-1.0, 1.0])], axis=1)


class Truncation(eqx.Module):
    """Probe with reward 1 at each of T = `time_limit` steps.

    Tests bootstrapping after a time limit, and no bootstrapping after termination. The default
    truncates the episode with a constant observation, so the value is 1 / (1 - gamma), as if the
    episode never ended. With `terminate` the episode terminates, and the observation is the one-hot
    step index (`[T]`, zero after the last step). The value at step t is then (1 - gamma^(T - t)) /
    (1 - gamma), and at the start (1 - gamma^T) / (1 - gamma). The return is T in both cases.

    Args:
        time_limit: (static) Number of steps of an episode, at least 1.
        terminate: (static) Whether the episode terminates instead of being truncated.

    Raises:
        UsageError: If `time_limit` is below 1.
    """

    time_limit: int = eqx.field(static=True, default=8)
    terminate: bool = eqx.field(static=True, default=False)

    name = "probe/truncation"
    action_space = Discrete(1)
    num_agents = None
    _repr_html_ = format_environment_html

    def __check_init__(self) -> None:
        _check_minimum(self.name, "time_limit", self.time_limit, 1)

    @property
    def observation_space(self) -> Box:
        return Box(0.0, 1.0, (self.time_limit,)) if self.terminate else Box(0.0, 0.0, (1,))

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        time = jnp.zeros((), jnp.int32)
        return time, self._observe(time)

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        time = state + 1
        end = time >= self.time_limit
        terminated = end & self.terminate
        return Transition(
            time, self._observe(time), jnp.ones(()), terminated, end & ~terminated, {}
        )

    def _observe(self, time: jax.Array) -> jax.Array:
        return jax.nn.one_hot(time, self.time_limit) if self.terminate else jnp.zeros(1)


class ContinuousAction(eqx.Module):
    """Probe with one step whose action a should equal the observation o. Reward: -(a - o)^2.

    Tests continuous policies and their gradients. Actions and observations are in [-1, 1], and o is
    uniform. The optimal return is 0, and the action 0 gives -1/3 on average.
    """

    name = "probe/continuous"
    observation_space = _SIGN_SPACE
    action_space = Box(-1.0, 1.0, (1,))
    num_agents = None
    time_limit = 1
    _repr_html_ = format_environment_html

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        goal = jax.random.uniform(key, (1,), minval=-1.0, maxval=1.0)
        return goal, goal

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        return _final_transition(state, state, -jnp.square(action - state)[0].astype(jnp.float32))


class TwoChoices(eqx.Module):
    """Probe with one step and two binary choices. Each choice that matches its bit gives 0.5.

    Tests the order of the components of a multi-discrete action. The optimal return is 1, and
    random actions give 0.5 on average.
    """

    name = "probe/multi-discrete"
    observation_space = Box(-1.0, 1.0, (2,))
    action_space = MultiDiscrete((2, 2))
    num_agents = None
    time_limit = 1
    _repr_html_ = format_environment_html

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        bits = _sample_signs(key, (2,))
        return bits, bits

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        return _final_transition(
            state, state, 0.5 * jnp.sum((action == 1) == (state > 0)).astype(jnp.float32)
        )


class MaskedActionsState(NamedTuple):
    """State of the action-mask probe: the current mask and the number of steps so far."""

    mask: jax.Array  # bool [4]
    time: jax.Array  # int32 []


class MaskedActions(eqx.Module):
    """Probe with four actions and a random non-empty set of legal actions at each step.

    Tests action masks in acting and in the loss. An illegal action gives -10. A legal action i
    gives i / 3, so the highest legal action is best. The features are constant and the mask is not
    an input of the network, so a policy that respects the mask only has to prefer higher actions.
    The optimal mean return is 34/45 per step, because the highest element of a random non-empty set
    is i with probability 2^i / 15.

    Args:
        steps: (static) Number of steps of an episode, at least 1.

    Raises:
        UsageError: If `steps` is below 1.
    """

    steps: int = eqx.field(static=True, default=4)

    name = "probe/masked"
    observation_space = Dict(
        {"action_mask": Box(0.0, 1.0, (4,), "bool"), "features": Box(0.0, 0.0, (1,))}
    )
    action_space = Discrete(4)
    num_agents = None
    _repr_html_ = format_environment_html

    def __check_init__(self) -> None:
        _check_minimum(self.name, "steps", self.steps, 1)

    @property
    def time_limit(self) -> int:
        return self.steps

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        state = MaskedActionsState(_sample_action_mask(key), jnp.zeros((), jnp.int32))
        return state, self._observe(state)

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        reward = jnp.where(state.mask[action], action / 3, -10.0).astype(jnp.float32)
        after = MaskedActionsState(_sample_action_mask(key), state.time + 1)
        return _final_transition(after, self._observe(after), reward)._replace(
            terminated=after.time >= self.steps
        )

    def _observe(self, state: MaskedActionsState) -> dict[str, jax.Array]:
        return {"action_mask": state.mask, "features": jnp.zeros(1)}


def _final_transition(state: State, obs: Observation, reward: jax.Array) -> Transition:
    """Return a transition that terminates the episode."""
    return Transition(state, obs, reward, jnp.ones((), bool), jnp.zeros((), bool), {})


def _sample_signs(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Sample -1.0 and 1.0 with equal probability."""
    return 2.0 * jax.random.bernoulli(key, shape=shape).astype(jnp.float32) - 1.0


def _match_reward(is_match: jax.Array) -> jax.Array:
    """Return 1 where `is_match` is true and -1 elsewhere."""
    return jnp.where(is_match, jnp.ones((), jnp.float32), -1.0)


def _sample_action_mask(key: jax.Array) -> jax.Array:
    """Sample one of the 15 non-empty sets of four actions uniformly, bool [4]."""
    number = jax.random.randint(key, (), 1, 16)
    return (number >> jnp.arange(4)) % 2 == 1


def _check_minimum(environment: str, name: str, value: int, minimum: int) -> None:
    if value < minimum:
        raise UsageError(f"{environment}: {name} ({value}) must be at least {minimum}.")
