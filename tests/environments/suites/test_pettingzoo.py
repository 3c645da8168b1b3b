"""Tests of parallel environments with the API of PettingZoo, most of them without PettingZoo."""

import importlib.util
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import rollax
from rollax.checks.environment_check import FaultyEnvironmentError
from rollax.environments.capabilities import capabilities
from rollax.environments.host_environment import SimulatorFaultError
from rollax.environments.registry import default_arguments, describe_environment
from rollax.environments.suites.pettingzoo.agent_spaces import find_agent_type, make_agent_spaces
from rollax.environments.suites.pettingzoo.catalogue import SUITE
from rollax.errors import UnknownNameError, UsageError
from rollax.spaces import Box, Dict, Discrete, MultiDiscrete
from support.parallel_worlds import ParallelCounters, Shift, make_shift

needs_pettingzoo = pytest.mark.skipif(
    importlib.util.find_spec("pettingzoo") is None or importlib.util.find_spec("mpe2") is None,
    reason="needs the extra pettingzoo",
)


def box(size: int, high: float = 1.0) -> spaces.Box:
    return spaces.Box(-high, high, (size,), np.float32)


def common(observations: list[Any], actions: list[Any], has_info_masks: bool = False) -> Any:
    """Return the common spaces of agents a_0, a_1, ..."""
    agents = [f"a_{index}" for index in range(len(actions))]
    pairs = list(zip(observations, actions, strict=True))
    return make_agent_spaces("own/World", agents, pairs, has_info_masks)


def play(environment: Any, actions: list[list[int]]) -> tuple[Any, list[Any]]:
    """Return the simulator, and its step results with the agents that are active afterwards."""
    simulator = environment.make_simulator()
    simulator.reset(0)
    return simulator, [
        (*simulator.step(np.array(action, np.int32)), simulator.active) for action in actions
    ]


@pytest.mark.quick
def test_agents_that_leave_and_return_are_masked() -> None:
    environment = make_shift()
    assert capabilities(environment).agent_types == ("guard", "guard", "runner")
    assert environment.num_agents == 3 and environment.info_names == ("time",)
    _, steps = play(environment, [[0, 1, 1]] * 7)
    active = np.array([step[5] for step in steps])
    np.testing.assert_array_equal(active[:, 0], [1, 1, 1, 1, 1, 1, 0])
    np.testing.assert_array_equal(active[:, 1], [1, 1, 0, 0, 1, 1, 0])  # released at step 3
    np.testing.assert_array_equal(active[:, 2], [1, 0, 0, 1, 1, 0, 0])  # away twice
    before = np.concatenate([np.ones((1, 3), bool), active[:-1]])
    reward = np.array([step[1] for step in steps])
    np.testing.assert_array_equal(reward[:, 1:], before[:, 1:].astype(float))
    terminated, truncated = (np.array([step[i] for step in steps]) for i in (2, 3))
    # Flags remain until the agent has returned. The end of the episode is a truncation.
    np.testing.assert_array_equal(terminated[:, 1], [0, 0, 1, 1, 1, 0, 0])
    np.testing.assert_array_equal(truncated.any(axis=1), [0, 0, 0, 0, 0, 0, 1])
    np.testing.assert_array_equal(truncated[-1], [1, 1, 0])
    obs = np.stack([step[0]["observation"] for step in steps])
    np.testing.assert_array_equal(obs[2, 1], [4, 5, 0])  # its last observation, padded
    np.testing.assert_array_equal(obs[3], [[5, 6, 0], [0, 0, 0], [5, 6, 7]])


def test_masks_of_absent_agents_allow_their_own_actions() -> None:
    environment = make_shift()
    assert environment.observation_space == Dict(
        {"action_mask": Box(0.0, 1.0, (3,), "bool"), "observation": Box(0.0, 100.0, (3,))}
    )
    assert environment.action_space == Discrete(3)
    _, steps = play(environment, [[0, 0, 0]] * 4)
    masks = np.stack([step[0]["action_mask"] for step in steps]).tolist()
    assert masks[0] == [[True, True, False], [True, True, False], [True, True, False]]
    assert masks[2][0] == [True, True, False] and masks[2][2] == [True, True, False]
    assert masks[3][1] == [True, True, True]  # absent


def test_a_time_limit_truncates_all_agents() -> None:
    environment = make_shift(max_episode_steps=2)
    assert environment.time_limit == 2
    _, steps = play(environment, [[0, 0, 0]] * 2)
    assert steps[1][3].tolist() == [True, True, False]  # the runner has left
    assert steps[1][2].tolist() == [False, False, True] and not steps[1][5].any()


