"""Validation of the argument `callback`, and calls of callbacks during a run."""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, get_args

from rollax.distributed import processes
from rollax.errors import UsageError, describe_error
from rollax.synonyms.lookup import UnknownSettingError
from rollax.training.callbacks.events import Callback, EventKind, RunEvent
from rollax.training.callbacks.user_functions import check_takes_one_argument, function_name
from rollax.types import MetricValues
from rollax.user_input.coercion import format_value

EVENT_KINDS: tuple[EventKind, ...] = get_args(EventKind)
METHODS: dict[str, EventKind] = {f"on_{kind}": kind for kind in EVENT_KINDS}
_METHOD_PREFIXES = ("on_", "_on_")  # of methods of callbacks, also in other libraries
_CONTINUE, _STOP, _FAIL = range(3)  # decisions of the first process
_SETS_ARGUMENTS = 4  # added to the decision if callbacks have changed parameters


class NamedCallback(NamedTuple):
    """Callback of a user.

    Attributes:
        name: Name of the function, or of the object's class.
        functions: Function to call for each event, keyed by event kind.
    """

    name: str
    functions: dict[EventKind, Callable[[RunEvent], object]]


def parse_callbacks(callback: Callback | Sequence[Callback] | None) -> tuple[NamedCallback, ...]:
    """Convert the argument `callback` to a tuple of callbacks.

    Args:
        callback: Function, object with methods such as `on_evaluation`, list of these, or None.

    Returns:
        The callbacks. Empty for None.

    Raises:
        UsageError: If a callback has the wrong type, or cannot be called with one argument.
        UnknownSettingError: If an object has a method that begins with `on_` or `_on_` but belongs
            to no event.
    """
    if callback is None:
        return ()
    if isinstance(callback, list | tuple):
        return tuple(_parse_callback(each) for each in callback)
    return (_parse_callback(callback),)


def _parse_callback(callback: object) -> NamedCallback:
    if isinstance(callback, type):
        raise UsageError(
            f"callback must be an instance, got the class {callback.__name__}. Pass an instance, "
            f"such as {callback.__name__}()."
        )
    names = _list_event_methods(callback)
    for name in names:
        if name not in METHODS:
            raise UnknownSettingError(
                f"method of callback {type(callback).__name__}",
                name,
                METHODS,
                f" Methods of a callback are {', '.join(METHODS)}.",
            )
    if names:
        functions: dict[EventKind, Callable[[RunEvent], object]] = {
            kind: getattr(callback, method) for method, kind in METHODS.items() if method in names
        }
        named = NamedCallback(type(callback).__name__, functions)
    elif callable(callback):
        named = NamedCallback(function_name(callback), dict.fromkeys(EVENT_KINDS, callback))
    else:
        raise UsageError(
            "callback must be a function, an object with at least one of the methods "
            f"{', '.join(METHODS)}, or a list of these, got {format_value(callback)}."
        )
    for function in dict.fromkeys(named.functions.values()):
        check_takes_one_argument("callback", function, "rollax.RunEvent")
    return named


def _list_event_methods(callback: object) -> list[str]:
    """Return the names of the methods of an object that begin with `on_` or `_on_`."""
    return [
        name
        for name in dir(callback)
        if name.startswith(_METHOD_PREFIXES) and callable(getattr(callback, name, None))
    ]


def describe_callbacks(callbacks: Sequence[NamedCallback]) -> str:
    """Return a line with the callbacks' names and events, for comparison across processes."""
    return f"callbacks: {[(callback.name, list(callback.functions)) for callback in callbacks]}\n"


