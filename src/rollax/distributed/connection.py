"""Connection of the processes of a run, and assignment of GPUs to processes."""

import os
import re
import socket
import time
from collections.abc import Mapping

import jax

from rollax.distributed import arrivals
from rollax.distributed.processes import first_line, start_witness
from rollax.errors import UsageError

CONNECT_TIMEOUT_SECONDS = 45  # time for all processes to connect
# Slurm: local rank, number of processes of each node ("8(x3),4"), and index of the node. Open MPI:
# local rank and number of processes of the host.
_SLURM_VARIABLES = ("SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID")
_OPEN_MPI_VARIABLES = ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
_VISIBLE_DEVICES_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_JAX_VISIBLE_DEVICES_OPTIONS = ("jax_cuda_visible_devices", "jax_rocm_visible_devices")


def connect(
    coordinator: str | None = None, num_processes: int | None = None, process_id: int | None = None
) -> None:
    """Connect the processes of a run. Call this function before any other use of JAX.

    Pass either all arguments or none. Without arguments, the values are detected from Slurm, Open
    MPI, Kubernetes or the TPU runtime.

    Args:
        coordinator: Address HOST:PORT of the first process.
        num_processes: Number of processes.
        process_id: Index of this process.

    Raises:
        UsageError: If arguments are inconsistent, no cluster is found, or processes do not connect
            in time.
    """
    if coordinator is not None and not is_address(coordinator):
        raise UsageError(f"--coordinator must be HOST:PORT, got {coordinator!r}.")
    is_set = [value is not None for value in (coordinator, num_processes, process_id)]
    if any(is_set) and not all(is_set):
        raise UsageError(
            "--coordinator, --num-processes and --process-id must be used together. Set all three, "
            "or none to detect them."
        )
    if all(is_set) and not 0 <= int(process_id or 0) < int(num_processes or 0):
        raise UsageError(
            f"--process-id ({process_id}) must be between 0 and {int(num_processes or 1) - 1}."
        )
    if coordinator is not None and process_id:
        _wait_for_coordinator(coordinator, process_id)
    elif coordinator is not None:
        _check_port(coordinator)
    process_label = f"process {process_id} of {num_processes}" if all(is_set) else "this process"
    # With explicit arguments, Slurm's variables may be inherited from the shell.
    launcher_hint = " (with srun)" if "SLURM_JOB_ID" in os.environ and not any(is_set) else ""
    remedy = f"Start every process once{launcher_hint}, on hosts that can reach the first process."
    # Otherwise a process that ends would abort the others before they can print an error.
    jax.config.update("jax_enable_recoverability", True)
    # JAX aborts the process on a timeout, which no exception handler can report.
    dismiss = start_witness(
        f"error: {process_label} ended before all processes connected within "
        f"{CONNECT_TIMEOUT_SECONDS} s. {remedy}"
    )
    try:
        _initialize_jax(coordinator, num_processes, process_id)
    except ValueError as error:
        raise UsageError(_format_not_found(os.environ)) from error
    except Exception as error:  # includes errors of JAX's Kubernetes client
        reason = first_line(error) if str(error).strip() else type(error).__name__
        raise UsageError(
            f"{process_label} could not connect to the others within {CONNECT_TIMEOUT_SECONDS} s "
            f"({reason}). {remedy}"
        ) from error
    finally:
        dismiss()
    arrivals.announce_arrival(0)
    if all(is_set) and jax.process_count() != num_processes:
        raise UsageError(
            f"--num-processes ({num_processes}) of process {process_id} must equal that of the "
            f"first process ({jax.process_count()}). Use the same value for all processes."
        )


