"""Runs that learn from demonstrations: resume, populations, warm starts, and replay buffers."""

import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml

import rollax
from laws.walk import Walk
from rollax import Demonstrations, UsageError
from rollax.algorithms.replay_updates import make_demonstration_steps
from support.demonstrations import random_demonstrations
from support.runs import Script, bits, check_same, whole_state

SMALL = {"batch_size": 8, "num_gradient_steps": 4}
FRAMES = 32
REPLAY = {"num_envs": 4, "num_steps": 4, "capacity": 40, "batch_size": 8, "warmup": 16}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a few episodes."""
    recorded = random_demonstrations(rollax.make("probe/two-steps"), (2,) * 8)
    return rollax.save_demonstrations(recorded, tmp_path_factory.mktemp("data") / "data.npz")


def cloned(folder: Path, demonstrations: Any, updates: int = 6, **changes: Any) -> Any:
    show = Script()
    options = {
        "eval_episodes": 4,
        "eval_count": 2,
        "checkpoint_steps": FRAMES,
        "tensorboard": False,
        "run_dir": folder,
    }
    given = {"config": SMALL, "network": {"hidden": (8,)}} | changes
    result = rollax.train(
        given.pop("algorithm", "bc"),
        given.pop("environment", "probe/two-steps"),
        demonstrations=demonstrations,
        total_steps=updates * FRAMES,
        options=options | given.pop("options", {}),
        show=show,
        **given,
    )
    return result, show


@pytest.mark.quick
def test_a_resumed_run_equals_one_without_interruption(data: Path, tmp_path: Path) -> None:
    whole, show = cloned(tmp_path / "whole", data)
    assert "Demonstrations: 8 episodes, 16 steps" in show.text
    config = yaml.safe_load((whole.folder / "config.yaml").read_text())
    assert config["demonstrations"] == {"sha256": rollax.load_demonstrations(data).digest()}
    assert config["options"]["demonstrations"] == str(data)
    stopped, _ = cloned(tmp_path / "stopped", data, stop_when=lambda evaluated: True)
    assert stopped.steps < whole.steps
    moved = shutil.move(stopped.folder, tmp_path / "moved")
    rollax.resume(moved, stop_when=lambda evaluated: False, show=Script())
    check_same(tmp_path / "moved", whole.folder)


def test_a_member_equals_the_run_alone(data: Path, tmp_path: Path) -> None:
    both, _ = cloned(tmp_path / "both", data, seeds=2)
    alone, _ = cloned(tmp_path / "alone", rollax.load_demonstrations(data), seed=1)
    member = jax.tree.map(lambda x: x[1], whole_state(both.folder))
    assert bits(member.train) == bits(whole_state(alone.folder).train)


def test_a_changed_copy_is_refused(data: Path, tmp_path: Path) -> None:
    run, _ = cloned(tmp_path / "run", data)
    copy = run.folder / "demonstrations.npz"
    policy = rollax.load(run)
    copy.unlink()
    assert rollax.load(run).step == policy.step  # acting does not need the demonstrations
    with pytest.raises(UsageError, match=r"demonstrations.npz does not exist.* Restore"):
        rollax.resume(run, total_steps=8 * FRAMES, show=Script())
    other = random_demonstrations(rollax.make("probe/two-steps"), (2,) * 8, seed=1)
    rollax.save_demonstrations(other, copy)
    with pytest.raises(UsageError, match="must be the file with which the run started"):
        rollax.resume(run, total_steps=8 * FRAMES, show=Script())


def test_a_fork_has_its_own_copy(data: Path, tmp_path: Path) -> None:
    run, _ = cloned(tmp_path / "run", data)
    fork = rollax.resume(run, total_steps=8 * FRAMES, fork=tmp_path / "fork", show=Script())
    shutil.rmtree(run.folder)
    rollax.resume(fork, total_steps=10 * FRAMES, show=Script())


def test_ppo_starts_from_a_clone(data: Path, tmp_path: Path) -> None:
    clone, _ = cloned(tmp_path / "clone", data)
    sizes = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "num_epochs": 1}
    _, show = cloned(
        tmp_path / "ppo", None, algorithm="ppo", init_from=clone, config=sizes, strict=True
    )
    assert f"Warm start from {clone.folder}" in show.text
    assert "initialized" not in show.text and "unused" not in show.text


def test_a_simulator_evaluates_a_clone(tmp_path: Path) -> None:
    """Nothing acts in the simulators between evaluations. Traced settings can be set and swept."""
    environment = rollax.make("gymnasium/CartPole-v1")
    recorded = rollax.record(lambda obs: int(obs[2] > 0), environment, episodes=2, max_steps=20)
    options = {"eval_episodes": 2}
    run, _ = cloned(
        tmp_path / "run",
        recorded,
        environment="gymnasium/CartPole-v1",
        options=options,
        config=SMALL | {"learning_rate": 3e-3},
        sweep={"weight_decay": [0.0, 0.01]},
    )
    assert run.best is not None and run.best[1] >= 8


@pytest.mark.parametrize("algorithm", ["dqn", "sac", "td3"])
def test_the_replay_buffer_starts_with_the_last_steps(algorithm: str) -> None:
    env = Walk(continuous=algorithm != "dqn")
    demonstrations = random_demonstrations(env, (30, 1, 12, 9))
    entry = rollax.list_algorithms()[algorithm]
    config = entry.config(**REPLAY)

    def network(key: jax.Array) -> Any:
        return entry.make_network(env, entry.network_config(hidden=(8,)), key)

    state = entry.make(env, network, demonstrations).init(jax.random.key(0), config)
    empty = entry.make(env, network).init(jax.random.key(0), config)
    assert bits(state.agent) == bits(empty.agent) and bits(state.key) == bits(empty.key)
    replay = state.replay
    assert replay.size.tolist() == [10] * 4 and empty.replay.size.tolist() == [0] * 4
    steps: Any = make_demonstration_steps(env, demonstrations)
    for stored, given in zip(jax.tree.leaves(replay.data), jax.tree.leaves(steps), strict=True):
        np.testing.assert_allclose(stored.reshape(40, *stored.shape[2:]), given[-40:])


def test_prioritized_replay_with_few_steps_and_nstep_returns() -> None:
    """Returns end with the episode, and do not continue with the first steps of training."""
    env = Walk()
    demonstrations = random_demonstrations(env, (3, 4, 2))
    entry = rollax.list_algorithms()["dqn"]
    config = entry.config(**REPLAY | {"num_envs": 2, "warmup": 0}, prioritized=True, n_step=3)

    def network(key: jax.Array) -> Any:
        return entry.make_network(env, entry.network_config(hidden=(8,)), key)

    algorithm = entry.make(env, network, demonstrations)
    state = algorithm.init(jax.random.key(0), config)
    assert state.replay.replay.size.tolist() == [4, 4]
    state, _ = algorithm.step(state)
    assert state.replay.replay.size.tolist() == [8, 8]
    assert state.replay.replay.data.reset[:, 4].all()


def test_a_run_fills_its_buffer_and_says_so(data: Path, tmp_path: Path) -> None:
    settings = {"algorithm": "dqn", "config": REPLAY, "updates": 4}
    run, show = cloned(tmp_path / "run", data, **settings)
    assert "The last 16 steps fill the replay buffer." in show.text
    spec = run.folder / "config.yaml"
    assert yaml.safe_load(spec.read_text())["demonstrations"]["sha256"]
    stopped, _ = cloned(tmp_path / "stopped", data, stop_when=lambda evaluated: True, **settings)
    rollax.resume(stopped, stop_when=lambda evaluated: False, show=Script())
    check_same(stopped.folder, run.folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"demonstrations": None}, "bc must have demonstrations to learn from, got none"),
        (
            {"algorithm": "ppo"},
            "has no effect on ppo. Use one of dqn, c51, qr_dqn, iqn, rainbow, sac, td3, bc",
        ),
        ({"demonstrations": "missing.npz"}, "missing.npz does not exist"),
        ({"environment": "gymnax/CartPole-v1"}, r"observations must have the shape \['N', 4\]"),
        ({"algorithm": "dqn", "config": REPLAY | {"num_envs": 17}}, "at least one step for each"),
        ({"demonstrations": {}}, "demonstrations"),
        ({"randomize": {"a": (1, 2)}}, "have no effect on bc, which does not act"),
        ({"curriculum": {"a": (1, 2)}}, "have no effect on bc, which does not act"),
        ({"network": {"core": "gru"}}, "sequence_length must be greater than 1 .*such as 16"),
    ],
)
def test_demonstrations_are_checked_before_anything_is_written(
    data: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    given = {"demonstrations": data, "config": None} | changes
    with pytest.raises(UsageError, match=message):
        cloned(tmp_path / "run", given.pop("demonstrations"), **given)
    assert not (tmp_path / "run").exists()


def test_selected_demonstrations_are_an_argument(tmp_path: Path) -> None:
    recorded = random_demonstrations(rollax.make("probe/two-steps"), (2,) * 8)
    assert isinstance(recorded.select([0, 3]), Demonstrations)
    _, show = cloned(tmp_path / "run", recorded.select([0, 3]))
    assert "2 episodes, 4 steps" in show.text and "(in memory)" in show.text


def test_observations_out_of_bounds_are_a_warning(data: Path, tmp_path: Path) -> None:
    """Such demonstrations may be of another environment, or in other units."""
    recorded = rollax.load_demonstrations(data)
    observations = {"observations": recorded.arrays["observations"] * 255.0}
    arrays = recorded.arrays | observations
    _, show = cloned(tmp_path / "run", Demonstrations(arrays), updates=1)
    (line,) = [line for line in show.text.splitlines() if "warning: observations" in line]
    assert "but the environment declares values from 0 to 1." in line
