"""File formats of exported policies, with a writer and a loader for each format."""

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.export
import numpy as np

from rollax.errors import UsageError
from rollax.exporting import numpy_file, onnx_file
from rollax.exporting.jaxpr_program import Arrays, Program, run_program
from rollax.runtime.installation import install_command
from rollax.types import Leaf

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


class ExportFormat(NamedTuple):
    """Format of exported policies.

    Attributes:
        summary: Noun phrase that describes the files.
        extra: Name of the rollax extra that installs `packages`, or None without packages.
        packages: Packages that the format needs.
        write: Function that converts a program to file contents, keyed by file name. The policy
            file is first.
        open: Function that loads the files and returns a function `act(inputs)`. `inputs` is a
            dictionary, and the result is a dictionary or a list in the order of output names.
        needs_lowering: Whether the format supports only the operations of `lower_program` and no
            random keys. If True, uniform random numbers replace the key as an input.
        loading_code: Python code that defines `act(inputs)` in the folder of the files.
        batch: Default number of environments per call. None for any number.
    """

    summary: str
    extra: str | None
    packages: tuple[str, ...]
    write: Callable[[Program], dict[str, bytes]]
    open: Callable[[dict[str, bytes]], Callable[[Arrays], Any]]
    needs_lowering: bool
    loading_code: str
    batch: int | None = None

    def check_installed(self) -> None:
        """Raise UsageError if a package that the format needs is not installed."""
        for package in self.packages:
            if importlib.util.find_spec(package) is None:
                raise UsageError(
                    f"The package {package} is not installed, and this format needs it. Run: "
                    f"{install_command(str(self.extra))}"
                )


def input_shapes(program: Program) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shape and dtype of every input of a program, keyed by input name."""
    return {name: program.types[number] for name, number in program.inputs.items()}


def write_jax(program: Program) -> dict[str, bytes]:
    """Serialize the program with `jax.export` for CPU, GPU and TPU.

    Returns:
        Dictionary of file contents with the key "policy.jax".
    """
    exported = jax.export.export(
        jax.jit(lambda inputs: run_program(program, inputs)), platforms=PLATFORMS
    )(input_shapes(program))
    return {"policy.jax": bytes(exported.serialize())}


def open_jax(files: dict[str, bytes]) -> Callable[[Arrays], Arrays]:
    """Load policy.jax as a jitted function from a dictionary of inputs to one of outputs."""
    return jax.jit(jax.export.deserialize(bytearray(files["policy.jax"])).call)


def write_stablehlo(program: Program) -> dict[str, bytes]:
    """Lower the program to StableHLO text.

    Returns:
        Dictionary of file contents with the key "policy.mlir".

    Raises:
        UsageError: If the program has a symbolic batch size, which few StableHLO compilers support.
    """
    function = jax.jit(lambda inputs: run_program(program, inputs), keep_unused=True)
    if any(
        not isinstance(side, int) for spec in input_shapes(program).values() for side in spec.shape
    ):
        raise UsageError(
            "batch must be a fixed number of environments for stablehlo. Set it, for example "
            "--batch 1."
        )
    return {"policy.mlir": function.lower(input_shapes(program)).as_text().encode()}


def open_stablehlo(files: dict[str, bytes]) -> Callable[[Arrays], list[Any]]:
    """Compile the StableHLO text for the CPU.

    Returns:
        Function from a dictionary of inputs to a list of outputs in the order of their names.
    """
    device = jax.devices("cpu")[0]
    program = device.client.compile_and_load(files["policy.mlir"].decode(), [device])

    def act(inputs: Arrays) -> list[Any]:
        return program.execute(
            [jax.device_put(np.asarray(inputs[name]), device) for name in sorted(inputs)]
        )

    return act


def name_outputs(outputs: Arrays | Sequence[Leaf], names: list[str]) -> Arrays:
    """Convert outputs to a dictionary. `names` are the keys for outputs that are a list."""
    return outputs if isinstance(outputs, dict) else dict(zip(names, outputs, strict=True))


JAX_LOADING_CODE = """\
from jax import export

act = export.deserialize(bytearray(Path("policy.jax").read_bytes())).call
"""
STABLEHLO_LOADING_CODE = """\
import jax  # or any other compiler of StableHLO

device = jax.devices()[0]
compiled = device.client.compile_and_load(Path("policy.mlir").read_text(), [device])
names = [one["name"] for one in description["outputs"]]


def act(inputs):  # arguments and results are in the order of their names
    arguments = [jax.device_put(inputs[one["name"]], device) for one in description["inputs"]]
    return dict(zip(names, compiled.execute(arguments)))

"""
FORMATS: dict[str, ExportFormat] = {
    "jax": ExportFormat(
        summary="a serialized jax.export",
        extra="export",
        packages=("flatbuffers",),
        write=write_jax,
        open=open_jax,
        needs_lowering=False,
        loading_code=JAX_LOADING_CODE,
    ),
    "stablehlo": ExportFormat(
        summary="StableHLO as text",
        extra=None,
        packages=(),
        write=write_stablehlo,
        open=open_stablehlo,
        needs_lowering=False,
        loading_code=STABLEHLO_LOADING_CODE,
        batch=1,
    ),
    "onnx": ExportFormat(
        summary="an ONNX model",
        extra="onnx",
        packages=("onnx", "onnxruntime"),
        write=onnx_file.write_onnx,
        open=onnx_file.open_onnx,
        needs_lowering=True,
        loading_code=onnx_file.LOADING_CODE,
    ),
    "numpy": ExportFormat(
        summary="arrays for NumPy",
        extra=None,
        packages=(),
        write=numpy_file.write_numpy,
        open=numpy_file.open_numpy,
        needs_lowering=True,
        loading_code=numpy_file.LOADING_CODE,
    ),
}
