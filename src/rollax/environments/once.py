"""The functions of an environment, traced once for all programs that contain them."""

import weakref
from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer


class Kept:
    """Values by object, each made once, for as long as the object lives.

    By which object it is, not by what it equals: for pytrees of arrays, which cannot be keys of a dictionary.
    """

    def __init__(self) -> None:
        self._values: dict[int, tuple[weakref.ref[Any], dict[Any, Any]]] = {}

    def of(self, owner: Any, name: Any, make: Callable[[], Any]) -> Any:
        """The value of that name, made if there is none. `make` must not hold the owner, which would then never go.

        Raises: TypeError for an owner that cannot be referred to weakly.
        """
        if id(owner) not in self._values:
            number = id(owner)
            self._values[number] = weakref.ref(owner, lambda _: self._values.pop(number, None)), {}
        values = self._values[id(owner)][1]
        if name not in values:
            values[name] = make()
        return values[name]


_functions = Kept()


def once(environment: Any, name: str) -> Callable[..., Any]:
    """The method of that name, of which Python runs once for arguments of the same shapes and types.

    A start traces an environment for its checks, for the first state, for an update and for evaluations, which takes most of
    the time of a start from the compilation cache. What is traced is inlined, so that programs stay the same to the bit.
    """
    method = getattr(environment, name)
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(environment)):
        return method  # its parameters are data of the program that is being traced
    try:
        itself = weakref.ref(environment)
    except TypeError:
        return method
    # Its parameters are constants here, as they are in its own methods, which may use them in Python's `if`.
    return _functions.of(environment, name, lambda: jax.jit(lambda *given: getattr(itself(), name)(*given), inline=True))
