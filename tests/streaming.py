"""Streams that are stepped by hand: with given actions, one step at a time."""

from typing import Any

import jax

from rollax.acting import streams
from rollax.acting.streams import Actor, Experience
from rollax.environments.core import Environment, Transition


def advance(environment: Environment, before: Actor, action: Any, keys: jax.Array) -> tuple[Actor, Experience, Transition]:
    """One step of every environment with these actions `[E, ...]` and keys `[E]`, and a restart where an episode ended."""
    given = lambda action, obs, reset, key: (action, action, None)  # noqa: E731
    after, experience, transition = streams.step(environment, given, before._replace(carry=action), streams.split(keys))
    after = streams.restart(environment, after, streams.episode_ended(environment, transition))
    return after._replace(carry=before.carry), experience, transition
