"""Tests that returned values are compared with the declared spaces."""

import warnings
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as theirs

import rollax
from rollax.checks.environment_check import FaultyEnvironmentError, check_values
from rollax.environments import Transition
from rollax.environments.host_environment import SimulatorFaultError, to_flag, to_reward
from rollax.environments.suites.gymnasium import converters
from rollax.environments.suites.gymnasium import simulator as gymnasium_simulator
from rollax.errors import UsageError
from rollax.spaces import Box, Dict, Discrete, Space

PIXELS = theirs.Box(0, 255, (8, 8, 3), np.uint8)


class Constant(gymnasium.Env):
    """Environment that returns one observation, and another one from step `since` on."""

    action_space = theirs.Discrete(2)

    def __init__(self, space: Any, value: Any, other: Any = None, since: int = 10**9) -> None:
        self.observation_space, self.value, self.other, self.since, self.taken = (
            space,
            value,
            other,
            since,
            0,
        )
        self.reward: Any = 1.0
        self.flag: Any = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.value, {}

    def step(self, action: Any) -> tuple[Any, Any, Any, bool, dict[str, Any]]:
        self.taken += 1
        return (
            self.value if self.taken < self.since else self.other,
            self.reward,
            self.flag,
            False,
            {},
        )


def wrapped(space: Any, value: Any, **more: Any) -> Any:
    return rollax.from_gymnasium(lambda: Constant(space, value, **more), name="test/constant")


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (
            PIXELS,
            np.full((8, 8, 3), 0.5),
            r"uint8 values from 0 to 255.*float64 values from 0.5 to 0.5.*255 \* picture",
        ),
        (PIXELS, np.full((8, 8, 3), 300), "got int64 values from 300 to 300"),
        (PIXELS, np.full((8, 8, 3), -1), "got int64 values from -1 to -1"),
        (
            theirs.Discrete(4),
            4,
            "integers from 0 to 3, as its space declares, got int64 values from 4 to 4",
        ),
        (theirs.Discrete(3, start=1), 0, "integers from 1 to 3"),
        (theirs.Discrete(4), 0.5, "got float64 values from 0.5 to 0.5. Return integers"),
        (theirs.MultiDiscrete([3, 3]), np.array([2, 5]), "got int64 values from 2 to 5"),
        (
            theirs.MultiDiscrete([3, 2]),
            np.array([2, 2]),
            r"observation at index \[1\] must have integers from 0 to 1, .*values from 2 to 2",
        ),
        (
            theirs.Box(np.array([0, -9]), np.array([1, 9]), (2,), np.int32),
            np.array([5, 5]),
            r"observation at index \[0\] must have integers from 0 to 1, .*values from 5 to 5",
        ),
        (theirs.MultiBinary(2), np.array([0, 2]), "integers from 0 to 1"),
        (
            theirs.Box(0, 10, (2,), np.int32),
            np.array([0.5, 1.0]),
            "got float64 values from 0.5 to 1",
        ),
        (theirs.Box(0, 1, (2,)), ["1.0", "0.5"], "must be an array of numbers"),
        (
            theirs.Box(0, 1, (2,)),
            np.zeros(3),
            r"must have the shape \(2,\), as its space declares, got \(3,\)",
        ),
        (
            theirs.Dict(a=theirs.Dict(b=theirs.Discrete(2))),
            {"a": {"b": 2}},
            "the observation's part 'a/b' must have",
        ),
        (
            theirs.Dict(a=theirs.Discrete(2), b=theirs.Discrete(2)),
            {"a": 1},
            "the observation's part 'b' must be present",
        ),
    ],
)
def test_values_that_a_cast_would_change_are_refused(space: Any, value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        wrapped(space, value)


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (PIXELS, np.full((8, 8, 3), 200), 200),
        (PIXELS, np.full((8, 8, 3), 200.0), 200),
        (theirs.Discrete(4), 2.0, 2),
        (theirs.Discrete(3, start=1), np.float32(3), 2),
        (theirs.Box(0, 1, (2,)), np.full(2, 0.1), 0.1),
        (theirs.Box(0, 1, (2,)), np.full(2, 1 + 1e-7), 1),
        (theirs.Box(0, 1, (2,), bool), np.full(2, True), 1),
        (theirs.MultiBinary(2), np.ones(2, np.int8), 1),
    ],
)
def test_values_that_a_cast_keeps_are_accepted_without_a_warning(
    space: Any, value: Any, expected: float
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulator = wrapped(space, value).make_simulator()
        np.testing.assert_allclose(simulator.reset(0), expected, rtol=1e-6)
        np.testing.assert_allclose(simulator.step(np.int32(0))[0], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (
            theirs.Box(-1, 1, (2,)),
            np.full(2, 1.5),
            "float32 values from -1 to 1, as its space declares, got float64 values",
        ),
        (PIXELS, np.ones((8, 8, 3), np.float32), "got float32 values from 1 to 1"),
        (
            theirs.Box(-(2**62), 2**62, (2,), np.int64),
            np.full(2, 2**40 + 1),
            "integers up to 1099511627777, which float32 rounds",
        ),
    ],
)
def test_doubtful_values_give_one_warning(space: Any, value: Any, message: str) -> None:
    with pytest.warns(
        RuntimeWarning, match=f"test/constant: the observation .*{message}"
    ) as caught:
        environment = wrapped(space, value)
        for _ in range(2):
            simulator = environment.make_simulator()
            simulator.reset(0)
            simulator.step(np.int32(0))
    assert len(caught) == 1


