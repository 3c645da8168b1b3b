"""What the operations of a compiled program cost, by the parts of an update that they belong to.

XLA's profiler tells when each operation of a program began and how long it took; the program's own text tells the names that
JAX gave it (`rollax.scopes`), and the shapes of what it reads and writes.
"""

import collections
import functools
import math
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from rollax.errors import UsageError
from rollax.scopes import PARTS, part_of

_NAME = r"%?([\w.\-]+)"
_INSTRUCTION = re.compile(rf"\s*(?:ROOT )?{_NAME} = (.*?) ([\w\-]+)\((.*)")
_COMPUTATION = re.compile(rf"(?:ENTRY )?{_NAME} \(.*\{{$")
_CALLED = re.compile(rf"(?:calls|to_apply|body|condition)={_NAME}")
_PATH = re.compile(r'op_name="([^"]*)"')
_SHAPE = re.compile(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\]")
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_SLICES = {"dynamic-slice", "dynamic-update-slice", "gather", "scatter", "slice"}
_MOVES_NOTHING = {"while", "conditional", "call", "tuple", "get-tuple-element", "parameter", "constant", "bitcast"}


class Operation(NamedTuple):
    """An operation of a compiled program, as it is each time that it runs."""

    part: str
    flops: float  # of its matrix products
    bytes: float  # of its operands and results


class Share(NamedTuple):
    """What the operations of one part cost."""

    seconds: float
    flops: float
    bytes: float
    runs: int  # how many operations ran


def operations(text: str) -> dict[str, Operation]:
    """The operations of a compiled program by name. `text`: what `compiled.as_text()` gives."""
    computations = dict(_computations(text))
    lines = {line.name: line for rows in computations.values() for line in rows}
    callers = {called: line for line in lines.values() for called in line.called}
    home = {line.name: name for name, rows in computations.items() for line in rows}

    def inside(line: _Line) -> Iterator[_Line]:
        """An instruction, and those of the computations that it calls."""
        yield line
        for called in line.called:
            for each in computations.get(called, ()):
                yield from inside(each)

    @functools.cache
    def part(name: str) -> str:
        """What an instruction says itself; else what most of those say that were fused into it; else what calls it says."""
        own = part_of(lines[name].path)
        if own is None and lines[name].opcode in ("fusion", "call"):
            said = collections.Counter(part_of(line.path) for line in inside(lines[name]))
            said.pop(None, None)
            own = said.most_common(1)[0][0] if said else None
        if own is not None:
            return own
        caller = callers.get(home[name])
        return "other" if caller is None else part(caller.name)

    def flops(name: str) -> float:
        line = lines[name]
        return sum(_flops(each, lines) for each in inside(line)) if line.opcode == "fusion" else _flops(line, lines)

    def moved(name: str) -> float:
        line = lines[name]
        return _bytes(line, lines, computations.get(line.called[0], ()) if line.opcode == "fusion" else ())

    return {name: Operation(part(name), flops(name), moved(name)) for name in lines}


class _Line(NamedTuple):
    """An instruction of a program's text."""

    name: str
    shape: str  # of the result, as it is written
    opcode: str
    operands: tuple[str, ...]
    called: tuple[str, ...]
    path: str
    rest: str


def _computations(text: str) -> Iterator[tuple[str, list[_Line]]]:
    name, rows = "", []
    for row in text.splitlines():
        begun = _COMPUTATION.match(row)
        if begun:
            name, rows = begun[1], []
        elif row.startswith("}"):
            yield name, rows
        elif found := _INSTRUCTION.match(row):
            label, shape, opcode, rest = found.groups()
            operands = tuple(re.findall(r"%([\w.\-]+)", rest.split("), ")[0]))
            path = _PATH.search(rest)
            rows.append(_Line(label, shape, opcode, operands, tuple(_CALLED.findall(rest)), path[1] if path else "", rest))


def _shapes(text: str) -> Iterator[tuple[str, list[int]]]:
    for kind, sizes in _SHAPE.findall(text):
        yield kind, [int(size) for size in sizes.split(",") if size]


def _size(text: str) -> int:
    """Bytes of a shape, or of the parts of a tuple."""
    return sum(math.prod(sizes) * _width(kind) for kind, sizes in _shapes(text))


