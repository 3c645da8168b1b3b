"""Silences packages that print and warn while they are imported or make an environment."""

import contextlib
import io
import sys
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Discards standard output and error, Python's warnings and those of MuJoCo, for as long as the block runs.

    JaxMARL prints on import which of its extras are there, and leaves both streams set to the process's own; MuJoCo prints what
    it does not find, and appends what it warns of to a file in the folder it is used in.
    """
    before = sys.stdout, sys.stderr, sys.__stdout__
    sys.stdout = sys.__stdout__ = io.StringIO()  # pyright: ignore[reportAttributeAccessIssue]
    mujoco = sys.modules.get("mujoco")
    handler = mujoco.get_mju_user_warning() if mujoco else None
    if mujoco:
        mujoco.set_mju_user_warning(lambda message: None)
    try:
        with warnings.catch_warnings(action="ignore", category=Warning):
            yield
    finally:
        sys.stdout, sys.stderr, sys.__stdout__ = before  # pyright: ignore[reportAttributeAccessIssue]
        if mujoco:
            mujoco.set_mju_user_warning(handler)
