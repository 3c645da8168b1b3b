"""A process with simulators, which answers over a pipe until that is closed."""

import functools
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from rollax.errors import UsageError
from rollax.host.signals import stopping_signals
from rollax.host.simulators import InProcess, Layout, SimulatorFailed


def main(connection: Connection, make: Callable[..., Any], number: int, layout: Layout, first: int) -> None:
    """Makes the simulators, says so, and does what is asked for: `(method, arguments)` -> `("done", value)`, or what failed."""
    for stop in stopping_signals():  # a terminal or a scheduler sends it to all processes: the run itself ends this one
        signal.signal(stop, signal.SIG_IGN)
    made = _answer(connection, lambda: InProcess(make, number, layout, first), None)
    while made is not None:
        try:
            method, arguments = connection.recv()
        except (EOFError, OSError):
            made.close()
            return
        _answer(connection, functools.partial(getattr(made, method), *arguments))


def _answer(connection: Connection, function: Callable[[], Any], told: Any = ...) -> Any:
    """Sends what the function returns, or `told` in place of that."""
    try:
        value = function()
    except UsageError as error:
        connection.send(("usage", str(error)))
    except SimulatorFailed as error:
        connection.send(("failed", str(error)))
    else:
        connection.send(("done", value if told is ... else told))
        return value
    return None