@pytest.mark.parametrize("since", [5, 100])
def test_later_values_are_sampled(since: int) -> None:
    """All values of the first steps are checked, later ones at intervals."""
    simulator = wrapped(theirs.Discrete(4), 1, other=7, since=since).make_simulator()
    simulator.reset(0)
    limit = gymnasium_simulator.NUM_INITIAL_CHECKS + gymnasium_simulator.CHECK_INTERVAL + 2
    with pytest.raises(SimulatorFaultError, match="got int64 values from 7 to 7"):
        for _ in range(limit):
            simulator.step(np.int32(0))
    assert simulator._num_steps < (since + 1 if since < 20 else limit)


@pytest.mark.parametrize(
    ("space", "kind"), [(theirs.Discrete(3, start=-1), np.int64), (theirs.Discrete(3), np.int64)]
)
def test_discrete_actions_are_scalars_as_in_gymnasium(space: Any, kind: type) -> None:
    _, act = converters.convert_action_space("test", space)
    chosen = act(np.int32(1))
    assert type(chosen) is type(space.sample()) is kind and space.contains(chosen)
    assert {-1: "a", 0: "b", 1: "c"}[chosen] == (
        "c" if space.start == 0 else "b"
    ) and chosen.item() == 1 + space.start


@pytest.mark.quick
def test_parts_that_the_space_does_not_declare_are_warned_of() -> None:
    """Networks never see them, which matters most for a mask."""
    space = theirs.Dict(a=theirs.Dict(b=theirs.Discrete(2)))
    value = {"a": {"b": 1, "c": 0}, "action_mask": np.ones(2)}
    with pytest.warns(RuntimeWarning) as caught:
        wrapped(space, value)
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == 2
    for part, text in zip(("a/c", "action_mask"), texts, strict=True):
        assert f"part {part!r} is not declared in observation_space" in text


class Masked(Constant):
    """Environment whose `info` has an action mask from step `since` on."""

    def __init__(self, actions: Any, mask: Any, since: int) -> None:
        super().__init__(theirs.Box(0, 1, (1,)), np.zeros(1, np.float32), since=since)
        self.action_space, self.mask, self.other = actions, mask, self.value

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        self.taken = 0
        return super().reset(**arguments)[0], self.info()

    def step(self, action: Any) -> tuple[Any, Any, Any, bool, dict[str, Any]]:
        return *super().step(action)[:4], self.info()

    def info(self) -> dict[str, Any]:
        return {} if self.taken < self.since else {"action_mask": self.mask}


def test_masks_that_begin_late_are_refused() -> None:
    def make(since: int) -> Any:
        return rollax.from_gymnasium(
            lambda: Masked(theirs.Discrete(2), np.ones(2), since), name="test/masked"
        )

    with pytest.raises(UsageError, match="after every reset and step, got none after a reset"):
        make(since=1)
    simulator = make(since=2).make_simulator()
    simulator.reset(0)
    simulator.step(np.int32(0))
    with pytest.raises(SimulatorFaultError, match="or never, got it first at step 2 of an episode"):
        simulator.step(np.int32(0))


@pytest.mark.parametrize(
    ("actions", "mask"),
    [
        (theirs.MultiDiscrete([2, 3]), (np.ones(2), np.ones(3))),
        (theirs.Box(-1, 1, (2,)), np.ones(2)),
    ],
)
def test_masks_of_other_actions_are_warned_of(actions: Any, mask: Any) -> None:
    with pytest.warns(RuntimeWarning, match=r"info\['action_mask'\] has no effect"):
        rollax.from_gymnasium(lambda: Masked(actions, mask, 0), name="test/masked")


def test_parts_of_the_same_name_are_refused() -> None:
    """Otherwise, one of them would be lost."""
    space = theirs.Dict({"a/b": theirs.Discrete(2), "a": theirs.Dict(b=theirs.Discrete(3))})
    with pytest.raises(UsageError, match="two named 'a/b'"):
        wrapped(space, {"a/b": 0, "a": {"b": 0}})


@pytest.mark.parametrize("space", [None, "nothing"])
def test_an_environment_without_a_space_is_refused(space: Any) -> None:
    with pytest.raises(
        UsageError,
        match="test/constant: observation_space must be a space of gymnasium, got builtins",
    ):
        wrapped(space, 0)
    kind = type("Bare", (gymnasium.Env,), {"action_space": theirs.Discrete(2)})
    with pytest.raises(
        UsageError, match="observation_space must be a space of gymnasium, got AttributeError"
    ):
        rollax.from_gymnasium(kind)


