"""Setup of a command before other modules are imported.

Programs that import rollax are not affected. Until imports finish, Ctrl-C ends a command
immediately and without a traceback. This module is the first import of the package, because an
interrupt during the import of a compiled package can cause any error or abort the process.

Garbage collection is disabled during imports, and its threshold is raised, because imports and
tracing create millions of objects that live until the process ends.
"""

import gc
import itertools
import signal
import sys
import threading
from pathlib import Path

from rollax.runtime.output import open_closed_descriptors

GC_THRESHOLD = 100_000  # new objects between two collections


def is_command() -> bool:
    """Return whether this process runs the command `rollax` or `python -m rollax`."""
    by_module = any(
        word == "-m" and name.partition(".")[0] == "rollax"
        for word, name in itertools.pairwise(sys.orig_argv)
    )
    return Path(sys.argv[0]).stem == "rollax" if sys.argv and sys.argv[0] != "-m" else by_module


def was_started_as_command() -> bool:
    """Return whether this process was started as a command.

    The value is computed when this module is imported, because `python -m` changes `sys.argv`
    later.
    """
    return _is_command


def finish_imports() -> None:
    """Re-enable garbage collection and `KeyboardInterrupt` after the imports of a command."""
    if _is_command:
        gc.freeze()
        gc.enable()
    if _is_sigint_replaced and signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_is_command = is_command()
if _is_command:
    open_closed_descriptors()
    gc.disable()
    gc.set_threshold(GC_THRESHOLD)
_is_main_thread = threading.current_thread() is threading.main_thread()
_is_sigint_replaced = (
    _is_main_thread
    and _is_command
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
)
if _is_sigint_replaced:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
