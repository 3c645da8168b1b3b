"""Tests of environments by id: listing, arguments and errors."""

import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax import environments
from rollax.environments import registry
from rollax.environments.native.probe.probes import Memory
from rollax.environments.suites import table
from rollax.environments.suites.suite import Suite
from rollax.errors import UnknownNameError, UsageError, find_similar_names
from rollax.runtime.installation import install_command


def test_listing_imports_no_suite() -> None:
    code = """
import sys
from rollax import environments
ids = environments.list_environments()
assert "gymnax/CartPole-v1" in ids and "probe/memory" in ids
suites = "gymnax xminigrid brax jaxmarl gymnasium envpool craftax jumanji \
navix pgx mujoco mujoco_playground jax_md matplotlib"
assert not set(suites.split()) & set(sys.modules), "a suite was imported"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_all_gymnax_environments_that_work_offline_are_listed() -> None:
    import gymnax

    listed = {id.removeprefix("gymnax/") for id in environments.list_environments("gymnax")}
    assert listed == set(gymnax.registered_envs) - {"MNISTBandit-bsuite"}


@pytest.mark.parametrize(
    ("id", "message"),
    [
        ("gymnax/CartPol-v1", "did you mean gymnax/CartPole-v1"),
        ("CartPole-v1", "did you mean .*gymnax/CartPole-v1"),
        ("gymnax/MNISTBandit-bsuite", "downloads"),
        ("probe/memry", "probe/memory"),
        ("zzzzzz/qqqqqq", "known are: gymnax/..., gymnasium/..., "),
    ],
)
def test_unknown_environments_are_refused_with_a_suggestion(id: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        environments.make(id)


def test_environments_are_found_by_a_part_of_their_id() -> None:
    found = environments.list_environments("cartpole")
    assert {"gymnax/CartPole-v1", "memory/CartPole-v1"} <= set(found)
    assert all("cartpole" in id.lower() for id in found)


def test_unknown_suites_and_arguments_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean gymnax"):
        environments.list_environments("gymnx")
    with pytest.raises(
        UnknownNameError, match="argument of gymnax/CartPole-v1 'gravty': did you mean gravity"
    ):
        environments.make("gymnax/CartPole-v1", gravty=5)
    with pytest.raises(
        UnknownNameError, match="argument of probe/memory 'dely': did you mean delay"
    ):
        environments.make("probe/memory", dely=5)


def test_similar_names_ignore_case_and_suite() -> None:
    assert find_similar_names("cartpole", ["probe/memory", "gymnax/CartPole-v1"]) == [
        "gymnax/CartPole-v1"
    ]
    assert find_similar_names("nothing-like-it", ["abc", "def"]) == []


@pytest.mark.parametrize(
    "value", [5, 5.0, "5", "5.0", np.float64(5), np.int32(5), jnp.asarray(5), jnp.asarray(5.0)]
)
def test_numbers_become_the_type_of_the_default(value: object) -> None:
    gravity = environments.make("gymnax/CartPole-v1", gravity=value).params.gravity
    assert (gravity.dtype, gravity.shape, gravity.weak_type, float(gravity)) == (
        jnp.float32,
        (),
        False,
        5.0,
    )


@pytest.mark.parametrize("value", ["1e3", "1000", " +1000", 1e3])
def test_integers_in_common_notations(value: object) -> None:
    assert environments.make("gymnax/CartPole-v1", max_steps_in_episode=value).time_limit == 1000


@pytest.mark.parametrize(
    ("id", "arguments", "message"),
    [
        ("gymnax/CartPole-v1", {"gravity": "heavy"}, "gravity must be a number, got 'heavy'"),
        ("gymnax/CartPole-v1", {"gravity": True}, "gravity must be a number"),
        ("gymnax/CartPole-v1", {"gravity": jnp.ones(3)}, r"got an array float32\[3\]"),
        ("gymnax/CartPole-v1", {"max_steps_in_episode": 2.5}, "an integer"),
        ("gymnax/CartPole-v1", {"max_steps_in_episode": 0}, "at least 1"),
        ("gymnax/CartPole-v1", {"total_mass": 3.0}, "argument of gymnax/CartPole-v1 'total_mass'"),
        ("gymnax/Pong-misc", {"use_ai_policy": "maybe"}, "true or false"),
        ("gymnax/FrozenLake-misc", {"map_name": "5x5"}, "gymnax cannot create"),
        ("gymnax/Acrobot-v1", {"available_torque": [1.0]}, "of the same type as its default"),
        ("probe/memory", {"delay": -1}, "at least 0"),
        ("probe/truncation", {"terminate": 3}, "true or false"),
    ],
)
def test_invalid_arguments_are_refused(id: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        environments.make(id, **arguments)


@pytest.mark.parametrize(
    ("id", "arguments", "message"),
    [
        (
            "gymnax/MemoryChain-bsuite",
            {"num_bits": 0},
            "Making gymnax/MemoryChain-bsuite with num_bits=0 fails with Index",
        ),
        (
            "gymnax/MemoryChain-bsuite",
            {"num_bits": "-1"},
            r"with num_bits='-1' fails with TypeError: ",
        ),
        (
            "gymnax/DeepSea-bsuite",
            {"action_mapping_key": "abc"},
            r"with action_mapping_key='abc' fails with TypeError: ",
        ),
        (
            "gymnax/SimpleBandit-bsuite",
            {"num_actions": -1},
            r"with num_actions=-1 fails with AssertionError\.$",
        ),
    ],
)
def test_errors_of_a_suite_are_reported_with_the_arguments(
    id: str, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        environments.make(id, **arguments)


def test_values_from_a_command_line_are_converted() -> None:
    assert (
        environments.make("gymnax/FrozenLake-misc", is_slippery="false", map_name="8x8").time_limit
        == 200
    )
    torque = environments.make(
        "gymnax/Acrobot-v1", available_torque="[-2, 0, 2]"
    ).params.available_torque
    np.testing.assert_array_equal(torque, jnp.asarray([-2.0, 0.0, 2.0], jnp.float32))
    assert environments.make("gymnax/FourRooms-misc", goal_fixed="[1, 1]").time_limit == 500
    assert environments.make("probe/memory", delay="5").time_limit == 6
    assert (
        environments.make("gymnax/DeepSea-bsuite", size="5", action_mapping_key="3").time_limit == 5
    )


def test_default_arguments_are_accepted_by_make() -> None:
    for id in (
        "gymnax/CartPole-v1",
        "gymnax/DeepSea-bsuite",
        "probe/truncation",
        "gymnax/Acrobot-v1",
    ):
        defaults = environments.default_arguments(id)
        assert jax.tree.structure(environments.make(id, **defaults)) == jax.tree.structure(
            environments.make(id)
        )
    assert environments.default_arguments("gymnax/CartPole-v1")["gravity"] == 9.8
    assert environments.default_arguments("probe/memory") == {"delay": 3}


def test_registered_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered_factories", {})

    def long_memory(*, delay: int = 20) -> Memory:
        return Memory(delay)

    environments.register("mine/LongMemory", long_memory)
    assert environments.list_environments("mine") == ["mine/LongMemory"]
    assert environments.make("mine/LongMemory", delay="30").time_limit == 31
    assert environments.default_arguments("mine/LongMemory") == {"delay": 20}
    with pytest.raises(UsageError, match="got 'Lonely'. Write for example \"mine/Lonely\""):
        environments.register("Lonely", long_memory)
    with pytest.raises(UsageError, match="part of rollax"):
        environments.register("gymnax/CartPole-v1", long_memory)


def test_a_suite_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = Suite("package_that_is_not_there.adapter", ("Thing",), extra="thing")
    monkeypatch.setitem(table.SUITES, "thing", suite)
    with pytest.raises(UsageError, match=re.escape(install_command("thing"))):
        environments.make("thing/Thing")


def test_a_suite_that_needs_a_newer_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is still listed. pip would install nothing for its extra, and the message says why."""
    monkeypatch.setitem(table.SUITES, "navix", table.SUITES["navix"]._replace(min_python=(9, 9)))
    assert "navix/Navix-Empty-5x5-v0" in environments.list_environments("navix")
    with pytest.raises(
        UsageError, match=r"need Python 9\.9 or newer, and this is Python 3\..*extra navix"
    ):
        environments.make("navix/Navix-Empty-5x5-v0")


@pytest.mark.parametrize(
    "id",
    [
        "mine/..",
        "mine/../../elsewhere",
        "mine//Maze",
        "mine/Maze/",
        "mine/.hidden",
        "mine/" + "m" * 300,
    ],
)
def test_an_id_must_be_valid_as_a_folder(id: str) -> None:
    with pytest.raises(UsageError, match="cannot be registered: .* run folders are named after it"):
        registry.register(id, lambda: None)  # pyright: ignore[reportArgumentType]