def _width(kind: str) -> int:
    digits = re.search(r"\d+", kind)
    return 1 if digits is None else max(1, int(digits[0]) // 8)


def _bytes(line: _Line, lines: dict[str, _Line], fused: Sequence[_Line]) -> float:
    """What is read and written. Of an array of which slices alone are read or replaced it is these. `fused`: of a fusion."""
    if line.opcode in _MOVES_NOTHING:
        return 0.0
    size = lambda name: _size(lines[name].shape) if name in lines else 0  # noqa: E731
    if not fused:
        return float(_moved(line, size) + (0 if line.opcode in _SLICES else sum(map(size, line.operands))))
    read = 0
    for parameter in (each for each in fused if each.opcode == "parameter"):
        users = [each for each in fused if parameter.name in each.operands]
        parts = [_moved(each, size) if each.operands[0] == parameter.name else size(parameter.name) for each in users]
        is_sliced = all(each.opcode in _SLICES and each.operands[0] == parameter.name for each in users)
        read += sum(parts) if is_sliced else size(parameter.name)
    root = _root(fused)
    return float(read + (_moved(root, size) if root.opcode in _SLICES else _size(line.shape)))


def _moved(line: _Line, size: Callable[[str], int]) -> int:
    """Bytes of the slice that an operation reads or replaces, or of its result."""
    if line.opcode == "dynamic-update-slice":
        return size(line.operands[1])
    return size(line.operands[2]) if line.opcode == "scatter" and len(line.operands) > 2 else _size(line.shape)


def _root(fused: Sequence[_Line]) -> _Line:
    """The last operation of a fusion, but for those that change no number."""
    known, last = {line.name: line for line in fused}, fused[-1]
    while last.opcode in ("bitcast", "copy") and last.operands[0] in known:
        last = known[last.operands[0]]
    return last


def _flops(line: _Line, lines: dict[str, _Line]) -> float:
    """Of a matrix product or a convolution: twice the multiplications. 0 of all else."""
    if line.opcode not in ("dot", "convolution") or not line.operands or line.operands[0] not in lines:
        return 0.0
    result = sum(math.prod(sizes) for _, sizes in _shapes(line.shape))
    if line.opcode == "convolution":
        (_, kernel), (_, out) = next(_shapes(lines[line.operands[1]].shape)), next(_shapes(line.shape))
        return 2.0 * result * math.prod(kernel) / max(1, out[-1])
    (_, left), contracted = next(_shapes(lines[line.operands[0]].shape)), _CONTRACTED.search(line.rest)
    inner = [left[int(axis)] for axis in contracted[1].split(",") if axis] if contracted else []
    return 2.0 * result * math.prod(inner)


def profile(run: Callable[[], Any], known: dict[str, Operation]) -> dict[str, Share]:
    """What one call of `run`, of a program with these operations, costs by part, in the order of an update.

    Seconds are those of all threads together. On a CPU they include what recording takes, so that the time of a very short
    operation is taken off each. Raises UsageError where the profiler told of no operation.
    """
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            jax.block_until_ready(run())
        (file,) = Path(folder).rglob("*.xplane.pb")
        data = jax.profiler.ProfileData.from_file(str(file))
    with warnings.catch_warnings():  # where warnings are errors, jaxlib's types of C++ warn on Python 3.12 and end the process
        warnings.simplefilter("ignore", DeprecationWarning)
        ran = [(known[name], seconds) for name, seconds in _times(data) if name in known]
    found: dict[str, Share] = {}
    recording = sorted(seconds for _, seconds in ran)[len(ran) // 50] if ran and not _devices(data) else 0.0
    for (part, flops, size), seconds in ran:
        so_far = found.get(part, Share(0.0, 0.0, 0.0, 0))
        own = max(0.0, seconds - recording)
        found[part] = Share(so_far.seconds + own, so_far.flops + flops, so_far.bytes + size, so_far.runs + 1)
    if not found:
        raise UsageError("the profiler of this platform tells of no operation of the program")
    return {name: found[name] for name in PARTS if name in found}


def _times(data: Any) -> Iterator[tuple[str, float]]:
    """Every operation that ran and its own seconds, without those of operations within it. On devices, where there are any."""
    for plane in _devices(data) or data.planes:
        for line in plane.lines:
            yield from _own_times(_named(line.events))


def _devices(data: Any) -> list[Any]:
    """What accelerators recorded; nothing where the program ran on the processor."""
    return [plane for plane in data.planes if plane.name.startswith("/device:")]


def _named(events: Iterable[Any]) -> list[tuple[float, float, str]]:
    """Beginning, end and name of the events that are operations, in order, outer ones first."""
    found = []
    for event in events:
        name = next((value for key, value in event.stats if key == "hlo_op"), None)
        if name is not None:
            found.append((event.start_ns, event.start_ns + event.duration_ns, str(name)))
    return sorted(found, key=lambda event: (event[0], -event[1]))


def _own_times(events: list[tuple[float, float, str]]) -> Iterator[tuple[str, float]]:
    own: list[list[Any]] = []
    stack: list[int] = []
    for start, end, name in events:
        while stack and own[stack[-1]][2] <= start:
            stack.pop()
        if stack:
            own[stack[-1]][1] -= end - start
        stack.append(len(own))
        own.append([name, end - start, end])
    for name, nanoseconds, _ in own:
        yield name, max(nanoseconds, 0.0) / 1e9
