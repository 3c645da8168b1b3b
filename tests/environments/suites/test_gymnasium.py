"""Tests of the Gymnasium adapter: spaces, values, time limits, ids and preprocessing of ALE."""

import os
import pickle
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces as theirs
from PIL import Image

import rollax
from rollax.environments import default_arguments, list_environments, make
from rollax.environments.registry import evaluation_arguments
from rollax.environments.suites.gymnasium import atari, converters
from rollax.errors import UnknownNameError, UsageError
from rollax.spaces import Box, Dict, Discrete, MultiDiscrete

# Environments of Gymnasium in JAX or with old interfaces are not offered.
NOT_OFFERED = ("phys2d/", "tabular/", "GymV")


def test_every_id_of_gymnasium_is_listed() -> None:
    atari.register_games()
    own = {
        spec.id
        for spec in gymnasium.registry.values()
        if str(spec.entry_point).startswith("gymnasium.envs")
    }
    games = {id for id in gymnasium.registry if id.startswith("ALE/") and id.endswith("-v5")}
    listed = {id.removeprefix("gymnasium/") for id in list_environments("gymnasium")}
    assert listed == {id for id in own if not id.startswith(NOT_OFFERED)} | games


ACME = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Longer(CartPoleEnv):
    def __init__(self, length=0.5, render_mode=None):
        super().__init__(render_mode=render_mode)
        self.length = length

gymnasium.register("acme/Longer-v0", entry_point=Longer, max_episode_steps=30, \
kwargs={"length": 2.0})
class Undrawn(CartPoleEnv):
    def __init__(self):
        super().__init__()

gymnasium.register("Undrawn-v0", entry_point=Undrawn)
gymnasium.register("Longer-v1", entry_point="acme_poles:Longer")
gymnasium.register("Many-v0", vector_entry_point="acme_poles:Many")
"""


def test_ids_of_other_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in gymnasium.make, the package is imported before or named in the id.

    Other processes need not import it.
    """
    (tmp_path / "acme_poles.py").write_text(ACME)
    (tmp_path / "acme_broken.py").write_text("raise OSError('no licence')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        gymnasium.envs.registration, "registry", registry := dict(gymnasium.registry)
    )
    monkeypatch.setattr(gymnasium, "registry", registry)
    for name in ("Longer-v1", "Acrobt-v1", "acme_poles:Shorter-v0"):
        with pytest.raises(
            UnknownNameError,
            match=rf"unknown environment 'gymnasium/{name}.*gymnasium/PACKAGE:NAME",
        ):
            make(f"gymnasium/{name}")
    assert default_arguments("gymnasium/acme_poles:acme/Longer-v0") == {
        "length": 2.0,
        "max_episode_steps": 30,
    }
    environment: Any = make("gymnasium/acme_poles:acme/Longer-v0", length=3, max_episode_steps=2)
    assert environment.time_limit == 2 and make("gymnasium/Longer-v1").time_limit is None
    assert (
        make("gymnasium/Undrawn-v0").action_space
        == rollax.from_gymnasium("Undrawn-v0").action_space
        == Discrete(2)
    )
    with pytest.raises(UsageError, match="has no entry_point"):
        make("gymnasium/Many-v0")
    registry.clear()
    simulator = pickle.loads(pickle.dumps(environment.make_simulator))()
    assert simulator.environment.unwrapped.length == 3.0
    simulator.reset(0)
    assert [simulator.step(0)[2:4] for _ in range(2)] == [(False, False), (False, True)]
    with pytest.raises(UsageError, match="acme_pole.: there is no such module"):
        make("gymnasium/acme_pole:Longer-v1")
    with pytest.raises(UsageError, match="importing it failed with OSError: no licence"):
        make("gymnasium/acme_broken:Longer-v1")


