"""Preprocessing of images: resizing, grayscale, frame stacking and frame skipping.

This module contains the wrapper of CarRacing. See `atari` for Atari games.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from PIL import Image

from rollax.environments.suites.suite import SuiteEnvironment
from rollax.errors import UsageError
from rollax.types import Action, Setting


@dataclasses.dataclass(frozen=True)
class ImageSettings:
    """Settings of image preprocessing. The defaults keep the images of CarRacing unchanged.

    Attributes:
        frame_skip: Number of simulator frames per step. Each of them repeats the action.
        size: Height and width of images.
        grayscale: Whether images are converted to grayscale.
        stack: Number of stacked images.
    """

    frame_skip: int = 1
    size: int = 96
    grayscale: bool = False
    stack: int = 1


DEFAULT_SETTINGS: dict[str, Any] = dataclasses.asdict(ImageSettings())
# Entries of CarRacing's `info` that only the last step of an episode has.
FINAL_STEP_INFO_NAMES = ("lap_finished",)


def is_car_racing(name: str) -> bool:
    """Return whether a gymnasium id belongs to CarRacing."""
    return name.startswith("CarRacing")


def check_minimums(id: str, settings: object, minimums: Mapping[str, int]) -> None:
    """Check that each setting is at least its minimum.

    Args:
        id: Id of the environment.
        settings: Dataclass of settings.
        minimums: Minimum of each setting, keyed by name.

    Raises:
        UsageError: If a setting is below its minimum.
    """
    for name, lowest in minimums.items():
        if getattr(settings, name) < lowest:
            raise UsageError(f"{id}: {name} ({getattr(settings, name)}) must be at least {lowest}.")


def parse_settings(id: str, arguments: Mapping[str, Setting]) -> ImageSettings:
    """Select the image settings among the arguments and check their ranges.

    Args:
        id: Id of the environment.
        arguments: Arguments of the environment.

    Returns:
        The settings.

    Raises:
        UsageError: If a value is less than 1.
    """
    settings = ImageSettings(
        **{name: arguments[name] for name in DEFAULT_SETTINGS if name in arguments}
    )
    check_minimums(id, settings, {"frame_skip": 1, "size": 1, "stack": 1})
    return settings


class FrameStack:
    """Stack of the most recent images, uint8 `[size, size, depth * stack]`.

    New images are resized by area averaging.
    """

    def __init__(self, size: int, depth: int, stack: int) -> None:
        self._size, self._depth = size, depth
        self._last = np.zeros((size, size, depth * stack), np.uint8)
        self.space = spaces.Box(0, 255, self._last.shape, np.uint8)

    def clear(self) -> None:
        self._last = np.zeros_like(self._last)

    def push(self, picture: np.ndarray) -> np.ndarray:
        """Add an image `[H, W]` or `[H, W, 3]` and return the stack."""
        image = Image.fromarray(picture)
        if self._depth == 1 and picture.ndim == 3:
            image = image.convert("L")
        if image.size != (self._size, self._size):
            image = image.resize((self._size, self._size), Image.Resampling.BOX)
        resized = np.asarray(image).reshape(self._size, self._size, self._depth)
        self._last = np.concatenate([self._last[..., self._depth :], resized], axis=-1)
        return self._last


def make_car_racing(
    settings: ImageSettings, make: Callable[..., SuiteEnvironment], render_mode: str | None
) -> "CarRacing":
    """Make CarRacing with `make(render_mode=...)` and preprocess its images."""
    return CarRacing(make(render_mode=render_mode), settings)


class CarRacing:
    """CarRacing with image preprocessing and frame skipping. Rewards of frames are summed."""

    def __init__(self, environment: SuiteEnvironment, settings: ImageSettings) -> None:
        self.environment, self.settings, self.action_space = (
            environment,
            settings,
            environment.action_space,
        )
        self.metadata = {"render_fps": environment.metadata["render_fps"] / settings.frame_skip}
        self._stack = FrameStack(settings.size, 1 if settings.grayscale else 3, settings.stack)
        self.observation_space = self._stack.space

    def reset(self, *, seed: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        picture, info = self.environment.reset(seed=seed)
        self._stack.clear()
        return self._stack.push(picture), info

    def step(self, action: Action) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        total, picture, terminated, truncated, info = 0.0, None, False, False, {}
        for frame in range(self.settings.frame_skip):
            is_last = frame == self.settings.frame_skip - 1
            with contextlib.nullcontext() if is_last else _skip_drawing(self.environment.unwrapped):
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
def _skip_drawing(car: SuiteEnvironment) -> Iterator[None]:
    """Disable drawing of CarRacing inside the block. Drawing takes much longer than the physics."""
    car._render = lambda mode: None
    try:
        yield
    finally:
        del car._render
