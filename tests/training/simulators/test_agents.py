"""Tests of runs with agents in host simulators: training, evaluation, rendering, and refusals."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import rollax
from rollax.errors import UsageError
from rollax.training.run_folder.metric_sinks import read_metrics
from rollax.visualization.render.render import render
from support.parallel_worlds import Pursuit, Shift, make_pursuit, make_shift

CONFIG = {
    "num_envs": 4,
    "num_steps": 16,
    "num_minibatches": 2,
    "sequence_length": 8,
    "sharing": "type",
}
NETWORK = {"core": "gru", "core_size": 8, "hidden": (8,)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield a run in `Shift` with a recurrent policy per type and a central critic."""
    folder = tmp_path_factory.mktemp("shift") / "run"
    options = {"run_dir": str(folder), "eval_episodes": 3, "eval_count": 1, "tensorboard": False}
    environment = make_shift(global_state=True)
    yield rollax.train(
        "ppo",
        environment,
        total_steps=640,
        config=CONFIG,
        network=NETWORK,
        options=options,
        quiet=True,
    )


@pytest.mark.quick
def test_metrics_have_agents_and_types(trained: Any) -> None:
    rows = read_metrics(Path(trained.folder) / "metrics.jsonl")
    evaluated = [row for row in rows if row.get("event") == "evaluation"][-1]
    guards, runner = evaluated["return_agents"][:2], evaluated["return_agents"][2]
    assert evaluated["return_guard"] == pytest.approx(np.mean(guards))
    assert evaluated["return_runner"] == runner
    assert evaluated["length_mean"] == 7.0 and evaluated["truncated"] == 1.0
    trainings = [row for row in rows if "guard/episode_return" in row]
    assert trainings and all(row["guard/reward"] >= 0 for row in trainings)
    # A guard and a runner act in at most 7 and 4 steps.
    assert 4 <= trainings[-1]["episode_length"] <= 7
    assert trainings[-1]["runner/episode_return"] <= 4


def test_policies_are_loaded_evaluated_and_predict(trained: Any) -> None:
    environment = make_shift(global_state=True)
    policy = rollax.load(trained.folder, environment=environment)
    metrics, played = policy.evaluate(2, jax.random.key(0))
    assert played.returns.shape == (2, 3) and "return_guard" in metrics
    world = Shift()
    obs, infos = world.reset(seed=0)
    total, seen, begins = np.zeros(3), {}, True
    while world.agents:
        seen = {
            agent: {"observation": obs[agent], "action_mask": infos[agent]["action_mask"]}
            for agent in world.agents
        }
        actions = policy.predict(seen, begins=begins)
        assert list(actions) == world.agents
        obs, rewards, _, _, infos = world.step(actions)
        total += [rewards.get(agent, 0.0) for agent in world.possible_agents]
        begins = False
    assert total[2] <= 4 and np.all(total[:2] <= 14)
    both = jax.tree.map(lambda x: np.stack([x, x]), seen)
    actions = policy.predict(both, begins=True)
    assert all(value.shape == (2,) for value in actions.values())
    with pytest.raises(UsageError, match="guard_0, guard_1, runner_0"):
        policy.predict({"spy": obs})


def test_episodes_are_rendered(trained: Any, tmp_path: Path) -> None:
    path = tmp_path / "episode.gif"
    render(trained.folder, out=path, environment=make_shift(global_state=True))
    assert path.stat().st_size > 0


def test_runs_are_resumed(trained: Any) -> None:
    environment = make_shift(global_state=True)
    result = rollax.resume(trained.folder, total_steps=704, environment=environment, quiet=True)
    assert result.steps == 704


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"network": {"agent_id": True}}, "network.agent_id must be off .* runs on the host"),
        ({"options": {"frame_stack": 2}}, "frame_stack .* must be 1"),
    ],
)
def test_unsupported_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rollax.train("ppo", make_shift(), total_steps=640, config=CONFIG, **settings)


REPLAY = {"num_envs": 2, "warmup": 32, "batch_size": 8, "capacity": 256}


@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_continuous_actions_of_different_sizes(algorithm: str, tmp_path: Path) -> None:
    """Actions are within the bounds of each agent, which `Pursuit` checks."""
    result = rollax.train(
        algorithm,
        make_pursuit(),
        total_steps=64,
        config=REPLAY,
        network={"hidden": (8,)},
        options={"run_dir": str(tmp_path / "run"), "eval_episodes": 2, "eval_count": 1},
        quiet=True,
    )
    assert {"return_chaser", "return_prey"} <= result.evaluation.keys()
    policy = rollax.load(result.folder, environment=make_pursuit())
    world = Pursuit()
    obs, _ = world.reset(seed=0)
    actions = policy.predict(obs, begins=True)
    assert {agent: value.shape for agent, value in actions.items()} == {
        "chaser_0": (2,),
        "prey_0": (1,),
    }
    world.step(actions)


@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_unbounded_actions_are_refused(algorithm: str) -> None:
    with pytest.raises(UsageError, match="finite bounds .* or use ppo"):
        rollax.train(algorithm, make_pursuit(bound=np.inf), total_steps=64, config=REPLAY)
