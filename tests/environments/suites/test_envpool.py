"""Tests of environments of EnvPool: the values of `info`, images and arguments."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import rollax
from rollax.environments import make
from rollax.environments.suites.envpool.adapter import find_info_names
from rollax.environments.suites.gymnasium import display
from rollax.errors import UsageError
from rollax.spaces import Box
from rollax.training.simulators import runner
from support.fixtures import compile_once, train  # noqa: F401


def needs_envpool() -> None:
    """Skip a test if EnvPool is not installed, without importing it before rollax does."""
    if importlib.util.find_spec("envpool") is None:
        pytest.skip("needs EnvPool")


def test_info_has_the_scalars_of_each_environment() -> None:
    """Vectors, keys outside of `info` and values that a step returns anyway are left out."""
    parts = {
        "info:lives": ((-1,), np.int32),
        "info:speed": ((), np.float64),
        "info:is_safe": ((), bool),
        "info:ram": ((128,), np.uint8),
        "info:env_id": ((), np.int32),
        "info:players.env_id": ((-1,), np.int32),
        "info:terminated": ((-1,), np.int32),
        "reward": ((-1,), np.float32),
    }
    spec = {
        name: SimpleNamespace(shape=list(shape), dtype=dtype)
        for name, (shape, dtype) in parts.items()
    }
    assert find_info_names(spec) == ("is_safe", "lives", "speed")


@pytest.mark.parametrize(
    ("name", "shape"), [("CarRacing-v3", (96, 96, 3)), ("Pong-v5", (84, 84, 4))]
)
def test_channels_of_images_are_last(name: str, shape: tuple[int, ...]) -> None:
    """EnvPool returns some images with channels first and some with channels last."""
    needs_envpool()
    environment: Any = make(f"envpool/{name}")
    simulator = environment.make_simulator()
    assert (
        environment.observation_space == Box(0.0, 255.0, shape, "uint8")
        and simulator.reset(0).shape == shape
    )
    simulator.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stack_num": 0}, r"stack_num \(0\) must be at least 1"),
        ({"noop_max": 0}, r"noop_max \(0\) must be at least 1"),
        ({"img_height": 0}, r"img_height \(0\) must be at least 1"),
        ({"frame_skip": -1}, r"frame_skip \(-1\) must be at least 1"),
        (
            {"repeat_action_probability": 1.5},
            r"repeat_action_probability \(1.5\) must be at least 0 and less than 1",
        ),
        ({"task": "nosuch"}, "unknown argument of envpool/Pong-v5 'task'"),
        ({"num_threads": -1}, r"num_threads \(-1\) must be between 0"),
        ({"num_threads": 100_000}, r"num_threads \(100000\) must be between 0"),
        ({"max_episode_steps": 0}, r"max_episode_steps \(0\) must be at least 1"),
    ],
)
def test_arguments_that_would_end_the_process_are_refused(
    arguments: dict[str, Any], message: str
) -> None:
    """Meaningless ones are refused as well, such as episodes without steps."""
    needs_envpool()
    with pytest.raises(UsageError, match=message):
        make("envpool/Pong-v5", **arguments)


def test_a_pool_equals_a_single_simulator() -> None:
    """Observations, rewards, ends and info of every step are the same for the same seed."""
    needs_envpool()
    environment: Any = make("envpool/HalfCheetah-v5", max_episode_steps=4)
    names = environment.info_names
    assert {"reward_run", "reward_ctrl", "x_velocity"} <= set(names) and "elapsed_step" not in names
    pool, one = runner.make_simulators(environment, 1, 0, 60.0, names), environment.make_simulator()
    np.testing.assert_array_equal(pool.reset([5]).obs[0], one.reset(5))
    for time in range(4):
        action = np.full(environment.action_space.shape, 0.1 * time, np.float32)
        after, alone = pool.step(action[None]), one.step(action)
        np.testing.assert_array_equal(after.next_obs[0], alone[0])
        assert (after.reward[0], after.terminated[0], after.truncated[0]) == (
            np.float32(alone[1]),
            *alone[2:4],
        )
        np.testing.assert_array_equal(after.info[0], [np.float32(alone[4][name]) for name in names])
        parts = alone[4]["reward_run"] + alone[4]["reward_ctrl"]
        assert abs(parts - alone[1]) < 1e-5
    assert after.truncated[0]
    pool.close()
    one.close()


def test_the_next_life_is_an_episode_of_the_same_game() -> None:
    needs_envpool()
    environment: Any = make("envpool/Breakout-v5", episodic_life=True, noop_max=1)
    pool, one = (
        runner.make_simulators(environment, 1, 0, 60.0, ("lives",)),
        environment.make_simulator(),
    )
    pool.reset([5])
    one.reset(5)
    fire, lives = True, {"pool": [], "one": []}
    for _ in range(600):
        action = np.int32(fire)
        after, alone = pool.step(action[None]), one.step(action)
        fire = bool(after.terminated[0])
        assert fire == alone[2]
        if fire:
            lives["pool"].append(int(after.info[0, 0]))
            lives["one"].append(int(alone[4]["lives"]))
            one.reset(None)
        if len(lives["pool"]) == 6:
            break
    assert lives["pool"] == lives["one"] == [4, 3, 2, 1, 0, 4]
    pool.close()
    one.close()


def test_evaluations_report_info_and_runs_can_be_rendered(tmp_path: Path) -> None:
    """`lives` and the game's reward are reduced as chosen, and an episode is written as a GIF."""
    needs_envpool()
    from rollax.visualization.render.render import render

    options = {
        "eval_episodes": 2,
        "eval_count": 1,
        "tensorboard": False,
        "run_dir": tmp_path,
        "eval_info": ("reward=sum",),
    }
    config = {"num_envs": 2, "num_steps": 4, "num_minibatches": 1, "num_epochs": 1}
    arguments = {"max_episode_steps": 8, "img_height": 42, "img_width": 42, "stack_num": 2}
    environment = make("envpool/Breakout-v5", **arguments)
    run = rollax.train(
        "ppo", environment, total_steps=8, config=config, options=options, quiet=True
    ).folder
    policy = rollax.load(run, environment=environment)
    told, episodes = policy.evaluate(2, jax.random.key(0))
    assert set(episodes.info) == {"lives", "reward"} and told["lives"] == 5.0
    np.testing.assert_array_equal(np.asarray(episodes.info["reward"]), np.asarray(episodes.returns))
    drawn = render(run, tmp_path / "episode.gif", environment=environment)
    assert drawn and (tmp_path / "episode.gif").stat().st_size > 1000


@pytest.mark.skipif(sys.platform != "linux", reason="EGL")
def test_mujoco_is_rendered_with_egl_or_refused(monkeypatch: Any) -> None:
    """If EGL is missing or was loaded after EnvPool, MuJoCo would end the process."""
    needs_envpool()
    environment: Any = make("envpool/InvertedPendulum-v5")
    if display.has_egl_before("envpool"):
        simulator = environment.make_simulator(shows_frames=True)
        for seed in (1, 2):
            simulator.reset(seed)
            assert simulator.frame().shape == (480, 480, 3) and simulator.frame().std() > 0
        simulator.close()
    monkeypatch.setattr(display, "has_egl_before", lambda _: False)
    with pytest.raises(UsageError, match="Install the library EGL"):
        environment.make_simulator(shows_frames=True)
    environment.make_simulator().close()
