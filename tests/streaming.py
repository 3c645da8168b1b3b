"""Streams that are stepped one step at a time with given actions."""

from typing import Any

import jax

from rollax.acting import streams
from rollax.acting.streams import ActorState, Experience
from rollax.environments.environment import Environment, Transition


def advance(
    environment: Environment, before: ActorState, action: Any, keys: jax.Array
) -> tuple[ActorState, Experience, Transition]:
    """Step every environment with actions `[E, ...]` and keys `[E]`, and restart ended episodes."""

    def given(action, obs, reset, key):
        return (action, action, None)

    after, experience, transition = streams.step(
        environment, given, before._replace(carry=action), streams.split_step_keys(keys)
    )
    after = streams.restart_ended_episodes(
        environment, after, streams.has_episode_ended(environment, transition)
    )
    return after._replace(carry=before.carry), experience, transition
