"""Conversion of a trained policy, including its parameters, to a `Program`."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from rollax import spaces, tree
from rollax.algorithm import Algorithm
from rollax.environments.capabilities import is_on_host
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.exporting.jaxpr_program import (
    Arrays,
    Operation,
    Program,
    Rewrites,
    keep_outputs,
    remove_dead_code,
    trace_program,
    used_inputs,
)
from rollax.spaces import make_zeros
from rollax.types import Observation, State

BATCH_SYMBOL = "batch"  # symbolic batch size
OBSERVATION, ACTION, RESET, KEY, CARRY, UNIFORM = (
    "observation",
    "action",
    "reset",
    "key",
    "carry",
    "uniform",
)
InputShapes = dict[str, jax.ShapeDtypeStruct]


class PolicyProgram(NamedTuple):
    """Program that computes the actions of a policy in a batch of environments.

    Inputs and outputs have a leading axis `[batch]`. With A agents, observations, actions and
    recurrent states have the leading axes `[batch, A]`.

    The observation is the input "observation", or "observation/KEY" for each key of a dictionary
    observation. Recurrent policies also have the inputs "reset", "carry/0", "carry/1" and so on.
    Stochastic policies have the input "key", the data of a random key. The outputs are "action", or
    "action/KEY" for each key of a dictionary or tuple of actions, and, for recurrent policies,
    "next_carry/0", "next_carry/1" and so on.

    Attributes:
        program: Program of the policy.
        unbatched_fn: Policy for one environment. It takes all inputs of `shapes`, including unused
            ones.
        shapes: Shapes and dtypes of the inputs of `unbatched_fn`, keyed by input name.
        carry: Indices of the leaves of the policy's recurrent state on which the actions depend.
    """

    program: Program
    unbatched_fn: Callable[[Arrays], Arrays]
    shapes: InputShapes
    carry: tuple[int, ...]


@runtime_checkable
class TracedPolicy(Protocol):
    """Attributes of a trained policy (`rollax.Policy`) that determine its program."""

    @property
    def algorithm(self) -> Algorithm: ...
    @property
    def state(self) -> State: ...
    @property
    def environment(self) -> Environment: ...


def make_policy_program(
    policy: TracedPolicy,
    batch: int | None,
    greedy: bool,
    rewrites: Rewrites | None = None,
) -> PolicyProgram:
    """Build the program of a policy.

    Only inputs on which the actions depend are kept. For example, the recurrent state of the critic
    and the observations that only the critic uses are removed.

    Args:
        policy: Trained policy.
        batch: Number of environments, or None for a symbolic batch size.
        greedy: Whether to take the most likely actions instead of sampling.
        rewrites: Replacement functions, keyed by the name of the replaced JAX primitive.

    Returns:
        The program, together with the function for one environment that was vectorized and traced.

    Raises:
        UsageError: If the policy cannot be traced with a symbolic batch size.
    """
    unbatched_fn, shapes = make_single_environment_fn(policy, greedy)
    program = trace_batch(unbatched_fn, shapes, batch, rewrites)
    actions = {name for name in program.outputs if not name.startswith("next_")}
    outputs, used = actions, set[str]()
    while used != (used := used_inputs(keep_outputs(program, outputs))):
        outputs = actions | {f"next_{name}" for name in used if name.startswith(CARRY)}
    leaves = tuple(sorted(int(name.partition("/")[2]) for name in used if name.startswith(CARRY)))
    program = keep_outputs(program, outputs)
    observed = {name for name in program.inputs if name.startswith(OBSERVATION)}
    kept_inputs = used if used & observed else used | observed
    names = {f"{CARRY}/{leaf}": f"{CARRY}/{k}" for k, leaf in enumerate(leaves)}
    program = program._replace(
        inputs={
            names.get(name, name): number
            for name, number in program.inputs.items()
            if name in kept_inputs
        },
        outputs={
            rename_carry_output(names, name): number for name, number in program.outputs.items()
        },
    )
    return PolicyProgram(program, unbatched_fn, shapes, leaves)


def rename_carry_output(names: dict[str, str], output: str) -> str:
    """Rename a "next_carry/K" output with `names`, which maps old "carry/K" names to new ones."""
    return (
        output if not output.startswith("next_") else f"next_{names[output.removeprefix('next_')]}"
    )


def make_single_environment_fn(
    policy: TracedPolicy, greedy: bool
) -> tuple[Callable[[Arrays], Arrays], InputShapes]:
    """Build a function that computes the action of the policy in one environment.

    If the input "reset" is true, the function starts from the initial recurrent state.

    Args:
        policy: Traced policy.
        greedy: Whether to take the most likely action instead of sampling.

    Returns:
        Function from a dictionary of inputs to a dictionary of outputs (see `PolicyProgram`), and
        the shapes of its inputs, keyed by input name.
    """
    algorithm, state = policy.algorithm, policy.state
    obs = abstract_observation(policy.environment)
    observed = jax.tree.structure(obs)
    leaves, structure = jax.tree.flatten(jax.eval_shape(algorithm.initial_carry, state))
    names = list(flatten_observation(obs))

    def unbatched_fn(inputs: Arrays) -> Arrays:
        carry = structure.unflatten([inputs[f"{CARRY}/{k}"] for k in range(len(leaves))])
        if leaves:
            carry = tree.where(inputs[RESET], algorithm.initial_carry(state), carry)
        key = jax.random.key(0) if greedy else jax.random.wrap_key_data(inputs[KEY])
        policy_obs = observed.unflatten([inputs[name] for name in names])
        action, carry = algorithm.act(state, policy_obs, carry, key, greedy)
        next_carry = {f"next_{CARRY}/{k}": leaf for k, leaf in enumerate(jax.tree.leaves(carry))}
        space = policy.environment.action_space
        action_names = spaces.flatten_space(space, ACTION)
        arrays = jax.tree.leaves(spaces.cast_value(space, action))
        return {**dict(zip(action_names, arrays, strict=True)), **next_carry}

    shapes = {**flatten_observation(obs), **{f"{CARRY}/{k}": leaf for k, leaf in enumerate(leaves)}}
    if leaves:
        shapes[RESET] = jax.ShapeDtypeStruct((), jnp.bool_)
    if not greedy:
        shapes[KEY] = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
    return unbatched_fn, {
        name: jax.ShapeDtypeStruct(shape.shape, shape.dtype) for name, shape in shapes.items()
    }


def abstract_observation(environment: Environment) -> Observation:
    """Return the shapes and dtypes of an observation, without running the environment."""
    if is_on_host(environment):
        return jax.eval_shape(
            lambda: make_zeros(environment.observation_space, environment.num_agents)
        )
    return jax.eval_shape(environment.reset, jax.random.key(0))[1]


def flatten_observation(obs: Observation) -> Arrays:
    """Return the arrays of an observation, keyed by input name.

    The name is "observation", or "observation/KEY" for each key of a dictionary observation.
    """
    named = jax.tree_util.tree_leaves_with_path(obs)
    return {
        "/".join([OBSERVATION, *(str(getattr(step, "key", step)) for step in path)]): leaf
        for path, leaf in named
    }


def trace_batch(
    unbatched_fn: Callable[[Arrays], Arrays],
    shapes: InputShapes,
    batch: int | None,
    rewrites: Rewrites | None = None,
) -> Program:
    """Vectorize a function over environments and trace it.

    Args:
        unbatched_fn: Function for one environment. It maps a dictionary of inputs to a dictionary
            of outputs.
        shapes: Shapes of the inputs of `unbatched_fn`, keyed by input name.
        batch: Number of environments, or None for a symbolic batch size.
        rewrites: Replacement functions, keyed by the name of the replaced JAX primitive.

    Returns:
        Program whose inputs and outputs have a leading axis `[batch]`.

    Raises:
        UsageError: If the function cannot be traced with a symbolic batch size.
    """
    size: Any = jax.export.symbolic_shape(BATCH_SYMBOL)[0] if batch is None else batch
    batch_shapes = {
        name: jax.ShapeDtypeStruct((size, *shape.shape), shape.dtype)
        for name, shape in shapes.items()
    }
    try:
        return trace_program(jax.vmap(unbatched_fn), batch_shapes, rewrites or {})
    except Exception as error:  # a custom network may fail in any way with a symbolic size
        if batch is not None:
            raise
        raise UsageError(
            "This policy cannot be traced for an arbitrary number of environments "
            f"({type(error).__name__}: {str(error)[:300]}). Set the number with --batch."
        ) from error


def erf_inv(x: jax.Array) -> jax.Array:
    """Compute the inverse error function in single precision with the polynomials of XLA.

    Args:
        x: Values in (-1, 1).

    Returns:
        Inverse error function of `x`, with the same shape.

    References:
        Giles (2012), Approximating the erfinv function.
    """
    w = -jnp.log1p(-x * x)
    central = functools.reduce(
        lambda total, c: total * (w - 2.5) + c, _CENTRAL_COEFFICIENTS, jnp.zeros_like(w)
    )
    tail = functools.reduce(
        lambda total, c: total * (jnp.sqrt(w) - 3.0) + c, _TAIL_COEFFICIENTS, jnp.zeros_like(w)
    )
    return jnp.where(w < 5.0, central, tail) * x


_CENTRAL_COEFFICIENTS = (
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
)
_TAIL_COEFFICIENTS = (
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
)


def replace_key_with_uniforms(program: Program) -> tuple[Program, Program | None]:
    """Replace the random key of a program by uniform numbers in [0, 1).

    JAX converts 32 random bits to a float 1 + u with the primitive `bitcast_convert_type`. The
    program is split at these operations. The uniform numbers u become the inputs "uniform/0",
    "uniform/1" and so on.

    Args:
        program: Program of a policy.

    Returns:
        Program with the uniform numbers as inputs, and a second program that computes 1 + u from
        the key. A program without a key is returned unchanged, and the second result is None.

    Raises:
        UsageError: If the policy samples random numbers other than floats.
    """
    if KEY not in program.inputs:
        return program, None
    random_ids = {program.inputs[KEY]}
    splits: list[tuple[int, int]] = []
    for index, operation in enumerate(program.operations):
        if random_ids & set(operation.inputs) and set(operation.inputs) <= random_ids | set(
            program.constants
        ):
            if operation.name == "bitcast_convert_type":
                splits.append((index, operation.outputs[0]))
            else:
                random_ids |= set(operation.outputs)
    first = max(program.types) + 1
    one_id, below_two_id = first, first + 1
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    types = {**program.types, one_id: scalar, below_two_id: scalar}
    largest = np.nextafter(np.float32(2), np.float32(0))
    constants = {**program.constants, one_id: np.float32(1.0), below_two_id: largest}
    operations: list[Any] = list(program.operations)
    inputs = dict(program.inputs)
    uniform_ids: dict[str, int] = {}
    for k, (index, output) in enumerate(splits):
        uniform = first + 2 + 2 * k
        shifted = uniform + 1
        types |= {uniform: types[output], shifted: types[output]}
        inputs[f"{UNIFORM}/{k}"] = uniform
        uniform_ids[f"{UNIFORM}/{k}"] = output
        # The sum must stay below 2, and float32 rounds 1 + u to 2 if u is close to 1.
        operations[index] = [
            Operation("add", (uniform, one_id), (shifted,), {}, jax.lax.add_p),
            Operation("min", (shifted, below_two_id), (output,), {}, jax.lax.min_p),
        ]
    flat_operations = [
        part for entry in operations for part in (entry if isinstance(entry, list) else [entry])
    ]
    remaining = remove_dead_code(
        Program(inputs, program.outputs, tuple(flat_operations), constants, types)
    )
    if KEY in used_inputs(remaining):
        raise UsageError(
            "This policy samples random numbers other than floats. Export it --to jax or "
            "stablehlo, or with greedy actions."
        )
    remaining.inputs.pop(KEY)
    source = remove_dead_code(program._replace(outputs=uniform_ids))
    return remaining, source._replace(inputs={KEY: program.inputs[KEY]})