def _initialize_jax(
    coordinator: str | None, num_processes: int | None, process_id: int | None
) -> None:
    """Run `jax.distributed.initialize` with the GPUs of this process.

    Under Slurm and Open MPI, JAX assigns each process the GPU with the index of its local rank.
    This is wrong in two cases: the only process of a host should use all GPUs, and a process with
    a single visible GPU should use index 0.
    """
    device_ids = find_local_device_ids(os.environ)
    old_config = {name: jax.config.values[name] for name in _JAX_VISIBLE_DEVICES_OPTIONS}
    # With explicit arguments, disable detection, because JAX would query Kubernetes, which may
    # hang.
    mode = "deactivate" if coordinator is not None else None
    jax.distributed.initialize(
        coordinator, num_processes, process_id, device_ids, mode, CONNECT_TIMEOUT_SECONDS
    )
    if device_ids is None and "JAX_LOCAL_DEVICE_IDS" not in os.environ:
        for name, value in old_config.items():
            jax.config.update(name, value)


def find_local_device_ids(environment: Mapping[str, str]) -> list[int] | None:
    """Return the indices of the visible GPUs that this process uses.

    Args:
        environment: Environment variables.

    Returns:
        The indices, or None for all visible GPUs. The result is also None if JAX_LOCAL_DEVICE_IDS
        is set, or if the number of processes on the host is unknown.
    """
    rank, num_local_processes = _local_rank_and_size(environment)
    if "JAX_LOCAL_DEVICE_IDS" in environment or num_local_processes == 1:
        return None
    lists = [environment[name] for name in _VISIBLE_DEVICES_VARIABLES if environment.get(name)]
    num_visible = len(lists[0].split(",")) if lists else None
    if num_visible is None:
        return [rank]
    if num_visible < num_local_processes or environment.get("SLURM_GPUS_PER_TASK", "").rpartition(
        ":"
    )[2] == str(num_visible):
        return None  # each process sees only its own GPUs
    share = num_visible // num_local_processes
    return list(range(rank * share, (rank + 1) * share))


def _local_rank_and_size(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return the rank of this process on its host, and the number of processes on the host."""
    if all(name in environment for name in _OPEN_MPI_VARIABLES):
        local_rank, number = (int(environment[name]) for name in _OPEN_MPI_VARIABLES)
        return local_rank, number
    if not all(name in environment for name in _SLURM_VARIABLES):
        return 0, 1
    local_rank, nodes, node = (environment[name] for name in _SLURM_VARIABLES)
    numbers = [
        int(n)
        for n, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", nodes)
        for _ in range(int(times or 1))
    ]
    return int(local_rank), numbers[int(node)]


def _format_not_found(environment: Mapping[str, str]) -> str:
    remedy = "pass --coordinator HOST:PORT --num-processes N --process-id I"
    if "SLURM_JOB_ID" in environment:
        remedy = f"start it with srun, or {remedy}"
    return (
        "--distributed found no Slurm, Open MPI, Kubernetes or TPU environment. To continue, "
        f"{remedy}."
    )


def _check_port(coordinator: str) -> None:
    """Check that the first process can listen on the port of the coordinator address.

    Without this check, JAX retries without a message.

    Raises:
        UsageError: If the port is not available.
    """
    port = int(coordinator.rpartition(":")[2])
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        raise UsageError(
            f"process 0 cannot listen at port {port} ({error}). Use another port in --coordinator "
            "for all processes, and check that only one process has --process-id 0."
        ) from error


def _wait_for_coordinator(coordinator: str, process_id: int) -> None:
    """Wait until the first process answers at its address.

    Raises:
        UsageError: If it does not answer in time.
    """
    try:
        wait_for_address(coordinator, CONNECT_TIMEOUT_SECONDS)
    except OSError as error:
        raise UsageError(
            f"process {process_id} could not reach process 0 at {coordinator} within "
            f"{CONNECT_TIMEOUT_SECONDS} s ({error}). Check that --process-id 0 is running there "
            "and that this host may connect to the port."
        ) from error


def wait_for_address(address: str, seconds: float) -> None:
    """Wait until a server answers at an address.

    Args:
        address: Address HOST:PORT.
        seconds: Maximum time to wait, in seconds.

    Raises:
        OSError: If no server answers in time.
    """
    host, _, port = address.rpartition(":")
    limit = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            return
        except OSError:
            if time.monotonic() > limit:
                raise
            time.sleep(0.5)


def is_address(text: str) -> bool:
    """Return whether a string has the form HOST:PORT."""
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 65536
