"""Profiling of a compiled program: cost of its operations per phase of an update.

A phase (called part) is an entry of `UPDATE_PARTS`, such as "policy" or "backward". XLA's profiler
records the start and duration of each operation. The text of the program contains the names that
JAX assigned (`rollax.scopes`), and the shapes of operands and results.
"""

import collections
import functools
import math
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import jax

from rollax.errors import UsageError
from rollax.training.profiling.update_parts import UPDATE_PARTS, classify_operation
from rollax.types import PyTree

_NAME_PATTERN = r"%?([\w.\-]+)"
_INSTRUCTION_PATTERN = re.compile(rf"\s*(?:ROOT )?{_NAME_PATTERN} = (.*?) ([\w\-]+)\((.*)")
_COMPUTATION_PATTERN = re.compile(rf"(?:ENTRY )?{_NAME_PATTERN} \(.*\{{$")
_CALLEE_PATTERN = re.compile(rf"(?:calls|to_apply|body|condition)={_NAME_PATTERN}")
_OP_NAME_PATTERN = re.compile(r'op_name="([^"]*)"')
_SHAPE_PATTERN = re.compile(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\]")
_CONTRACTING_DIMS_PATTERN = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
# Products in libraries of GPUs are custom calls, which return the result and a workspace.
_LIBRARY_PRODUCT_PATTERN = re.compile(r'custom_call_target="__cublas')
_LIBRARY_CONTRACTING_DIMS_PATTERN = re.compile(r'"lhs_contracting_dimensions":\[([\d,"]*)\]')
_SLICE_OPCODES = {"dynamic-slice", "dynamic-update-slice", "gather", "scatter", "slice"}
_ZERO_COST_OPCODES = {
    "while",
    "conditional",
    "call",
    "tuple",
    "get-tuple-element",
    "parameter",
    "constant",
    "bitcast",
}

ProfileNode: TypeAlias = Any
"""Profile from `jax.profiler`, or a plane, a line or an event in it. JAX has no types for them."""


class OperationCost(NamedTuple):
    """Cost of one execution of an operation of the compiled program.

    Attributes:
        part: Phase of an update, a key of `UPDATE_PARTS`.
        flops: Floating-point operations in matrix products and convolutions.
        bytes: Bytes that the operation reads and writes.
    """

    part: str
    flops: float
    bytes: float


class PartCost(NamedTuple):
    """Total cost of the operations in one phase of an update.

    Attributes:
        seconds: Time in seconds.
        flops: Floating-point operations in matrix products and convolutions.
        bytes: Bytes that the operations read and write.
        runs: Number of executed operations.
    """

    seconds: float
    flops: float
    bytes: float
    runs: int


def parse_operations(text: str) -> dict[str, OperationCost]:
    """Parse the operations of a compiled program.

    Args:
        text: Text of the program from `compiled.as_text()`.

    Returns:
        Cost of each operation, keyed by its name in the program.
    """
    computations = dict(_parse_computations(text))
    instructions = {line.name: line for rows in computations.values() for line in rows}
    callers = {called: line for line in instructions.values() for called in line.callees}
    computation_names = {line.name: name for name, rows in computations.items() for line in rows}

    def iterate_instructions(line: _Instruction) -> Iterator[_Instruction]:
        """Yield an instruction and the instructions of all computations that it calls."""
        yield line
        for called in line.callees:
            for callee in computations.get(called, ()):
                yield from iterate_instructions(callee)

    @functools.cache
    def find_part(name: str) -> str:
        """Return the phase of an instruction: from its path, its fused operations or its caller."""
        part = classify_operation(instructions[name].path)
        if part is None and instructions[name].opcode in ("fusion", "call"):
            part_counts = collections.Counter(
                classify_operation(line.path) for line in iterate_instructions(instructions[name])
            )
            part_counts.pop(None, None)
            part = part_counts.most_common(1)[0][0] if part_counts else None
        if part is not None:
            return part
        caller = callers.get(computation_names[name])
        return "other" if caller is None else find_part(caller.name)

    def count_flops(name: str) -> float:
        line = instructions[name]
        return (
            sum(_count_flops(callee, instructions) for callee in iterate_instructions(line))
            if line.opcode == "fusion"
            else _count_flops(line, instructions)
        )

    def count_moved_bytes(name: str) -> float:
        line = instructions[name]
        return _count_bytes(
            line,
            instructions,
            computations.get(line.callees[0], ()) if line.opcode == "fusion" else (),
        )

    return {
        name: OperationCost(find_part(name), count_flops(name), count_moved_bytes(name))
        for name in instructions
    }


