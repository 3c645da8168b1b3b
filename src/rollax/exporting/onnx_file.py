"""The format ONNX: each plain operation as one or a few nodes of the standard operators."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from rollax.exporting.plain import plain, size
from rollax.exporting.policy import BATCH
from rollax.exporting.program import Operation, Program

OPSET, IR_VERSION = 18, 8  # of 2022, which today's and yesterday's runtimes read
OPENING = """\
import onnxruntime

session = onnxruntime.InferenceSession("policy.onnx", providers=["CPUExecutionProvider"])
names = [one.name for one in session.get_outputs()]


def act(inputs):
    return dict(zip(names, session.run(names, inputs)))

"""

# Operators of the same meaning without parameters.
SAME = {
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
REDUCE = {"reduce_sum": "ReduceSum", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin", "reduce_prod": "ReduceProd"}
REDUCE |= {"reduce_and": "ReduceMin", "reduce_or": "ReduceMax"}  # of truth values as whole numbers


def write(program: Program) -> dict[str, bytes]:
    """The file by name."""
    import onnx

    program = plain(program)
    graph = _Graph(program)
    for operation in program.operations:
        graph.add(operation)
    outputs = []
    for name, number in program.outputs.items():
        graph.node("Identity", [graph.names[number]], [name])
        outputs.append(graph.described(name, number))
    inputs = [graph.described(name, number) for name, number in program.inputs.items()]
    made = onnx.helper.make_graph(graph.nodes, "policy", inputs, outputs, graph.constants)
    model = onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", OPSET)], producer_name="rollax")
    model.ir_version = IR_VERSION
    onnx.checker.check_model(model, full_check=True)
    return {"policy.onnx": model.SerializeToString()}


def open_again(files: dict[str, bytes]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(files["policy.onnx"], providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


class _Graph:
    """Nodes and constants so far. Values are named by their numbers, inputs by their names."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.names = {number: f"value_{number}" for number in program.types}
        self.names |= {number: name for name, number in program.inputs.items()}
        self._taken: dict[Any, str] = {}
        for number, value in program.constants.items():
            self.names[number] = self.constant(value)

    def kind(self, dtype: Any) -> int:
        import onnx

        return onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def described(self, name: str, number: int) -> Any:
        import onnx

        kind = self.program.types[number]
        shape = [side if isinstance(side, int) else str(side) for side in map(size, kind.shape)]
        return onnx.helper.make_tensor_value_info(name, self.kind(kind.dtype), shape)

    def constant(self, value: Any, dtype: Any = None) -> str:
        import onnx

        array = np.asarray(value, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._taken:
            self._taken[key] = f"constant_{len(self._taken)}"
            self.constants.append(onnx.numpy_helper.from_array(array, self._taken[key]))
        return self._taken[key]

    def node(self, kind: str, inputs: list[str], outputs: list[str] | None = None, **attributes: Any) -> str:
        """Adds a node; returns the name of its first output."""
        import onnx

        outputs = outputs or [f"inner_{len(self.nodes)}"]
        self.nodes.append(onnx.helper.make_node(kind, inputs, outputs, **attributes))
        return outputs[0]

    def shape(self, sides: list[Any]) -> str:
        """A shape as an array, of which some sides are multiples of the batch."""
        if all(isinstance(side, int) for side in sides):
            return self.constant(sides, np.int64)
        source = next(name for name, n in self.program.inputs.items() if self.program.types[n].shape)
        batch = self.node("Shape", [source], start=0, end=1)
        parts = []
        for side in sides:
            factor = 1 if side == BATCH else int(re.match(r"\d+", str(side))[0])  # pyright: ignore[reportOptionalSubscript]
            multiple = batch if factor == 1 else self.node("Mul", [batch, self.constant([factor], np.int64)])
            parts.append(self.constant([side], np.int64) if isinstance(side, int) else multiple)
        return self.node("Concat", parts, axis=0)

    def add(self, operation: Operation) -> None:
        name, given = operation.name, operation.params
        inputs, outputs = [[self.names[n] for n in numbers] for numbers in (operation.inputs, operation.outputs)]
        dtype = self.program.types[operation.inputs[0]].dtype
        if name in SAME:
            self.node(SAME[name], inputs, outputs)
        elif name in REDUCE:
            self.reduce(name, inputs[0], outputs, given["axes"])
        else:
            _NODES[name](self, inputs, outputs, dtype, given)

    def reduce(self, name: str, source: str, outputs: list[str], axes: list[int]) -> None:
        axes_name = self.constant(axes, np.int64)
        if name not in ("reduce_and", "reduce_or"):
            self.node(REDUCE[name], [source, axes_name], outputs, keepdims=0)
            return
        numbers = self.node("Cast", [source], to=self.kind(np.int32))
        found = self.node(REDUCE[name], [numbers, axes_name], keepdims=0)
        self.node("Cast", [found], outputs, to=self.kind(np.bool_))


def _argmax(kind: str) -> Callable[..., None]:
    def add(graph: _Graph, x: list[str], y: list[str], dtype: Any, given: dict[str, Any]) -> None:
        found = graph.node(kind, x, axis=given["axis"], keepdims=0)
        graph.node("Cast", [found], y, to=graph.kind(np.int32))

    return add


def _is_finite(graph: _Graph, x: list[str], y: list[str], dtype: Any, given: dict[str, Any]) -> None:
    graph.node("Not", [graph.node("Or", [graph.node("IsNaN", x), graph.node("IsInf", x)])], y)


def _slice(graph: _Graph, x: list[str], y: list[str], dtype: Any, given: dict[str, Any]) -> None:
    bounds = [graph.constant(given[name], np.int64) for name in ("starts", "limits", "axes", "steps")]
    graph.node("Slice", [*x, *bounds], y)


# Those with parameters: (graph, inputs, outputs, type of the first input, parameters).
_NODES: dict[str, Callable[..., Any]] = {
    "argmax": _argmax("ArgMax"),
    "argmin": _argmax("ArgMin"),
    "cast": lambda g, x, y, _, given: g.node("Cast", x, y, to=g.kind(given["dtype"])),
    "concatenate": lambda g, x, y, _, given: g.node("Concat", x, y, axis=given["axis"]),
    "einsum": lambda g, x, y, _, given: g.node("Einsum", x, y, equation=given["equation"]),
    "expand": lambda g, x, y, _, given: g.node("Expand", [*x, g.shape(given["shape"])], y),
    "expm1": lambda g, x, y, dtype, _: g.node("Sub", [g.node("Exp", x), g.constant(1, dtype)], y),
    "is_finite": _is_finite,
    "log1p": lambda g, x, y, dtype, _: g.node("Log", [g.node("Add", [*x, g.constant(1, dtype)])], y),
    "ne": lambda g, x, y, *_: g.node("Not", [g.node("Equal", x)], y),
    "power": lambda g, x, y, dtype, given: g.node("Pow", [*x, g.constant(given["exponent"], dtype)], y),
    "reshape": lambda g, x, y, _, given: g.node("Reshape", [*x, g.constant(given["shape"], np.int64)], y),
    "rsqrt": lambda g, x, y, *_: g.node("Reciprocal", [g.node("Sqrt", x)], y),
    "slice": _slice,
    "split": lambda g, x, y, _, given: g.node("Split", [*x, g.constant(given["sizes"], np.int64)], y, axis=given["axis"]),
    "square": lambda g, x, y, *_: g.node("Mul", [x[0], x[0]], y),
    "take": lambda g, x, y, _, given: g.node("Gather", x, y, axis=given["axis"]),
    "transpose": lambda g, x, y, _, given: g.node("Transpose", x, y, perm=given["axes"]),
}
