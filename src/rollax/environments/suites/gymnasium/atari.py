"""Atari games of ALE with standard preprocessing.

A step repeats an action for `frame_skip` frames. The pixelwise maximum of the last two frames is
converted to grayscale and resized to `size` x `size`. The observation stacks the last `stack`
images, uint8 `[size, size, stack]`. Settings enable sticky actions, the full action set, episodes
that end when a life is lost, and rewards clipped to their sign. Images are resized by area
averaging with Pillow instead of OpenCV.

References:
    Mnih et al. (2015), Human-level control through deep reinforcement learning.
    Machado et al. (2018), arXiv:1709.06009, for sticky actions.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from rollax.environments.suites.gymnasium.pictures import FrameStack, check_minimums
from rollax.environments.suites.suite import SuiteEnvironment
from rollax.errors import UsageError
from rollax.types import Setting

# Time limit in steps: half an hour at four frames per step, at which ALE itself truncates.
MAX_EPISODE_STEPS = 27_000


@dataclasses.dataclass(frozen=True)
class AtariSettings:
    """Settings of an Atari game.

    Attributes:
        frame_skip: Number of simulator frames per step. Each of them repeats the action.
        repeat_action_probability: Probability of repeating the previous action (sticky actions).
        full_action_space: Whether all 18 actions are available in every game.
        mode: Mode of the game. -1 selects the default.
        difficulty: Difficulty of the game. -1 selects the default.
        noop_max: Largest number of random no-op frames at the start of a game.
        size: Height and width of images.
        grayscale: Whether images are converted to grayscale.
        stack: Number of stacked images.
        episodic_life: Whether an episode ends when a life is lost.
        clip_rewards: Whether rewards are clipped to their sign.
    """

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


DEFAULT_SETTINGS: dict[str, Any] = dataclasses.asdict(AtariSettings())


def is_atari(name: str) -> bool:
    """Return whether a gymnasium id belongs to an Atari game."""
    return name.startswith("ALE/")


def register_games() -> None:
    """Register the ALE games in gymnasium.

    Raises:
        ModuleNotFoundError: If ale-py is not installed.
    """
    import ale_py
    import gymnasium

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # suppresses ALE's banner
    gymnasium.register_envs(ale_py)


def parse_settings(id: str, arguments: Mapping[str, Setting]) -> AtariSettings:
    """Convert arguments to the settings of a game and check their ranges.

    Args:
        id: Id of the environment.
        arguments: Values of settings, keyed by name.

    Returns:
        The settings.

    Raises:
        UsageError: If a value is out of range.
    """
    settings = AtariSettings(**arguments)
    check_minimums(id, settings, {"frame_skip": 1, "noop_max": 0, "size": 1, "stack": 1})
    if not 0 <= settings.repeat_action_probability < 1:
        raise UsageError(
            f"{id}: repeat_action_probability ({settings.repeat_action_probability}) must be at "
            "least 0 and less than 1."
        )
    return settings


def make_atari(name: str, settings: AtariSettings, render_mode: str | None) -> "Atari":
    """Make an Atari game with preprocessing.

    Args:
        name: Id of the game in gymnasium.
        settings: Settings of the game.
        render_mode: Render mode, as for `gymnasium.make`.

    Returns:
        The game.
    """
    import gymnasium

    register_games()
    selection = {
        key: getattr(settings, key) for key in ("mode", "difficulty") if getattr(settings, key) >= 0
    }
    game = gymnasium.make(
        name,
        max_episode_steps=-1,
        disable_env_checker=True,
        render_mode=render_mode,
        frameskip=1,
        repeat_action_probability=settings.repeat_action_probability,
        full_action_space=settings.full_action_space,
        obs_type="grayscale" if settings.grayscale else "rgb",
        **selection,
    )
    return Atari(game.unwrapped, settings)


class Atari:
    """Atari game with preprocessing and the interface of a gymnasium environment."""

    def __init__(self, game: SuiteEnvironment, settings: AtariSettings) -> None:
        self.game, self.settings, self.metadata = (
            game,
            settings,
            {"render_fps": 60 // settings.frame_skip},
        )
        self.action_space = game.action_space
        self._stack = FrameStack(settings.size, 1 if settings.grayscale else 3, settings.stack)
        self.observation_space = self._stack.space
        self._rng = np.random.default_rng()
        # True after the end of an episode by a lost life, while the game continues.
        self._should_continue_game = False
        self._num_lives = 0

    def reset(self, *, seed: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        if self._should_continue_game and seed is None:  # continue with the next life
            screen, _, _, _, info = self.game.step(0)
        else:
            screen, info = self.game.reset(seed=seed)
            num_noops = int(self._rng.integers(0, self.settings.noop_max, endpoint=True))
            screen, info = self._step_noops(num_noops, screen, info)
        self._should_continue_game, self._num_lives = False, info.get("lives", 0)
        self._stack.clear()
        return self._observe([screen]), info

    def step(
        self, action: int | np.integer
    ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        screens, total, terminated, truncated, info = [], 0.0, False, False, {}
        for _ in range(self.settings.frame_skip):
            screen, reward, terminated, truncated, info = self.game.step(action)
            total += float(reward)
            screens = [*screens[-1:], screen]
            if terminated or truncated:
                break
        lives = info.get("lives", 0)
        is_over = bool(terminated or truncated)
        self._should_continue_game = (
            self.settings.episodic_life and not is_over and 0 < lives < self._num_lives
        )
        self._num_lives = lives
        total = float(np.sign(total)) if self.settings.clip_rewards else total
        return (
            self._observe(screens),
            total,
            bool(terminated or self._should_continue_game),
            bool(truncated),
            info,
        )

    def render(self) -> Any:
        return self.game.render()

    def close(self) -> None:
        self.game.close()

    def _step_noops(
        self, frames: int, screen: np.ndarray, info: dict[str, object]
    ) -> tuple[Any, Any]:
        """Step with no-op actions for some frames and return the last screen and info."""
        for _ in range(frames):
            screen, _, terminated, truncated, info = self.game.step(0)
            if terminated or truncated:
                screen, info = self.game.reset()
        return screen, info

    def _observe(self, screens: list[np.ndarray]) -> np.ndarray:
        return self._stack.push(screens[0] if len(screens) == 1 else np.maximum(*screens))
