"""Cache of traced environment methods, shared by all programs of a process."""

import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import jax
from jax.core import Tracer

T = TypeVar("T")


class ObjectCache:
    """Cache with a dictionary of values for each object. Values are freed with their object.

    Objects are compared by identity, because pytrees of arrays are not hashable.
    """

    def __init__(self) -> None:
        self._values: dict[int, tuple[weakref.ref[Any], dict[Any, Any]]] = {}

    def get_or_make(self, owner: object, name: Hashable, make: Callable[[], T]) -> T:
        """Return the value that is cached for an object and a name. Make it on the first call.

        Args:
            owner: Object that the value belongs to.
            name: Key of the value in the dictionary of the object.
            make: Function that makes the value. The value must not refer to the owner, because the
                owner would never be freed.

        Returns:
            The value.

        Raises:
            TypeError: If the owner does not support weak references.
        """
        if id(owner) not in self._values:
            number = id(owner)
            self._values[number] = weakref.ref(owner, lambda _: self._values.pop(number, None)), {}
        values = self._values[id(owner)][1]
        if name not in values:
            values[name] = make()
        return values[name]


_traced_methods = ObjectCache()


def trace_once(environment: object, name: str) -> Callable[..., Any]:
    """Return a version of a method that is traced once per combination of shapes and dtypes.

    A run uses its environment in checks, in the initial state, in the update and in evaluations.
    With a warm compilation cache, repeated traces would take most of the startup time. The traced
    method is inlined, so compiled programs do not change.

    Args:
        environment: Environment or wrapper.
        name: Name of the method.

    Returns:
        The traced method. It is the method itself if the environment contains tracers or does not
        support weak references.
    """
    method = getattr(environment, name)
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(environment)):
        return method  # its parameters are inputs of the program that is being traced
    try:
        itself = weakref.ref(environment)
    except TypeError:
        return method
    # The parameters remain constants, because methods may use them in `if` statements.
    return _traced_methods.get_or_make(
        environment,
        name,
        lambda: jax.jit(lambda *arguments: getattr(itself(), name)(*arguments), inline=True),
    )
