"""Pickles of arrays, of numpy or of jax, read without executing anything that they ask for."""

import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from rollax.errors import UsageError


class ArraysUnpickler(pickle.Unpickler):
    """Builds arrays and plain values and nothing else: what a file calls by name are functions of this module."""

    def __init__(self, file: Any, what: str) -> None:
        super().__init__(file)
        self.what = what

    def find_class(self, module: str, name: str) -> Any:
        try:
            # The module's name before numpy 2.
            return _CALLED[module.replace("numpy.core.", "numpy._core."), name]
        except KeyError:
            raise UsageError(
                f"{self.what}: refused to read it, as it asks for {module}.{name}, and only arrays are needed. "
                "Nothing in it was executed: do not trust the file."
            ) from None


class _Called:
    """A function that a file may call. It takes no state, so that no file can change it."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a function has no state")


class _Type:
    """numpy's type of numbers, as a file names it."""

    __slots__ = ("type",)

    def __init__(self, name: str) -> None:
        if not re.fullmatch("b1|[iu][1248]|f[248]", name):
            raise pickle.UnpicklingError(f"no type of plain numbers: {name!r}")
        self.type = np.dtype(name)

    def __setstate__(self, state: Any) -> None:
        self.type = self.type.newbyteorder(state[1])


class PickledArray:
    """An array that is filled in two steps, as pickles do."""

    __slots__ = ("array",)

    def __init__(self) -> None:
        self.array = np.zeros(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        _, shape, of, is_fortran, content = state
        self.array = np.frombuffer(content, of.type).reshape(shape, order="F" if is_fortran else "C")


def _from_buffer(content: Any, of: _Type, shape: Any, order: Any) -> PickledArray:
    array = PickledArray()
    array.array = np.frombuffer(content, of.type).reshape(shape, order=order)
    return array


def _from_jax(build: _Called, arguments: Any, state: Any, aval: Any) -> PickledArray:
    """A jax array, which has a numpy array's way to build it inside."""
    del aval  # only whether its type is weak
    array = build(*arguments)
    array.__setstate__(state)
    return array


_CALLED = {
    ("numpy", "ndarray"): _Called(lambda: None),
    ("numpy", "dtype"): _Called(lambda name, align=False, copy=True: _Type(name)),
    ("numpy._core.multiarray", "_reconstruct"): _Called(lambda kind, shape, of: PickledArray()),
    ("numpy._core.multiarray", "scalar"): _Called(lambda of, content: np.frombuffer(content, of.type)[0].item()),
    ("numpy._core.numeric", "_frombuffer"): _Called(_from_buffer),
    ("jax._src.array", "_reconstruct_array"): _Called(_from_jax),
    # How old protocols of pickles spell bytes.
    ("_codecs", "encode"): _Called(lambda text, coding: text.encode("latin1")),
}
