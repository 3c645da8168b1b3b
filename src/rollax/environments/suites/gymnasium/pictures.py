"""Pictures as observations: scaled, in gray, the last few on top of each other, of every so many frames.

ALE's games have more to them (`atari`); CarRacing is wrapped here.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from PIL import Image

from rollax.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is done with the pictures; by default nothing."""

    frame_skip: int = 1
    size: int = 96
    grayscale: bool = False
    stack: int = 1


DEFAULTS: dict[str, Any] = dataclasses.asdict(Settings())
AT_THE_END = ("lap_finished",)  # numbers of CarRacing's info that only the last step of an episode has


def is_pictured(name: str) -> bool:
    return name.startswith("CarRacing")


def check_least(id: str, chosen: Any, least: Mapping[str, int]) -> None:
    """Raises UsageError for settings that are less than that."""
    for name, lowest in least.items():
        if getattr(chosen, name) < lowest:
            raise UsageError(f"{id}: {name} ({getattr(chosen, name)}) must be at least {lowest}.")


def settings(id: str, given: Mapping[str, Any]) -> Settings:
    """What is chosen of the arguments. Raises UsageError for numbers that there cannot be."""
    chosen = Settings(**{name: given[name] for name in DEFAULTS if name in given})
    check_least(id, chosen, {"frame_skip": 1, "size": 1, "stack": 1})
    return chosen


class Stack:
    """The last pictures on top of each other, `uint8 [size, size, depth x stack]`, scaled by areas."""

    def __init__(self, size: int, depth: int, stack: int) -> None:
        self._size, self._depth = size, depth
        self._last = np.zeros((size, size, depth * stack), np.uint8)
        self.space = spaces.Box(0, 255, self._last.shape, np.uint8)

    def clear(self) -> None:
        self._last = np.zeros_like(self._last)

    def push(self, picture: np.ndarray) -> np.ndarray:
        """The stack with that picture, `[H, W]` or `[H, W, 3]`, on top."""
        image = Image.fromarray(picture)
        if self._depth == 1 and picture.ndim == 3:
            image = image.convert("L")
        if image.size != (self._size, self._size):
            image = image.resize((self._size, self._size), Image.Resampling.BOX)
        small = np.asarray(image).reshape(self._size, self._size, self._depth)
        self._last = np.concatenate([self._last[..., self._depth :], small], axis=-1)
        return self._last


def build(chosen: Settings, make: Callable[..., Any], render_mode: str | None) -> "Racing":
    """What `make(render_mode=...)` makes, with its pictures as chosen."""
    return Racing(make(render_mode=render_mode), chosen)


class Racing:
    """CarRacing with its pictures as chosen. An action is repeated for `frame_skip` frames, whose rewards add up."""

    def __init__(self, environment: Any, chosen: Settings) -> None:
        self.environment, self.chosen, self.action_space = environment, chosen, environment.action_space
        self.metadata = {"render_fps": environment.metadata["render_fps"] / chosen.frame_skip}
        self._stack = Stack(chosen.size, 1 if chosen.grayscale else 3, chosen.stack)
        self.observation_space = self._stack.space

    def reset(self, *, seed: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        picture, info = self.environment.reset(seed=seed)
        self._stack.clear()
        return self._stack.push(picture), info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        total, picture, terminated, truncated, info = 0.0, None, False, False, {}
        for frame in range(self.chosen.frame_skip):
            is_last = frame == self.chosen.frame_skip - 1
            with contextlib.nullcontext() if is_last else _undrawn(self.environment.unwrapped):
                picture, reward, terminated, truncated, info = self.environment.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        picture = self.environment.unwrapped._render("state_pixels") if picture is None else picture
        return self._stack.push(picture), total, bool(terminated), bool(truncated), info

    def render(self) -> Any:
        return self.environment.render()

    def close(self) -> None:
        self.environment.close()


@contextlib.contextmanager
def _undrawn(car: Any) -> Iterator[None]:
    """CarRacing draws at every step, which takes far longer than its physics: here it does not."""
    car._render = lambda mode: None
    try:
        yield
    finally:
        del car._render
