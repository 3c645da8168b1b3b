"""Tests of simulators that cannot render, whose errors name the requirements."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

import rollax
from rollax import UsageError
from rollax.visualization.render import host_episodes
from rollax.visualization.render.render import render


class Silent(gymnasium.Env):
    """Environment without `render_mode`. `drawn` is the result or the exception of `render`."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, drawn: Any = None) -> None:
        self.drawn = drawn

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), 0.0, True, False, {}

    def render(self) -> Any:
        if isinstance(self.drawn, Exception):
            raise self.drawn
        return self.drawn


gymnasium.register("Silent-v0", entry_point=Silent)


def draw(environment: Any) -> np.ndarray:
    """Return the first frame of a rendered episode."""
    simulator = host_episodes._make_simulator(environment)
    simulator.reset(0)
    return host_episodes._read_frame(SimpleNamespace(environment=environment), simulator)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        ("Silent-v0", "it cannot be made with render_mode='rgb_array'"),
        (Silent, "its render() returns None"),
        (lambda: Silent("a text"), "its render() returns a str of shape ()"),
        (lambda: Silent(np.zeros((4, 4))), "its render() returns a ndarray of shape (4, 4)"),
        (
            lambda: Silent(NotImplementedError()),
            "its render() raises NotImplementedError: no message",
        ),
    ],
    ids=["id", "None", "text", "flat", "raises"],
)
def test_simulators_without_frames_raise_usage_error(make: Any, reason: str) -> None:
    with pytest.raises(UsageError) as error:
        draw(rollax.from_gymnasium(make, name="mine/Silent"))
    message = str(error.value)
    assert message.startswith("mine/Silent cannot be drawn: ") and reason in message
    assert "render_mode='rgb_array'" in message and "rollax plot" in message


def test_a_missing_package_is_named() -> None:
    missing = gymnasium.error.DependencyNotInstalled("pygame is not installed")
    with pytest.raises(
        UsageError, match=r"cannot be drawn: pygame is not installed. Install that package"
    ):
        draw(rollax.from_gymnasium(lambda: Silent(missing), name="mine/Silent"))


def test_a_frame_is_returned() -> None:
    assert draw(
        rollax.from_gymnasium(lambda: Silent(np.zeros((4, 4, 3))), name="mine/Silent")
    ).shape == (4, 4, 3)


def test_rendering_a_run_without_frames_raises_usage_error(tmp_path: Path) -> None:
    """The error has the id, and the missing argument of the constructor."""
    config = {"num_envs": 2, "num_steps": 2, "num_minibatches": 1, "num_epochs": 1}
    options = {
        "run_dir": tmp_path / "run",
        "total_steps": 4,
        "eval_count": 0,
        "eval_episodes": 1,
        "tensorboard": False,
    }
    with jax.debug_key_reuse(False):  # saved keys are used again
        run = rollax.train("ppo", "gymnasium/Silent-v0", config=config, options=options, quiet=True)
        with pytest.raises(
            UsageError,
            match="gymnasium/Silent-v0 cannot be drawn: it cannot be made with render_mode",
        ):
            render(run.folder, tmp_path / "episode.gif")
