"""Safe reader for pickles of NumPy and JAX arrays. It executes no code from the file."""

import pickle
import re
from collections.abc import Callable
from io import BufferedIOBase
from typing import Any, Literal

import numpy as np

from rollax.errors import UsageError


class ArraysUnpickler(pickle.Unpickler):
    """Unpickler of arrays and plain values that calls only the functions of this module."""

    def __init__(self, file: BufferedIOBase, description: str) -> None:
        super().__init__(file)
        self.description = description

    def find_class(self, module: str, name: str) -> Any:
        try:
            # The module was renamed in NumPy 2.
            return _ALLOWED_FUNCTIONS[module.replace("numpy.core.", "numpy._core."), name]
        except KeyError:
            raise UsageError(
                f"{self.description} contains {module}.{name}, but only arrays are allowed. "
                "Nothing in the file was executed. Do not trust the file."
            ) from None


class _AllowedFunction:
    """Stateless wrapper of a function that unpickling is allowed to call."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def __call__(self, *arguments: object) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: tuple) -> None:
        raise pickle.UnpicklingError("A function has no state.")


class _NumericType:
    """Numeric NumPy dtype."""

    __slots__ = ("type",)

    def __init__(self, name: str) -> None:
        if not re.fullmatch("b1|[iu][1248]|f[248]", name):
            raise pickle.UnpicklingError(f"The dtype must be numeric, got {name!r}.")
        self.type = np.dtype(name)

    def __setstate__(self, state: tuple) -> None:
        self.type = self.type.newbyteorder(state[1])


class PickledArray:
    """NumPy array that is created empty and filled by `__setstate__` during unpickling."""

    __slots__ = ("array",)

    def __init__(self) -> None:
        self.array = np.zeros(0, np.uint8)

    def __setstate__(self, state: tuple) -> None:
        _, shape, dtype, is_fortran, content = state
        self.array = np.frombuffer(content, dtype.type).reshape(
            shape, order="F" if is_fortran else "C"
        )


def _array_from_buffer(
    content: bytes | bytearray,
    dtype: _NumericType,
    shape: tuple[int, ...],
    order: Literal["C", "F"],
) -> PickledArray:
    array = PickledArray()
    array.array = np.frombuffer(content, dtype.type).reshape(shape, order=order)
    return array


def _array_from_jax(
    build: _AllowedFunction, arguments: tuple, state: tuple, aval: object
) -> PickledArray:
    """Build an array from the pickle of a JAX array, which contains a NumPy array."""
    del aval  # contains only whether the dtype is weak
    array = build(*arguments)
    array.__setstate__(state)
    return array


_ALLOWED_FUNCTIONS = {
    ("numpy", "ndarray"): _AllowedFunction(lambda: None),
    ("numpy", "dtype"): _AllowedFunction(lambda name, align=False, copy=True: _NumericType(name)),
    ("numpy._core.multiarray", "_reconstruct"): _AllowedFunction(
        lambda kind, shape, of: PickledArray()
    ),
    ("numpy._core.multiarray", "scalar"): _AllowedFunction(
        lambda of, content: np.frombuffer(content, of.type)[0].item()
    ),
    ("numpy._core.numeric", "_frombuffer"): _AllowedFunction(_array_from_buffer),
    ("jax._src.array", "_reconstruct_array"): _AllowedFunction(_array_from_jax),
    # Bytes in old pickle protocols.
    ("_codecs", "encode"): _AllowedFunction(lambda text, coding: text.encode("latin1")),
}
