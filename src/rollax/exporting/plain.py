"""A program in a few operations that NumPy and ONNX have too, with parameters that JSON holds.

A size is a number, or "batch" or "6*batch" where the batch is open; in a shape to reshape to it is -1.
"""

import re
import string
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.errors import UsageError
from rollax.exporting.policy import BATCH
from rollax.exporting.program import Operation, Program, needed

# Those that take and give arrays alone, number by number.
FLOATS = ("div", "exp", "expm1", "log", "log1p", "tanh", "logistic", "sqrt", "rsqrt", "floor", "ceil", "sin", "cos", "erf")
NUMBERS = ("add", "sub", "mul", "max", "min", "neg", "abs", "sign", "square", "eq", "ne", "lt", "le", "gt", "ge", "is_finite")
TRUTHS = ("and", "or", "not")
UNCHANGED = ("stop_gradient", "copy", "copy_p", "optimization_barrier", "reduce_precision")
REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or")
TYPES = ("float32", "int32", "uint32", "int8", "uint8", "int16", "uint16", "bool")
SIZE = re.compile(rf"(\d+\*)?{BATCH}")


def plain(program: Program) -> Program:
    """The same program in plain operations. Raises UsageError that names what it cannot be said in."""
    for kind in program.types.values():
        if str(kind.dtype) not in TYPES:
            raise _refused(f"numbers of the type {kind.dtype}")
    lowering = _Lowering(program)
    for operation in program.operations:
        lowering.lower(operation)
    outputs = {name: lowering.now(number) for name, number in program.outputs.items()}
    constants = {number: np.asarray(value) for number, value in lowering.constants.items()}
    return needed(Program(program.inputs, outputs, tuple(lowering.operations), constants, lowering.types))


def _refused(what: str) -> UsageError:
    return UsageError(f"this policy uses {what}, which the formats onnx and numpy lack here: export it --to jax or stablehlo")


class _Lowering:
    """The operations so far; `same`: which value stands for another."""

    def __init__(self, program: Program) -> None:
        self.operations: list[Operation] = []
        self.constants: dict[int, Any] = dict(program.constants)
        self.types = dict(program.types)
        self.same: dict[int, int] = {}
        self.transposed: dict[int, tuple[int, tuple[int, ...]]] = {}  # what a transposition is of, and its axes

    def now(self, number: int) -> int:
        return self.same.get(number, number)

    def shape(self, number: int) -> tuple[Any, ...]:
        return self.types[number].shape

    def new(self, shape: tuple[Any, ...], dtype: Any) -> int:
        number = max(self.types) + 1
        self.types[number] = jax.ShapeDtypeStruct(shape, dtype)
        return number

    def constant(self, value: np.ndarray) -> int:
        number = self.new(value.shape, value.dtype)
        self.constants[number] = value
        return number

    def emit(self, name: str, inputs: tuple[int, ...], outputs: tuple[int, ...], **given: Any) -> None:
        self.operations.append(Operation(name, inputs, outputs, given, None))

    def lower(self, operation: Operation) -> None:
        inputs, outputs = tuple(map(self.now, operation.inputs)), operation.outputs
        name, kinds = operation.name, {self.types[number].dtype.kind for number in operation.inputs}
        is_plain = name in NUMBERS or (name in FLOATS and kinds == {"f"}) or (name in TRUTHS and kinds == {"b"})
        if is_plain:
            self.emit(name, inputs, outputs)
        elif name in UNCHANGED:
            self.same |= dict(zip(outputs, inputs, strict=True))
        elif name in REDUCTIONS:
            self.emit(name, inputs, outputs, axes=_numbers(operation.params["axes"]))
        elif name in _SHAPED:
            _SHAPED[name](self, operation.params, inputs, outputs)
        else:
            raise _refused(f"the operation {name}")

    def reshape(self, number: int, shape: tuple[Any, ...], output: int) -> None:
        if self.shape(number) == shape:
            self.same[output] = number
        else:
            sides = [side if isinstance(side, int) else -1 for side in map(size, shape)]
            self.emit("reshape", (number,), (output,), shape=sides)

    def transpose(self, number: int, axes: tuple[int, ...], output: int) -> None:
        """Two in a row are one; one that changes nothing is none."""
        source, before = self.transposed.get(number, (number, tuple(range(len(axes)))))
        axes = tuple(before[axis] for axis in axes)
        if axes == tuple(range(len(axes))):
            self.same[output] = source
            return
        self.transposed[output] = source, axes
        self.emit("transpose", (source,), (output,), axes=list(axes))

    def product(self, inputs: tuple[int, ...], params: dict[str, Any], output: int) -> None:
        """Of an array's last axis with a constant matrix `[K, N]` where it is that, else a sum over indices."""
        (contracted, batched), (left, right) = params["dimension_numbers"], inputs
        is_single = not batched[0] and len(contracted[0]) == 1
        dtype = self.types[output].dtype
        for matrix, other, side in ((right, left, 1), (left, right, 0)):
            if not is_single or matrix not in self.constants or len(self.shape(matrix)) != 2 or not self.shape(other):
                continue
            axis, value = int(contracted[1 - side][0]), np.asarray(self.constants[matrix])
            weights = self.constant(value if contracted[side][0] == 0 else value.T)
            last = tuple(i for i in range(len(self.shape(other))) if i != axis)
            free = tuple(self.shape(other)[i] for i in last)
            moved = self.new((*free, value.shape[contracted[side][0]]), dtype)
            self.transpose(other, (*last, axis), moved)
            result = output if side else self.new((*free, self.shape(weights)[1]), dtype)
            self.emit("matmul", (self.now(moved), weights), (result,))
            if not side:
                self.transpose(result, (len(last), *range(len(last))), output)
            return
        self.emit("einsum", inputs, (output,), equation=equation(self.shape(left), self.shape(right), contracted, batched))


