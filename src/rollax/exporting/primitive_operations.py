"""Lowering of programs to a few operations that NumPy and ONNX support.

Parameters of lowered operations can be written as JSON. Sizes are integers. A symbolic batch size
is written as "batch" or as a multiple such as "6*batch". In the target shape of a reshape, a
symbolic size is written as -1.
"""

import re
import string
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

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
    outputs = {name: lowering.resolve_alias(value_id) for name, value_id in program.outputs.items()}
    constants = {value_id: np.asarray(value) for value_id, value in lowering.constants.items()}
    return remove_dead_code(
        Program(program.inputs, outputs, tuple(lowering.operations), constants, lowering.types)
    )


Size: TypeAlias = Any
"""Size of an axis: an integer, or an expression of the symbolic batch size."""
Shape: TypeAlias = tuple[Size, ...]
"""Shape of an array, with sizes that may be symbolic."""
AxisPairs: TypeAlias = tuple[Sequence[int], Sequence[int]]
"""Paired axes of the left and the right operand."""


def _unsupported_error(feature: str) -> UsageError:
    return UsageError(
        f"This policy uses {feature}, which the formats onnx and numpy do not support. Export it "
        "--to jax or stablehlo."
    )


class _Lowering:
    """Builder of a lowered program. `aliases` maps value ids to ids of equal values."""

    def __init__(self, program: Program) -> None:
        self.operations: list[Operation] = []
        self.constants: dict[int, Any] = dict(program.constants)
        self.types = dict(program.types)
        self.aliases: dict[int, int] = {}
        # Source value id and permutation of axes, keyed by the id of the transposed value.
        self.transposition_sources: dict[int, tuple[int, tuple[int, ...]]] = {}

    def resolve_alias(self, value_id: int) -> int:
        return self.aliases.get(value_id, value_id)

    def shape(self, value_id: int) -> Shape:
        return self.types[value_id].shape

    def add_value(self, shape: Shape, dtype: np.dtype) -> int:
        value_id = max(self.types) + 1
        self.types[value_id] = jax.ShapeDtypeStruct(shape, dtype)
        return value_id

    def add_constant(self, value: np.ndarray) -> int:
        value_id = self.add_value(value.shape, value.dtype)
        self.constants[value_id] = value
        return value_id

    def emit(
        self, name: str, inputs: tuple[int, ...], outputs: tuple[int, ...], **params: PrimitiveParam
    ) -> None:
        self.operations.append(Operation(name, inputs, outputs, params, None))

    def lower(self, operation: Operation) -> None:
        """Add the lowered form of an operation, or raise UsageError if it is not supported."""
        inputs, outputs = tuple(map(self.resolve_alias, operation.inputs)), operation.outputs
        name, kinds = (
            operation.name,
            {self.types[value_id].dtype.kind for value_id in operation.inputs},
        )
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
            self.emit(name, inputs, outputs, axes=list(map(int, operation.params["axes"])))
        elif name in _LOWERINGS:
            _LOWERINGS[name](self, operation.params, inputs, outputs)
        else:
            raise _unsupported_error(f"the operation {name}")

    def lower_reshape(self, value_id: int, shape: Shape, output: int) -> None:
        if self.shape(value_id) == shape:
            self.aliases[output] = value_id
        else:
            sides = [side if isinstance(side, int) else -1 for side in map(size_to_json, shape)]
            self.emit("reshape", (value_id,), (output,), shape=sides)

    def lower_transpose(self, value_id: int, axes: tuple[int, ...], output: int) -> None:
        """Add a transposition. Successive transpositions are merged, and identities are omitted."""
        source, source_axes = self.transposition_sources.get(
            value_id, (value_id, tuple(range(len(axes))))
        )
        axes = tuple(source_axes[axis] for axis in axes)
        if axes == tuple(range(len(axes))):
            self.aliases[output] = source
            return
        self.transposition_sources[output] = source, axes
        self.emit("transpose", (source,), (output,), axes=list(axes))

    def lower_product(self, inputs: tuple[int, ...], params: PrimitiveParams, output: int) -> None:
        """Add a matmul for a product with a constant matrix `[K, N]`, otherwise an einsum."""
        (contracted, batched), (left, right) = params["dimension_numbers"], inputs
        is_single = not batched[0] and len(contracted[0]) == 1
        dtype = self.types[output].dtype
        for matrix, operand, side in ((right, left, 1), (left, right, 0)):
            if (
                not is_single
                or matrix not in self.constants
                or len(self.shape(matrix)) != 2
                or not self.shape(operand)
            ):
                continue
            axis, value = int(contracted[1 - side][0]), np.asarray(self.constants[matrix])
            weights = self.add_constant(value if contracted[side][0] == 0 else value.T)
            free_axes = tuple(i for i in range(len(self.shape(operand))) if i != axis)
            free_shape = tuple(self.shape(operand)[i] for i in free_axes)
            transposed = self.add_value((*free_shape, value.shape[contracted[side][0]]), dtype)
            self.lower_transpose(operand, (*free_axes, axis), transposed)
            result = (
                output if side else self.add_value((*free_shape, self.shape(weights)[1]), dtype)
            )
            self.emit("matmul", (self.resolve_alias(transposed), weights), (result,))
            if not side:
                self.lower_transpose(result, (len(free_axes), *range(len(free_axes))), output)
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

    Args:
        left: Shape of the left operand.
        right: Shape of the right operand.
        contracted: Axes of the left and of the right operand over which products are summed.
        batched: Axes of the left and of the right operand that occur in the result once.
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
    """Convert a size to an integer, or to text such as "6*batch" for a symbolic batch size.

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


def _lower_select(
    lowering: _Lowering, params: PrimitiveParams, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> None:
    if lowering.types[inputs[0]].dtype != jnp.bool_:
        raise _unsupported_error("a selection by integers")
    predicate, when_false, when_true = inputs
    lowering.emit("select", (predicate, when_true, when_false), outputs)


def _lower_clamp(
    lowering: _Lowering, params: PrimitiveParams, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> None:
    low, x, high = inputs
    kind = lowering.types[x]
    clamped_below = lowering.add_value(kind.shape, kind.dtype)
    lowering.emit("max", (x, low), (clamped_below,))
    lowering.emit("min", (clamped_below, high), outputs)


def _lower_broadcast(
    lowering: _Lowering, params: PrimitiveParams, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> None:
    """Lower a broadcast to a reshape that adds axes of size 1 and, if needed, an expansion."""
    shape, axes, source_shape = (
        params["shape"],
        list(map(int, params["broadcast_dimensions"])),
        lowering.shape(inputs[0]),
    )
    aligned = tuple(source_shape[axes.index(i)] if i in axes else 1 for i in range(len(shape)))
    if aligned == tuple(shape):
        lowering.lower_reshape(inputs[0], aligned, outputs[0])
        return
    aligned_id = lowering.add_value(aligned, lowering.types[inputs[0]].dtype)
    lowering.lower_reshape(inputs[0], aligned, aligned_id)
    lowering.emit(
        "expand",
        (lowering.resolve_alias(aligned_id),),
        outputs,
        shape=[size_to_json(side) for side in shape],
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
    """Add a slice with a start, limit and step per axis. The batch axis must not be sliced."""
    shape = lowering.shape(x)
    sliced_axes = [
        (i, *bounds)
        for i, bounds in enumerate(zip(starts, limits, steps, strict=True))
        if bounds != (0, shape[i], 1)
    ]
    if any(not isinstance(bound, int | np.integer) for bounds in sliced_axes for bound in bounds):
        raise _unsupported_error("a slice of the batch")
    if not sliced_axes:
        lowering.aliases[output] = x
        return
    columns = dict(
        zip(("axes", "starts", "limits", "steps"), zip(*sliced_axes, strict=True), strict=True)
    )
    lowering.emit(
        "slice",
        (x,),
        (output,),
        **{name: list(map(int, values)) for name, values in columns.items()},
    )


def _lower_gather(
    lowering: _Lowering, params: PrimitiveParams, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> None:
    """Lower a gather with constant indices to a slice or to a selection along one axis."""
    dimensions, (x, indices) = params["dimension_numbers"], inputs
    shape, axes, collapsed = (
        lowering.shape(x),
        list(map(int, dimensions.start_index_map)),
        list(map(int, dimensions.collapsed_slice_dims)),
    )
    if indices not in lowering.constants or dimensions.operand_batching_dims:
        raise _unsupported_error("computed indices (the operation gather)")
    positions, sizes = np.asarray(lowering.constants[indices]), tuple(params["slice_sizes"])
    if positions.ndim == 1:
        starts = [0 if i not in axes else int(positions[axes.index(i)]) for i in range(len(shape))]
        limits = [
            start + side if start else side for start, side in zip(starts, sizes, strict=True)
        ]
        is_within = all(
            int(positions[k]) >= 0 and limits[axis] <= shape[axis] for k, axis in enumerate(axes)
        )
        part = lowering.add_value(sizes, lowering.types[x].dtype)
        if is_within:
            _emit_slice(lowering, x, starts, limits, (1,) * len(shape), part)
            lowering.lower_reshape(
                lowering.resolve_alias(part), lowering.shape(outputs[0]), outputs[0]
            )
            return
    other_axes = [i for i in range(len(shape)) if i not in axes]
    rows = tuple(1 if i in axes else side for i, side in enumerate(shape))
    is_take = (
        positions.ndim == 2
        and len(axes) == 1
        and collapsed == axes
        and list(map(int, dimensions.offset_dims)) == other_axes
        and sizes == rows
    )
    taken_indices = positions[:, 0] if is_take else positions.reshape(-1)
    if (
        not is_take
        or taken_indices.min(initial=0) < 0
        or taken_indices.max(initial=0) >= shape[axes[0]]
    ):
        raise _unsupported_error(
            "indices along several axes or out of bounds (the operation gather)"
        )
    lowering.emit(
        "take", (x, lowering.add_constant(taken_indices.astype(np.int32))), outputs, axis=axes[0]
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
    "dot_general": lambda low, p, x, y: low.lower_product(x, p, y[0]),
    "gather": _lower_gather,
    "integer_pow": lambda low, p, x, y: low.emit("power", x, y, exponent=int(p["y"])),
    "reshape": lambda low, p, x, y: low.lower_reshape(x[0], tuple(p["new_sizes"]), y[0]),
    "select_n": _lower_select,
    "slice": _lower_slice,
    "split": lambda low, p, x, y: low.emit(
        "split", x, y, sizes=list(map(int, p["sizes"])), axis=int(p["axis"])
    ),
    "squeeze": lambda low, p, x, y: low.lower_reshape(x[0], low.shape(y[0]), y[0]),
    "transpose": lambda low, p, x, y: low.lower_transpose(
        x[0], tuple(map(int, p["permutation"])), y[0]
    ),
}
