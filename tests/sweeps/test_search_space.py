"""Tests of the search space of a study."""

import dataclasses
from typing import Any

import pytest

from rollax.errors import UsageError
from rollax.sweeps.search_space import SearchSpace, make_search_space
from rollax.training.spec import get_algorithm_entry

CARTPOLE = "gymnax/CartPole-v1"


def of(
    sweep: Any = None, ranges: Any = None, when: Any = None, algorithm: str = "ppo"
) -> SearchSpace:
    return make_search_space(
        get_algorithm_entry(algorithm), CARTPOLE, sweep or {}, ranges or {}, when or {}
    )


def test_steps_per_update_cannot_be_swept_for_replay_on_the_host() -> None:
    with pytest.raises(UsageError, match="num_steps has no effect in gymnasium/Pendulum-v1"):
        make_search_space(
            get_algorithm_entry("sac"), "gymnasium/Pendulum-v1", {"num_steps": (4, 16)}, {}, {}
        )
    assert make_search_space(
        get_algorithm_entry("sac"), "gymnax/Pendulum-v1", {"num_steps": (4, 16)}, {}, {}
    ).is_finite


def test_names_equal_those_of_train() -> None:
    found = of(
        {
            "learning_rate": (1e-3, 1e-2),
            "hidden": [[64, 64], [32]],
            "num_envs": [4, 8],
            "env.gravity": 9.8,
        }
    )
    assert [(one.name, one.choices, one.is_traced) for one in found] == [
        ("config.learning_rate", (1e-3, 1e-2), True),
        ("network.hidden", ((64, 64), (32,)), False),
        ("config.num_envs", (4, 8), False),
        ("env.gravity", (9.8,), False),
    ]
    assert found.is_finite


def test_scales_of_ranges() -> None:
    found = of(
        ranges={
            "learning_rate": (1e-5, 1e-2),
            "gamma": (0.9, 0.99),
            "num_epochs": (1, 8),
            "clip": (0.1, 0.2, "log"),
        }
    )
    assert [one.value_range and one.value_range.scale for one in found] == [
        "log",
        "linear",
        "linear",
        "log",
    ]
    assert [one.is_whole for one in found] == [False, False, True, False]
    assert not found.is_finite


def test_a_grid_has_every_applicable_combination_sorted_by_program() -> None:
    found = of(
        {
            "gamma": (0.9, 0.99),
            "value_clip": (0.1, 0.2),
            "clip_values": (False, True),
            "hidden": [[8], [8, 8]],
        },
        when={"value_clip": {"clip_values": True}},
    )
    grid = found.grid()
    assert len(grid) == 2 * 2 * (1 + 2)
    assert all(("config.value_clip" in each) == each["config.clip_values"] for each in grid)
    programs = [(each["config.clip_values"], each["network.hidden"]) for each in grid]
    assert [
        programs[0],
        *(b for a, b in zip(programs, programs[1:], strict=False) if a != b),
    ] == list(dict.fromkeys(programs))


@pytest.mark.parametrize("values", [[[64, 64]], [64, 64], ((64, 64),)])
def test_a_condition_on_a_setting_with_several_numbers(values: Any) -> None:
    """It is one value or a list of values, as lists or tuples."""
    found = of({"hidden": [[64, 64], [256]], "clip": (0.1, 0.2)}, when={"clip": {"hidden": values}})
    assert [tuple(each.values()) for each in found.grid()] == [
        ("[64, 64]", 0.1),
        ("[64, 64]", 0.2),
        ("[256]",),
    ]
    with pytest.raises(
        UsageError, match=r"must use values of network.hidden \(\(64, 64\), \(256,\)\), got \[64\]"
    ):
        of({"hidden": [[64, 64], [256]], "clip": (0.1, 0.2)}, when={"clip": {"hidden": [[64]]}})


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ({"ranges": {"gamma": (0.5, 0.9)}}, 2 * 2048),
        ({"sweep": {"num_epochs": (1, 2), "num_envs": (64, 8)}}, 2 * 2048),
        ({"sweep": {"num_envs": (4, 8)}}, 9 * 256),
        ({"sweep": {"num_envs": (4, 8), "num_steps": (16, 100)}}, 3 * 800),
        (
            {
                "sweep": {"clip_values": (True, False), "num_envs": (8,)},
                "when": {"num_envs": {"clip_values": True}},
            },
            2 * 2048,
        ),
        ({"ranges": {"num_envs": (4, 8)}}, 2100 + 255),
    ],
)
def test_total_steps_are_rounded_to_whole_updates(given: dict[str, Any], steps: int) -> None:
    """The number is 2,100 steps. The default is 64 environments with 32 steps."""
    config = dataclasses.replace(get_algorithm_entry("ppo").config(), num_envs=64, num_steps=32)
    assert of(**given).max_total_steps(config, 2100) == steps


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "needs settings to compare"),
        ({"sweep": {"learning_rte": (1, 2)}}, "did you mean learning_rate"),
        ({"sweep": {"num_envs": (1.5, 2)}}, "must be an integer"),
        ({"sweep": {"gamma": (0.5, 2)}}, "between 0 and 1"),
        ({"sweep": {"gamma": (0.5, 0.5)}}, "duplicate value"),
        ({"sweep": {"gamma": ()}}, "must have at least one value"),
        ({"sweep": {"total_updates": (1, 2)}}, "unknown setting"),
        ({"sweep": {"gamma": (0.5,)}, "ranges": {"gamma": (0.5, 0.9)}}, "both values and a range"),
        ({"ranges": {"hidden": (8, 64)}}, "is not a number"),
        ({"ranges": {"gamma": (0.9, 0.5)}}, "(lower end first|low < high)"),
        ({"ranges": {"gamma": (0.5,)}}, "must be two ends"),
        ({"ranges": {"gamma": (0.5, 0.9, "cubic")}}, "must be log or linear"),
        ({"ranges": {"gamma": (0, 0.9, "log")}}, "must be more than 0"),
        (
            {"sweep": {"gamma": (0.5, 0.9)}, "when": {"clip": {"gamma": 0.5}}},
            "when.clip needs values or a range of config.clip",
        ),
        (
            {"sweep": {"gamma": (0.5, 0.9), "clip": (0.1, 0.2)}, "when": {"clip": {"gamma": 0.7}}},
            "got 0.7",
        ),
        (
            {"sweep": {"gamma": (0.5, 0.9)}, "when": {"gamma": {"clip": 0.5}}},
            "when.gamma needs values of config.clip",
        ),
        (
            {
                "sweep": {"gamma": (0.5, 0.9), "clip": (0.1, 0.2)},
                "when": {"clip": {"gamma": 0.5}, "gamma": {"clip": 0.1}},
            },
            "form a cycle",
        ),
    ],
)
def test_invalid_search_spaces_raise_usage_error(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        of(**given)