def test_too_many_discrete_values_are_refused() -> None:
    with pytest.raises(UsageError, match="fewer than 2\\^31 values"):
        converters.convert_action_space("test", theirs.Discrete(2**40))


@pytest.mark.parametrize(
    "value", [1.0, 1, True, np.float32(1), np.ones(1), np.ones((1, 1)), jnp.ones(())]
)
def test_scalar_rewards_are_converted(value: Any) -> None:
    assert to_reward(value) == 1.0 and isinstance(to_reward(value), float)


@pytest.mark.parametrize("value", ["1.0", None, np.ones(2), {}, np.array("1")])
def test_other_rewards_are_refused(value: Any) -> None:
    with pytest.raises(SimulatorFaultError, match="reward must be one number"):
        to_reward(value)


@pytest.mark.parametrize("value", [True, np.True_, 1, np.ones(1, bool), 1.0])
def test_true_flags_are_converted(value: Any) -> None:
    assert to_flag("terminated", value) is True


@pytest.mark.parametrize("value", ["False", None, 2, 0.5, np.zeros(2, bool), {}])
def test_other_flags_are_refused(value: Any) -> None:
    with pytest.raises(SimulatorFaultError, match="terminated must be True or False"):
        to_flag("terminated", value)


@pytest.mark.parametrize(
    ("what", "value"), [("reward", "1.0"), ("flag", "False"), ("reward", None)]
)
def test_an_environment_with_invalid_rewards_or_flags_is_refused(what: str, value: Any) -> None:
    def make() -> Constant:
        made = Constant(theirs.Discrete(2), 0)
        setattr(made, what, value)
        return made

    with pytest.raises(
        UsageError, match=r"test/constant, in its step: (reward|terminated) must be"
    ):
        rollax.from_gymnasium(make, name="test/constant")


class Counting(eqx.Module):
    """Environment in JAX whose observations leave their space at step `since`."""

    observation_space: Space = eqx.field(static=True)
    since: int = eqx.field(static=True)

    name = "test/counting"
    action_space = Discrete(2)
    num_agents = None
    time_limit = 10

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return jnp.zeros((), jnp.int32), self._observe(jnp.zeros((), jnp.int32))

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        state = state + 1
        return Transition(
            state, self._observe(state), jnp.ones(()), state >= 10, jnp.zeros((), bool), {}
        )

    def _observe(self, state: jax.Array) -> Any:
        is_late = state >= self.since
        if isinstance(self.observation_space, Dict):
            return {"place": jnp.zeros(2), "action_mask": jnp.full(2, ~is_late)}
        value = jnp.where(is_late, 7, 0)
        return jnp.broadcast_to(value, self.observation_space.shape).astype(
            self.observation_space.dtype
        )


@pytest.mark.parametrize("space", [Discrete(4), Box(0, 3, (2,), "uint8"), Box(0, 3, (2,), "int32")])
@pytest.mark.parametrize("since", [0, 3])
def test_integers_outside_of_their_space_are_refused_before_training(
    space: Space, since: int
) -> None:
    with pytest.raises(
        FaultyEnvironmentError, match=r"leaves its space: .*7.* is not in .*values seen: [07] to 7"
    ):
        rollax.train("ppo", Counting(space, since), total_steps=64)


def test_floats_outside_of_their_space_give_a_warning() -> None:
    with pytest.warns(RuntimeWarning, match="test/counting: after step, obs leaves its space"):
        check_values(Counting(Box(0, 1, (2,)), 3))


def test_a_mask_may_be_empty_after_the_task_has_ended() -> None:
    masked = Dict({"place": Box(0, 1, (2,)), "action_mask": Box(0, 1, (2,), "bool")})
    assert rollax.check_environment(Counting(masked, 10), steps=20).episodes == 8
    with pytest.raises(FaultyEnvironmentError, match="action_mask is all False at step 4"):
        rollax.check_environment(Counting(masked, 4), steps=20)
    with pytest.raises(FaultyEnvironmentError, match="action_mask is all False at step 4"):
        check_values(Counting(masked, 4))


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_the_check_of_a_gymnasium_environment_runs_both_checkers(
    is_wrapped: bool,
) -> None:
    def make(value: Any = 1, reward: Any = 1.0) -> Any:
        made = Constant(theirs.Box(0, 3, (1,)), np.full(1, value, np.float32))
        made.reward = reward
        return rollax.from_gymnasium(lambda: made, name="test/constant") if is_wrapped else made

    report = rollax.check_environment(make(), steps=50)
    assert report.steps == 50 and any("no episode ended" in note for note in report.notes)
    with (
        pytest.raises(
            FaultyEnvironmentError, match="gymnasium's check_env fails with AssertionError"
        ) as error,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        rollax.check_environment(make(value=5))
    first, fault, *notes = str(error.value).splitlines()
    assert first.endswith("in 1 way:") and fault == f"1. {error.value.faults[0]}"
    assert all(note.startswith("- ") for note in notes)