def test_spaces_and_values_are_converted() -> None:
    inner = theirs.Dict(
        {"place": theirs.Box(-1.0, 1.0, (2,), np.float64), "kind": theirs.Discrete(3, start=5)}
    )
    space = theirs.Dict(
        {
            "inner": inner,
            "pair": theirs.Tuple((theirs.MultiBinary(2), theirs.MultiDiscrete([2, 3]))),
        }
    )
    found, convert = converters.convert_observation_space("test", space)
    assert found == Dict(
        {
            "inner/place": Box(-1.0, 1.0, (2,)),
            "inner/kind": Discrete(3),
            "pair/0": Box(0.0, 1.0, (2,)),
            "pair/1": MultiDiscrete((2, 3)),
        }
    )
    pair = np.array([1, 0], np.int8), np.array([1, 2])
    given = {"inner": {"place": np.array([0.5, 0.25]), "kind": np.int64(7)}, "pair": pair}
    value: Any = converters.make_observation_converter(found, convert)(given)
    assert int(value["inner/kind"]) == 2 and value["inner/place"].dtype == np.float32
    assert bool(found.contains(jax.tree.map(np.asarray, value)))
    _, act = converters.convert_action_space("test", theirs.Discrete(3, start=-1))
    assert [act(i) for i in range(3)] == [-1, 0, 1]
    bounded, act = converters.convert_action_space("test", theirs.Box(-0.4, 0.4, (1,), np.float32))
    assert theirs.Box(-0.4, 0.4, (1,), np.float32).contains(
        act(np.asarray(bounded.sample(jax.random.key(0))))
    )
    with pytest.raises(UsageError, match="no counterpart"):
        converters.convert_observation_space("test", theirs.Text(3))
    parts, act = converters.convert_action_space("test", inner)
    assert parts == Dict({"place": Box(-1.0, 1.0, (2,)), "kind": Discrete(3)})
    assert inner.contains(act({"place": np.array([0.5, 2.0], np.float32), "kind": np.int32(2)}))
    with pytest.raises(UsageError, match="no counterpart"):
        converters.convert_action_space("test", theirs.Dict({"text": theirs.Text(3)}))


def test_the_time_limit_truncates_and_is_an_argument() -> None:
    environment: Any = make("gymnasium/MountainCar-v0", max_episode_steps=7)
    assert (
        environment.time_limit == 7
        and default_arguments("gymnasium/MountainCar-v0")["max_episode_steps"] == 200
    )
    simulator = environment.make_simulator()
    for _ in range(2):
        simulator.reset(0)
        ends = [simulator.step(np.int32(0))[2:4] for _ in range(7)]
        assert ends == [(False, False)] * 6 + [(False, True)]
    simulator.close()
    with pytest.raises(UsageError, match="at least 1"):
        make("gymnasium/MountainCar-v0", max_episode_steps=0)


