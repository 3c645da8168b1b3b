"""ALE's games with the usual preprocessing (Mnih et al. 2015; Machado et al. 2018, arXiv:1709.06009, for sticky actions).

A step repeats an action for `frame_skip` frames, and its observation is the maximum of the last two of them, in gray, scaled to
`size` x `size`, stacked on the `stack` last ones: 8-bit `[size, size, stack]`. Sticky actions, the full set of actions, an
episode at every life and the sign of rewards are arguments. Scaling is by areas with Pillow, where others use OpenCV.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from rollax.environments.suites.gymnasium.pictures import Stack, check_least
from rollax.errors import UsageError

LIMIT = 27_000  # steps of an episode at most: with four frames a step half an hour, at which ALE itself cuts off


@dataclasses.dataclass(frozen=True)
class Settings:
    """What can be set of a game."""

    frame_skip: int = 4
    repeat_action_probability: float = 0.25
    full_action_space: bool = False
    mode: int = -1
    difficulty: int = -1
    noop_max: int = 30
    size: int = 84
    grayscale: bool = True
    stack: int = 4
    episodic_life: bool = False
    clip_rewards: bool = False


DEFAULTS: dict[str, Any] = dataclasses.asdict(Settings())


def is_atari(name: str) -> bool:
    return name.startswith("ALE/")


def register() -> None:
    """Makes gymnasium know ALE's games. Raises ModuleNotFoundError without ale-py."""
    import ale_py
    import gymnasium

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # else every game says who made it
    gymnasium.register_envs(ale_py)


def settings(id: str, given: Mapping[str, Any]) -> Settings:
    """The settings of a game. Raises UsageError for numbers that there cannot be."""
    chosen = Settings(**given)
    check_least(id, chosen, {"frame_skip": 1, "noop_max": 0, "size": 1, "stack": 1})
    if not 0 <= chosen.repeat_action_probability < 1:
        raise UsageError(f"{id}: repeat_action_probability ({chosen.repeat_action_probability}) must be from 0 to less than 1.")
    return chosen


def build(name: str, chosen: Settings, render_mode: str | None) -> "Atari":
    """The game with its preprocessing."""
    import gymnasium

    register()
    which = {key: getattr(chosen, key) for key in ("mode", "difficulty") if getattr(chosen, key) >= 0}
    game = gymnasium.make(
        name,
        max_episode_steps=-1,
        disable_env_checker=True,
        render_mode=render_mode,
        frameskip=1,
        repeat_action_probability=chosen.repeat_action_probability,
        full_action_space=chosen.full_action_space,
        obs_type="grayscale" if chosen.grayscale else "rgb",
        **which,
    )
    return Atari(game.unwrapped, chosen)


class Atari:
    """A game as gymnasium has environments."""

    def __init__(self, game: Any, chosen: Settings) -> None:
        self.game, self.chosen, self.metadata = game, chosen, {"render_fps": 60 // chosen.frame_skip}
        self.action_space = game.action_space
        self._stack = Stack(chosen.size, 1 if chosen.grayscale else 3, chosen.stack)
        self.observation_space = self._stack.space
        self._random = np.random.default_rng()
        self._goes_on = False  # the game, after the life that was the last episode
        self._lives = 0

    def reset(self, *, seed: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        if self._goes_on and seed is None:  # with the next life
            screen, _, _, _, info = self.game.step(0)
        else:
            screen, info = self.game.reset(seed=seed)
            waits = int(self._random.integers(0, self.chosen.noop_max, endpoint=True))
            screen, info = self._wait(waits, screen, info)
        self._goes_on, self._lives = False, info.get("lives", 0)
        self._stack.clear()
        return self._observed([screen]), info

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        screens, total, terminated, truncated, info = [], 0.0, False, False, {}
        for _ in range(self.chosen.frame_skip):
            screen, reward, terminated, truncated, info = self.game.step(action)
            total += float(reward)
            screens = [*screens[-1:], screen]
            if terminated or truncated:
                break
        lives = info.get("lives", 0)
        is_over = bool(terminated or truncated)
        self._goes_on = self.chosen.episodic_life and not is_over and 0 < lives < self._lives
        self._lives = lives
        total = float(np.sign(total)) if self.chosen.clip_rewards else total
        return self._observed(screens), total, bool(terminated or self._goes_on), bool(truncated), info

    def render(self) -> Any:
        return self.game.render()

    def close(self) -> None:
        self.game.close()

    def _wait(self, frames: int, screen: Any, info: Any) -> tuple[Any, Any]:
        """Some frames without an action, so that games do not all begin alike."""
        for _ in range(frames):
            screen, _, terminated, truncated, info = self.game.step(0)
            if terminated or truncated:
                screen, info = self.game.reset()
        return screen, info

    def _observed(self, screens: list[Any]) -> np.ndarray:
        return self._stack.push(screens[0] if len(screens) == 1 else np.maximum(*screens))
