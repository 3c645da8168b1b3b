"""Tests of how the processes of a run connect, and of the devices that each uses."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollax.distributed import connection
from rollax.errors import UsageError


def test_a_port_in_use_is_refused() -> None:
    with socket.create_server(("localhost", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            UsageError,
            match=rf"process 0 cannot listen at port {port} .*Use another port in --coordinator",
        ):
            connection.connect(f"localhost:{port}", 2, 0)


def test_an_unreachable_first_process_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_SECONDS", 1)
    with pytest.raises(
        UsageError, match="process 1 could not reach process 0 at localhost:9 within 1 s"
    ):
        connection.connect("localhost:9", 2, 1)


KUBERNETES = """
class config:
    def load_incluster_config():
        raise Exception("Service token file does not exist.")
"""


def test_a_kubernetes_service_that_does_not_answer(tmp_path: Path) -> None:
    """It is not used if all arguments are given.

    Otherwise one line has the reason of the failure.
    """
    (tmp_path / "kubernetes.py").write_text(KUBERNETES)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        given = (
            f"--coordinator localhost:{free.getsockname()[1]} --num-processes 1 --process-id 0"
        ).split()
    there = {
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
    }
    words = [sys.executable, "-m", "rollax", "train", "ppo", "probe/nothing", "--distributed"]
    for more, told in (
        ([], "could not connect to the others within 45 s (Service token file"),
        (given, "probe/nothing"),
    ):
        done = subprocess.run(
            [*words, *more], env=os.environ | there, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr, (
            done.stderr
        )


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (("here", 2, 0), "HOST:PORT"),
        (("localhost:1", 2, None), "must be used together"),
        (("localhost:1", 2, 2), "between 0 and 1"),
    ],
)
def test_invalid_arguments_of_connect_are_refused(place: tuple[Any, ...], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        connection.connect(*place)


def test_no_cluster_environment_is_found() -> None:
    command = [sys.executable, "-m", "rollax", "train", "ppo", "probe/memory", "--distributed"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "found no Slurm, Open MPI, Kubernetes or TPU" in done.stderr


def test_a_slurm_script_without_srun_is_refused() -> None:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "OMPI_"))
    }
    command = [sys.executable, "-m", "rollax", "train", "ppo", "probe/memory", "--distributed"]
    done = subprocess.run(
        command,
        env=environment | {"SLURM_JOB_ID": "7"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "start it with srun, or pass --coordinator" in done.stderr, (
        done.stderr
    )


def slurm(own: int, tasks: str, node: int = 0, **more: str) -> dict[str, str]:
    return {
        "SLURM_LOCALID": str(own),
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_NODEID": str(node),
    } | more


@pytest.mark.quick
@pytest.mark.parametrize(
    ("environment", "devices"),
    [
        ({}, None),
        (slurm(0, "1(x4)", 3), None),  # one process per host uses all devices
        (slurm(3, "8(x4)"), [3]),  # the visible devices are unknown: one each, as in JAX
        (
            slurm(3, "8(x4)", CUDA_VISIBLE_DEVICES="0"),
            None,
        ),  # with --gpus-per-task=1, each process sees its own device as number 0
        (slurm(3, "8(x4)", CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6,7"), [3]),
        (slurm(1, "4,2", 1, CUDA_VISIBLE_DEVICES="0,1,2,3"), [2, 3]),
        (slurm(1, "2", CUDA_VISIBLE_DEVICES="0,1,2,3", SLURM_GPUS_PER_TASK="4"), None),
        (slurm(1, "2", ROCR_VISIBLE_DEVICES="0,1"), [1]),
        (slurm(1, "2", JAX_LOCAL_DEVICE_IDS="1"), None),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, [1]),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, None),
    ],
)
def test_which_devices_a_process_uses(
    environment: dict[str, str], devices: list[int] | None
) -> None:
    assert connection.find_local_device_ids(environment) == devices


@pytest.mark.parametrize("given", [[], ["localhost:PORT", 1, 0]])
@pytest.mark.parametrize(("tasks", "visible"), [("1", "all"), ("2", "1")])
def test_jax_uses_these_devices(given: list[Any], tasks: str, visible: str) -> None:
    """This also holds if JAX detects Slurm, although it would use one device by the local rank."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    given = [value.replace("PORT", port) if isinstance(value, str) else value for value in given]
    ids = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "1",
        "SLURM_PROCID": "0",
    }
    environment = os.environ | slurm(1, tasks) | ids | {"JAX_COORDINATOR_PORT": port}
    then = "print(jax.config.values['jax_cuda_visible_devices'])"
    program = (
        "import jax; from rollax.distributed import connection; "
        f"connection.connect(*{given}); {then}"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == visible, done.stderr
