"""Handling of SIGINT, SIGTERM and SIGHUP as stop requests, which the training loop checks."""

import contextlib
import contextvars
import multiprocessing.resource_tracker
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

ACKNOWLEDGEMENT_TIMEOUT_SECONDS = 5.0  # wait at the end for an acknowledgement to be written


def list_stop_signals() -> list[signal.Signals]:
    """Return the signals that request a stop.

    SIGHUP (sent when a terminal closes) is included unless this process ignores it (nohup).
    """
    signals = [signal.SIGINT, signal.SIGTERM]
    if sys.platform == "win32" or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return signals
    return [*signals, signal.SIGHUP]


@contextlib.contextmanager
def hold_stop_signals() -> Iterator[None]:
    """Deliver stop signals to this thread only after the block.

    A process that starts in the block holds them until it calls `ignore_stop_signals`.
    """
    if sys.platform == "win32":
        yield
        return
    # Otherwise its start would release the signals in the block.
    multiprocessing.resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, list_stop_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_stop_signals() -> None:
    """Ignore stop signals in a worker process.

    Terminals and schedulers signal all processes, but the main process stops its workers itself.
    """
    stops = list_stop_signals()
    for stop in stops:
        signal.signal(stop, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)


class StopRequest:
    """Stop request of a run, or of enclosing work such as a study.

    Args:
        enclosing: Stop request of the enclosing work, or None.
    """

    def __init__(self, enclosing: "StopRequest | None" = None) -> None:
        self._enclosing, self._signal_number = enclosing, None
        # Work that finishes before the stop, such as "compilation".
        self.activity: str | None = None

    @property
    def signal_number(self) -> int | None:
        """Signal that requested a stop, or None. Setting it requests a stop from any thread."""
        return self._signal_number or (
            self._enclosing.signal_number if self._enclosing is not None else None
        )

    @signal_number.setter
    def signal_number(self, signal_number: int | None) -> None:
        self._signal_number = signal_number

    @property
    def acknowledgement(self) -> str:
        """Message that is shown immediately after an interrupt."""
        first = (
            "once the state is saved" if self.activity is None else f"after this {self.activity}"
        )
        return f"Stopping {first}. Press Ctrl-C again to abort."


def make_interrupt(message: str, result: object) -> KeyboardInterrupt:
    """Return a KeyboardInterrupt with an attribute `result`, for a run that was saved.

    A subclass is not used, because Python exits with the code of an interrupted process only for
    KeyboardInterrupt itself.
    """
    interrupt = KeyboardInterrupt(message)
    vars(interrupt)["result"] = result
    return interrupt


def get_interrupt_result(interrupt: KeyboardInterrupt) -> Any:
    """Return the result attached to an interrupt.

    Raises:
        KeyboardInterrupt: The interrupt itself, if it has no result because nothing was saved.
    """
    if "result" not in vars(interrupt):
        raise interrupt
    return vars(interrupt)["result"]


@contextlib.contextmanager
def add_folder_to_interrupt(folder: Path) -> Iterator[None]:
    """Attach the folder of a run or study to a KeyboardInterrupt that aborts the block."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        vars(interrupt)["folder"] = folder
        raise


def get_interrupt_folder(interrupt: KeyboardInterrupt) -> Path | None:
    """Return the folder of the aborted run or study, or None if it had not been created."""
    return vars(interrupt).get("folder")


class StopRequested(Exception):
    """Exception that ends an evaluation because a stop was requested. A resumed run repeats it."""


_current_request: contextvars.ContextVar[StopRequest | None] = contextvars.ContextVar(
    "stop_request", default=None
)


def is_stop_requested() -> bool:
    """Return whether a stop of the current run or study was requested."""
    request = _current_request.get()
    return request is not None and request.signal_number is not None


@contextlib.contextmanager
def set_activity(activity: str) -> Iterator[None]:
    """Return a context manager that sets the activity named in the message after an interrupt."""
    request = _current_request.get()
    if request is None:
        yield
        return
    old_activity, request.activity = request.activity, activity
    try:
        yield
    finally:
        request.activity = old_activity


@contextlib.contextmanager
def _acknowledge_in_thread(
    notify_fn: Callable[[str], object] | None,
) -> Iterator[Callable[[str], None]]:
    """Yield a function that passes a text to `notify_fn` in another thread, for signal handlers.

    A handler must not write the text, because it may have interrupted code that is writing.
    `SimpleQueue.put` is reentrant.
    """
    texts: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def run() -> None:
        while (text := texts.get()) is not None:
            if notify_fn is not None:
                notify_fn(text)

    thread = threading.Thread(target=run, name="acknowledgement", daemon=True)
    thread.start()
    try:
        yield texts.put
    finally:
        texts.put(None)
        thread.join(ACKNOWLEDGEMENT_TIMEOUT_SECONDS)


def _make_handler(
    request: StopRequest, acknowledge: Callable[[str], None]
) -> Callable[[int, FrameType | None], None]:
    """Return a signal handler that requests a stop. A second SIGINT raises KeyboardInterrupt."""

    def handle_signal(number: int, frame: FrameType | None) -> None:
        is_interrupt = number == signal.SIGINT
        if request.signal_number is not None and is_interrupt:
            raise KeyboardInterrupt
        request.signal_number = number
        if is_interrupt:
            acknowledge(request.acknowledgement)

    return handle_signal


@contextlib.contextmanager
def stop_on_signals(
    *additional_signals: signal.Signals, notify_fn: Callable[[str], object] | None = None
) -> Iterator[StopRequest]:
    """Turn the first SIGINT, SIGTERM or SIGHUP in this context into a stop request.

    Compilation, evaluation and saving still finish. A second SIGINT raises KeyboardInterrupt
    immediately, and saved checkpoints remain. Outside the main thread, signals cannot be caught, so
    only a request of an enclosing context has an effect.

    Args:
        *additional_signals: Additional signals that request a stop, for example from a job
            scheduler.
        notify_fn: Function that shows a message. Another thread calls it after a SIGINT.

    Yields:
        The stop request, without a signal at first.
    """
    request = StopRequest(_current_request.get())
    with contextlib.ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            handler = _make_handler(request, stack.enter_context(_acknowledge_in_thread(notify_fn)))
            for number in (*list_stop_signals(), *additional_signals):
                stack.callback(signal.signal, number, signal.signal(number, handler))
        token = _current_request.set(request)
        stack.callback(_current_request.reset, token)
        yield request
