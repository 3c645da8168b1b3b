"""A function of arrays as a flat list of primitive operations, without what is the same whatever the inputs are."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

Literal = jax.extend.core.Literal

# Primitives that only name a function, with the parameter that holds it.
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}
LARGEST_FOLDED = 1 << 22  # numbers in a constant that is computed beforehand


class Operation(NamedTuple):
    """One primitive: the numbers of the values that it takes and gives."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    params: dict[str, Any]
    primitive: Any


class Program(NamedTuple):
    """Operations in order. Values are numbered; `types` has shape and dtype of each, `constants` those that are known."""

    inputs: dict[str, int]  # by name
    outputs: dict[str, int]
    operations: tuple[Operation, ...]
    constants: dict[int, Any]  # arrays
    types: dict[int, jax.ShapeDtypeStruct]


def trace(
    function: Callable[[dict[str, Any]], dict[str, Any]],
    inputs: dict[str, jax.ShapeDtypeStruct],
    rewrites: dict[str, Callable[..., Any]],
) -> Program:
    """The program of a function from arrays by name to arrays by name, whose shapes may be symbolic.

    `rewrites`: functions of arrays in place of primitives, by their names.
    """
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(inputs)
    builder = _Builder(rewrites)
    numbers = [builder.new(var.aval) for var in closed.jaxpr.invars]
    constants = [builder.constant(value) for value in closed.consts]
    results = builder.inline(closed.jaxpr, constants, numbers)
    named = dict(zip(sorted(inputs), numbers, strict=True)), dict(zip(sorted(shapes), results, strict=True))
    return needed(Program(*named, tuple(builder.operations), builder.constants, builder.types))


