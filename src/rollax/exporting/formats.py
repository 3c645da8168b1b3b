"""The formats of exported policies: how each is written, and how it is opened again to be compared."""

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.export
import numpy as np

from rollax.errors import UsageError
from rollax.exporting import numpy_file, onnx_file
from rollax.exporting.program import Program, run

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
Arrays = dict[str, Any]


class Format(NamedTuple):
    """`write(program)` gives the files by name, the policy's own first; `open(files)` a function of arrays by name."""

    summary: str
    extra: str | None  # pip install "rollax[extra]"
    packages: tuple[str, ...]  # that it needs
    write: Callable[[Program], dict[str, bytes]]
    open: Callable[[dict[str, bytes]], Callable[[Arrays], Any]]  # outputs by name, or in the order of their names
    is_plain: bool  # samples by uniform numbers in place of a random key
    opening: str  # lines of Python that define `act(inputs)` in the folder of the files
    batch: int | None = None  # where nobody says: None for any

    def check_installed(self) -> None:
        """Raises UsageError when a package is missing."""
        for package in self.packages:
            if importlib.util.find_spec(package) is None:
                raise UsageError(
                    f'this format needs the package {package}, which is not installed: pip install "rollax[{self.extra}]"'
                )


def specifications(program: Program) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: program.types[number] for name, number in program.inputs.items()}


def write_jax(program: Program) -> dict[str, bytes]:
    exported = jax.export.export(jax.jit(lambda inputs: run(program, inputs)), platforms=PLATFORMS)(specifications(program))
    return {"policy.jax": bytes(exported.serialize())}


def open_jax(files: dict[str, bytes]) -> Callable[[Arrays], Arrays]:
    return jax.jit(jax.export.deserialize(bytearray(files["policy.jax"])).call)


def write_stablehlo(program: Program) -> dict[str, bytes]:
    """Raises UsageError for a program of any batch, whose shapes few readers take."""
    function = jax.jit(lambda inputs: run(program, inputs), keep_unused=True)
    if any(not isinstance(side, int) for spec in specifications(program).values() for side in spec.shape):
        raise UsageError("stablehlo is written for a number of environments: give it, such as --batch 1")
    return {"policy.mlir": function.lower(specifications(program)).as_text().encode()}


def open_stablehlo(files: dict[str, bytes]) -> Callable[[Arrays], list[Any]]:
    """The text as compiled here, with arguments and results in the order of their names."""
    device = jax.devices("cpu")[0]
    program = device.client.compile_and_load(files["policy.mlir"].decode(), [device])

    def act(inputs: Arrays) -> list[Any]:
        return program.execute([jax.device_put(np.asarray(inputs[name]), device) for name in sorted(inputs)])

    return act


def named(outputs: Any, names: list[str]) -> Arrays:
    """Outputs by name, of a format that gives them in order."""
    return outputs if isinstance(outputs, dict) else dict(zip(names, outputs, strict=True))


JAX_OPENING = """\
from jax import export

act = export.deserialize(bytearray(Path("policy.jax").read_bytes())).call
"""
STABLEHLO_OPENING = """\
import jax  # or whatever else compiles StableHLO

device = jax.devices()[0]
compiled = device.client.compile_and_load(Path("policy.mlir").read_text(), [device])
names = [one["name"] for one in description["outputs"]]


def act(inputs):  # arguments and results are in the order of their names
    arguments = [jax.device_put(inputs[one["name"]], device) for one in description["inputs"]]
    return dict(zip(names, compiled.execute(arguments)))

"""
FORMATS: dict[str, Format] = {
    "jax": Format("a serialized jax.export", "export", ("flatbuffers",), write_jax, open_jax, False, JAX_OPENING),
    "stablehlo": Format("StableHLO as text", None, (), write_stablehlo, open_stablehlo, False, STABLEHLO_OPENING, 1),
    "onnx": Format(
        "an ONNX model", "onnx", ("onnx", "onnxruntime"), onnx_file.write, onnx_file.open_again, True, onnx_file.OPENING
    ),
    "numpy": Format("arrays for NumPy", None, (), numpy_file.write, numpy_file.open_again, True, numpy_file.OPENING),
}