@pytest.mark.parametrize("limit", [0, -3, 2.5, True])
def test_a_time_limit_must_be_a_positive_integer(limit: Any) -> None:
    """This also holds for environments without a time limit and for custom ones."""
    with pytest.raises(UsageError, match="max_episode_steps"):
        make("gymnasium/CliffWalking-v1", max_episode_steps=limit)
    with pytest.raises(UsageError, match="max_episode_steps"):
        rollax.from_gymnasium("CartPole-v1", max_episode_steps=limit)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((4, 84, 60), (84, 60, 4)), ((84, 60), (84, 60, 1)), ((84, 60, 3), (84, 60, 3))],
)
def test_channels_of_images_are_last(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    space = theirs.Box(0, 255, shape, np.uint8)
    found, convert = converters.convert_observation_space("test", space)
    assert found == Box(0.0, 255.0, expected, "uint8")
    picture = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    np.testing.assert_array_equal(
        convert(picture),
        np.moveaxis(picture, 0, -1) if shape[0] == 4 else picture.reshape(expected),
    )


def test_uint8_boards_are_not_treated_as_images() -> None:
    found, _ = converters.convert_observation_space("test", theirs.Box(0, 3, (3, 8, 8), np.uint8))
    assert found == Box(0.0, 3.0, (3, 8, 8), "uint8")


class Masked(gymnasium.Env):
    """Environment with an action mask in its observation.

    It refuses illegal actions, and its info has `is_success` only at the end of an episode.
    """

    observation_space = theirs.Dict(
        place=theirs.Box(-1.0, 1.0, (1,)), action_mask=theirs.Box(0, 1, (4,), np.int8)
    )
    action_space = theirs.Discrete(4, start=1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observed(), {}

    def observed(self) -> dict[str, Any]:
        self.legal = np.isin(np.arange(4), self.np_random.choice(4, 2, replace=False)).astype(
            np.int8
        )
        return {"place": np.zeros(1, np.float32), "action_mask": self.legal}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.legal[action - 1], "an illegal move"
        ended = bool(self.np_random.random() < 0.3)
        return self.observed(), 0.0, ended, False, {"is_success": True} if ended else {}


@pytest.mark.usefixtures("as_free_with_keys_as_the_suite")
def test_an_action_mask_in_the_observation_is_used(tmp_path: Path) -> None:
    """No masked action is taken, also with normalized observations.

    Info of the last step is reported.
    """
    environment = rollax.from_gymnasium(Masked, info_names=["is_success"])
    space: Any = environment.observation_space
    assert space.spaces["action_mask"] == Box(
        0.0, 1.0, (4,), "bool"
    ) and environment.info_names == ("is_success",)
    config = {"num_envs": 2, "num_steps": 16, "num_minibatches": 1, "normalize_observations": True}
    options = {"run_dir": tmp_path, "eval_episodes": 2, "eval_count": 1, "tensorboard": False}
    result = rollax.train(
        "ppo", environment, total_steps=96, config=config, options=options, quiet=True
    )
    assert result.status == "done" and result.evaluation["is_success"] == 1
    with pytest.raises(UsageError, match="info_names .* must be a sequence"):
        rollax.from_gymnasium(Masked, info_names="is_success")


@pytest.mark.usefixtures("as_free_with_keys_as_the_suite")
def test_a_best_metric_that_is_never_reported_gives_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No episode reports the metric, and no command for a missing checkpoint is suggested."""
    environment = rollax.from_gymnasium(Masked, info_names=["won"])
    options = {
        "run_dir": tmp_path,
        "eval_episodes": 2,
        "eval_count": 1,
        "tensorboard": False,
        "best_metric": "won",
    }
    config = {"num_envs": 2, "num_steps": 16, "num_minibatches": 1}
    result = rollax.train("ppo", environment, total_steps=32, config=config, options=options)
    told = capsys.readouterr()
    assert (
        result.best is None and "warning: won is not finite in every episode" in told.out + told.err
    )
    assert "--checkpoint best" not in told.out + told.err


class MaskedWrongly(Masked):
    observation_space = theirs.Dict(
        place=theirs.Box(-1.0, 1.0, (1,)), action_mask=theirs.Box(0, 1, (3,), np.int8)
    )

    def observed(self) -> dict[str, Any]:
        return super().observed() | {"action_mask": np.ones(3, np.int8)}


def test_a_mask_of_another_shape_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        MaskedWrongly, "step", lambda self, action: (self.observed(), 0.0, False, False, {})
    )
    with pytest.raises(UsageError, match=r"must be Box\(0, 1, \(4,\), \"bool\"\)"):
        rollax.train("ppo", rollax.from_gymnasium(MaskedWrongly), total_steps=64)


def test_no_window_is_opened() -> None:
    """An environment with render mode "human" would open one window per simulator."""
    made = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    assert made.spec is not None
    made.spec.kwargs["render_mode"] = "human"
    simulator: Any = rollax.from_gymnasium(made).make_simulator()
    assert simulator.environment.render_mode is None and made.spec.kwargs["render_mode"] == "human"


def test_an_action_mask_in_info_becomes_part_of_the_observation() -> None:
    environment: Any = make("gymnasium/Taxi-v4")
    assert environment.observation_space == Dict(
        {"observation": Discrete(500), "action_mask": Box(0.0, 1.0, (6,), "bool")}
    )
    simulator = environment.make_simulator()
    assert simulator.reset(3)["action_mask"].dtype == bool
    simulator.close()


class Refusing(gymnasium.Env):
    """Environment that accepts only its one legal action."""

    def __init__(self, legal: int = 4) -> None:
        self.observation_space, self.action_space = (
            theirs.Box(-1.0, 1.0, (2,)),
            theirs.Discrete(6, start=2),
        )
        self.legal = legal

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {"action_mask": np.eye(6, dtype=np.int8)[4]}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action != self.legal + 2:
            raise ValueError(f"illegal move {action}")
        return (
            np.zeros(2, np.float32),
            0.0,
            False,
            False,
            {"action_mask": np.eye(6, dtype=np.int8)[4]},
        )


def test_the_check_of_an_environment_takes_legal_actions() -> None:
    parts: Any = rollax.from_gymnasium(Refusing).observation_space
    assert set(parts.spaces) == {"observation", "action_mask"}
    with pytest.raises(UsageError, match="step raises ValueError: illegal move 6"):
        rollax.from_gymnasium(lambda: Refusing(legal=1))


def test_misspelled_names_are_refused_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match="did you mean sutton_barto_reward"):
        make("gymnasium/CartPole-v1", sutton_barto=True)
    with pytest.raises(UsageError, match="did you mean .*gymnasium/HalfCheetah-v5"):
        make("gymnasium/HalfCheeta-v5")


def test_games_of_ale_are_preprocessed() -> None:
    """Frames are gray and stacked with the newest last, and seeds are reproducible.

    Lives as episodes are an argument.
    """
    pytest.importorskip("ale_py")
    environment: Any = make(
        "gymnasium/ALE/Breakout-v5", size=42, stack=3, episodic_life=True, noop_max=0
    )
    assert environment.observation_space == Box(0.0, 255.0, (42, 42, 3), "uint8")
    simulator = environment.make_simulator()
    first = simulator.reset(4)
    assert not first[..., :2].any() and first[..., 2].any()
    seen = [simulator.step(np.int32(1 + t % 3)) for t in range(200)]
    for before, after in zip(seen, seen[1:], strict=False):
        if not before[2]:
            np.testing.assert_array_equal(after[0][..., :2], before[0][..., 1:])
    np.testing.assert_array_equal(simulator.reset(4), first)
    again = [simulator.step(np.int32(1 + t % 3)) for t in range(200)]
    assert [x[1] for x in seen] == [x[1] for x in again]
    assert any(x[2] and x[4]["lives"] > 0 for x in seen), "a lost life ends an episode"
    simulator.close()


def test_a_truncated_game_restarts_with_lives_as_episodes() -> None:
    pytest.importorskip("ale_py")
    simulator: Any = make(
        "gymnasium/ALE/Breakout-v5", episodic_life=True, noop_max=0, max_episode_steps=20
    ).make_simulator()
    frames = []
    for _ in range(2):
        simulator.reset(None)
        steps = [simulator.step(np.int32(0)) for _ in range(20)]
        assert [x[3] for x in steps] == [False] * 19 + [True]
        frames.append(steps[-1][4]["episode_frame_number"])
    assert frames[0] == frames[1]
    simulator.close()


def test_evaluations_of_ale_use_whole_games() -> None:
    whole = {"episodic_life": False, "clip_rewards": False}
    assert evaluation_arguments("gymnasium/ALE/Pong-v5") == whole
    assert evaluation_arguments("gymnasium/CartPole-v1") == {}


def test_an_existing_environment_is_recreated_with_its_wrappers() -> None:
    """Simulators are new environments, and the given object is not changed."""
    given = gymnasium.wrappers.RescaleAction(
        gymnasium.make("Pendulum-v1", max_episode_steps=77), np.float32(-1), np.float32(1)
    )
    first, _ = given.reset(seed=3)
    environment: Any = rollax.from_gymnasium(given)
    assert (environment.name, environment.time_limit) == ("own/Pendulum-v1", 77)
    assert environment.action_space == Box(-1.0, 1.0, (1,))
    simulator = environment.make_simulator()
    np.testing.assert_allclose(simulator.reset(3), first)
    ours, theirs = (
        simulator.step(np.asarray([0.5], np.float32)),
        given.step(np.asarray([0.5], np.float32)),
    )
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-6)
    simulator.close()


@pytest.mark.parametrize("name", ["HalfCheetah-v5", "Hopper-v5", "LunarLander-v3"])
def test_steps_of_mujoco_and_box2d_equal_those_of_gymnasium(name: str) -> None:
    """Observations, rewards and ends are compared after the same start and actions."""
    environment: Any = make(f"gymnasium/{name}")
    ours, theirs = environment.make_simulator(), gymnasium.make(name)
    np.testing.assert_allclose(ours.reset(7), theirs.reset(seed=7)[0], rtol=1e-6)
    theirs.action_space.seed(0)
    for _ in range(40):
        action = theirs.action_space.sample()
        (obs, reward, terminated, truncated, _), after = ours.step(action), theirs.step(action)
        np.testing.assert_allclose(obs, after[0], rtol=1e-5, atol=1e-6)
        assert reward == pytest.approx(float(after[1]), rel=1e-6)
        assert (terminated, truncated) == after[2:4]
        if terminated:
            break
    ours.close()


@pytest.mark.skipif(os.name == "nt", reason="pygame without a screen")
def test_rendering_works_without_a_screen() -> None:
    environment: Any = rollax.from_gymnasium("CartPole-v1")
    simulator = environment.make_simulator(shows_frames=True)
    simulator.reset(0)
    assert simulator.frame().shape == (400, 600, 3) and environment.time_limit == 500
    simulator.close()


def test_preprocessing_of_carracing() -> None:
    """Rewards of skipped frames are summed.

    The newest image is last in the stack, and the limit is in frames.
    """
    environment: Any = make(
        "gymnasium/CarRacing-v3",
        frame_skip=3,
        size=32,
        grayscale=True,
        stack=2,
        max_episode_steps=10,
    )
    assert environment.time_limit == 4 and environment.observation_space.shape == (32, 32, 2)
    ours, theirs = environment.make_simulator(), gymnasium.make("CarRacing-v3").unwrapped
    first, (picture, _) = ours.reset(5), theirs.reset(seed=5)

    def gray(x):
        return np.asarray(Image.fromarray(x).convert("L").resize((32, 32), Image.Resampling.BOX))

    np.testing.assert_array_equal(first[..., 1], gray(picture))
    assert not first[..., 0].any(), "an episode begins with empty pictures below"
    action = np.asarray([0.1, 0.8, 0.0], np.float32)
    obs, reward, *_ = ours.step(action)
    total = 0.0
    for _ in range(3):
        picture, one, *_ = theirs.step(action)
        total += one
    np.testing.assert_array_equal(obs[..., 1], gray(picture))
    np.testing.assert_array_equal(obs[..., 0], first[..., 1])
    assert reward == pytest.approx(total, rel=1e-6)
    ours.close()


def test_invalid_preprocessing_is_refused() -> None:
    with pytest.raises(UsageError, match=r"frame_skip \(0\) must be at least 1"):
        make("gymnasium/CarRacing-v3", frame_skip=0)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (np.zeros(2, np.float32), "got ndarray"),
        ((np.zeros(2, np.float32), None), r"got \(ndarray, NoneType\)"),
    ],
)
def test_results_of_reset_that_are_not_pairs_are_described(start: Any, message: str) -> None:
    class World(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,))
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return start

    with pytest.raises(UsageError, match=f"reset must return .* dictionary info.*{message}"):
        rollax.from_gymnasium(World)
