"""Loader for policies that rollax exported in the NumPy format. It requires only NumPy.

    from numpy_policy import load

    act = load("policy.npz")
    outputs = act({"observation": observations})  # arrays with leading axis [batch]
    outputs["action"]

policy.json lists the inputs and outputs. The .npz file holds arrays and a list of operations as
JSON. Only the operations in this module are executed.
"""

import json
import math

import numpy as np


def load(path):
    """Load a policy as a function from a dictionary of inputs to a dictionary of outputs.

    Args:
        path: Path of the .npz file, or a file object.

    Raises:
        ValueError: If the file contains operations that this reader does not support.
    """
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    program = json.loads(arrays.pop("program").tobytes().decode())
    constants = {int(number): array for number, array in arrays.items()}
    unknown = {step[0] for step in program["steps"]} - set(OPERATIONS) - {"expand"}
    if unknown:
        raise ValueError(
            f"{path} contains unsupported operations: {', '.join(sorted(unknown))}. "
            "Use the numpy_policy.py that was exported with it."
        )
    return lambda inputs: run_program(program, constants, inputs)


def run_program(program, constants, inputs):
    """Run the operations of a policy and return a dictionary of its outputs.

    Raises:
        ValueError: If an input is missing or has the wrong shape.
    """
    values, batch = dict(constants), None
    for name, (value_id, shape, dtype) in program["inputs"].items():
        if name not in inputs:
            raise ValueError(
                f"The input {name!r} is missing. The inputs are {', '.join(program['inputs'])}."
            )
        value = np.asarray(inputs[name]).astype(dtype, copy=False)
        batch = value.shape[0] if batch is None and value.ndim else batch
        expected_shape = tuple(resolve_size(size, batch) for size in shape)
        if value.shape != expected_shape:
            raise ValueError(
                f"The input {name!r} must have shape {expected_shape}, got {value.shape}."
            )
        values[value_id] = value
    with np.errstate(all="ignore"):
        for name, arguments, results, given, types in program["steps"]:
            found = [values[value_id] for value_id in arguments]
            if name == "expand":
                given = {"shape": [resolve_size(size, batch) for size in given["shape"]]}
            outputs = OPERATIONS[name](*found, **given)
            outputs = outputs if name == "split" else [outputs]
            for value_id, output, dtype in zip(results, outputs, types, strict=True):
                values[value_id] = np.asarray(output).astype(dtype, copy=False)
    return {name: np.array(values[value_id]) for name, value_id in program["outputs"].items()}


def resolve_size(size, batch_size):
    """Convert a size to an integer: an integer, "batch", or a multiple such as "6*batch"."""
    if isinstance(size, int):
        return size
    return int(size.partition("*")[0] if "*" in size else 1) * batch_size


def slice_array(x, axes, starts, limits, steps):
    """Slice an array along `axes` with the given starts, limits and steps."""
    places = [slice(None)] * x.ndim
    for axis, start, limit, step in zip(axes, starts, limits, steps, strict=True):
        places[axis] = slice(start, limit, step)
    return x[tuple(places)]


def split_array(x, sizes, axis):
    """Split an array along an axis into a list of arrays with the given sizes."""
    return np.split(x, np.cumsum(sizes)[:-1], axis=axis)


OPERATIONS = {
    "abs": np.abs,
    "add": np.add,
    "and": np.logical_and,
    "argmax": lambda x, axis: np.argmax(x, axis=axis),
    "argmin": lambda x, axis: np.argmin(x, axis=axis),
    "cast": lambda x, dtype: x.astype(dtype),
    "ceil": np.ceil,
    "concatenate": lambda *parts, axis: np.concatenate(parts, axis=axis),
    "cos": np.cos,
    "div": np.divide,
    "einsum": lambda x, y, equation: np.einsum(equation, x, y),
    "eq": np.equal,
    "erf": lambda x: np.vectorize(math.erf, otypes=[np.float64])(x),
    "exp": np.exp,
    "expand": lambda x, shape: np.broadcast_to(x, shape),
    "expm1": np.expm1,
    "floor": np.floor,
    "ge": np.greater_equal,
    "gt": np.greater,
    "is_finite": np.isfinite,
    "le": np.less_equal,
    "log": np.log,
    "log1p": np.log1p,
    "logistic": lambda x: (np.tanh(x / 2) + 1) / 2,
    "lt": np.less,
    "matmul": np.matmul,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": np.logical_not,
    "or": np.logical_or,
    "power": lambda x, exponent: x**exponent if exponent >= 0 else 1 / x**-exponent,
    "reduce_and": lambda x, axes: np.all(x, axis=tuple(axes)),
    "reduce_max": lambda x, axes: np.max(x, axis=tuple(axes)),
    "reduce_min": lambda x, axes: np.min(x, axis=tuple(axes)),
    "reduce_or": lambda x, axes: np.any(x, axis=tuple(axes)),
    "reduce_prod": lambda x, axes: np.prod(x, axis=tuple(axes)),
    "reduce_sum": lambda x, axes: np.sum(x, axis=tuple(axes)),
    "reshape": lambda x, shape: np.reshape(x, shape),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "select": np.where,
    "sign": np.sign,
    "sin": np.sin,
    "slice": slice_array,
    "split": split_array,
    "sqrt": np.sqrt,
    "square": np.square,
    "sub": np.subtract,
    "take": lambda x, places, axis: np.take(x, places, axis=axis),
    "tanh": np.tanh,
    "transpose": lambda x, axes: np.transpose(x, axes),
}
