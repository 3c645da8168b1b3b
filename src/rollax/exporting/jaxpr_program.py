"""Flat list of primitive operations of a JAX function, with constants folded."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

from rollax.types import Leaf

Literal = jax.extend.core.Literal

Arrays: TypeAlias = dict[str, Any]
"""Dictionary of arrays, keyed by input or output name."""
PrimitiveParam: TypeAlias = Any
"""Parameter of a primitive or of a lowered operation, such as axes or a shape."""
PrimitiveParams: TypeAlias = dict[str, PrimitiveParam]
"""Dictionary of parameters, keyed by parameter name."""
Rewrites: TypeAlias = dict[str, Callable[..., jax.Array]]
"""Replacement functions, keyed by the name of the replaced JAX primitive."""

# Primitives that call another jaxpr, with the parameter that holds it.
CALL_PRIMITIVES = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}
MAX_FOLDED_SIZE = 1 << 22  # largest number of elements of a folded constant


class Operation(NamedTuple):
    """Application of one primitive.

    Attributes:
        name: Name of the primitive or lowered operation.
        inputs: Ids of the input values.
        outputs: Ids of the output values.
        params: Parameters of the primitive.
        primitive: JAX primitive. None for lowered operations.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    params: PrimitiveParams
    primitive: Any


class Program(NamedTuple):
    """Sequence of primitive operations on values with integer ids.

    Attributes:
        inputs: Value ids of the inputs, keyed by input name.
        outputs: Value ids of the outputs, keyed by output name.
        operations: Operations in execution order.
        constants: Arrays of the constants, keyed by value id.
        types: Shape and dtype of each value, keyed by value id.
    """

    inputs: dict[str, int]
    outputs: dict[str, int]
    operations: tuple[Operation, ...]
    constants: dict[int, Any]
    types: dict[int, jax.ShapeDtypeStruct]


def trace_program(
    function: Callable[[Arrays], Arrays],
    inputs: dict[str, jax.ShapeDtypeStruct],
    rewrites: Rewrites,
) -> Program:
    """Trace a function and return it as a program.

    Args:
        function: Function from a dictionary of inputs to a dictionary of outputs.
        inputs: Shapes and dtypes of the inputs, keyed by input name. Shapes may be symbolic.
        rewrites: Replacement functions, keyed by the name of the replaced JAX primitive.
    """
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(inputs)
    builder = _ProgramBuilder(rewrites)
    numbers = [builder.add_value(var.aval) for var in closed.jaxpr.invars]
    constants = [builder.add_constant(value) for value in closed.consts]
    results = builder.inline(closed.jaxpr, constants, numbers)
    named = (
        dict(zip(sorted(inputs), numbers, strict=True)),
        dict(zip(sorted(shapes), results, strict=True)),
    )
    return remove_dead_code(
        Program(*named, tuple(builder.operations), builder.constants, builder.types)
    )


