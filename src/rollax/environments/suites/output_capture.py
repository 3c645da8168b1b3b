"""Suppression of output from packages that print and warn on import or construction."""

import contextlib
import io
import sys
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def suppress_output() -> Iterator[None]:
    """Discard stdout, stderr, Python warnings and MuJoCo warnings inside the block.

    On import, JaxMARL prints its installed extras and resets both streams. MuJoCo prints the names
    of missing libraries and writes warnings to a file in the working directory.
    """
    old_streams = sys.stdout, sys.stderr, sys.__stdout__
    sys.stdout = sys.__stdout__ = io.StringIO()  # pyright: ignore[reportAttributeAccessIssue]
    mujoco = sys.modules.get("mujoco")
    handler = mujoco.get_mju_user_warning() if mujoco else None
    if mujoco:
        mujoco.set_mju_user_warning(lambda message: None)
    try:
        with warnings.catch_warnings(action="ignore", category=Warning):
            yield
    finally:
        (
            sys.stdout,
            sys.stderr,
            sys.__stdout__,  # pyright: ignore[reportAttributeAccessIssue]
        ) = old_streams
        if mujoco:
            mujoco.set_mju_user_warning(handler)