def equation(left: tuple[Any, ...], right: tuple[Any, ...], contracted: Any, batched: Any) -> str:
    """A general product in Einstein's notation: batch axes first, then those of the left, then of the right."""
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


def size(side: Any) -> int | str:
    """A size as JSON has it. Raises UsageError for one that is not a multiple of the batch."""
    if isinstance(side, int | np.integer):
        return int(side)
    if not SIZE.fullmatch(str(side)):
        raise UsageError(f"this policy has arrays of the size {side}: give the number of environments with --batch")
    return str(side)


def _numbers(values: Any) -> list[int]:
    return [int(value) for value in values]


def _select(lowering: _Lowering, params: dict[str, Any], inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
    if lowering.types[inputs[0]].dtype != jnp.bool_:
        raise _refused("a choice by whole numbers")
    which, when_false, when_true = inputs
    lowering.emit("select", (which, when_true, when_false), outputs)


def _clamp(lowering: _Lowering, params: dict[str, Any], inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
    low, x, high = inputs
    kind = lowering.types[x]
    middle = lowering.new(kind.shape, kind.dtype)
    lowering.emit("max", (x, low), (middle,))
    lowering.emit("min", (middle, high), outputs)


def _broadcast(lowering: _Lowering, params: dict[str, Any], inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
    shape, axes, before = params["shape"], _numbers(params["broadcast_dimensions"]), lowering.shape(inputs[0])
    aligned = tuple(before[axes.index(i)] if i in axes else 1 for i in range(len(shape)))
    if aligned == tuple(shape):
        lowering.reshape(inputs[0], aligned, outputs[0])
        return
    middle = lowering.new(aligned, lowering.types[inputs[0]].dtype)
    lowering.reshape(inputs[0], aligned, middle)
    lowering.emit("expand", (lowering.now(middle),), outputs, shape=[size(side) for side in shape])


def _slice(lowering: _Lowering, params: dict[str, Any], inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
    shape, starts, limits = lowering.shape(inputs[0]), params["start_indices"], params["limit_indices"]
    _part(lowering, inputs[0], starts, limits, params["strides"] or (1,) * len(shape), outputs[0])


def _part(lowering: _Lowering, x: int, starts: Any, limits: Any, steps: Any, output: int) -> None:
    """A part of an array, by three numbers for each axis; all of the batch."""
    shape = lowering.shape(x)
    cut = [(i, *each) for i, each in enumerate(zip(starts, limits, steps, strict=True)) if each != (0, shape[i], 1)]
    if any(not isinstance(bound, int | np.integer) for each in cut for bound in each):
        raise _refused("a part of the batch")
    if not cut:
        lowering.same[output] = x
        return
    columns = dict(zip(("axes", "starts", "limits", "steps"), zip(*cut, strict=True), strict=True))
    lowering.emit("slice", (x,), (output,), **{name: _numbers(values) for name, values in columns.items()})


def _gather(lowering: _Lowering, params: dict[str, Any], inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
    """One part of an array, or places along one axis, that are known beforehand."""
    numbers, (x, indices) = params["dimension_numbers"], inputs
    shape, axes, collapsed = lowering.shape(x), _numbers(numbers.start_index_map), _numbers(numbers.collapsed_slice_dims)
    if indices not in lowering.constants or numbers.operand_batching_dims:
        raise _refused("indices that are computed (the operation gather)")
    where, sizes = np.asarray(lowering.constants[indices]), tuple(params["slice_sizes"])
    if where.ndim == 1:
        starts = [0 if i not in axes else int(where[axes.index(i)]) for i in range(len(shape))]
        limits = [start + side if start else side for start, side in zip(starts, sizes, strict=True)]
        within = all(int(where[k]) >= 0 and limits[axis] <= shape[axis] for k, axis in enumerate(axes))
        part = lowering.new(sizes, lowering.types[x].dtype)
        if within:
            _part(lowering, x, starts, limits, (1,) * len(shape), part)
            lowering.reshape(lowering.now(part), lowering.shape(outputs[0]), outputs[0])
            return
    others = [i for i in range(len(shape)) if i not in axes]
    rows = tuple(1 if i in axes else side for i, side in enumerate(shape))
    is_take = (
        where.ndim == 2 and len(axes) == 1 and collapsed == axes and _numbers(numbers.offset_dims) == others and sizes == rows
    )
    places = where[:, 0] if is_take else where.reshape(-1)
    if not is_take or places.min(initial=0) < 0 or places.max(initial=0) >= shape[axes[0]]:
        raise _refused("places of several axes, or beyond the ends (the operation gather)")
    lowering.emit("take", (x, lowering.constant(places.astype(np.int32))), outputs, axis=axes[0])


def _extreme(name: str) -> Callable[..., None]:
    def lower(lowering: _Lowering, params: dict[str, Any], inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
        lowering.emit(name, inputs, outputs, axis=int(params["axes"][0]))

    return lower


# Those with parameters: (lowering, params, inputs, outputs).
_SHAPED: dict[str, Callable[..., None]] = {
    "argmax": _extreme("argmax"),
    "argmin": _extreme("argmin"),
    "broadcast_in_dim": _broadcast,
    "clamp": _clamp,
    "concatenate": lambda low, p, x, y: low.emit("concatenate", x, y, axis=int(p["dimension"])),
    "convert_element_type": lambda low, p, x, y: low.emit("cast", x, y, dtype=np.dtype(p["new_dtype"]).name),
    "dot_general": lambda low, p, x, y: low.product(x, p, y[0]),
    "gather": _gather,
    "integer_pow": lambda low, p, x, y: low.emit("power", x, y, exponent=int(p["y"])),
    "reshape": lambda low, p, x, y: low.reshape(x[0], tuple(p["new_sizes"]), y[0]),
    "select_n": _select,
    "slice": _slice,
    "split": lambda low, p, x, y: low.emit("split", x, y, sizes=_numbers(p["sizes"]), axis=int(p["axis"])),
    "squeeze": lambda low, p, x, y: low.reshape(x[0], low.shape(y[0]), y[0]),
    "transpose": lambda low, p, x, y: low.transpose(x[0], tuple(_numbers(p["permutation"])), y[0]),
}
