"""One environment of gymnasium as a simulator: our spaces, ends told apart, its time limit counted here."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from rollax.environments.hosted import Translation
from rollax.environments.suites.gymnasium import spaces
from rollax.environments.suites.gymnasium.spaces import MASK
from rollax.errors import UsageError
from rollax.spaces import ActionSpace, Box, Dict, Discrete, MultiDiscrete, Space


class Seen(NamedTuple):
    """What an environment is to rollax, found by making it, resetting it and taking a step."""

    observation_space: Space
    action_space: ActionSpace
    info_names: tuple[str, ...]


class GymnasiumSimulator:
    """See `rollax.environments.core.Simulator`."""

    def __init__(self, environment: Any, name: str, time_limit: int | None, masks: bool) -> None:
        self.environment = environment
        self._limit, self._steps, self._masks = time_limit, 0, masks
        self._spaces = environment.observation_space, environment.action_space
        self._seen = spaces.typed(*spaces.observation(name, environment.observation_space))
        _, self._action = spaces.action(name, environment.action_space)

    def reset(self, seed: int | None) -> Any:
        obs, info = self.environment.reset(seed=seed)
        spaces_now = self.environment.observation_space, self.environment.action_space
        if spaces_now != self._spaces:
            raise ValueError(f"its spaces changed from {self._spaces} to {spaces_now}; policies are made for the first")
        self._steps = 0
        return self._observed(obs, info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
        obs, reward, terminated, truncated, info = self.environment.step(self._action(action))
        self._steps += 1
        truncated = (truncated or self._steps == self._limit) and not terminated
        return self._observed(obs, info), reward, terminated, truncated, info

    def frame(self) -> Any:
        return self.environment.render()

    def close(self) -> None:
        self.environment.close()

    def _observed(self, obs: Any, info: Mapping[str, Any]) -> Any:
        seen = self._seen(obs)
        return spaces.with_mask(seen, np.asarray(info[MASK], bool)) if self._masks else seen


def make(
    make_environment: Callable[..., Any], name: str, time_limit: int | None, masks: bool, shows_frames: bool = False
) -> GymnasiumSimulator:
    """A simulator of what `make_environment(render_mode=...)` makes."""
    return GymnasiumSimulator(make_environment(render_mode="rgb_array" if shows_frames else None), name, time_limit, masks)


def look(environment: Any, name: str) -> tuple[Seen, bool]:
    """What the environment is, and whether its `info` says which actions are legal.

    Raises UsageError for spaces without counterpart, and for an environment that does not keep gymnasium's own contract.
    """
    observation_space, _ = spaces.observation(name, environment.observation_space)
    action_space, convert = spaces.action(name, environment.action_space)
    environment.action_space.seed(0)
    begun = _tried(name, "reset", lambda: environment.reset(seed=0))
    if not isinstance(begun, tuple) or len(begun) != 2 or not isinstance(begun[1], Mapping):
        raise UsageError(f"{name}: reset must return (observation, info), as gymnasium has it since 0.26")
    legal, number = np.asarray(begun[1].get(MASK, ())), action_space.n if isinstance(action_space, Discrete) else -1
    masks = legal.shape == (number,)
    if not masks and isinstance(environment.observation_space, gymnasium.spaces.Dict):
        legal = np.asarray(begun[0].get(MASK, ()))
    is_legal_known = legal.size > 0 and isinstance(action_space, Discrete | MultiDiscrete)
    first = convert(np.argmax(legal, axis=-1)) if is_legal_known else environment.action_space.sample()
    after = _tried(name, "step", lambda: environment.step(first))
    if not isinstance(after, tuple) or len(after) != 5 or not isinstance(after[4], Mapping):
        raise UsageError(f"{name}: step must return (observation, reward, terminated, truncated, info), as gymnasium has it")
    if masks:
        parts = observation_space.spaces if isinstance(observation_space, Dict) else {"observation": observation_space}
        observation_space = Dict({**parts, MASK: Box(0.0, 1.0, (number,), "bool")})
    return Seen(observation_space, action_space, scalars(after[4])), masks


def translation(environment: Any, name: str, masks: bool) -> Translation:
    """What this environment gives and takes as ours. Legal actions, where its `info` has them, are given as "action_mask"
    beside "observation", or beside the parts of an observation that is a dictionary."""
    space = environment.observation_space
    _, arrange = spaces.observation(name, space)

    def arranged(value: Any) -> Any:
        own = value["observation"] if masks and not isinstance(space, gymnasium.spaces.Dict) else value
        spaces.check_form(space, own)
        return spaces.with_mask(arrange(own), value[MASK]) if masks else arrange(own)

    description = f"observation: {space}, {MASK}: of bool" if masks else space
    return spaces.translation(name, description, arranged, environment.action_space)


def _tried(name: str, what: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:  # an environment may raise anything
        raise UsageError(f"{name}: its {what} raises {type(error).__name__}: {error}") from error


def scalars(info: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of those parts of an `info` that are single numbers."""
    kinds = (bool, int, float, np.bool_, np.integer, np.floating)
    single = lambda x: isinstance(x, kinds) or (isinstance(x, np.ndarray) and x.ndim == 0 and x.dtype.kind in "bif")  # noqa: E731
    return tuple(sorted(name for name, value in info.items() if isinstance(name, str) and single(value)))
