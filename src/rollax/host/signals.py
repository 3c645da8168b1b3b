"""SIGINT, SIGTERM and SIGHUP as a request that the host's loop answers between segments."""

import contextlib
import contextvars
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
    """A stop that somebody may have asked for, of this or of what it is part of, such as a run of a study."""

    def __init__(self, around: "StopRequest | None" = None) -> None:
        self._around, self._number = around, None

    @property
    def number(self) -> int | None:
        """The signal that asked for a stop, or None. Whoever sets it asks as that signal would, in any thread."""
        return self._number or (self._around.number if self._around is not None else None)

    @number.setter
    def number(self, number: int | None) -> None:
        self._number = number


_around: contextvars.ContextVar[StopRequest | None] = contextvars.ContextVar("around", default=None)


@contextlib.contextmanager
def stop_on_signals(*more: signal.Signals) -> Iterator[StopRequest]:
    """Within this, the first SIGINT, SIGTERM or SIGHUP, or one of `more` that whatever runs this process asks for a stop by,
    only sets the request, so that compiling, evaluating and saving finish.

    A second SIGINT interrupts at once; what was saved stays. Outside the main thread signals cannot be caught, and only a
    request around this one is heard.
    """
    request = StopRequest(_around.get())

    def ask(number: int, frame: FrameType | None) -> None:
        if request.number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.number = number

    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, ask) for number in (*stopping_signals(), *more)} if is_main else {}
    token = _around.set(request)
    try:
        yield request
    finally:
        _around.reset(token)
        for number, handler in before.items():
            signal.signal(number, handler)
