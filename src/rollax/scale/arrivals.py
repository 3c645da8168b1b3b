"""Which processes have come to an exchange: they tell JAX's coordination service, which answers also where one has ended."""

import contextlib
import os
import socket
import time
from typing import Any

import jax

_KEYS = "rollax/arrivals/"  # and the number of a process: the exchange to which it has come, its host, its number there
_SECONDS = 3.0  # that others have to come, where one that has ended interrupts an exchange at once


def announce(exchange: int) -> None:
    """Says that this process has come to an exchange, of a number that rises."""
    client = _service()
    if client is not None:
        own = f"{exchange}\n{socket.gethostname()}\n{os.getpid()}"
        with contextlib.suppress(RuntimeError):  # of a service that has ended: the exchange says so
            client.key_value_set(f"{_KEYS}{jax.process_index()}", own, allow_overwrite=True)


def missing(exchange: int) -> list[str]:
    """The processes that have not come to an exchange, in words; empty where that is not known."""
    client, limit = _service(), time.monotonic() + _SECONDS
    with contextlib.suppress(RuntimeError):
        while client is not None:
            said = {int(key.rpartition("/")[2]): text.split("\n") for key, text in client.key_value_dir_get(_KEYS)}
            absent = [i for i in range(jax.process_count()) if i not in said or int(said[i][0]) < exchange]
            if not absent or time.monotonic() > limit:
                return [f"process {i}" + (f" ({said[i][1]}, process {said[i][2]} there)" if i in said else "") for i in absent]
            time.sleep(0.2)
    return []


def _service() -> Any:
    """None where there is one process, or where this JAX keeps it elsewhere."""
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src import distributed  # its key-value store has no public name

        return distributed.global_state.client
    return None
