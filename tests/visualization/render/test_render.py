"""Tests of rendering: frames of episodes in every family of environments."""

import io

import jax
import numpy as np
import pytest
from PIL import Image

import rollax
from rollax.canvas import scene
from rollax.cli.main import main
from rollax.environments.native.memory.drawing import draw_symbols
from rollax.environments.native.memory.repetition import RepeatPreviousState
from rollax.environments.observation_images import draw_observation
from rollax.environments.wrappers import PreviousActionReward
from rollax.errors import UsageError
from rollax.training.compile.program import build_algorithm_and_environment
from rollax.training.spec import make_spec
from rollax.visualization.render import animation, captions, drawings, recorded_episodes
from rollax.visualization.render.render import render


def check_gif(path):
    """Return the number of frames of an animation, after reading all of them."""
    with Image.open(path) as image:
        assert image.format == "GIF" and image.info["loop"] == 0
        for index in range(image.n_frames):
            image.seek(index)
            image.load()
        return image.n_frames


def check_picture(picture):
    assert picture.mode == "RGB" and 40 <= picture.height <= 400 and 40 <= picture.width <= 700
    assert len(picture.getcolors(maxcolors=1_000_000)) > 1


def played(run, seed=0, **options):
    policy = rollax.load(run, checkpoint="best")
    key = recorded_episodes.episode_keys(seed, 1)[0]
    return recorded_episodes.record_episode(
        policy,
        recorded_episodes.make_episode_runner(policy, True),
        key,
        options.pop("max_frames", 10_000),
    )


@pytest.mark.quick
def test_an_episode_has_a_frame_per_step(run):
    path = render(run)
    play = played(run)
    assert path == run / "figures" / "episode.gif"
    assert check_gif(path) == len(play.frames) == play.frames[-1].step + 1
    assert path.stat().st_size < 3_000_000


def test_frames_have_the_states_of_the_episode(run):
    frames = played(run).frames
    assert [frame.step for frame in frames] == list(range(len(frames)))
    assert frames[-1].total == pytest.approx(len(frames) - 1) and frames[-1].end in (
        "terminated",
        "truncated",
    )
    assert not any(frame.end for frame in frames[:-1])
    for frame in frames:
        assert np.allclose(
            frame.obs, [frame.state.x, frame.state.x_dot, frame.state.theta, frame.state.theta_dot]
        )


def test_long_episodes_are_subsampled_and_include_their_end(run, tmp_path):
    whole, thin = played(run), played(run, max_frames=5)
    assert thin.stride > 1 and len(thin.frames) <= 5
    assert [frame.step for frame in thin.frames[:-1]] == list(
        range(0, whole.frames[-1].step, thin.stride)
    )
    assert (
        thin.frames[-1].step == whole.frames[-1].step
        and thin.frames[-1].total == whole.frames[-1].total
    )
    assert check_gif(render(run, tmp_path / "thin.gif", max_frames=5)) == len(thin.frames)


def test_several_episodes_and_sampled_actions(run, tmp_path):
    one = check_gif(render(run, tmp_path / "one.gif"))
    assert check_gif(render(run, tmp_path / "two.gif", episodes=2, greedy=False, fps=10)) > min(
        one, 4
    )


def test_rendering_with_other_environment_arguments(run, tmp_path):
    words = [
        "render",
        str(run),
        "--out",
        str(tmp_path / "short.gif"),
        "--eval-env.max-steps-in-episode",
        "5",
    ]
    assert main(words) == 0
    assert check_gif(tmp_path / "short.gif") == 6


def test_a_member_of_a_population(sweep, tmp_path):
    assert check_gif(render(sweep, tmp_path / "member.gif", member=3)) > 1


@pytest.mark.parametrize(
    "options, words",
    [
        ({"out": "episode.webm"}, "must end in .gif or .mp4"),
        ({"episodes": 0}, r"episodes must be between 1 and .* got 0"),
        ({"max_frames": 1}, "max_frames must be between 2 and .* got 1"),
        ({"fps": -1}, "fps must be between 1 and .* got -1"),
        ({"checkpoint": "newest"}, "checkpoint"),
    ],
)
def test_invalid_arguments_of_render_raise_usage_error(run, options, words):
    with pytest.raises(UsageError, match=words):
        render(run, **options)


def test_rendering_a_folder_that_is_not_a_run_raises_usage_error(tmp_path):
    with pytest.raises(UsageError, match="is not a run"):
        render(tmp_path)