def test_global_states_are_the_state_or_all_observations() -> None:
    space: Any = make_shift(global_state=True).observation_space
    assert space.spaces["global_state"] == Box(-np.inf, np.inf, (2,))
    simulator, steps = play(make_shift(global_state=True), [[0, 0, 0]])
    np.testing.assert_array_equal(steps[0][0]["global_state"], [[1, 3]] * 3)
    counters = rollax.from_pettingzoo(ParallelCounters, global_state=True)
    simulator, steps = play(counters, [[0, 1]])
    np.testing.assert_array_equal(steps[0][0]["global_state"], [[1, 0, 1, 1]] * 2)
    assert steps[0][4] == {"sum": 0.5}  # mean over agents


def test_spaces_are_padded_to_the_largest() -> None:
    merged = common([box(2), box(4, 3.0)], [spaces.Discrete(2), spaces.Discrete(5)])
    assert [spec.type for spec in merged.agents] == ["a", "a_type2"]
    assert merged.action_space == Discrete(5)
    assert merged.own_actions.sum(axis=1).tolist() == [2, 5]
    assert merged.parts["observation"].shape == (4,)
    assert np.all(np.asarray(merged.parts["observation"].high) == 3.0)
    boxes = common([box(2)] * 2, [box(1), box(2)])
    assert boxes.action_space.shape == (2,) and boxes.own_actions.tolist() == [[1, 0], [1, 1]]
    assert boxes.agents[0].to_action(np.array([0.5, 0.7], np.float32)).tolist() == [0.5]
    equal = common([box(2)] * 2, [spaces.Discrete(2)] * 2)
    assert equal.own_actions is None and equal.observation_space == Box(-1.0, 1.0, (2,))
    masked = common([box(2)], [spaces.MultiDiscrete([2, 3])], has_info_masks=True)
    assert masked.action_space == MultiDiscrete((2, 3))
    assert masked.own_actions.tolist() == [[[True, True, False], [True, True, True]]]


@pytest.mark.parametrize(
    ("observations", "actions", "message"),
    [
        ([box(2)] * 2, [spaces.Discrete(2), box(1)], "equal spaces.*action space"),
        (
            [spaces.Box(0, 255, (8, 8, 3), np.uint8), spaces.Box(0, 255, (9, 9, 3), np.uint8)],
            [spaces.Discrete(2)] * 2,
            "equal spaces.*part observation",
        ),
        (
            [spaces.Dict({"x": box(1)}), spaces.Dict({"y": box(1)})],
            [spaces.Discrete(2)] * 2,
            "must have the same parts, got x of a_0 and y of a_1",
        ),
    ],
)
def test_spaces_that_cannot_be_padded_are_refused(
    observations: list[Any], actions: list[Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        common(observations, actions)


def test_types_are_names_without_numbers() -> None:
    names = ["adversary_0", "agent12", "7", 3, "runner"]
    assert list(map(find_agent_type, names)) == ["adversary", "agent", "agent", "agent", "runner"]


class Broken(Shift):
    """`Shift` that breaks the API at its third step."""

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        obs, rewards, terminated, truncated, infos = super().step(actions)
        if self.time == 2:
            obs = {} if self.fault == "obs" else obs
            rewards = {} if self.fault == "rewards" else rewards
            infos = {} if self.fault == "masks" else infos
            rewards = {"guard_0": "much"} if self.fault == "text" else rewards
            self.agents = [*self.agents, "spy"] if self.fault == "agents" else self.agents
            obs = {**obs, "guard_0": np.zeros(5)} if self.fault == "shape" else obs
            terminated |= {"gaurd_0": True} if self.fault == "unknown" else {}
            rewards |= {"cook_0": 1.0} if self.fault == "other" else {"__all__": 1.0}
        return obs, rewards, terminated, truncated, infos

    def _fail(self) -> None:
        pass


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("obs", "observations must have an entry for each agent .*'guard_0' at step 2"),
        ("rewards", "rewards must have an entry for each agent .*'guard_0' at step 2"),
        ("masks", r"infos\['guard_0'\] must have 'action_mask' after every reset and step"),
        ("text", "reward must be one number, got 'much'"),
        ("agents", "agents must be a subset of possible_agents, got 'spy'"),
        ("shape", r"guard_0: the observation must have the shape \(2,\)"),
        ("unknown", "agent in terminations 'gaurd_0': did you mean guard_0"),
        ("other", "agent in rewards 'cook_0': known are: guard_0, guard_1, runner_0"),
    ],
)
def test_violations_of_the_api_are_reported(fault: str, message: str) -> None:
    environment = rollax.from_pettingzoo(Broken, fault=fault)
    with pytest.raises(SimulatorFaultError, match=message):
        play(environment, [[0, 0, 0]] * 2)
    with pytest.raises(FaultyEnvironmentError, match=message):
        rollax.check_environment(environment)


