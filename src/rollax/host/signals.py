"""SIGINT, SIGTERM and SIGHUP as a request that the host's loop answers between segments."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType


def stopping_signals() -> list[signal.Signals]:
    """What asks for a stop. A terminal that is closed does (SIGHUP), unless this process is to outlive it (nohup)."""
    asked = [signal.SIGINT, signal.SIGTERM]
    if sys.platform == "win32" or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return asked
    return [*asked, signal.SIGHUP]


class StopRequest:
    """`number` is the signal that asked for a stop, or None."""

    number: int | None = None


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Within this, the first SIGINT, SIGTERM or SIGHUP only sets the request, so that compiling, evaluating and saving finish.

    A second SIGINT interrupts at once; what was saved stays. Outside the main thread signals cannot be caught, and this does
    nothing.
    """
    request = StopRequest()

    def ask(number: int, frame: FrameType | None) -> None:
        if request.number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.number = number

    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, ask) for number in stopping_signals()}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
