"""Background threads for compilation and execution, so that the main thread can handle signals.

Python runs signal handlers in the main thread and only between bytecodes. A program that XLA
compiles or runs for minutes would block the main thread, so both happen in a daemon thread.
"""

import atexit
import contextlib
import contextvars
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NoReturn, ParamSpec, TypeVar

import jax

from rollax.runtime.numerics import standard_numerics
from rollax.types import PyTree

P = ParamSpec("P")
T = TypeVar("T")

INTERRUPTED_EXIT_CODE = 130  # exit code of a process interrupted by SIGINT

_threads: set[threading.Thread] = set()


def submit(function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> Future[T]:
    """Call a function in a daemon thread and return a future for its result."""
    future: Future[T] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            with standard_numerics():  # settings of JAX are per thread
                result = context.run(function, *arguments, **keywords)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        finally:
            _threads.discard(threading.current_thread())

    thread = threading.Thread(target=run, name="background", daemon=True)
    _threads.add(thread)
    thread.start()
    return future


def run_in_thread(function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """Call a function in another thread and return its result.

    If the calling thread is interrupted (KeyboardInterrupt), it stops waiting for the result.
    """
    return submit(function, *arguments, **keywords).result()


def execute(function: jax.stages.Wrapped | jax.stages.Compiled, *arguments: PyTree) -> Any:
    """Run a jitted or compiled function and return its outputs once they are ready.

    Tracing runs in the calling thread, because settings such as `jax.enable_x64` are per thread.
    """
    is_compiled = isinstance(function, jax.stages.Compiled)
    compiled = function if is_compiled else compile_for_arguments(function, *arguments)
    return run_in_thread(lambda: jax.block_until_ready(compiled(*arguments)))


def compile_for_arguments(function: jax.stages.Wrapped, *arguments: PyTree) -> jax.stages.Compiled:
    """Compile a jitted function for the shapes and types of these arguments."""
    return run_in_thread(function.lower(*arguments).compile)


def end_process(code: int) -> NoReturn:
    """End this process immediately, because running threads would crash while Python shuts down."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


@atexit.register
def _join_threads() -> None:
    """Wait for abandoned threads. After an interrupt, end the process immediately instead."""
    if issubclass(getattr(sys, "last_type", None) or Exception, KeyboardInterrupt) and _threads:
        end_process(INTERRUPTED_EXIT_CODE)
    try:
        for thread in list(_threads):
            thread.join()
    except KeyboardInterrupt:
        end_process(INTERRUPTED_EXIT_CODE)
