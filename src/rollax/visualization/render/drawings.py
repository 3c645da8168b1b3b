"""Lookup of environment drawings, which suites and users provide.

A drawing is looked up by the name of the environment, and then by the name of the innermost
environment inside its wrappers. Environments without a drawing are drawn from their observations.
To add a drawing for custom environments, set
`DRAWINGS["mine/Maze-*"] = Drawing(function, frames_per_second)`.
"""

import fnmatch
import importlib
from collections.abc import Callable
from typing import Any, TypeVar

from PIL import Image

from rollax.canvas.drawing import Drawing
from rollax.environments.capabilities import capabilities, is_on_host
from rollax.environments.observation_images import draw_observation
from rollax.environments.suites.table import SUITES
from rollax.environments.wrapper import innermost_environment, innermost_state, unwrap
from rollax.types import Observation, State
from rollax.visualization.render import host_episodes

T = TypeVar("T")

# Drawings, keyed by glob pattern of environment names. They precede the drawings of suites.
DRAWINGS: dict[str, Drawing] = {}


def list_drawings() -> dict[str, Drawing]:
    """Return all drawings, keyed by glob pattern of environment names, in order of precedence."""
    drawings = dict(DRAWINGS)
    for suite in SUITES:
        drawings |= _load_suite_drawings(suite)
    return drawings


def _load_suite_drawings(suite: str) -> dict[str, Drawing]:
    """Return the drawings of a suite, keyed by glob pattern of ids, without importing the suite."""
    module = SUITES[suite].drawing if suite in SUITES else None
    drawings = {} if module is None else importlib.import_module(module).DRAWINGS
    return {f"{suite}/{pattern}": drawing for pattern, drawing in drawings.items()}


def find_drawing(environment: Any) -> Drawing:
    """Return the drawing of an environment.

    The drawing is looked up by the name of the environment and then by the name of the innermost
    environment. Host environments draw themselves. A compiled environment without a drawing is
    drawn from its observations.

    Args:
        environment: Environment including its wrappers.

    Returns:
        The drawing. Its functions take the environment, states and observations with wrappers.
    """
    if is_on_host(environment):
        return Drawing(host_episodes.draw_host_frame, capabilities(environment).fps)
    for name in (environment.name, innermost_environment(environment).name):
        drawing = _find_named_drawing(name)
        if drawing is not None:
            return _adapt_to_wrappers(drawing)
    return Drawing(draw_observation, 10)


def _find_named_drawing(name: str) -> Drawing | None:
    """Return the drawing for an environment name, or None if no pattern matches."""
    drawings = DRAWINGS | _load_suite_drawings(name.partition("/")[0])
    return next(
        (drawing for pattern, drawing in drawings.items() if fnmatch.fnmatchcase(name, pattern)),
        None,
    )


def _adapt_to_wrappers(drawing: Drawing) -> Drawing:
    """Return the drawing with functions that accept environments and states with wrappers."""
    state_fns = {name: getattr(drawing, name) for name in ("draw", "text", "notes", "legend")}
    states_fns = {name: getattr(drawing, name) for name in ("cameras", "page_data_fn")}
    return drawing._replace(
        describe_action_fn=drawing.describe_action_fn
        and _adapt_agent_fn(drawing.describe_action_fn),
        **{name: function and _adapt_state_fn(function) for name, function in state_fns.items()},
        **{name: function and _adapt_states_fn(function) for name, function in states_fns.items()},
    )


def draw_episode(
    drawing: Drawing, environment: Any, states: list[State], observations: list[Observation]
) -> list[Image.Image]:
    """Draw the states of an episode, with the cameras that the drawing chooses for the episode.

    Args:
        drawing: Drawing of the environment, from `find_drawing`.
        environment: Environment including its wrappers.
        states: States of the episode.
        observations: Observations of the same steps.

    Returns:
        One image per state.
    """
    steps = zip(states, observations, strict=True)
    if drawing.cameras is None:
        return [drawing.draw(environment, state, obs) for state, obs in steps]
    cameras = drawing.cameras(environment, states)
    return [
        drawing.draw(environment, state, obs, camera)
        for (state, obs), camera in zip(steps, cameras, strict=True)
    ]


def _adapt_state_fn(function: Callable[..., T]) -> Callable[..., T]:
    """Return a version of `function(environment, state, obs)` that accepts wrapped arguments.

    The wrappers of the environment, the state and the observation are removed before the call.
    """
    return lambda environment, state, obs, *camera: function(
        *unwrap(environment, state, obs), *camera
    )


def _adapt_agent_fn(function: Callable[..., T]) -> Callable[..., T]:
    """Return a version of `function(environment, agent, action)` for wrapped environments.

    The wrappers of the environment are removed before the call.
    """
    return lambda environment, agent, action: function(
        innermost_environment(environment), agent, action
    )


def _adapt_states_fn(function: Callable[..., T]) -> Callable[..., T]:
    """Return a version of `function(environment, states, ...)` that accepts wrapped arguments.

    The wrappers of the environment and the states are removed before the call.
    """

    def draw_states(environment: Any, states: list[State], *arguments: Any) -> T:
        return function(
            innermost_environment(environment),
            [innermost_state(environment, state) for state in states],
            *arguments,
        )

    return draw_states
