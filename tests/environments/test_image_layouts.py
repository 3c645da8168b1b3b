"""Tests of layouts of images: height, width, channels and stacked frames."""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as theirs

import rollax
from rollax.environments.image_layouts import (
    FLAT,
    image_shape,
    layout_fault,
    move_channels_last,
    recognize_layout,
)
from rollax.environments.suites.gymnasium import converters
from rollax.errors import UnknownNameError, UsageError
from rollax.networks.layers import Encoder
from rollax.networks.observation_encoding import describe_observation, large_layer_warning
from rollax.spaces import Box, Dict, Discrete, Grid
from support.runs import Script


@pytest.mark.parametrize(
    ("shape", "dtype", "layout"),
    [
        ((84, 84, 3), "uint8", "HWC"),
        ((3, 20, 20), "uint8", "CHW"),
        ((3, 32, 32), "float32", "CHW"),
        ((30, 84, 84), "uint8", "CHW"),
        ((4, 84, 60), "float32", "CHW"),
        ((84, 84, 30), "float32", "HWC"),
        ((1, 84, 84), "float32", "CHW"),
        ((200, 10, 3), "uint8", "HWC"),
        ((4, 84, 84, 3), "uint8", "NHWC"),
        ((4, 3, 84, 84), "float32", "NCHW"),
        ((84, 84, 3, 4), "uint8", "HWNC"),
        ((84, 84), "uint8", "HW"),
        ((84, 84), "float32", FLAT),
        ((4, 6), "float32", FLAT),
        ((10, 10, 4), "bool", "HWC"),  # MinAtar
        ((10, 10, 10), "bool", "HWC"),
        ((4, 10, 10), "bool", "CHW"),
        ((9, 9, 17), "bool", "HWC"),  # Pgx
        ((6, 7, 2), "float32", "HWC"),
        ((5, 4, 26), "float32", "HWC"),  # Overcooked
        ((8, 8, 8, 8), "float32", FLAT),
        ((64, 8, 8), "float32", "HWC"),
    ],
)
def test_layouts_are_recognized(shape: tuple[int, ...], dtype: str, layout: str) -> None:
    high = 255.0 if dtype == "uint8" else 1.0
    assert recognize_layout(Box(0.0, high, shape, dtype)) == layout


@pytest.mark.quick
def test_categorical_arrays_keep_their_axes() -> None:
    assert recognize_layout(Box(0.0, 3.0, (3, 8, 8), "uint8")) == "HWC"
    assert recognize_layout(Box(0.0, 12.0, (4, 10, 10, 3), "int32")) == FLAT


@pytest.mark.parametrize("layout", ["HWC", "CHW", "NHWC", "NCHW", "HWNC", "HW", "NHW"])
def test_frames_and_channels_become_one_axis(layout: str) -> None:
    """Frames come first and then channels, after any leading axes."""
    sizes = {"H": 5, "W": 7, "C": 3, "N": 4}
    shape = tuple(sizes[letter] for letter in layout)
    value = np.random.default_rng(0).random((2, *shape))
    turned = move_channels_last(value, layout)
    assert turned.shape == (2, *(image_shape(Box(0, 1, shape, layout=layout)) or ()))
    where = {"H": 1, "W": 2, "C": 1, "N": 3}
    channel = sum(
        where[letter] * (sizes["C"] if letter == "N" and "C" in layout else 1)
        for letter in layout
        if letter in "NC"
    )
    assert turned[1, 1, 2, channel] == value[(1, *(where[letter] for letter in layout))]


