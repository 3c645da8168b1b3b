"""ONNX format: each lowered operation becomes one or a few nodes of standard ONNX operators."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from rollax.exporting.jaxpr_program import Operation, PrimitiveParam, PrimitiveParams, Program
from rollax.exporting.policy_function import BATCH_SYMBOL
from rollax.exporting.primitive_operations import lower_program, size_to_json
from rollax.types import Leaf

OPSET_VERSION, IR_VERSION = 18, 8  # released in 2022, supported by current and older runtimes
LOADING_CODE = """\
import onnxruntime

session = onnxruntime.InferenceSession("policy.onnx", providers=["CPUExecutionProvider"])
names = [one.name for one in session.get_outputs()]


def act(inputs):
    return dict(zip(names, session.run(names, inputs)))

"""

# Operations with an equivalent ONNX operator that needs no attributes.
DIRECT_OPERATORS = {
    "abs": "Abs",
    "add": "Add",
    "and": "And",
    "ceil": "Ceil",
    "cos": "Cos",
    "div": "Div",
    "eq": "Equal",
    "erf": "Erf",
    "exp": "Exp",
    "floor": "Floor",
    "ge": "GreaterOrEqual",
    "gt": "Greater",
    "le": "LessOrEqual",
    "log": "Log",
    "logistic": "Sigmoid",
    "lt": "Less",
    "matmul": "MatMul",
    "max": "Max",
    "min": "Min",
    "mul": "Mul",
    "neg": "Neg",
    "not": "Not",
    "or": "Or",
    "select": "Where",
    "sign": "Sign",
    "sin": "Sin",
    "sqrt": "Sqrt",
    "sub": "Sub",
    "tanh": "Tanh",
}
REDUCTION_OPERATORS = {
    "reduce_sum": "ReduceSum",
    "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd",
}
# Booleans are reduced as integers.
REDUCTION_OPERATORS |= {"reduce_and": "ReduceMin", "reduce_or": "ReduceMax"}


def write_onnx(program: Program) -> dict[str, bytes]:
    """Convert a program to an ONNX model.

    Args:
        program: Program of the policy.

    Returns:
        Dictionary of file contents with the key "policy.onnx".

    Raises:
        UsageError: If the program uses operations or dtypes that the format does not support.
    """
    import onnx

    program = lower_program(program)
    graph = _GraphBuilder(program)
    for operation in program.operations:
        graph.add_operation(operation)
    outputs = []
    for name, number in program.outputs.items():
        graph.add_node("Identity", [graph.names[number]], [name])
        outputs.append(graph.make_value_info(name, number))
    inputs = [graph.make_value_info(name, number) for name, number in program.inputs.items()]
    graph_proto = onnx.helper.make_graph(graph.nodes, "policy", inputs, outputs, graph.constants)
    model = onnx.helper.make_model(
        graph_proto,
        opset_imports=[onnx.helper.make_opsetid("", OPSET_VERSION)],
        producer_name="rollax",
    )
    model.ir_version = IR_VERSION
    onnx.checker.check_model(model, full_check=True)
    return {"policy.onnx": model.SerializeToString()}


def open_onnx(files: dict[str, bytes]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Load policy.onnx with ONNX Runtime as a function on dictionaries of inputs and outputs."""
    import onnxruntime

    session = onnxruntime.InferenceSession(files["policy.onnx"], providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


class _GraphBuilder:
    """Builder of an ONNX graph. Inputs keep their names, and other values are named by id."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.names = {value_id: f"value_{value_id}" for value_id in program.types}
        self.names |= {value_id: name for name, value_id in program.inputs.items()}
        self._constant_names: dict[Any, str] = {}
        for value_id, value in program.constants.items():
            self.names[value_id] = self.add_constant(value)

    def tensor_type(self, dtype: np.dtype | type[np.generic] | str) -> int:
        import onnx

        return onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def make_value_info(self, name: str, value_id: int) -> Any:
        import onnx

        kind = self.program.types[value_id]
        shape = [
            side if isinstance(side, int) else str(side) for side in map(size_to_json, kind.shape)
        ]
        return onnx.helper.make_tensor_value_info(name, self.tensor_type(kind.dtype), shape)

    def add_constant(
        self, value: Leaf | list[int], dtype: np.dtype | type[np.generic] | None = None
    ) -> str:
        import onnx

        array = np.asarray(value, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constant_names:
            self._constant_names[key] = f"constant_{len(self._constant_names)}"
            self.constants.append(onnx.numpy_helper.from_array(array, self._constant_names[key]))
        return self._constant_names[key]

    def add_node(
        self,
        kind: str,
        inputs: list[str],
        outputs: list[str] | None = None,
        **attributes: PrimitiveParam,
    ) -> str:
        """Add a node and return the name of its first output."""
        import onnx

        outputs = outputs or [f"inner_{len(self.nodes)}"]
        self.nodes.append(onnx.helper.make_node(kind, inputs, outputs, **attributes))
        return outputs[0]

    def add_shape(self, sizes: list[int | str]) -> str:
        """Add a shape tensor and return its name. Sizes may be multiples of the batch size."""
        if all(isinstance(size, int) for size in sizes):
            return self.add_constant(sizes, np.int64)
        source = next(
            name for name, n in self.program.inputs.items() if self.program.types[n].shape
        )
        batch = self.add_node("Shape", [source], start=0, end=1)
        entries = []
        for size in sizes:
            factor = (
                1
                if size == BATCH_SYMBOL
                else int(
                    re.match(r"\d+", str(size))[0]  # pyright: ignore[reportOptionalSubscript]
                )
            )
            multiple = (
                batch
                if factor == 1
                else self.add_node("Mul", [batch, self.add_constant([factor], np.int64)])
            )
            entries.append(
                self.add_constant([size], np.int64) if isinstance(size, int) else multiple
            )
        return self.add_node("Concat", entries, axis=0)

    def add_operation(self, operation: Operation) -> None:
        name, params = operation.name, operation.params
        inputs, outputs = [
            [self.names[n] for n in numbers] for numbers in (operation.inputs, operation.outputs)
        ]
        dtype = self.program.types[operation.inputs[0]].dtype
        if name in DIRECT_OPERATORS:
            self.add_node(DIRECT_OPERATORS[name], inputs, outputs)
        elif name in REDUCTION_OPERATORS:
            self.add_reduction(name, inputs[0], outputs, params["axes"])
        else:
            _NODE_BUILDERS[name](self, inputs, outputs, dtype, params)

    def add_reduction(self, name: str, source: str, outputs: list[str], axes: list[int]) -> None:
        axes_name = self.add_constant(axes, np.int64)
        if name not in ("reduce_and", "reduce_or"):
            self.add_node(REDUCTION_OPERATORS[name], [source, axes_name], outputs, keepdims=0)
            return
        numbers = self.add_node("Cast", [source], to=self.tensor_type(np.int32))
        found = self.add_node(REDUCTION_OPERATORS[name], [numbers, axes_name], keepdims=0)
        self.add_node("Cast", [found], outputs, to=self.tensor_type(np.bool_))


def _make_arg_reduction(kind: str) -> Callable[..., None]:
    def add(
        graph: _GraphBuilder, x: list[str], y: list[str], dtype: np.dtype, params: PrimitiveParams
    ) -> None:
        found = graph.add_node(kind, x, axis=params["axis"], keepdims=0)
        graph.add_node("Cast", [found], y, to=graph.tensor_type(np.int32))

    return add


def _add_is_finite(
    graph: _GraphBuilder, x: list[str], y: list[str], dtype: np.dtype, params: PrimitiveParams
) -> None:
    graph.add_node(
        "Not", [graph.add_node("Or", [graph.add_node("IsNaN", x), graph.add_node("IsInf", x)])], y
    )


def _add_slice(
    graph: _GraphBuilder, x: list[str], y: list[str], dtype: np.dtype, params: PrimitiveParams
) -> None:
    bounds = [
        graph.add_constant(params[name], np.int64) for name in ("starts", "limits", "axes", "steps")
    ]
    graph.add_node("Slice", [*x, *bounds], y)


# Operations with parameters: (graph, inputs, outputs, dtype of the first input, parameters).
_NODE_BUILDERS: dict[str, Callable[..., Any]] = {
    "argmax": _make_arg_reduction("ArgMax"),
    "argmin": _make_arg_reduction("ArgMin"),
    "cast": lambda g, x, y, _, params: g.add_node("Cast", x, y, to=g.tensor_type(params["dtype"])),
    "concatenate": lambda g, x, y, _, params: g.add_node("Concat", x, y, axis=params["axis"]),
    "einsum": lambda g, x, y, _, params: g.add_node("Einsum", x, y, equation=params["equation"]),
    "expand": lambda g, x, y, _, params: g.add_node(
        "Expand", [*x, g.add_shape(params["shape"])], y
    ),
    "expm1": lambda g, x, y, dtype, _: g.add_node(
        "Sub", [g.add_node("Exp", x), g.add_constant(1, dtype)], y
    ),
    "is_finite": _add_is_finite,
    "log1p": lambda g, x, y, dtype, _: g.add_node(
        "Log", [g.add_node("Add", [*x, g.add_constant(1, dtype)])], y
    ),
    "ne": lambda g, x, y, *_: g.add_node("Not", [g.add_node("Equal", x)], y),
    "power": lambda g, x, y, dtype, params: g.add_node(
        "Pow", [*x, g.add_constant(params["exponent"], dtype)], y
    ),
    "reshape": lambda g, x, y, _, params: g.add_node(
        "Reshape", [*x, g.add_constant(params["shape"], np.int64)], y
    ),
    "rsqrt": lambda g, x, y, *_: g.add_node("Reciprocal", [g.add_node("Sqrt", x)], y),
    "slice": _add_slice,
    "split": lambda g, x, y, _, params: g.add_node(
        "Split", [*x, g.add_constant(params["sizes"], np.int64)], y, axis=params["axis"]
    ),
    "square": lambda g, x, y, *_: g.add_node("Mul", [x[0], x[0]], y),
    "take": lambda g, x, y, _, params: g.add_node("Gather", x, y, axis=params["axis"]),
    "transpose": lambda g, x, y, _, params: g.add_node("Transpose", x, y, perm=params["axes"]),
}
