"""Helpers for checks: calls of user code, and formatting of values."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.errors import error_message
from rollax.spaces import Dict, Space, Tuple, list_parts, list_values
from rollax.types import Leaf, PyTree


def attempt(
    faults: list[str], description: str, function: Callable[[], object], remedy: str = ""
) -> Any:
    """Call a function, and append an error message to `faults` if it raises an exception.

    Args:
        faults: List of error messages, which is modified.
        description: Description of the call in the message.
        function: Function to call.
        remedy: Remedy in the message. "" selects a general remedy.

    Returns:
        The result of the function, or None after an exception.
    """
    try:
        return function()
    except Exception as error:  # User code may raise any error.
        faults.append(describe_failure(description, error, remedy))
        return None


def describe_failure(description: str, error: Exception, remedy: str = "") -> str:
    """Return the error message for a call that raised an exception.

    Args:
        description: Description of the failed call.
        error: The exception.
        remedy: Remedy in the message. "" selects a general remedy.

    Returns:
        The message.
    """
    text = error_message(error).split("\n")[0].rstrip(".")
    return (
        f"{description} fails with {type(error).__name__}: {text}. "
        f"{remedy or 'Run it in isolation to locate the error.'}"
    )


def to_numpy(leaf: Leaf) -> np.ndarray:
    """Convert a leaf to a NumPy array. Typed random keys are converted to their key data."""
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def format_array(array: np.ndarray) -> str:
    """Format an array as text on one line. Elements of large arrays are abbreviated by dots."""
    return np.array2string(array, precision=5, threshold=8, edgeitems=2).replace("\n", "")


def describe_type(leaf: Leaf) -> str:
    """Return the dtype and shape of an array, such as "float32[2, 3]", or the name of its type."""
    is_array = isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct)
    return f"{leaf.dtype}{list(leaf.shape)}" if is_array else type(leaf).__name__


def format_value(value: object) -> str:
    """Format a value and its type on one line, for messages."""
    text = repr(value).split("\n")[0]
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"


def find_differences(first: PyTree, second: PyTree, tolerance: float) -> list[str]:
    """Describe each leaf that differs between two pytrees.

    Args:
        first: First pytree.
        second: Second pytree.
        tolerance: Relative and absolute tolerance of floats.

    Returns:
        One description per different leaf, or one message if the structures differ.
    """
    if jax.tree.structure(first) != jax.tree.structure(second):
        return ["its structure differs each time"]
    differences = []
    for (path, x), y in zip(
        jax.tree_util.tree_leaves_with_path(first), jax.tree.leaves(second), strict=True
    ):
        x, y = to_numpy(x), to_numpy(y)
        is_close = (
            x.dtype.kind in "fc"
            and x.shape == y.shape
            and np.allclose(x, y, tolerance, tolerance, equal_nan=True)
        )
        if not (is_close or np.array_equal(x, y)):
            differences.append(
                f"{jax.tree_util.keystr(path)} is {format_array(x)} and {format_array(y)}"
            )
    return differences


def out_of_space_faults(
    samples: PyTree, space: Space, num_axes: int, label: str, is_exact: bool | None = None
) -> list[str]:
    """Return error messages about values outside of their space.

    Args:
        samples: Values to compare with the space, with `num_axes` leading axes.
        space: The space.
        num_axes: Number of leading batch axes.
        label: Name of the values in messages.
        is_exact: True checks only integers and booleans, False checks only floats, and None checks
            all values.

    Returns:
        One message for each array with values outside of its space.
    """
    if isinstance(space, Dict | Tuple):
        values = list_values(space, samples)
        return [
            fault
            for name, part in list_parts(space).items()
            for fault in out_of_space_faults(
                values[name], part, num_axes, f"{label}['{name}']", is_exact
            )
        ]
    if is_exact is not None and is_exact == space.dtype.startswith("float"):
        return []
    contains: Callable[[Any], Any] = space.contains
    for _ in range(num_axes):
        contains = jax.vmap(contains)
    is_inside = np.asarray(contains(jnp.asarray(samples)))
    if is_inside.all():
        return []
    values = to_numpy(samples)
    example = values[~is_inside][0] if num_axes else values
    return [
        f"{label} leaves its space: {format_array(example)} is not in {space} (values seen: "
        f"{values.min():g} to {values.max():g}). Widen the bounds or clip the observation."
    ]