class _Instruction(NamedTuple):
    """Instruction in the text of a program."""

    name: str
    shape: str  # shape of the result as text
    opcode: str
    operands: tuple[str, ...]
    callees: tuple[str, ...]
    path: str
    attributes_text: str


def _parse_computations(text: str) -> Iterator[tuple[str, list[_Instruction]]]:
    name, rows = "", []
    for row in text.splitlines():
        header = _COMPUTATION_PATTERN.match(row)
        if header:
            name, rows = header[1], []
        elif row.startswith("}"):
            yield name, rows
        elif found := _INSTRUCTION_PATTERN.match(row):
            label, shape, opcode, attributes_text = found.groups()
            operands = tuple(re.findall(r"%([\w.\-]+)", attributes_text.split("), ")[0]))
            path = _OP_NAME_PATTERN.search(attributes_text)
            rows.append(
                _Instruction(
                    label,
                    shape,
                    opcode,
                    operands,
                    tuple(_CALLEE_PATTERN.findall(attributes_text)),
                    path[1] if path else "",
                    attributes_text,
                )
            )


def _parse_shapes(text: str) -> Iterator[tuple[str, list[int]]]:
    for kind, sizes in _SHAPE_PATTERN.findall(text):
        yield kind, [int(size) for size in sizes.split(",") if size]


def _shape_bytes(text: str) -> int:
    """Return the size in bytes of an array shape, or of all arrays in a tuple shape."""
    return sum(math.prod(sizes) * _dtype_bytes(kind) for kind, sizes in _parse_shapes(text))


