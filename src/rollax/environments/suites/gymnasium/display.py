"""Configuration of headless rendering for pygame, MuJoCo and EnvPool."""

import ctypes
import ctypes.util
import functools
import os
import sys

from rollax.errors import UsageError

_GL_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}  # MuJoCo backends that do not need a screen


def has_screen() -> bool:
    """Return whether a display server is available. On systems other than Linux, return True."""
    return sys.platform != "linux" or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )


def configure_headless_rendering() -> None:
    """Set the environment variables that make pygame and MuJoCo render without a screen.

    Variables that are already set are not changed.
    """
    if has_screen():
        return
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    found = [
        backend for backend, library in _GL_LIBRARIES.items() if ctypes.util.find_library(library)
    ]
    if found:
        os.environ.setdefault("MUJOCO_GL", found[0])


def require_opengl(id: str) -> None:
    """Check that MuJoCo can render. Without OpenGL, MuJoCo would terminate the process.

    Args:
        id: Id of the environment, for the error message.

    Raises:
        UsageError: If there is neither a screen nor a library for rendering without one.
    """
    if not has_screen() and os.environ.get("MUJOCO_GL", "glfw") == "glfw":
        raise UsageError(
            f"{id} is rendered with OpenGL, which found neither a screen nor the library EGL or "
            "OSMesa. Install one of these libraries."
        )


@functools.cache
def has_egl_before(module: str) -> bool:
    """Load EGL before a module is imported, and return whether this succeeded.

    On systems other than Linux, EGL is not needed and the result is True.
    """
    if sys.platform != "linux":
        return True
    if module in sys.modules:
        return False
    try:
        ctypes.CDLL("libEGL.so.1", mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True
