"""Lets Ctrl-C end the command at once, without a traceback, while it is still being imported: nothing has begun by then.

The first import of the package, because an interrupt within that of a compiled package can become any error, or an abort.
Programs that only use the library are left as they are.
"""

import itertools
import signal
import sys
import threading
from pathlib import Path


def is_command() -> bool:
    """Whether this process is `rollax` or `python -m rollax`."""
    by_module = any(word == "-m" and name.partition(".")[0] == "rollax" for word, name in itertools.pairwise(sys.orig_argv))
    return Path(sys.argv[0]).stem == "rollax" if sys.argv and sys.argv[0] != "-m" else by_module


def imported() -> None:
    """From here on Ctrl-C raises `KeyboardInterrupt` again."""
    if _is_changed and signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_is_main = threading.current_thread() is threading.main_thread()
_is_changed = _is_main and is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
if _is_changed:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
