"""Tests of simulators with faults that end a run: masks, types of values, and exceptions."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import rollax
from rollax.errors import UsageError
from rollax.training.simulators import runner
from rollax.training.simulators.restarts import SimulatorError
from rollax.training.simulators.vectorized import (
    CONSTRUCTION,
    InProcessSimulators,
    SimulatorSpec,
    call_simulator,
)

OPTIONS = {"eval_count": 0, "eval_episodes": 1, "tensorboard": False}
CONFIG = {"num_envs": 2, "num_steps": 8, "num_minibatches": 1, "num_epochs": 1}


class Board(gymnasium.Env):
    """Environment with five places to fill.

    `fault` selects the fault of the mask in the third step.
    """

    observation_space = spaces.Box(0, 1, (5,))
    action_space = spaces.Discrete(5)

    def __init__(self, fault: str = "", dtype: Any = np.float32) -> None:
        self.fault, self.dtype = fault, dtype
        self.board = np.zeros(5, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.board = np.zeros(5, np.float32)
        return self.board.copy(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.board[action] == 0, "an illegal move"
        self.board[action] = 1
        is_full = bool(self.board.all())
        return self.board.copy(), 1.0, is_full and self.fault != "truncated", is_full, self._info()

    def _info(self) -> dict[str, Any]:
        mask = (self.board == 0).astype(self.dtype)
        if self.board.sum() == 3:
            if self.fault == "missing":
                return {}
            mask = {"empty": 0 * mask, "short": mask[:3], "fractions": 0.5 * mask}.get(
                self.fault, mask
            )
        return {} if self.fault == "none at the end" and self.board.all() else {"action_mask": mask}


def played(fault: str = "", dtype: Any = np.float32, steps: int = 5) -> list[Any]:
    """Return the steps of two simulators that take legal actions."""
    environment = rollax.from_gymnasium(lambda: Board(fault, dtype), name="test/board")
    simulators = runner.make_simulators(environment, 2, 0, 60.0)
    obs, found = simulators.reset([0, 1]).obs, []
    for _ in range(steps):
        found.append(simulators.step(obs["action_mask"].argmax(axis=-1).astype(np.int32)))
        obs = found[-1].obs
    return found


@pytest.mark.parametrize("dtype", [np.float32, np.int8, bool])
@pytest.mark.parametrize("fault", ["", "none at the end"])
def test_masks_may_be_empty_after_termination(fault: str, dtype: Any) -> None:
    steps = played(fault, dtype, 7)
    assert steps[4].terminated.all() and not steps[4].next_obs["action_mask"].any()
    assert steps[4].obs["action_mask"].all() and steps[6].reward.all()


def test_empty_masks_become_all_legal_after_truncation() -> None:
    """The value of that observation is used as a bootstrap."""
    last = played("truncated")[4]
    assert last.truncated.all() and last.next_obs["action_mask"].all()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "empty",
            (
                "simulator 0: action_mask must leave a legal action until the episode ends, got .* "
                "at step 3 of an episode"
            ),
        ),
        (
            "missing",
            "simulator 0 failed in its step: info must have 'action_mask' after every .* at step 3",
        ),
        (
            "short",
            (
                r"simulator 0 failed in its step: info\['action_mask'\] must have one value for "
                r"each of 5 actions, got .*\(3,\)"
            ),
        ),
        ("fractions", r"info\['action_mask'\] must have integers from 0 to 1"),
    ],
)
def test_invalid_masks_raise_simulator_error(fault: str, message: str) -> None:
    with pytest.raises(SimulatorError, match=message):
        played(fault)


def test_a_mask_that_is_invalid_from_the_start_raises_usage_error() -> None:
    class Short(Board):
        def _info(self) -> dict[str, Any]:
            return {"action_mask": np.ones(3)}

    class Once(Board):
        def _info(self) -> dict[str, Any]:
            return {} if self.board.any() else {"action_mask": np.ones(5)}

    for kind, message in (
        (Short, "got the shape .3,. after a reset"),
        (Once, "got none after a step"),
    ):
        with pytest.raises(
            UsageError,
            match=f"one value for each of 5 actions after every reset and step, {message}",
        ):
            rollax.from_gymnasium(kind)


class Unspeakable(Exception):
    """Exception whose message cannot be computed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Failing(gymnasium.Env):
    """Environment that fails in its tenth step with the given fault."""

    observation_space = spaces.Box(0, 1, (2,))
    action_space = spaces.Discrete(2)

    def __init__(self, fault: Any) -> None:
        self.fault, self.taken = fault, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.taken += 1
        reward: Any = 1.0
        terminated: Any = False
        if self.taken == 10:
            if isinstance(self.fault, BaseException):
                raise self.fault
            reward, terminated = self.fault
        return np.zeros(2, np.float32), reward, terminated, False, {}


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Unspeakable(), "simulator 0 raised Unspeakable in step: the message cannot be shown"),
        (UsageError("not today"), "simulator 0 raised UsageError in step: not today"),
        (SystemExit(1), "simulator 0 raised SystemExit in step"),
        (("1.0", False), "simulator 0 failed in its step: reward must be one number, got '1.0'"),
        ((None, False), "simulator 0 failed in its step: reward must be one number, got None"),
        (
            (1.0, "False"),
            "simulator 0 failed in its step: terminated must be True or False, got 'False'",
        ),
        ((1.0, None), "simulator 0 failed in its step: terminated must be True or False, got None"),
    ],
)
def test_a_run_is_saved_whatever_a_simulator_does(
    fault: Any, message: str, tmp_path: Path, capsys: Any
) -> None:
    environment = rollax.from_gymnasium(
        lambda: Failing(fault), name="test/failing", max_episode_steps=5
    )
    options = OPTIONS | {"run_dir": tmp_path / "run"}
    result = rollax.train("ppo", environment, total_steps=64, config=CONFIG, options=options)
    told = capsys.readouterr()
    assert (result.status, result.exit_code, result.steps) == ("failed", 4, 16)
    # Lines are wrapped at the width of the terminal.
    assert message in " ".join((told.out + told.err).split())


def test_only_constructors_of_simulators_raise_usage_error() -> None:
    def fail() -> None:
        raise UsageError("a package is missing")

    with pytest.raises(UsageError, match="a package is missing"):
        call_simulator("simulator 0", CONSTRUCTION, fail)
    with pytest.raises(SimulatorError, match="raised UsageError in reset: a package is missing"):
        call_simulator("simulator 0", "reset", fail)


def test_rewards_with_one_element_are_converted() -> None:
    class One:
        def reset(self, seed: int | None) -> Any:
            return np.zeros(2, np.float32)

        def step(self, action: Any) -> Any:
            return np.zeros(2, np.float32), np.ones(1), np.zeros(1, bool), np.False_, {}

    simulators = InProcessSimulators(One, 1, SimulatorSpec(np.zeros(2, np.float32), ()))
    simulators.reset([0])
    assert simulators.step(np.zeros(1, np.int32)).reward.tolist() == [1.0]


def test_simulators_are_closed_if_a_later_one_cannot_be_made() -> None:
    class Made:
        def __init__(self) -> None:
            if len(made) == 2:
                raise RuntimeError("no license is left")
            self.is_closed = False
            made.append(self)

        def close(self) -> None:
            self.is_closed = True

    made: list[Made] = []
    make: Any = Made
    with pytest.raises(SimulatorError, match="simulator 2 raised .* no license is left"):
        InProcessSimulators(make, 3, SimulatorSpec(np.zeros(2, np.float32), ()))
    assert [each.is_closed for each in made] == [True, True]
