"""A trained policy as one program of named arrays: everything that it needs is in it, and its memory goes in and out."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from rollax import spaces, tree
from rollax.environments.core import is_on_host
from rollax.errors import UsageError
from rollax.exporting.program import Operation, Program, keep_outputs, needed, trace, used_inputs

BATCH = "batch"  # the size that a program leaves open
OBSERVATION, ACTION, RESET, KEY, CARRY, UNIFORM = "observation", "action", "reset", "key", "carry", "uniform"
Inputs = dict[str, jax.ShapeDtypeStruct]


class Exportable(NamedTuple):
    """A policy over a batch of environments. All inputs and outputs lead with `[batch]`, with agents most with `[batch, A]`.

    Inputs: "observation", or "observation/PART" for each of its parts; "carry/0" ... and "reset", of a policy with a memory;
    "key", the data of a random key, of one that samples. Outputs: "action" and "next_carry/0" ...
    """

    program: Program
    one: Callable[[dict[str, Any]], dict[str, Any]]  # the same in one environment, with all inputs of `shapes`
    shapes: Inputs  # of `one`
    carry: tuple[int, ...]  # which leaves of the policy's memory its actions depend on


def exportable(
    policy: Any, batch: int | None, greedy: bool, rewrites: dict[str, Callable[..., Any]] | None = None
) -> Exportable:
    """The program of a policy; `batch` None leaves the number of environments open.

    Of the memory only that is left on which actions depend: not that of a critic. Parts of the observation that are for
    critics alone are left out too. Raises UsageError for a policy that cannot be traced with an open batch.
    """
    one, shapes = in_one_environment(policy, greedy)
    program = batched(one, shapes, batch, rewrites)
    outputs, used = {ACTION}, set[str]()
    while used != (used := used_inputs(keep_outputs(program, outputs))):
        outputs = {ACTION} | {f"next_{name}" for name in used if name.startswith(CARRY)}
    leaves = tuple(sorted(int(name.partition("/")[2]) for name in used if name.startswith(CARRY)))
    program = keep_outputs(program, outputs)
    observed = {name for name in program.inputs if name.startswith(OBSERVATION)}
    kept = used if used & observed else used | observed
    names = {f"{CARRY}/{leaf}": f"{CARRY}/{k}" for k, leaf in enumerate(leaves)}
    program = program._replace(
        inputs={names.get(name, name): number for name, number in program.inputs.items() if name in kept},
        outputs={names_of_next(names, name): number for name, number in program.outputs.items()},
    )
    return Exportable(program, one, shapes, leaves)


def names_of_next(names: dict[str, str], output: str) -> str:
    """The name of an output, of which those of the carry are named as its inputs."""
    return output if output == ACTION else f"next_{names[output.removeprefix('next_')]}"


def in_one_environment(policy: Any, greedy: bool) -> tuple[Callable[[dict[str, Any]], dict[str, Any]], Inputs]:
    """`inputs -> outputs` in one environment, and the shapes of its inputs. Where `reset` the carry is the initial one."""
    algorithm, state = policy.algorithm, policy.state
    obs = observation_shapes(policy.environment)
    observed = jax.tree.structure(obs)
    leaves, structure = jax.tree.flatten(jax.eval_shape(algorithm.initial_carry, state))
    parts = list(observation_parts(obs))

    def function(inputs: dict[str, Any]) -> dict[str, Any]:
        carry = structure.unflatten([inputs[f"{CARRY}/{k}"] for k in range(len(leaves))])
        if leaves:
            carry = tree.where(inputs[RESET], algorithm.initial_carry(state), carry)
        key = jax.random.key(0) if greedy else jax.random.wrap_key_data(inputs[KEY])
        seen = observed.unflatten([inputs[name] for name in parts])
        action, carry = algorithm.act(state, seen, carry, key, greedy)
        following = {f"next_{CARRY}/{k}": leaf for k, leaf in enumerate(jax.tree.leaves(carry))}
        return {ACTION: jnp.asarray(action, policy.environment.action_space.dtype), **following}

    shapes = {**observation_parts(obs), **{f"{CARRY}/{k}": leaf for k, leaf in enumerate(leaves)}}
    if leaves:
        shapes[RESET] = jax.ShapeDtypeStruct((), jnp.bool_)
    if not greedy:
        shapes[KEY] = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
    return function, {name: jax.ShapeDtypeStruct(shape.shape, shape.dtype) for name, shape in shapes.items()}


def observation_shapes(environment: Any) -> Any:
    """Shapes and types of what is observed."""
    if is_on_host(environment):
        return jax.eval_shape(lambda: spaces.zeros(environment.observation_space))
    return jax.eval_shape(environment.reset, jax.random.key(0))[1]


def observation_parts(obs: Any) -> dict[str, Any]:
    """The arrays of an observation by name: "observation", or "observation/PART" for those of a dictionary."""
    named = jax.tree_util.tree_leaves_with_path(obs)
    return {"/".join([OBSERVATION, *(str(getattr(step, "key", step)) for step in path)]): leaf for path, leaf in named}


def batched(
    one: Callable[[dict[str, Any]], dict[str, Any]],
    shapes: Inputs,
    batch: int | None,
    rewrites: dict[str, Callable[..., Any]] | None = None,
) -> Program:
    """The program of a function of one environment over a batch of them."""
    size: Any = jax.export.symbolic_shape(BATCH)[0] if batch is None else batch
    wide = {name: jax.ShapeDtypeStruct((size, *shape.shape), shape.dtype) for name, shape in shapes.items()}
    try:
        return trace(jax.vmap(one), wide, rewrites or {})
    except Exception as error:  # whatever a network of one's own does with a size that is no number
        if batch is not None:
            raise
        raise UsageError(
            f"this policy cannot be traced for any number of environments ({type(error).__name__}: {str(error)[:300]}): give "
            "the number with --batch"
        ) from error


def erf_inv(x: jax.Array) -> jax.Array:
    """The inverse error function in single precision by the polynomials of Giles 2012, which XLA has too."""
    w = -jnp.log1p(-x * x)
    near = functools.reduce(lambda total, c: total * (w - 2.5) + c, _NEAR, jnp.zeros_like(w))
    far = functools.reduce(lambda total, c: total * (jnp.sqrt(w) - 3.0) + c, _FAR, jnp.zeros_like(w))
    return jnp.where(w < 5.0, near, far) * x


_NEAR = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164)
_NEAR = (*_NEAR, 0.246640727, 1.50140941)
_FAR = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047)
_FAR = (*_FAR, 1.00167406, 2.83297682)


def with_uniform_numbers(program: Program) -> tuple[Program, Program | None]:
    """A program that samples by uniform numbers within [0, 1), inputs "uniform/0" ..., in place of a random key; and the
    program from the key to these numbers plus 1. One that samples nothing is returned as it is, with None.

    JAX makes every random float of 32 random bits, as 1 + u, by one primitive: there the program is cut in two. Raises
    UsageError for a policy that draws other random numbers.
    """
    if KEY not in program.inputs:
        return program, None
    random = {program.inputs[KEY]}
    cuts: list[tuple[int, int]] = []
    for place, operation in enumerate(program.operations):
        if random & set(operation.inputs) and set(operation.inputs) <= random | set(program.constants):
            if operation.name == "bitcast_convert_type":
                cuts.append((place, operation.outputs[0]))
            else:
                random |= set(operation.outputs)
    first = max(program.types) + 1
    types, constants = dict(program.types), dict[int, Any](program.constants)
    types |= {first + k: jax.ShapeDtypeStruct((), jnp.float32) for k in range(2)}
    constants |= {first: np.float32(1.0), first + 1: np.nextafter(np.float32(2), np.float32(0))}
    operations, inputs, numbers = list[Any](program.operations), dict(program.inputs), dict[str, int]()
    for k, (place, output) in enumerate(cuts):
        uniform, shifted = first + 2 + 2 * k, first + 3 + 2 * k
        types |= {uniform: types[output], shifted: types[output]}
        inputs[f"{UNIFORM}/{k}"], numbers[f"{UNIFORM}/{k}"] = uniform, output
        # Below 2 also where a number was rounded to 1.
        operations[place] = [
            Operation("add", (uniform, first), (shifted,), {}, jax.lax.add_p),
            Operation("min", (shifted, first + 1), (output,), {}, jax.lax.min_p),
        ]
    flat = [part for each in operations for part in (each if isinstance(each, list) else [each])]
    cut = needed(Program(inputs, program.outputs, tuple(flat), constants, types))
    if KEY in used_inputs(cut):
        raise UsageError(
            "this policy samples by other random numbers than floats: export it --to jax or stablehlo, or greedily"
        )
    cut.inputs.pop(KEY)
    source = needed(program._replace(outputs=numbers))
    return cut, source._replace(inputs={KEY: program.inputs[KEY]})
