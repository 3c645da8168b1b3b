"""What a command needs before anything is imported; programs that only use the library are left as they are.

Ctrl-C ends it at once, without a traceback, while it is still being imported: nothing has begun by then. It is the first
import of the package because an interrupt within that of a compiled package can become any error, or an abort.

And Python looks for garbage seldom, as importing and tracing make millions of objects that stay.
"""

import gc
import itertools
import signal
import sys
import threading
from pathlib import Path

OBJECTS = 100_000  # made since the last look


def is_command() -> bool:
    """Whether this process is `rollax` or `python -m rollax`."""
    by_module = any(word == "-m" and name.partition(".")[0] == "rollax" for word, name in itertools.pairwise(sys.orig_argv))
    return Path(sys.argv[0]).stem == "rollax" if sys.argv and sys.argv[0] != "-m" else by_module


def imported() -> None:
    """From here on Ctrl-C raises `KeyboardInterrupt` again."""
    if _is_command:
        gc.freeze()
        gc.enable()
    if _is_changed and signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_is_command = is_command()
if _is_command:
    gc.disable()
    gc.set_threshold(OBJECTS)
_is_main = threading.current_thread() is threading.main_thread()
_is_changed = _is_main and _is_command and signal.getsignal(signal.SIGINT) is signal.default_int_handler
if _is_changed:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