def test_all_agents_of_an_environment_are_recorded():
    spec = make_spec(
        "ppo",
        "probe/two-agents",
        {},
        {"num_envs": 2, "num_steps": 4},
        None,
        rollax.RunOptions(),
        {},
    )
    algorithm, environment = build_algorithm_and_environment(spec)
    state = algorithm.init(jax.random.key(0), spec.config)
    policy = rollax.Policy(spec, environment, 0, state, algorithm, [])
    play = recorded_episodes.record_episode(
        policy, recorded_episodes.make_episode_runner(policy, False), jax.random.key(1), 10
    )
    assert [frame.total.shape for frame in play.frames] == [(2,), (2,)] and play.frames[
        -1
    ].end == "terminated"
    pictures = captions.compose_frames(environment, drawings.find_drawing(environment), play)
    check_picture(pictures[-1])
    lines = captions.make_caption(
        environment, drawings.find_drawing(environment), play, play.frames[-1]
    ).agents
    assert [line.name for line in lines] == ["agent_0", "agent_1"]
    assert [line.total for line in lines] == [f"{total:.2f}" for total in play.frames[-1].total]


@pytest.mark.parametrize(
    "shape, dtype",
    [
        ((10, 10, 4), "float32"),
        ((64, 64, 3), "uint8"),
        ((7, 7, 2), "int32"),
        ((5, 9), "bool"),
        ((300,), "float32"),
    ],
)
def test_observations_of_any_shape_are_drawn(shape, dtype):
    high = 255 if dtype == "uint8" else 5
    space = rollax.spaces.Box(0, high, shape, dtype)

    class Environment:
        name, observation_space, num_agents = "mine/Any", space, None

    picture = draw_observation(Environment, None, np.asarray(space.sample(jax.random.key(0))))
    check_picture(picture)


def test_nonfinite_observations_are_drawn():
    class Environment:
        name, observation_space, num_agents = "mine/Any", rollax.spaces.Box(-1e9, 1e9, (3,)), None

    assert (
        draw_observation(Environment, None, np.array([np.nan, np.inf, 1.0])).width
        == scene.SCENE_WIDTH
    )


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0"])
def test_partially_observed_environments_are_drawn_completely(name):
    whole, part = rollax.make(f"gymnax/{name}"), rollax.make(f"memory/{name}")
    state, obs = jax.device_get(jax.jit(lambda key: part.reset(key))(jax.random.key(0)))
    assert drawings.find_drawing(part).fps == drawings.find_drawing(whole).fps
    expected = drawings.find_drawing(whole).draw(whole, state, None)
    assert drawings.find_drawing(part).draw(part, state, obs).tobytes() == expected.tobytes()


def test_a_drawing_of_observations_finds_them_in_wrappers():
    env = rollax.make("gymnax/Breakout-MinAtar")
    obs = np.eye(10)[..., None] * np.ones(4)
    wrapped = {"observation": obs, "previous_action": 0, "previous_reward": 0.0}
    pictures = [
        drawings.find_drawing(env).draw(env, None, obs),
        drawings.find_drawing(PreviousActionReward(env)).draw(
            PreviousActionReward(env), None, wrapped
        ),
    ]
    assert pictures[0].tobytes() == pictures[1].tobytes()


def test_symbols_to_repeat_are_drawn_in_their_order():
    env = rollax.make("memory/repeat-previous", delay=2)

    def colors(recent, time):
        picture = draw_symbols(
            env, RepeatPreviousState(np.array(recent), np.array(time)), recent[-1]
        )
        return [
            picture.getpixel((round(scene.SCENE_WIDTH / 2 + place * 64 - 20), 60))
            for place in (-1, 0, 1)
        ]

    assert colors([2, 0, 1], 7) == [
        scene.CHANNEL_COLORS[2],
        scene.CHANNEL_COLORS[0],
        scene.CHANNEL_COLORS[1],
    ]
    assert colors([0, 0, 1], 0) == [scene.BACKGROUND, scene.BACKGROUND, scene.CHANNEL_COLORS[1]]


def test_colors_of_small_objects_are_preserved():
    pictures = [Image.effect_noise((60, 60), 60).convert("RGB") for _ in range(3)]
    pictures[1].putpixel((5, 5), (255, 1, 2))
    with Image.open(io.BytesIO(animation.encode_gif(pictures, [100] * 3, [(255, 1, 2)]))) as image:
        image.seek(1)
        assert image.convert("RGB").getpixel((5, 5)) == (255, 1, 2)


def test_frames_of_an_animation_are_padded_to_one_size():
    low, high = Image.new("RGB", (30, 10), "red"), Image.new("RGB", (30, 20), "blue")
    padded = animation.pad_to_same_size([low, high])
    assert [image.size for image in padded] == [(30, 20), (30, 20)]
    assert (
        padded[0].getpixel((3, 3)) == (255, 0, 0)
        and padded[0].getpixel((3, 15)) == scene.BACKGROUND
    )
