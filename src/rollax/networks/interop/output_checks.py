"""Checks of the outputs of networks before training. Nothing is compiled."""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax

from rollax.environments.environment import Environment
from rollax.errors import UsageError, describe_error
from rollax.spaces import (
    Dict,
    Discrete,
    Grid,
    MultiDiscrete,
    SimpleActionSpace,
    Space,
    Tuple,
    list_parts,
    list_values,
    make_zeros,
)
from rollax.types import PyTree

_NETWORK_LIBRARIES = ("equinox", "flax")


@contextlib.contextmanager
def explain_network_errors(environment: Environment, inputs: str = "") -> Iterator[None]:
    """Convert errors raised in the block to a UsageError with the failing module and the input.

    Args:
        environment: Environment whose observations are an input of the network.
        inputs: Text about further inputs, such as " and one action float32[2]".
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # A custom network may raise any error.
        module = _describe_failing_module(error)
        expected = describe_shapes(make_zeros(environment.observation_space))
        first = describe_error(error).split("\n")[0].rstrip(".")
        raise UsageError(
            f"The network must accept one observation of {environment.name}, {expected}{inputs} "
            f"without a batch axis, but {module} fails with {first}. Change its input size, or "
            "flatten the observation first."
        ) from error


def describe_shapes(value: PyTree) -> str:
    """Return a text of dtypes and shapes, such as `float32[4]` or `{image: uint8[84, 84, 4]}`."""
    if isinstance(value, dict):
        return (
            f"{{{', '.join(f'{name}: {describe_shapes(part)}' for name, part in value.items())}}}"
        )
    return f"{value.dtype}{list(value.shape)}"


def check_carry(name: str, carry: PyTree, new_carry: PyTree) -> None:
    """Raise UsageError if a network changes the structure, shapes or types of its carry."""
    carry_types = jax.tree.map(lambda x: (x.shape, x.dtype), carry)
    new_carry_types = jax.tree.map(lambda x: (x.shape, x.dtype), new_carry)
    if carry_types != new_carry_types:
        raise UsageError(
            f"{name} does not fit: the carry must keep its structure, shapes and types, but "
            f"{carry_types} became {new_carry_types}. Change initial_carry."
        )


def unpack_pair(name: str, output: PyTree, expected: str) -> tuple[Any, Any]:
    """Return an output that must be a tuple of two values.

    Args:
        name: Name of the module in the error message.
        output: Output of the module.
        expected: Text of the expected output, such as "(policy, value)".

    Raises:
        UsageError: If the output is not a tuple or list of two values.
    """
    if not (isinstance(output, tuple | list) and len(output) == 2):
        raise UsageError(f"{name} must return {expected}, got {_describe_output(output)}.")
    return output[0], output[1]


def _describe_output(output: PyTree) -> str:
    if isinstance(output, jax.ShapeDtypeStruct):
        return f"an array of shape {output.shape}"
    return f"a {type(output).__name__}"


def check_shape(
    name: str, what: str, output: PyTree, shapes: tuple[tuple[int, ...], ...], reason: str = ""
) -> None:
    """Raise UsageError if an output is not an array with one of the expected shapes.

    Args:
        name: Name of the module in the error message.
        what: Name of the output in the error message, such as "value".
        output: Output of the module.
        shapes: Accepted shapes.
        reason: Text that the shapes follow from, such as " for Discrete(2)".
    """
    shape = output.shape if isinstance(output, jax.ShapeDtypeStruct) else None
    if shape not in shapes:
        expected = " or ".join(map(str, dict.fromkeys(shapes)))
        got = _describe_output(output) if shape is None else shape
        raise UsageError(
            f"{name} does not fit: the {what}{reason} must have shape {expected}, got {got}. "
            + ("Change what it returns." if shape is None else "Change the size of its last layer.")
        )


def check_value(name: str, value: PyTree) -> None:
    """Raise UsageError if a value is not one number."""
    check_shape(name, "value", value, ((), (1,)))


def check_policy_shape(name: str, output: PyTree, space: SimpleActionSpace, label: str) -> None:
    """Raise UsageError if an output is not an array of logits or means of the action space."""
    check_shape(name, label, output, policy_shapes(space), f" for {space}")


def check_policy(
    name: str,
    output: PyTree,
    space: Space,
    label: str = "policy output",
    check_part: Callable[..., None] = check_policy_shape,
) -> None:
    """Raise UsageError if the output for a policy does not fit the action space.

    Args:
        name: Name of the module in the error message.
        output: Output of the module. A dictionary or tuple for a `Dict` or `Tuple` space.
        space: Action space.
        label: Name of the output in the error message.
        check_part: Function `(name, output, space, label)` that checks the output for a space that
            is not a `Dict` or a `Tuple`.
    """
    if not isinstance(space, Dict | Tuple):
        assert not isinstance(space, Grid), "a space of observations"
        return check_part(name, output, space, label)
    parts = list_parts(space)
    if isinstance(space, Dict):
        expected = f"a dictionary with the keys {', '.join(map(repr, parts))}"
        is_fitting = isinstance(output, dict) and set(output) == set(parts)
    else:
        expected = f"a tuple of {len(parts)} outputs"
        is_fitting = isinstance(output, tuple | list) and len(output) == len(parts)
    if not is_fitting:
        raise UsageError(f"{name} does not fit: the {label} must be {expected}, got {output}.")
    for key, value in list_values(space, output).items():
        check_policy(name, value, parts[key], f"{label} [{key!r}]", check_part)
    return None


def policy_shapes(space: SimpleActionSpace) -> tuple[tuple[int, ...], ...]:
    """Return the accepted shapes of the output for a policy over a space."""
    if isinstance(space, Discrete):
        return ((space.n,),)
    shape = (
        (len(space.sizes), max(space.sizes)) if isinstance(space, MultiDiscrete) else space.shape
    )
    return shape, (math.prod(shape),)


def _describe_failing_module(error: Exception) -> str:
    """Describe the innermost equinox or flax module in a traceback, or return "it" if none."""
    description, trace = "it", error.__traceback__
    while trace is not None:
        module = trace.tb_frame.f_locals.get("self")
        bases = [kind for kind in type(module).__mro__ if kind.__name__ == "Module"]
        is_library_module = any(
            kind.__module__.split(".")[0] in _NETWORK_LIBRARIES for kind in bases
        )
        if is_library_module and not type(module).__module__.startswith("rollax."):
            description = _describe_module(module)
        trace = trace.tb_next
    return description


def _describe_module(module: object) -> str:
    """Return a text with the class of a module and the shapes of its array attributes."""
    shapes = {name: getattr(value, "shape", None) for name, value in vars(module).items()}
    arrays = ", ".join(
        f"{name} {list(shape)}" for name, shape in shapes.items() if isinstance(shape, tuple)
    )
    return f"its module {type(module).__name__}" + (f" ({arrays})" if arrays else "")
