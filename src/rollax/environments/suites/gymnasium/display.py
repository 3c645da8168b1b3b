"""Pictures where there is no screen: what draws is told so before it looks for one."""

import ctypes
import ctypes.util
import functools
import os
import sys

from rollax.errors import UsageError

_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}  # by which MuJoCo draws without a screen


def has_screen() -> bool:
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def without_screen() -> None:
    """Pygame and MuJoCo draw into memory, unless something else was asked for."""
    if has_screen():
        return
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    found = [way for way, library in _LIBRARIES.items() if ctypes.util.find_library(library)]
    if found:
        os.environ.setdefault("MUJOCO_GL", found[0])


def require_opengl(id: str) -> None:
    """Raises UsageError where MuJoCo would end the process, because it finds nothing to draw with."""
    if not has_screen() and os.environ.get("MUJOCO_GL", "glfw") == "glfw":
        raise UsageError(f"{id} is drawn by OpenGL, and there is no screen: install the library EGL or OSMesa")


@functools.cache
def has_egl_before(module: str) -> bool:
    """Whether EGL is loaded, by this call or an earlier one, before that module was imported. Off Linux nothing has to be."""
    if sys.platform != "linux":
        return True
    if module in sys.modules:
        return False
    try:
        ctypes.CDLL("libEGL.so.1", mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True
