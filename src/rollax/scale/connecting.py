"""How the processes of one run find each other, and which devices each of them takes."""

import os
import re
import socket
import time
from collections.abc import Mapping

import jax

from rollax.errors import UsageError
from rollax.scale import arrivals
from rollax.scale.processes import line, witness

CONNECT_SECONDS = 45  # in which all processes have to be there
# The number of a process on its host and, of Slurm, those on every node ("8(x3),4") and which node this is; of Open MPI, here.
_SLURM = ("SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID")
_OPEN_MPI = ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_OF_JAX = ("jax_cuda_visible_devices", "jax_rocm_visible_devices")


def connect(coordinator: str | None = None, num_processes: int | None = None, process_id: int | None = None) -> None:
    """Waits for all processes, before anything else is asked of JAX.

    `coordinator`: HOST:PORT of the first. Without arguments it is as Slurm, Open MPI, Kubernetes or a TPU say.

    Raises UsageError when nothing says which of them this is, or when they are not all there in time.
    """
    if coordinator is not None and not is_address(coordinator):
        raise UsageError(f"--coordinator takes HOST:PORT, not {coordinator!r}")
    given = [value is not None for value in (coordinator, num_processes, process_id)]
    if any(given) and not all(given):
        raise UsageError("--coordinator, --num-processes and --process-id go together: give all three, or none to find them")
    if all(given) and not 0 <= int(process_id or 0) < int(num_processes or 0):
        raise UsageError(f"--process-id ({process_id}) must be from 0 to {int(num_processes or 1) - 1}")
    if coordinator is not None and process_id:
        _wait_for(coordinator, process_id)
    elif coordinator is not None:
        _check_port(coordinator)
    who = f"process {process_id} of {num_processes}" if all(given) else "this process"
    by = " (with srun)" if "SLURM_JOB_ID" in os.environ and not any(given) else ""  # else a shell may have its variables, too
    remedy = f"start each of them, once{by}, on hosts that reach the first"
    # Else a process that ends would abort the others, before they can say why.
    jax.config.update("jax_enable_recoverability", True)
    # As JAX aborts, or somebody ends it.
    dismiss = witness(f"error: {who} was ended before all were there, for which they have {CONNECT_SECONDS} s: {remedy}")
    try:
        _initialize(coordinator, num_processes, process_id)
    except ValueError as error:
        raise UsageError(_not_found(os.environ)) from error
    except Exception as error:  # of what asks Kubernetes, too
        told = line(error) if str(error).strip() else type(error).__name__
        raise UsageError(f"{who} could not join the others within {CONNECT_SECONDS} s ({told}): {remedy}") from error
    finally:
        dismiss()
    arrivals.announce(0)
    if all(given) and jax.process_count() != num_processes:
        raise UsageError(
            f"--num-processes of process {process_id} ({num_processes}) is not that of the first ({jax.process_count()}): give "
            "all the same"
        )


def _initialize(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
    """`jax.distributed.initialize`, with the GPUs that are this process's own.

    Of processes that Slurm or Open MPI started JAX gives each the GPU of its number on its host. But one that is alone there is
    to have all, and one that sees none but its own has that as number 0.
    """
    own, before = own_devices(os.environ), {name: jax.config.values[name] for name in _OF_JAX}
    # What is given needs no looking for: JAX would ask Kubernetes, which need not answer.
    how = "deactivate" if coordinator is not None else None
    jax.distributed.initialize(coordinator, num_processes, process_id, own, how, CONNECT_SECONDS)
    if own is None and "JAX_LOCAL_DEVICE_IDS" not in os.environ:
        for name, value in before.items():
            jax.config.update(name, value)


def own_devices(environment: Mapping[str, str]) -> list[int] | None:
    """Which of the GPUs that it sees this process takes; None: all of them, as where nothing says how many share its host."""
    own, number = _on_this_host(environment)
    if "JAX_LOCAL_DEVICE_IDS" in environment or number == 1:
        return None
    lists = [environment[name] for name in _VISIBLE if environment.get(name)]
    seen = len(lists[0].split(",")) if lists else None
    if seen is None:
        return [own]
    if seen < number or environment.get("SLURM_GPUS_PER_TASK", "").rpartition(":")[2] == str(seen):
        return None  # whoever started it shows each its own
    share = seen // number
    return list(range(own * share, (own + 1) * share))


def _on_this_host(environment: Mapping[str, str]) -> tuple[int, int]:
    """The number of this process among those of the run on its host, and how many these are."""
    if all(name in environment for name in _OPEN_MPI):
        own, number = (int(environment[name]) for name in _OPEN_MPI)
        return own, number
    if not all(name in environment for name in _SLURM):
        return 0, 1
    own, nodes, node = (environment[name] for name in _SLURM)
    numbers = [int(n) for n, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", nodes) for _ in range(int(times or 1))]
    return int(own), numbers[int(node)]


def _not_found(environment: Mapping[str, str]) -> str:
    remedy = "give --coordinator HOST:PORT --num-processes N --process-id I"
    if "SLURM_JOB_ID" in environment:
        remedy = f"start it with srun, or {remedy}"
    return f"--distributed finds no Slurm, Open MPI, Kubernetes or TPU that says which process this is: {remedy}"


def _check_port(coordinator: str) -> None:
    """Raises UsageError where the first process cannot listen there: JAX looks for long, and says not where."""
    port = int(coordinator.rpartition(":")[2])
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        raise UsageError(
            f"process 0 cannot listen at port {port} ({error}): give all another --coordinator, unless "
            "another of them has --process-id 0 as well"
        ) from error


def _wait_for(coordinator: str, process_id: int) -> None:
    """Returns when the first process answers at its address. Raises UsageError when it does not in time."""
    try:
        wait_for(coordinator, CONNECT_SECONDS)
    except OSError as error:
        raise UsageError(
            f"process {process_id} reached no first process at {coordinator} within {CONNECT_SECONDS} s ({error}): is "
            "--process-id 0 running there, and may this host connect to that port?"
        ) from error


def wait_for(address: str, seconds: float) -> None:
    """Returns when something answers at HOST:PORT. Raises OSError when nothing does in time."""
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
    """Whether it is HOST:PORT."""
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 65536
