"""Detection of processes that do not take part in a collective exchange.

In an exchange, all processes of a run share data, for example with `all_gather_text`. Processes
report each exchange to JAX's coordination service, which remains available if another process ends.
"""

import contextlib
import os
import socket
import time
from typing import Any

import jax

# Key prefix, followed by the index of a process. Values are the exchange, the host and the process
# id.
_KEY_PREFIX = "rollax/arrivals/"
# Time for other processes to arrive, because a process that has ended interrupts exchanges at once.
_WAIT_SECONDS = 3.0


def announce_arrival(exchange: int) -> None:
    """Report that this process has reached an exchange.

    Args:
        exchange: Number of the exchange, which increases by 1 with each exchange.
    """
    client = _find_coordination_client()
    if client is not None:
        arrival = f"{exchange}\n{socket.gethostname()}\n{os.getpid()}"
        # If the coordination service has ended, the exchange itself raises an error.
        with contextlib.suppress(RuntimeError):
            client.key_value_set(
                f"{_KEY_PREFIX}{jax.process_index()}", arrival, allow_overwrite=True
            )


def find_missing_processes(exchange: int) -> list[str]:
    """Return descriptions of the processes that have not reached an exchange.

    Args:
        exchange: Number of the exchange.

    Returns:
        One description per process, with its host and process id if known. The list is empty if the
        coordination service is not available.
    """
    client, limit = _find_coordination_client(), time.monotonic() + _WAIT_SECONDS
    with contextlib.suppress(RuntimeError):
        while client is not None:
            arrived = {
                int(key.rpartition("/")[2]): text.split("\n")
                for key, text in client.key_value_dir_get(_KEY_PREFIX)
            }
            absent = [
                i
                for i in range(jax.process_count())
                if i not in arrived or int(arrived[i][0]) < exchange
            ]
            if not absent or time.monotonic() > limit:
                return [
                    f"process {i}"
                    + (f" (PID {arrived[i][2]} on {arrived[i][1]})" if i in arrived else "")
                    for i in absent
                ]
            time.sleep(0.2)
    return []


def _find_coordination_client() -> Any:
    """Return the client of JAX's coordination service, or None without a service."""
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src import distributed  # there is no public API of the key-value store

        return distributed.global_state.client
    return None
