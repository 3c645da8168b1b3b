"""Simulators on a local Ray cluster of two nodes, of which one dies."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import rollax
from rollax.errors import UsageError
from rollax.training.options import RunOptions, WorkerPlacement, parse_workers
from rollax.training.simulators import runner
from rollax.training.simulators.restarts import SimulatorError
from support.counter_simulator import on_host
from support.parallel_worlds import make_pursuit


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of two nodes, to which this process is connected."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with warnings.catch_warnings():
        # The processes of Ray do not run JAX, so forking is safe.
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
        made = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False}
        )
        made.add_node(num_cpus=2)
        ray.init(address=made.address, log_to_driver=False)
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def rollout(simulators: Any, steps: int) -> list[Any]:
    actions = np.random.default_rng(1).integers(0, 2, (steps, 4)).astype(np.int32)
    return [simulators.reset([1, 2, 3, 4]), *(simulators.step(action) for action in actions)]


@pytest.mark.timeout(300)
def test_a_node_that_dies_costs_the_episodes_of_its_workers(cluster: Any) -> None:
    import ray

    here = runner.make_simulators(on_host(), 4, 0, 60.0, ("sum",))
    there: Any = runner.make_simulators(on_host(), 4, "ray:4", 60.0, ("sum",), max_restarts=2)
    for a, b in zip(
        jax.tree.leaves(rollout(here, 7)), jax.tree.leaves(rollout(there, 7)), strict=True
    ):
        np.testing.assert_array_equal(a, b)

    def find_nodes() -> list[str]:
        actors = {each["actor_id"]: each["node_id"] for each in list_actors()}
        return [actors[worker._actor._ray_actor_id.hex()] for worker in there._workers]

    def list_actors() -> list[dict[str, Any]]:
        states = ray._private.state.actors().values()
        return [{"actor_id": s["ActorID"], "node_id": s["Address"]["NodeID"]} for s in states]

    node = next(each for each in cluster.worker_nodes)
    lost = np.array([each == node.node_id for each in find_nodes()])
    assert 0 < lost.sum() < 4, "Ray spreads the workers over the nodes"
    there.reset([1, 2, 3, 4])
    cluster.remove_node(node)
    step = there.step(np.zeros(4, np.int32))
    np.testing.assert_array_equal(step.restarted, lost)
    np.testing.assert_array_equal(step.truncated, lost)
    np.testing.assert_array_equal(step.obs[:, 0], np.where(lost, 0, 1))
    messages = there.pop_restart_messages()
    assert len(messages) == lost.sum() and "the Ray worker of simulators" in messages[0]
    assert there.step(np.zeros(4, np.int32)).reward.shape == (4,)
    there.close()
    here.close()


@pytest.mark.timeout(300)
def test_a_simulator_that_fails_or_hangs_on_the_cluster(cluster: Any) -> None:
    """Its errors arrive as those of worker processes do."""
    for fault, message in (("raise", "the counter is broken"), ("hang", "respond within 0.5 s")):
        simulators = runner.make_simulators(on_host(fault=fault, at=2), 1, "ray:1", 0.5)
        simulators.reset([0])
        simulators.step(np.zeros(1, np.int32))
        with pytest.raises(SimulatorError, match=message):
            simulators.step(np.zeros(1, np.int32))
        simulators.close()


@pytest.mark.timeout(300)
def test_a_run_with_agents_on_the_cluster(cluster: Any, tmp_path: Path) -> None:
    """Agents with continuous actions are trained from replay as in the main process."""
    finals = [
        rollax.train(
            "sac",
            make_pursuit(),
            total_steps=64,
            config={"num_envs": 2, "warmup": 32, "batch_size": 8, "capacity": 256},
            network={"hidden": (8,)},
            options={
                "run_dir": str(tmp_path / str(workers).replace(":", "")),
                "eval_episodes": 2,
                "eval_count": 1,
                "env_workers": workers,
            },
            quiet=True,
        )
        for workers in (0, "ray:2")
    ]
    assert finals[1].status == "done"
    assert finals[1].evaluation["return_agents"] == finals[0].evaluation["return_agents"]


def test_the_option_that_places_workers() -> None:
    assert parse_workers("3") == parse_workers(3) == WorkerPlacement(3)
    assert parse_workers("ray:64") == WorkerPlacement(64, is_on_ray=True)
    for value in ("ray", "ray:", "ray:-1", "dask:3", -1, "x"):
        with pytest.raises(UsageError, match="env_workers must be a number of processes, or ray:N"):
            RunOptions(env_workers=value).check()
    for value in ("ray:0", 1025):
        with pytest.raises(UsageError, match=r"env_workers \(.*\) must be between"):
            RunOptions(env_workers=value).check()
