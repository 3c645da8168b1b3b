"""Lowering of programs to a few operations that NumPy and ONNX support.

Parameters of lowered operations can be written as JSON. Sizes are integers. A symbolic batch size
is written as "batch" or as a multiple such as "6*batch". In the target shape of a reshape it is -1.
"""

import re
import string
from collections.abc import Callable, Iterable, Sequence
from typing import Any, SupportsInt, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from rollax.errors import UsageError
from rollax.exporting.jaxpr_program import (
    Operation,
    PrimitiveParam,
    PrimitiveParams,
    Program,
    remove_dead_code,
)
from rollax.exporting.policy_function import BATCH_SYMBOL

# Elementwise operations without parameters.
FLOAT_OPERATIONS = (
    "div",
    "exp",
    "expm1",
    "log",
    "log1p",
    "tanh",
    "logistic",
    "sqrt",
    "rsqrt",
    "floor",
    "ceil",
    "sin",
    "cos",
    "erf",
)
NUMERIC_OPERATIONS = (
    "add",
    "sub",
    "mul",
    "max",
    "min",
    "neg",
    "abs",
    "sign",
    "square",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "is_finite",
)
BOOLEAN_OPERATIONS = ("and", "or", "not")
IDENTITY_PRIMITIVES = (
    "stop_gradient",
    "copy",
    "copy_p",
    "optimization_barrier",
    "reduce_precision",
)
REDUCTION_OPERATIONS = (
    "reduce_sum",
    "reduce_max",
    "reduce_min",
    "reduce_prod",
    "reduce_and",
    "reduce_or",
)
SUPPORTED_DTYPES = ("float32", "int32", "uint32", "int8", "uint8", "int16", "uint16", "bool")
SIZE_PATTERN = re.compile(rf"(\d+\*)?{BATCH_SYMBOL}")


def lower_program(program: Program) -> Program:
    """Lower a program to operations that NumPy and ONNX support.

    Args:
        program: Traced program.

    Returns:
        Lowered program with the same inputs and outputs.

    Raises:
        UsageError: If the program uses an operation, dtype or size that cannot be lowered.
    """
    for kind in program.types.values():
        if str(kind.dtype) not in SUPPORTED_DTYPES:
            raise _unsupported_error(f"values of dtype {kind.dtype}")
    lowering = _Lowering(program)
    for operation in program.operations:
        lowering.lower(operation)
    outputs = {name: lowering.now(number) for name, number in program.outputs.items()}
    constants = {number: np.asarray(value) for number, value in lowering.constants.items()}
    return remove_dead_code(
        Program(program.inputs, outputs, tuple(lowering.operations), constants, lowering.types)
    )


Size: TypeAlias = Any
"""Size of an axis: an integer, or an expression of the symbolic batch size."""
Shape: TypeAlias = tuple[Size, ...]
"""Shape of an array, with sizes that may be symbolic."""
AxisPairs: TypeAlias = tuple[Sequence[int], Sequence[int]]
"""Paired axes of the left and the right operand."""


def _unsupported_error(what: str) -> UsageError:
    return UsageError(
        f"This policy uses {what}, which the formats onnx and numpy do not support. Export it --to "
        "jax or stablehlo."
    )