class Screen(gymnasium.Env):
    """Environment whose observation is one image."""

    action_space = theirs.Discrete(2)

    def __init__(self, shape: tuple[int, ...], dtype: Any = np.uint8) -> None:
        self.observation_space = theirs.Box(0, 255 if dtype == np.uint8 else 1, shape, dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, False, False, {}


def test_stacked_images_of_gymnasium_are_convolved() -> None:
    environment = rollax.from_gymnasium(lambda: Screen((4, 84, 84, 3)), name="test/screen")
    assert environment.observation_space == Box(0.0, 255.0, (84, 84, 12), "uint8")
    simulator: Any = environment.make_simulator()
    seen = simulator.reset(3)
    inner = simulator.environment.observation_space
    inner.seed(3)
    np.testing.assert_array_equal(seen[..., 3:6], inner.sample()[1])


def test_a_stated_layout_is_used() -> None:
    stated: Any = rollax.from_gymnasium(
        lambda: Screen((3, 20, 20)), name="test/screen", layout="HWC"
    ).observation_space
    assert (
        stated.shape == (3, 20, 20)
        and stated.layout == "HWC"
        and image_shape(stated) == (3, 20, 20)
    )
    flat: Any = rollax.from_gymnasium(
        lambda: Screen((4, 84, 84, 3)), name="test/screen", layout="flat"
    ).observation_space
    assert flat.shape == (4, 84, 84, 3) and image_shape(flat) is None
    parts = theirs.Dict(a=theirs.Box(0, 1, (30, 20, 4)), b=theirs.Box(0, 1, (2,)))
    found: Any = converters.convert_observation_space("test", parts, {"a": "WHC"})[0]
    assert found.spaces["a"].shape == (20, 30, 4)
    both: Any = converters.convert_observation_space("test", parts, "WHC")[0]
    assert both == found
    with pytest.raises(
        UnknownNameError, match="unknown part of the observations of test in layout 'c'"
    ):
        converters.convert_observation_space("test", parts, {"c": "HWC"})


@pytest.mark.parametrize("layout", ["HWX", "HWCC", "HC", "HWCN", 3])
def test_invalid_layouts_are_refused(layout: Any) -> None:
    assert layout_fault((3, 20, 20), layout) is not None
    with pytest.raises(UsageError, match="layout"):
        converters.convert_observation_space(
            "test", theirs.Dict(a=theirs.Box(0, 1, (3, 20, 20))), {"a": layout}
        )


@pytest.mark.parametrize(
    ("shape", "layout"), [((3, 20, 20), None), ((20, 3, 20), "HCW"), ((2, 20, 20, 4), None)]
)
def test_an_encoder_has_the_same_output_for_any_layout(
    shape: tuple[int, ...], layout: str | None
) -> None:
    space = Box(0, 1, shape, layout=layout)
    turned = Box(0, 1, image_shape(space) or ())
    value = np.random.default_rng(0).random(shape, np.float32)
    ours, plain = (
        Encoder(each, (4,), "tanh", None, key=jax.random.key(0)) for each in (space, turned)
    )
    expected = move_channels_last(value, layout or recognize_layout(space))
    np.testing.assert_allclose(ours(jnp.asarray(value)), plain(jnp.asarray(expected)), rtol=1e-6)


@pytest.mark.parametrize("shape", [(3, 20, 20), (3, 84, 84), (6, 84, 84)])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_channels_of_an_image_may_be_first(shape: tuple[int, ...], dtype: str) -> None:
    """This holds for all dtypes, sizes and numbers of channels of environments in JAX."""
    high = 255 if dtype == "uint8" else 1
    spaces_of = Box(0, high, shape, dtype), Box(0, high, (*shape[1:], shape[0]), dtype)
    value = (high * np.random.default_rng(0).random(shape)).astype(dtype)
    ours, plain = (Encoder(space, (4,), "tanh", None, key=jax.random.key(0)) for space in spaces_of)
    np.testing.assert_allclose(
        ours(jnp.asarray(value)),
        plain(jnp.asarray(np.moveaxis(value, 0, -1))),
        rtol=1e-5,
        atol=1e-6,
    )


def test_observations_are_described() -> None:
    space = Dict(
        {
            "camera": Box(0, 255, (4, 84, 84, 3), "uint8"),
            "small": Box(0, 1, (2, 2, 3)),
            "speed": Box(-1, 1, (3,)),
            "mode": Discrete(3),
            "view": Grid((5, 5), (3, 4)),
            "action_mask": Box(0, 1, (2,), "bool"),
        }
    )
    told = describe_observation(space)
    assert (
        "camera: picture 84 x 84 with 12 channels (NHWC [4, 84, 84, 3]), through convolutions"
        in told
    )
    assert "small: picture 2 x 2 with 3 channels, flattened to 12 numbers" in told
    assert (
        "speed: 3 numbers; view: grid 5 x 5 of symbols, embedded" in told
        and "mode: one of 3, one-hot" in told
    )


@pytest.mark.parametrize(("layout", "is_large"), [(None, False), ("flat", True)])
def test_large_dense_layers_give_a_warning(layout: str | None, is_large: bool) -> None:
    space = Dict(
        {"camera": Box(0, 255, (4, 84, 84, 3), "uint8", layout=layout), "speed": Box(0, 1, (2,))}
    )
    network = jax.eval_shape(
        lambda key: Encoder(space, (64,), "tanh", None, key=key), jax.random.key(0)
    )
    warning = large_layer_warning(network)
    assert (warning is not None) == is_large
    if warning:
        assert (
            "84,674 x 64 weights" in warning
            and "the part 'camera'" in warning
            and 'layout="NHWC"' in warning
        )


def test_a_run_describes_its_observations(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"run_dir": tmp_path, "eval_count": 0, "eval_episodes": 1, "tensorboard": False}
    config = {"num_envs": 2, "num_steps": 2, "num_minibatches": 1, "num_epochs": 1}
    environment = rollax.from_gymnasium(
        lambda: Screen((3, 20, 20)), name="test/screen", max_episode_steps=3
    )
    with jax.debug_key_reuse(False):  # evaluations have the same starts on purpose
        rollax.train("ppo", environment, total_steps=4, config=config, options=options)
    told = capsys.readouterr()
    assert (
        "observation: picture 20 x 20 with 3 channels, through convolutions" in told.out + told.err
    )


def test_a_run_warns_about_a_large_dense_layer(tmp_path: Any) -> None:
    """The warning comes before training and has the number of weights."""
    events: list[str] = []
    show = Script(lambda kind, text: events.append(f"{kind}: {text}"))
    options = {
        "run_dir": tmp_path / "run",
        "eval_count": 0,
        "eval_episodes": 1,
        "tensorboard": False,
    }
    config = {"num_envs": 2, "num_steps": 2, "num_minibatches": 1, "num_epochs": 1}
    environment = rollax.from_gymnasium(
        lambda: Screen((300, 300), np.float32), name="test/screen", max_episode_steps=3
    )
    network = {"hidden": (64,)}
    with jax.debug_key_reuse(False):  # evaluations have the same starts on purpose
        rollax.train(
            "ppo",
            environment,
            total_steps=4,
            config=config,
            network=network,
            options=options,
            show=show,
        )
    (place,) = [index for index, event in enumerate(events) if "90,000 x 64 weights" in event]
    assert events[place].startswith("message: warning: ")
    assert not any(event.startswith("progress") for event in events[:place])