def test_predict_answers_unknown_agents_with_near_names() -> None:
    convert = capabilities(make_shift()).space_conversion
    assert convert is not None
    with pytest.raises(UnknownNameError, match="'gaurd_0': did you mean guard_0"):
        convert.observation({"gaurd_0": np.zeros(2, np.float32)})


@pytest.mark.parametrize("later", [np.zeros(3), np.zeros(2, np.uint8), np.array(["a", "b"])])
def test_the_global_state_keeps_its_shape_and_type(
    later: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulator = make_shift(global_state=True).make_simulator()
    simulator.reset(0)
    monkeypatch.setattr(type(simulator.environment), "state", lambda self: later)
    with pytest.raises(SimulatorFaultError, match=r"state\(\) must return an array of numbers"):
        simulator.reset(1)


def test_faults_of_the_first_values_name_the_method_once() -> None:
    class Pixels(Shift):
        def observation_space(self, agent: str) -> spaces.Box:
            return spaces.Box(0, 255, (2,), np.uint8)

        def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
            obs, *others = super().step(actions)
            return {agent: np.full(2, 300) for agent in obs}, *others

    with pytest.raises(UsageError, match="^own/Pixels, in its step: .*: the observation must have"):
        rollax.from_pettingzoo(Pixels)


def test_classes_are_refused_with_the_way() -> None:
    with pytest.raises(UsageError, match="Pass rollax.from_pettingzoo"):
        rollax.train("ppo", Shift)  # pyright: ignore[reportArgumentType]


def test_agents_of_the_same_name_are_refused() -> None:
    class Twins(Shift):
        possible_agents = ("guard_0", "guard_0")

    with pytest.raises(UsageError, match="must have different names, got 'guard_0' 2 times"):
        rollax.from_pettingzoo(Twins)


def test_objects_that_are_not_parallel_environments_are_refused() -> None:
    turns = SimpleNamespace(agent_iter=print, last=print, close=lambda: None)
    no_agents = SimpleNamespace(
        possible_agents=[], reset=print, step=print, observation_space=print, action_space=print
    )
    no_agents.close = lambda: None
    cases: list[tuple[Any, str]] = [
        (lambda: turns, "AEC API .*aec_to_parallel .*'pgx'"),
        (lambda: no_agents, "possible_agents must list all agents"),
        (lambda: object(), "got an object of object without the method reset"),
        (Shift(), r"must be a class or a function .* rollax.from_pettingzoo\(Shift, size=5\)"),
    ]
    for make, message in cases:
        with pytest.raises(UsageError, match=message):
            rollax.from_pettingzoo(make)


def test_names_and_arguments() -> None:
    assert rollax.from_pettingzoo(Shift, length=3).name == "own/Shift"
    _, steps = play(rollax.from_pettingzoo(Shift, length=3), [[0, 0, 0]] * 3)
    assert not steps[2][5].any()


def test_ids_answer_near_and_unavailable_names() -> None:
    with pytest.raises(UnknownNameError, match="pettingzoo/mpe/simple_spread_v3"):
        rollax.make("pettingzoo/mpe/simple_spread")
    for name, reason in (("classic/chess_v6", "pgx"), ("atari/pong_v3", "AutoROM")):
        with pytest.raises(UsageError, match=f"is not offered: .*{reason}"):
            rollax.make(f"pettingzoo/{name}")
    assert all(describe_environment(f"pettingzoo/{name}") for name in SUITE.names)


@needs_pettingzoo
@pytest.mark.parametrize("name", [name for name in SUITE.names if name.startswith("mpe/")])
def test_particle_environments(name: str) -> None:
    environment: Any = rollax.make(f"pettingzoo/{name}")
    assert environment.num_agents == len(capabilities(environment).agent_types)
    assert default_arguments(f"pettingzoo/{name}")["max_cycles"] == 25
    assert rollax.check_environment(environment, steps=60).episodes == 2


@needs_pettingzoo
def test_arguments_of_particle_environments() -> None:
    environment = rollax.make("pettingzoo/mpe/simple_tag_v3", num_good=2, continuous_actions=True)
    assert capabilities(environment).agent_types == ("adversary",) * 3 + ("agent",) * 2
    assert isinstance(environment.action_space, Box)