class _Builder:
    """Collects operations; what depends on no input is computed at once."""

    def __init__(self, rewrites: dict[str, Callable[..., Any]]) -> None:
        self.rewrites = rewrites
        self.operations: list[Operation] = []
        self.constants: dict[int, Any] = {}
        self.types: dict[int, jax.ShapeDtypeStruct] = {}
        self.filled: dict[int, np.ndarray] = {}  # values all of whose numbers are the same one, of whatever size

    def new(self, aval: Any) -> int:
        number = len(self.types)
        self.types[number] = jax.ShapeDtypeStruct(aval.shape, aval.dtype)
        return number

    def constant(self, value: Any) -> int:
        value = value if isinstance(value, jax.Array) else jnp.asarray(value)
        number = self.new(value)
        self.constants[number] = value
        return number

    def inline(self, jaxpr: Any, constants: list[int], inputs: list[int]) -> list[int]:
        """The numbers of the results of a jaxpr, whose calls of other jaxprs are resolved."""
        numbers = dict(zip(jaxpr.constvars, constants, strict=True)) | dict(zip(jaxpr.invars, inputs, strict=True))

        def read(atom: Any) -> int:
            return (
                self.constant(np.asarray(atom.val, getattr(atom.aval, "dtype", None)))
                if isinstance(atom, Literal)
                else numbers[atom]
            )

        for equation in jaxpr.eqns:
            arguments = [read(atom) for atom in equation.invars]
            inner = equation.params.get(CALLS.get(equation.primitive.name, ""))
            if equation.primitive.name in self.rewrites:
                inner = jax.make_jaxpr(self.rewrites[equation.primitive.name])(*(self.types[n] for n in arguments))
            if inner is None:
                results = self.apply(equation, arguments)
            elif hasattr(inner, "consts"):
                results = self.inline(inner.jaxpr, [self.constant(value) for value in inner.consts], arguments)
            else:
                results = self.inline(inner, [], arguments)
            numbers |= dict(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def apply(self, equation: Any, arguments: list[int]) -> list[int]:
        """The results of one primitive: a number that is there already, constants, or a new operation."""
        name = equation.primitive.name
        if (same := self.unchanged(name, equation, arguments)) is not None:
            return [same]
        avals = [var.aval for var in equation.outvars]
        if all(number in self.constants for number in arguments) and all(map(_is_small, avals)):
            values = [self.constants[number] for number in arguments]
            results = run_primitive(equation.primitive, equation.params, values)
            return [self.constant(value) for value in results]
        outputs = [self.new(aval) for aval in avals]
        if name == "broadcast_in_dim" and (value := self.known(arguments[0])) is not None and np.all(value == value.flat[0]):
            self.filled[outputs[0]] = value.flat[0]
        self.operations.append(Operation(name, tuple(arguments), tuple(outputs), dict(equation.params), equation.primitive))
        return outputs

    def unchanged(self, name: str, equation: Any, arguments: list[int]) -> int | None:
        """The argument that the result is the same as: of a choice that is known, of a factor 1, of a conversion to the same
        type."""
        result = equation.outvars[0].aval

        def is_result(number: int) -> bool:
            return self.types[number].shape == result.shape and self.types[number].dtype == result.dtype

        if name in ("copy", "copy_p", "convert_element_type", "reshape", "broadcast_in_dim", "squeeze", "optimization_barrier"):
            return arguments[0] if len(arguments) == 1 and is_result(arguments[0]) else None
        if name == "select_n":
            which = self.known(arguments[0])
            if which is None:
                return None
            return next((n for i, n in enumerate(arguments[1:]) if is_result(n) and np.all(which == i)), None)
        if name == "mul":
            ones = [self.known(number) for number in arguments]
            other = [n for n, one in zip(arguments[::-1], ones, strict=True) if one is not None and np.all(one == 1)]
            return next(filter(is_result, other), None)
        return None

    def known(self, number: int) -> np.ndarray | None:
        """The numbers of a constant, or the one that fills it."""
        value = self.filled.get(number, self.constants.get(number))
        return None if value is None or jnp.issubdtype(value.dtype, jax.dtypes.prng_key) else np.asarray(value)


def _is_small(aval: Any) -> bool:
    """Whether an array of this type is of a definite size that may be kept as a constant."""
    is_definite = all(isinstance(side, int) for side in aval.shape)
    return is_definite and int(np.prod(aval.shape, dtype=np.int64)) <= LARGEST_FOLDED


def run_primitive(primitive: Any, params: dict[str, Any], values: list[Any]) -> list[Any]:
    results = primitive.bind(*values, **params)
    return list(results) if primitive.multiple_results else [results]


def needed(program: Program) -> Program:
    """The program without the operations and constants on which no output depends. Its inputs stay."""
    wanted, kept = set(program.outputs.values()), list[Operation]()
    for operation in reversed(program.operations):
        if wanted & set(operation.outputs):
            kept.append(operation)
            wanted |= set(operation.inputs)
    constants = {number: value for number, value in program.constants.items() if number in wanted}
    numbers = wanted | set(program.inputs.values()) | {n for operation in kept for n in operation.outputs}
    types = {number: program.types[number] for number in sorted(numbers)}
    return program._replace(operations=tuple(reversed(kept)), constants=constants, types=types)


def used_inputs(program: Program) -> set[str]:
    """The names of the inputs that an output depends on."""
    numbers = {n for operation in program.operations for n in operation.inputs} | set(program.outputs.values())
    return {name for name, number in program.inputs.items() if number in numbers}


def keep_outputs(program: Program, names: set[str]) -> Program:
    """The program of some of its outputs."""
    return needed(program._replace(outputs={name: n for name, n in program.outputs.items() if name in names}))


def run(program: Program, inputs: dict[str, Any]) -> dict[str, Any]:
    """The outputs by name. Pure: it can be traced and compiled."""
    values: dict[int, Any] = dict(program.constants)
    values |= {number: inputs[name] for name, number in program.inputs.items()}
    for operation in program.operations:
        arguments = [values[number] for number in operation.inputs]
        results = run_primitive(operation.primitive, operation.params, arguments)
        values |= dict(zip(operation.outputs, results, strict=True))
    return {name: values[number] for name, number in program.outputs.items()}
