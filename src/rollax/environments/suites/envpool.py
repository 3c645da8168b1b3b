"""The environments of EnvPool (1.2 or newer): simulators in C++ that step together in threads of their own.

EnvPool begins an episode at the step after its end; here a simulator is reset at once, so that no step is lost and the last
observation is the true one. Numbers become float32, 8-bit images stay with the channels last.
"""

import functools
import warnings
from typing import Any

import numpy as np

from rollax.environments.convert import convert_all
from rollax.environments.hosted import Hosted
from rollax.environments.suites.gymnasium import spaces
from rollax.errors import UsageError
from rollax.spaces import Box, Dict, Space

_HOST = ("num_envs", "batch_size", "seed", "env_type", "base_path", "gym_reset_return_info", "from_pixels")


class Pool:
    """A pool of EnvPool with our spaces: `[E]` in, `[E]` out, with the numbers of those that moved."""

    def __init__(self, made: Any, name: str) -> None:
        self.made = made
        self.observation_space, self._seen = observation(name, made.observation_space)
        self.action_space, _ = spaces.action(name, made.action_space)
        self._start, self._dtype = int(getattr(made.action_space, "start", 0)), made.action_space.dtype

    def reset(self, ids: np.ndarray) -> tuple[Any, np.ndarray]:
        obs, info = self.made.reset(ids)
        return self._seen(obs), info["env_id"]

    def step(self, action: np.ndarray, ids: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        obs, reward, terminated, truncated, info = self.made.step((action + self._start).astype(self._dtype), ids)
        return self._seen(obs), reward, terminated.astype(bool), truncated.astype(bool), info["env_id"]

    def close(self) -> None:
        self.made.close()


def observation(name: str, space: Any) -> tuple[Space, Any]:
    """The space of observations, and what makes those of a pool ours: images of EnvPool have their channels first."""
    found, seen = spaces.observation(name, space)
    if isinstance(found, Box) and np.any(np.equal(found.low, np.finfo(np.float32).tiny)):
        found = Box(float("-inf"), float("inf"), found.shape)  # its lower bounds are the least number above 0
    if isinstance(found, Box) and found.dtype == "uint8" and len(found.shape) == 3:
        channels, *size = found.shape
        return Box(0.0, 255.0, (*size, channels), "uint8"), lambda obs: np.moveaxis(obs, 1, -1)
    parts = found.spaces.values() if isinstance(found, Dict) else (found,)
    if not all(isinstance(part, Box) for part in parts):
        raise UsageError(f"{name}: of a pool only observations of Box, or a Dict of them, are offered: take gymnasium/...")
    return found, seen


def make(name: str, arguments: dict[str, Any]) -> Hosted:
    """The environment of that id; arguments are those of its pool. Raises UsageError when EnvPool refuses them."""
    id, defaults = f"envpool/{name}", _defaults(name)
    given = convert_all(id, arguments, defaults)
    build = functools.partial(_pool, name, tuple(given.items()))
    one = build(1, 0)
    try:
        limit = (defaults | given).get("max_episode_steps")
        single = functools.partial(_single, id)
        return Hosted(id, one.observation_space, one.action_space, limit, (), single, build)
    finally:
        one.close()


def arguments(name: str) -> dict[str, Any]:
    """What the environment's pool can be given, with its defaults."""
    return _defaults(name)


def _pool(name: str, given: tuple[tuple[str, Any], ...], number: int, seed: int) -> Pool:
    import envpool

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that bounds are rounded
            made = envpool.make(name, env_type="gymnasium", num_envs=number, seed=seed % 2**31, **dict(given))
            return Pool(made, f"envpool/{name}")
    except UsageError:
        raise
    except Exception as error:  # whatever EnvPool raises
        raise UsageError(f"making envpool/{name} fails with {type(error).__name__}: {error}") from error


def _single(id: str, shows_frames: bool = False) -> Any:
    raise UsageError(f"{id} runs in a pool, which draws no picture and runs in no other process: take gymnasium/... for that")


@functools.cache
def _defaults(name: str) -> dict[str, Any]:
    import envpool

    config = envpool.make_spec(name).config._asdict()
    kinds = (bool, int, float, str)
    return {key: value for key, value in config.items() if key not in _HOST and isinstance(value, kinds)}