def _dtype_bytes(kind: str) -> int:
    digits = re.search(r"\d+", kind)
    return 1 if digits is None else max(1, int(digits[0]) // 8)


def _count_bytes(
    line: _Instruction, lines: dict[str, _Instruction], fused: Sequence[_Instruction]
) -> float:
    """Return the bytes that an instruction reads and writes.

    If only slices of an array are read or replaced, only the slices are counted. `fused` lists the
    instructions inside a fusion, and is empty for other instructions.
    """
    if line.opcode in _ZERO_COST_OPCODES:
        return 0.0

    def size_of(name):
        return _shape_bytes(lines[name].shape) if name in lines else 0

    if not fused:
        return float(
            _count_slice_bytes(line, size_of)
            + (0 if line.opcode in _SLICE_OPCODES else sum(map(size_of, line.operands)))
        )
    total_read = 0
    for parameter in (instruction for instruction in fused if instruction.opcode == "parameter"):
        readers = [instruction for instruction in fused if parameter.name in instruction.operands]
        read_sizes = [
            _count_slice_bytes(instruction, size_of)
            if instruction.operands[0] == parameter.name
            else size_of(parameter.name)
            for instruction in readers
        ]
        is_sliced = all(
            instruction.opcode in _SLICE_OPCODES and instruction.operands[0] == parameter.name
            for instruction in readers
        )
        total_read += sum(read_sizes) if is_sliced else size_of(parameter.name)
    root = _find_fusion_root(fused)
    return float(
        total_read
        + (
            _count_slice_bytes(root, size_of)
            if root.opcode in _SLICE_OPCODES
            else _shape_bytes(line.shape)
        )
    )


def _count_slice_bytes(line: _Instruction, size: Callable[[str], int]) -> int:
    """Return the bytes of the slice that an operation reads or replaces, or of its result."""
    if line.opcode == "dynamic-update-slice":
        return size(line.operands[1])
    return (
        size(line.operands[2])
        if line.opcode == "scatter" and len(line.operands) > 2
        else _shape_bytes(line.shape)
    )


def _find_fusion_root(fused: Sequence[_Instruction]) -> _Instruction:
    """Return the last operation of a fusion, without bitcasts and copies."""
    known, last = {line.name: line for line in fused}, fused[-1]
    while last.opcode in ("bitcast", "copy") and last.operands[0] in known:
        last = known[last.operands[0]]
    return last


def _count_flops(line: _Instruction, lines: dict[str, _Instruction]) -> float:
    """Return two FLOPs per multiplication of a matrix product or convolution, otherwise 0."""
    is_library_product = line.opcode == "custom-call" and bool(
        _LIBRARY_PRODUCT_PATTERN.search(line.attributes_text)
    )
    is_product = line.opcode in ("dot", "convolution") or is_library_product
    if not is_product or not line.operands or line.operands[0] not in lines:
        return 0.0
    result = math.prod(next(_parse_shapes(line.shape))[1])
    if line.opcode == "convolution":
        (_, kernel), (_, out) = (
            next(_parse_shapes(lines[line.operands[1]].shape)),
            next(_parse_shapes(line.shape)),
        )
        return 2.0 * result * math.prod(kernel) / max(1, out[-1])
    pattern = _LIBRARY_CONTRACTING_DIMS_PATTERN if is_library_product else _CONTRACTING_DIMS_PATTERN
    (_, left), contracted = (
        next(_parse_shapes(lines[line.operands[0]].shape)),
        pattern.search(line.attributes_text),
    )
    axes = contracted[1].replace('"', "").split(",") if contracted else []
    return 2.0 * result * math.prod(left[int(axis)] for axis in axes if axis)


def profile_parts(
    run_fn: Callable[[], PyTree], known_operations: dict[str, OperationCost]
) -> dict[str, PartCost]:
    """Profile one call of a compiled program and sum its costs per phase of an update.

    Seconds are summed over all threads. On a CPU, the overhead of the profiler is estimated from
    the shortest operations and subtracted from each operation.

    Args:
        run_fn: Function that runs the program.
        known_operations: Operations of the program from `parse_operations`.

    Returns:
        Cost of each phase, keyed by its name in `UPDATE_PARTS` and in that order.

    Raises:
        UsageError: If the profiler recorded no operation.
    """
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            jax.block_until_ready(run_fn())
        (file,) = Path(folder).rglob("*.xplane.pb")
        data = jax.profiler.ProfileData.from_file(str(file))
    # If warnings are errors, DeprecationWarnings of jaxlib's C++ types end the process on Python
    # 3.12.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        executed = [
            (known_operations[name], seconds)
            for name, seconds in _operation_times(data)
            if name in known_operations
        ]
    costs: dict[str, PartCost] = {}
    overhead = (
        sorted(seconds for _, seconds in executed)[len(executed) // 50]
        if executed and not _find_device_planes(data)
        else 0.0
    )
    for (part, flops, size), seconds in executed:
        cost = costs.get(part, PartCost(0.0, 0.0, 0.0, 0))
        own_seconds = max(0.0, seconds - overhead)
        costs[part] = PartCost(
            cost.seconds + own_seconds, cost.flops + flops, cost.bytes + size, cost.runs + 1
        )
    if not costs:
        raise UsageError("The profiler of this platform recorded no operation of the program.")
    return {name: costs[name] for name in UPDATE_PARTS if name in costs}


def _operation_times(data: ProfileNode) -> Iterator[tuple[str, float]]:
    """Yield `(name, seconds)` for every executed operation, without the time of nested operations.

    If the profile contains operations on an accelerator, only these are included.
    """
    for plane in _find_device_planes(data) or data.planes:
        for line in plane.lines:
            yield from _self_times(_find_operation_events(line.events))


def _find_device_planes(data: ProfileNode) -> list[ProfileNode]:
    """Return the profiler planes of accelerators, or an empty list on a CPU."""
    return [plane for plane in data.planes if plane.name.startswith("/device:")]


def _find_operation_events(events: Iterable[ProfileNode]) -> list[tuple[float, float, str]]:
    """Return `(start, end, name)` of all operation events, sorted by start, outer events first.

    Times are in nanoseconds.
    """
    found = []
    for event in events:
        name = next((value for key, value in event.stats if key == "hlo_op"), None)
        if name is not None:
            found.append((event.start_ns, event.start_ns + event.duration_ns, str(name)))
    return sorted(found, key=lambda event: (event[0], -event[1]))


def _self_times(events: list[tuple[float, float, str]]) -> Iterator[tuple[str, float]]:
    entries: list[list[Any]] = []
    stack: list[int] = []
    for start, end, name in events:
        while stack and entries[stack[-1]][2] <= start:
            stack.pop()
        if stack:
            entries[stack[-1]][1] -= end - start
        stack.append(len(entries))
        entries.append([name, end - start, end])
    for name, nanoseconds, _ in entries:
        yield name, max(nanoseconds, 0.0) / 1e9
