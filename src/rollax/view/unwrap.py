"""What lies beneath the wrappers of an environment, for those who draw it."""

from typing import Any

from rollax.environments.native.memory import Partial
from rollax.environments.views import ActionRepeat, Against, Identified, Recalling, TimeLimit, Trials
from rollax.spaces import Dict

WRAPPERS = (Recalling, Trials, Partial, Identified, Against, TimeLimit, ActionRepeat)


def innermost(environment: Any) -> Any:
    """The environment beneath all wrappers."""
    while isinstance(environment, WRAPPERS):
        environment = environment.env
    return environment


def unwrapped(environment: Any, state: Any, obs: Any) -> tuple[Any, Any, Any]:
    """The environment beneath all wrappers and its state, with as much of its observation as they let through."""
    while isinstance(environment, WRAPPERS):
        if isinstance(environment, Against):  # whose state has what all agents see
            state, obs, environment = state[0], state[1], environment.env
            continue
        has_more = isinstance(environment, Recalling | Trials | Identified)
        is_part = has_more and not isinstance(environment.env.observation_space, Dict)
        state = state[0] if isinstance(environment, Trials | TimeLimit) else state
        obs = obs["observation"] if is_part else obs
        environment = environment.env
    return environment, state, obs


def trial(environment: Any, state: Any) -> tuple[int, int] | None:
    """Which episode of a trial it is, from 1, and of how many; None where episodes are no trials."""
    while isinstance(environment, WRAPPERS):
        if isinstance(environment, Trials):
            return int(state[2]) + 1, environment.episodes
        state = state[0] if isinstance(environment, TimeLimit) else state
        environment = environment.env
    return None


def shown_state(environment: Any, key: Any, before: Any, action: Any, after: Any) -> Any:
    """The state to draw after a step from the state `before`.

    A trial's own state after the end of an episode is the start of the next one, so that nobody would see the goal reached:
    it is that end instead, still of the episode before.
    """
    while isinstance(environment, Recalling | Partial):
        environment = environment.env
    if not isinstance(environment, Trials):
        return after
    inner, starts, episode = before
    return environment.env.step(key, inner, action).state, starts, episode