class CallbackRunner:
    """Callbacks of one run, called in the first process only.

    All processes follow the first process's decision to stop or to fail.

    Attributes:
        should_stop: Whether a callback requested a stop or raised an exception.
        failure: Error for the first callback that raised an exception, or None.
        arguments: Environment parameters that callbacks have changed in the last event, keyed by
            name. The same in all processes.
    """

    def __init__(
        self, callbacks: Sequence[NamedCallback], notify_fn: Callable[[str], object]
    ) -> None:
        """Create a runner.

        Args:
            callbacks: Callbacks in calling order.
            notify_fn: Function that displays a message.
        """
        self._callbacks = list(callbacks)
        self._notify_fn = notify_fn
        self.should_stop = False
        self.failure: UsageError | None = None
        self.arguments: dict[str, float] = {}

    def handles(self, kind: EventKind) -> bool:
        """Return whether a callback receives events of this kind."""
        return any(kind in callback.functions for callback in self._callbacks)

    def run(self, make_event: Callable[[], RunEvent], kind: EventKind) -> MetricValues:
        """Call the callbacks for an event.

        After a callback fails, only callbacks for the event "end" are called. In a distributed
        run, all processes must call this method.

        Args:
            make_event: Function that creates a new event object. It is called once per callback.
            kind: Kind of the event.

        Returns:
            The values that the callbacks logged, keyed by name. Empty in all processes except the
            first.
        """
        logged: MetricValues = {}
        self.arguments = {}
        if not self.handles(kind) or (self.failure is not None and kind != "end"):
            return logged
        if processes.is_first_process():
            for callback in list(self._callbacks):
                event = make_event()
                event.values |= logged
                if not self._call(callback, event):
                    break
                logged |= event.logged
                self.arguments |= event.arguments
        self._agree()
        return logged

    def _call(self, callback: NamedCallback, event: RunEvent) -> bool:
        """Call one callback. If it raises an exception, remove the callback and return False."""
        function = callback.functions.get(event.kind)
        if function is None:
            return True
        at_step = f"at step {event.step:,} (event {event.kind})"
        try:
            answer: Any = function(event)
            if isinstance(answer, bool):
                raise UsageError(
                    f"callback: {callback.name} returned {answer} {at_step}, which has no effect. "
                    "Call event.stop() to stop the run, and return nothing."
                )
        except Exception as error:
            self._callbacks.remove(callback)
            self._fail(callback.name, at_step, event, error)
            return False
        if event.stop_reason is not None and not self.should_stop and event.kind != "end":
            reason = f": {event.stop_reason}" if event.stop_reason else ""
            self._notify_fn(f"callback: {callback.name} stops the run {at_step}{reason}")
            self.should_stop = True
        return True

    def _fail(self, name: str, at_step: str, event: RunEvent, error: Exception) -> None:
        """Store the error of a callback, unless another callback failed before."""
        if self.failure is not None:
            return
        text = (
            str(error)
            if isinstance(error, UsageError) and str(error).startswith("callback: ")
            else f"callback: {name} raised {describe_error(error)} {at_step}."
        )
        folder = str(event.folder)
        remedy = (
            "The run has ended and is saved."
            if event.kind == "end"
            else f"The run is saved. Correct the callback, and continue with "
            f"rollax.resume({folder!r}, callback=...)."
        )
        self.failure = UsageError(f"{text} {remedy}")
        self.failure.__cause__ = error
        self.should_stop = True

    def _agree(self) -> None:
        """Pass the decision, failure and arguments of the first process to all processes."""
        if processes.num_processes() == 1:
            return
        decision = _STOP if self.should_stop else _CONTINUE
        decision = decision if self.failure is None else _FAIL
        decision += _SETS_ARGUMENTS if self.arguments else 0
        sets_arguments, agreed = divmod(
            int(processes.all_gather_numbers(decision)[0, 0]), _SETS_ARGUMENTS
        )
        self.should_stop = agreed != _CONTINUE
        if agreed == _FAIL:
            text = processes.all_gather_text(str(self.failure or ""))[0]
            self.failure = self.failure or UsageError(text)
        if sets_arguments:
            self.arguments = json.loads(processes.all_gather_text(json.dumps(self.arguments))[0])

    def raise_failure(self) -> None:
        """Raise the stored callback error, if any. Save the run before calling this method."""
        if self.failure is not None:
            raise self.failure
