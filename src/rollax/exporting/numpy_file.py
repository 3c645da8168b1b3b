"""The format for NumPy alone: constants and a list of operations in one .npz, and the reader beside it."""

import inspect
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from rollax.exporting import numpy_policy
from rollax.exporting.plain import plain, size
from rollax.exporting.program import Program

OPENING = """\
from numpy_policy import load

act = load("policy.npz")
"""


def write(program: Program) -> dict[str, bytes]:
    """The files by name."""
    program = plain(program)

    def kind(number: int) -> str:
        return np.dtype(program.types[number].dtype).name

    steps = [[op.name, op.inputs, op.outputs, op.params, list(map(kind, op.outputs))] for op in program.operations]
    inputs = {name: [n, [size(side) for side in program.types[n].shape], kind(n)] for name, n in program.inputs.items()}
    document = json.dumps({"inputs": inputs, "outputs": program.outputs, "steps": steps}).encode()
    arrays: dict[str, Any] = {str(number): value for number, value in program.constants.items()}
    buffer = io.BytesIO()
    np.savez(buffer, program=np.frombuffer(document, np.uint8), **arrays)
    return {"policy.npz": buffer.getvalue(), "numpy_policy.py": inspect.getsource(numpy_policy).encode()}


def open_again(files: dict[str, bytes]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return numpy_policy.load(io.BytesIO(files["policy.npz"]))