class _Lowering:
    """Builder of a lowered program. Values in `aliases` are replaced by equal values."""

    def __init__(self, program: Program) -> None:
        self.operations: list[Operation] = []
        self.constants: dict[int, Any] = dict(program.constants)
        self.types = dict(program.types)
        self.aliases: dict[int, int] = {}
        # Source and axes of transposed values.
        self.transposition_sources: dict[int, tuple[int, tuple[int, ...]]] = {}

    def now(self, number: int) -> int:
        return self.aliases.get(number, number)

    def shape(self, number: int) -> Shape:
        return self.types[number].shape

    def new(self, shape: Shape, dtype: np.dtype) -> int:
        number = max(self.types) + 1
        self.types[number] = jax.ShapeDtypeStruct(shape, dtype)
        return number

    def add_constant(self, value: np.ndarray) -> int:
        number = self.new(value.shape, value.dtype)
        self.constants[number] = value
        return number

    def emit(
        self, name: str, inputs: tuple[int, ...], outputs: tuple[int, ...], **given: PrimitiveParam
    ) -> None:
        self.operations.append(Operation(name, inputs, outputs, given, None))

    def lower(self, operation: Operation) -> None:
        inputs, outputs = tuple(map(self.now, operation.inputs)), operation.outputs
        name, kinds = operation.name, {self.types[number].dtype.kind for number in operation.inputs}
        is_plain = (
            name in NUMERIC_OPERATIONS
            or (name in FLOAT_OPERATIONS and kinds == {"f"})
            or (name in BOOLEAN_OPERATIONS and kinds == {"b"})
        )
        if is_plain:
            self.emit(name, inputs, outputs)
        elif name in IDENTITY_PRIMITIVES:
            self.aliases |= dict(zip(outputs, inputs, strict=True))
        elif name in REDUCTION_OPERATIONS:
            self.emit(name, inputs, outputs, axes=_to_ints(operation.params["axes"]))
        elif name in _LOWERINGS:
            _LOWERINGS[name](self, operation.params, inputs, outputs)
        else:
            raise _unsupported_error(f"the operation {name}")

    def reshape(self, number: int, shape: Shape, output: int) -> None:
        if self.shape(number) == shape:
            self.aliases[output] = number
        else:
            sides = [side if isinstance(side, int) else -1 for side in map(size_to_json, shape)]
            self.emit("reshape", (number,), (output,), shape=sides)

    def transpose(self, number: int, axes: tuple[int, ...], output: int) -> None:
        """Add a transposition. Merge it with a preceding one and skip it if nothing changes."""
        source, before = self.transposition_sources.get(number, (number, tuple(range(len(axes)))))
        axes = tuple(before[axis] for axis in axes)
        if axes == tuple(range(len(axes))):
            self.aliases[output] = source
            return
        self.transposition_sources[output] = source, axes
        self.emit("transpose", (source,), (output,), axes=list(axes))

    def product(self, inputs: tuple[int, ...], params: PrimitiveParams, output: int) -> None:
        """Add a matmul for products with a constant matrix `[K, N]`, and an einsum for others."""
        (contracted, batched), (left, right) = params["dimension_numbers"], inputs
        is_single = not batched[0] and len(contracted[0]) == 1
        dtype = self.types[output].dtype
        for matrix, other, side in ((right, left, 1), (left, right, 0)):
            if (
                not is_single
                or matrix not in self.constants
                or len(self.shape(matrix)) != 2
                or not self.shape(other)
            ):
                continue
            axis, value = int(contracted[1 - side][0]), np.asarray(self.constants[matrix])
            weights = self.add_constant(value if contracted[side][0] == 0 else value.T)
            last = tuple(i for i in range(len(self.shape(other))) if i != axis)
            free = tuple(self.shape(other)[i] for i in last)
            moved = self.new((*free, value.shape[contracted[side][0]]), dtype)
            self.transpose(other, (*last, axis), moved)
            result = output if side else self.new((*free, self.shape(weights)[1]), dtype)
            self.emit("matmul", (self.now(moved), weights), (result,))
            if not side:
                self.transpose(result, (len(last), *range(len(last))), output)
            return
        self.emit(
            "einsum",
            inputs,
            (output,),
            equation=make_einsum_equation(self.shape(left), self.shape(right), contracted, batched),
        )


def make_einsum_equation(
    left: Shape, right: Shape, contracted: AxisPairs, batched: AxisPairs
) -> str:
    """Return the einsum equation of a `dot_general`.

    Axes of the result are the batch axes, then the free axes of the left operand, then those of the
    right operand.
    """
    letters = iter(string.ascii_lowercase)
    first = [next(letters) for _ in left]
    second = ["" for _ in right]
    for pairs in (contracted, batched):
        for i, j in zip(*pairs, strict=True):
            second[int(j)] = first[int(i)]
    second = [letter or next(letters) for letter in second]
    shared = [first[int(i)] for i in batched[0]]
    summed = {first[int(i)] for i in contracted[0]}
    free = [letter for letter in first + second if letter not in summed and letter not in shared]
    return f"{''.join(first)},{''.join(second)}->{''.join(shared + free)}"


def size_to_json(side: object) -> int | str:
    """Return a size as an integer, or as text if it is a multiple of the batch size.

    Raises:
        UsageError: If the size is another expression of the batch size.
    """
    if isinstance(side, int | np.integer):
        return int(side)
    if not SIZE_PATTERN.fullmatch(str(side)):
        raise UsageError(
            f"This policy has arrays of size {side}. Set the number of environments with --batch."
        )
    return str(side)


def _to_ints(values: Iterable[SupportsInt]) -> list[int]:
    return [int(value) for value in values]