class _ProgramBuilder:
    """Builder of a program. Operations on constants only are evaluated and become constants."""

    def __init__(self, rewrites: Rewrites) -> None:
        self.rewrites = rewrites
        self.operations: list[Operation] = []
        self.constants: dict[int, Any] = {}
        self.types: dict[int, jax.ShapeDtypeStruct] = {}
        # Scalar that fills an array with equal elements, keyed by the value id of the array.
        self.filled: dict[int, np.ndarray] = {}

    def add_value(self, aval: Leaf) -> int:
        value_id = len(self.types)
        self.types[value_id] = jax.ShapeDtypeStruct(aval.shape, aval.dtype)
        return value_id

    def add_constant(self, value: Leaf) -> int:
        value = value if isinstance(value, jax.Array) else jnp.asarray(value)
        value_id = self.add_value(value)
        self.constants[value_id] = value
        return value_id

    def inline(
        self, jaxpr: jax.extend.core.Jaxpr, constants: list[int], inputs: list[int]
    ) -> list[int]:
        """Add the operations of a jaxpr with nested calls inlined, and return its result ids."""
        value_ids = dict(zip(jaxpr.constvars, constants, strict=True)) | dict(
            zip(jaxpr.invars, inputs, strict=True)
        )

        def read_value(atom: jax.extend.core.Var | Literal) -> int:
            return (
                self.add_constant(np.asarray(atom.val, getattr(atom.aval, "dtype", None)))
                if isinstance(atom, Literal)
                else value_ids[atom]
            )

        for equation in jaxpr.eqns:
            arguments = [read_value(atom) for atom in equation.invars]
            inner = equation.params.get(CALL_PRIMITIVES.get(equation.primitive.name, ""))
            if equation.primitive.name in self.rewrites:
                inner = jax.make_jaxpr(self.rewrites[equation.primitive.name])(
                    *(self.types[n] for n in arguments)
                )
            if inner is None:
                results = self.apply(equation, arguments)
            elif isinstance(inner, jax.extend.core.ClosedJaxpr):
                results = self.inline(
                    inner.jaxpr, [self.add_constant(value) for value in inner.consts], arguments
                )
            else:
                results = self.inline(inner, [], arguments)
            value_ids |= dict(zip(equation.outvars, results, strict=True))
        return [read_value(atom) for atom in jaxpr.outvars]

    def apply(self, equation: jax.extend.core.JaxprEqn, arguments: list[int]) -> list[int]:
        """Add one primitive and return its result ids. Copies and constants add no operation."""
        name = equation.primitive.name
        if (equal_argument := self.find_equal_argument(name, equation, arguments)) is not None:
            return [equal_argument]
        avals = [var.aval for var in equation.outvars]
        if all(value_id in self.constants for value_id in arguments) and all(
            map(_is_foldable, avals)
        ):
            values = [self.constants[value_id] for value_id in arguments]
            results = run_primitive(equation.primitive, equation.params, values)
            return [self.add_constant(value) for value in results]
        outputs = [self.add_value(aval) for aval in avals]
        if (
            name == "broadcast_in_dim"
            and (value := self.constant_value(arguments[0])) is not None
            and np.all(value == value.flat[0])
        ):
            self.filled[outputs[0]] = value.flat[0]
        self.operations.append(
            Operation(
                name, tuple(arguments), tuple(outputs), dict(equation.params), equation.primitive
            )
        )
        return outputs

    def find_equal_argument(
        self, name: str, equation: jax.extend.core.JaxprEqn, arguments: list[int]
    ) -> int | None:
        """Return the id of an argument that equals the result of a primitive, or None.

        This covers selections with a constant predicate, multiplication by 1, and conversions to
        the same shape and dtype.
        """
        result: Leaf = equation.outvars[0].aval

        def is_result(value_id: int) -> bool:
            return (
                self.types[value_id].shape == result.shape
                and self.types[value_id].dtype == result.dtype
            )

        if name in (
            "copy",
            "copy_p",
            "convert_element_type",
            "reshape",
            "broadcast_in_dim",
            "squeeze",
            "optimization_barrier",
        ):
            return arguments[0] if len(arguments) == 1 and is_result(arguments[0]) else None
        if name == "select_n":
            selection = self.constant_value(arguments[0])
            if selection is None:
                return None
            return next(
                (n for i, n in enumerate(arguments[1:]) if is_result(n) and np.all(selection == i)),
                None,
            )
        if name == "mul":
            values = [self.constant_value(value_id) for value_id in arguments]
            candidates = [
                n
                for n, value in zip(arguments[::-1], values, strict=True)
                if value is not None and np.all(value == 1)
            ]
            return next(filter(is_result, candidates), None)
        return None

    def constant_value(self, value_id: int) -> np.ndarray | None:
        """Return the array of a constant, the fill value of a constant array, or otherwise None."""
        value = self.filled.get(value_id, self.constants.get(value_id))
        return (
            None
            if value is None or jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
            else np.asarray(value)
        )


def _is_foldable(aval: Leaf) -> bool:
    """Return whether the size of an array is not symbolic and small enough to fold."""
    is_definite = all(isinstance(side, int) for side in aval.shape)
    return is_definite and int(np.prod(aval.shape, dtype=np.int64)) <= MAX_FOLDED_SIZE


def run_primitive(
    primitive: jax.extend.core.Primitive, params: PrimitiveParams, values: list[Leaf]
) -> list[Leaf]:
    """Apply a primitive and return its results as a list."""
    results = primitive.bind(*values, **params)
    return list(results) if primitive.multiple_results else [results]


def remove_dead_code(program: Program) -> Program:
    """Return the program without unused operations and constants.

    All inputs are kept.
    """
    needed, operations = set(program.outputs.values()), list[Operation]()
    for operation in reversed(program.operations):
        if needed & set(operation.outputs):
            operations.append(operation)
            needed |= set(operation.inputs)
    constants = {
        value_id: value for value_id, value in program.constants.items() if value_id in needed
    }
    value_ids = (
        needed
        | set(program.inputs.values())
        | {n for operation in operations for n in operation.outputs}
    )
    types = {value_id: program.types[value_id] for value_id in sorted(value_ids)}
    return program._replace(
        operations=tuple(reversed(operations)), constants=constants, types=types
    )


def used_inputs(program: Program) -> set[str]:
    """Return the names of the inputs that an operation or an output of the program uses."""
    value_ids = {n for operation in program.operations for n in operation.inputs} | set(
        program.outputs.values()
    )
    return {name for name, value_id in program.inputs.items() if value_id in value_ids}


def keep_outputs(program: Program, names: set[str]) -> Program:
    """Return the program restricted to the named outputs."""
    return remove_dead_code(
        program._replace(outputs={name: n for name, n in program.outputs.items() if name in names})
    )


def run_program(program: Program, inputs: Arrays) -> Arrays:
    """Run a program and return its outputs, keyed by name. The function supports `jit`."""
    values: dict[int, Any] = dict(program.constants)
    values |= {value_id: inputs[name] for name, value_id in program.inputs.items()}
    for operation in program.operations:
        arguments = [values[value_id] for value_id in operation.inputs]
        results = run_primitive(operation.primitive, operation.params, arguments)
        values |= dict(zip(operation.outputs, results, strict=True))
    return {name: values[value_id] for name, value_id in program.outputs.items()}
