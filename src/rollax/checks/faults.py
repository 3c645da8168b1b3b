"""What all parts of the check share: running code of the user's, and values in words."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def attempt(faults: list[str], what: str, function: Callable[[], Any], remedy: str = "") -> Any:
    """The function's result, or None and one fault more."""
    try:
        return function()
    except Exception as error:  # a user's code may raise anything
        faults.append(failure(what, error, remedy))
        return None


def failure(what: str, error: Exception, remedy: str = "") -> str:
    """The fault that running something raised an error."""
    text = str(error).strip().split("\n")[0].rstrip(".") or "no message"
    return f"{what} fails with {type(error).__name__}: {text}. {remedy or 'Run it by itself to see where.'}"


def plain(leaf: Any) -> np.ndarray:
    """A leaf as a numpy array, typed keys included."""
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def shown(array: np.ndarray) -> str:
    """A few of its numbers."""
    return np.array2string(array, precision=5, threshold=8, edgeitems=2).replace("\n", "")


def type_of(leaf: Any) -> str:
    """Its type and shape: float32[2, 3]."""
    is_array = isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct)
    return f"{leaf.dtype}{list(leaf.shape)}" if is_array else type(leaf).__name__


def short(value: Any) -> str:
    """A value and its type, for a message of one line."""
    text = repr(value).split("\n")[0]
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"


def unlike(a: Any, b: Any, tolerance: float) -> list[str]:
    """Which leaves of two trees of one structure differ, and their values."""
    if jax.tree.structure(a) != jax.tree.structure(b):
        return ["its structure is another each time"]
    differences = []
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True):
        x, y = plain(x), plain(y)
        near = x.dtype.kind in "fc" and x.shape == y.shape and np.allclose(x, y, tolerance, tolerance, equal_nan=True)
        if not (near or np.array_equal(x, y)):
            differences.append(f"{jax.tree_util.keystr(path)} is {shown(x)} and {shown(y)}")
    return differences


def outside(found: Any, space: Any, axes: int, what: str) -> list[str]:
    """Faults where what was found, with `axes` leading axes, lies outside the space."""
    if hasattr(space, "spaces"):
        return [fault for name, part in space.items for fault in outside(found[name], part, axes, f"{what}['{name}']")]
    contains: Callable[[Any], Any] = space.contains
    for _ in range(axes):
        contains = jax.vmap(contains)
    inside = np.asarray(contains(jnp.asarray(found)))
    if inside.all():
        return []
    worst = plain(found)[~inside][0] if axes else plain(found)
    return [f"{what} leaves its space: {shown(worst)} is not in {space}; widen the bounds or clip the observation."]