def _lower_select(
    lowering: _Lowering, params: PrimitiveParams, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> None:
    if lowering.types[inputs[0]].dtype != jnp.bool_:
        raise _unsupported_error("a selection by integers")
    which, when_false, when_true = inputs
    lowering.emit("select", (which, when_true, when_false), outputs)


def _lower_clamp(
    lowering: _Lowering, params: PrimitiveParams, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> None:
    low, x, high = inputs
    kind = lowering.types[x]
    middle = lowering.new(kind.shape, kind.dtype)
    lowering.emit("max", (x, low), (middle,))
    lowering.emit("min", (middle, high), outputs)


def _lower_broadcast(
    lowering: _Lowering, params: PrimitiveParams, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> None:
    shape, axes, before = (
        params["shape"],
        _to_ints(params["broadcast_dimensions"]),
        lowering.shape(inputs[0]),
    )
    aligned = tuple(before[axes.index(i)] if i in axes else 1 for i in range(len(shape)))
    if aligned == tuple(shape):
        lowering.reshape(inputs[0], aligned, outputs[0])
        return
    middle = lowering.new(aligned, lowering.types[inputs[0]].dtype)
    lowering.reshape(inputs[0], aligned, middle)
    lowering.emit(
        "expand", (lowering.now(middle),), outputs, shape=[size_to_json(side) for side in shape]
    )


def _lower_slice(
    lowering: _Lowering, params: PrimitiveParams, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> None:
    shape, starts, limits = (
        lowering.shape(inputs[0]),
        params["start_indices"],
        params["limit_indices"],
    )
    _emit_slice(
        lowering, inputs[0], starts, limits, params["strides"] or (1,) * len(shape), outputs[0]
    )


def _emit_slice(
    lowering: _Lowering,
    x: int,
    starts: Sequence[Size],
    limits: Sequence[Size],
    steps: Sequence[Size],
    output: int,
) -> None:
    """Add a slice with start, limit and step for each axis. The batch axis must stay complete."""
    shape = lowering.shape(x)
    cut = [
        (i, *each)
        for i, each in enumerate(zip(starts, limits, steps, strict=True))
        if each != (0, shape[i], 1)
    ]
    if any(not isinstance(bound, int | np.integer) for each in cut for bound in each):
        raise _unsupported_error("a slice of the batch")
    if not cut:
        lowering.aliases[output] = x
        return
    columns = dict(zip(("axes", "starts", "limits", "steps"), zip(*cut, strict=True), strict=True))
    lowering.emit(
        "slice", (x,), (output,), **{name: _to_ints(values) for name, values in columns.items()}
    )


def _lower_gather(
    lowering: _Lowering, params: PrimitiveParams, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> None:
    """Lower a gather with constant indices to a slice or to a selection along one axis."""
    numbers, (x, indices) = params["dimension_numbers"], inputs
    shape, axes, collapsed = (
        lowering.shape(x),
        _to_ints(numbers.start_index_map),
        _to_ints(numbers.collapsed_slice_dims),
    )
    if indices not in lowering.constants or numbers.operand_batching_dims:
        raise _unsupported_error("computed indices (the operation gather)")
    where, sizes = np.asarray(lowering.constants[indices]), tuple(params["slice_sizes"])
    if where.ndim == 1:
        starts = [0 if i not in axes else int(where[axes.index(i)]) for i in range(len(shape))]
        limits = [
            start + side if start else side for start, side in zip(starts, sizes, strict=True)
        ]
        within = all(
            int(where[k]) >= 0 and limits[axis] <= shape[axis] for k, axis in enumerate(axes)
        )
        part = lowering.new(sizes, lowering.types[x].dtype)
        if within:
            _emit_slice(lowering, x, starts, limits, (1,) * len(shape), part)
            lowering.reshape(lowering.now(part), lowering.shape(outputs[0]), outputs[0])
            return
    others = [i for i in range(len(shape)) if i not in axes]
    rows = tuple(1 if i in axes else side for i, side in enumerate(shape))
    is_take = (
        where.ndim == 2
        and len(axes) == 1
        and collapsed == axes
        and _to_ints(numbers.offset_dims) == others
        and sizes == rows
    )
    places = where[:, 0] if is_take else where.reshape(-1)
    if not is_take or places.min(initial=0) < 0 or places.max(initial=0) >= shape[axes[0]]:
        raise _unsupported_error(
            "indices along several axes or out of bounds (the operation gather)"
        )
    lowering.emit(
        "take", (x, lowering.add_constant(places.astype(np.int32))), outputs, axis=axes[0]
    )


def _make_arg_reduction(name: str) -> Callable[..., None]:
    def lower(
        lowering: _Lowering,
        params: PrimitiveParams,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
    ) -> None:
        lowering.emit(name, inputs, outputs, axis=int(params["axes"][0]))

    return lower


# Operations with parameters: (lowering, params, inputs, outputs).
_LOWERINGS: dict[str, Callable[..., None]] = {
    "argmax": _make_arg_reduction("argmax"),
    "argmin": _make_arg_reduction("argmin"),
    "broadcast_in_dim": _lower_broadcast,
    "clamp": _lower_clamp,
    "concatenate": lambda low, p, x, y: low.emit("concatenate", x, y, axis=int(p["dimension"])),
    "convert_element_type": lambda low, p, x, y: low.emit(
        "cast", x, y, dtype=np.dtype(p["new_dtype"]).name
    ),
    "dot_general": lambda low, p, x, y: low.product(x, p, y[0]),
    "gather": _lower_gather,
    "integer_pow": lambda low, p, x, y: low.emit("power", x, y, exponent=int(p["y"])),
    "reshape": lambda low, p, x, y: low.reshape(x[0], tuple(p["new_sizes"]), y[0]),
    "select_n": _lower_select,
    "slice": _lower_slice,
    "split": lambda low, p, x, y: low.emit(
        "split", x, y, sizes=_to_ints(p["sizes"]), axis=int(p["axis"])
    ),
    "squeeze": lambda low, p, x, y: low.reshape(x[0], low.shape(y[0]), y[0]),
    "transpose": lambda low, p, x, y: low.transpose(x[0], tuple(_to_ints(p["permutation"])), y[0]),
}
