"""NumPy format: constants and a list of operations in one .npz file, with a reader module."""

import inspect
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from rollax.exporting import numpy_policy
from rollax.exporting.jaxpr_program import Program
from rollax.exporting.primitive_operations import lower_program, size_to_json

LOADING_CODE = """\
from numpy_policy import load

act = load("policy.npz")
"""


def write_numpy(program: Program) -> dict[str, bytes]:
    """Return the contents of policy.npz and of its reader numpy_policy.py, keyed by file name."""
    program = lower_program(program)

    def dtype_name(value_id: int) -> str:
        return np.dtype(program.types[value_id].dtype).name

    steps = [
        [op.name, op.inputs, op.outputs, op.params, list(map(dtype_name, op.outputs))]
        for op in program.operations
    ]
    inputs = {
        name: [n, [size_to_json(side) for side in program.types[n].shape], dtype_name(n)]
        for name, n in program.inputs.items()
    }
    document = json.dumps({"inputs": inputs, "outputs": program.outputs, "steps": steps}).encode()
    arrays: dict[str, Any] = {str(value_id): value for value_id, value in program.constants.items()}
    buffer = io.BytesIO()
    np.savez(buffer, program=np.frombuffer(document, np.uint8), **arrays)
    return {
        "policy.npz": buffer.getvalue(),
        "numpy_policy.py": inspect.getsource(numpy_policy).encode(),
    }


def open_numpy(files: dict[str, bytes]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Load policy.npz as a function from a dictionary of inputs to a dictionary of outputs."""
    return numpy_policy.load(io.BytesIO(files["policy.npz"]))
