"""JSON description of the input and output arrays of an exported policy."""

import dataclasses
from typing import Any

import numpy as np

from rollax.environments.environment import Environment
from rollax.exporting.jaxpr_program import Program
from rollax.exporting.policy_function import (
    ACTION,
    BATCH_SYMBOL,
    CARRY,
    KEY,
    OBSERVATION,
    RESET,
    UNIFORM,
)
from rollax.spaces import Bound, Box, Space, flatten_space
from rollax.types import JsonValue, Record

ARRAY_MEANINGS = {
    RESET: (
        "true if the observation begins an episode: the initial memory is used and the carry is "
        "ignored"
    ),
    KEY: "data of a JAX random key for each environment, different at every step",
    CARRY: "memory returned by the previous step, ignored where reset is true",
    UNIFORM: "random numbers in [0, 1) that sample the action, different at every step",
    f"next_{CARRY}": "memory after this step, to be passed as carry in the next step",
}


def describe_program(program: Program, environment: Environment) -> Record:
    """Return the inputs and outputs of a program as JSON values.

    Args:
        program: Program of the policy.
        environment: Environment whose spaces describe the observations and actions.

    Returns:
        Dictionary with "agents", "inputs" and "outputs". Inputs and outputs are sorted by name,
        which is also the order of positional arguments and results.
    """
    spaces = {
        **flatten_space(environment.observation_space, OBSERVATION),
        **flatten_space(environment.action_space, ACTION),
    }

    def describe_array(name: str, value_id: int) -> Record:
        kind = program.types[value_id]
        shape = [side if isinstance(side, int) else BATCH_SYMBOL for side in kind.shape]
        entry: dict[str, Any] = {"name": name, "shape": shape, "dtype": np.dtype(kind.dtype).name}
        if name in spaces:
            entry["space"] = space_to_json(spaces[name])
        meaning = ARRAY_MEANINGS.get(name.partition("/")[0])
        return entry | ({} if meaning is None else {"meaning": meaning})

    return {
        "agents": environment.num_agents,
        "inputs": [describe_array(name, program.inputs[name]) for name in sorted(program.inputs)],
        "outputs": [
            describe_array(name, program.outputs[name]) for name in sorted(program.outputs)
        ],
    }


def space_to_json(space: Space) -> Record:
    """Return the class name and the fields of a space as JSON values. Infinity becomes null."""
    fields = {field.name: getattr(space, field.name) for field in dataclasses.fields(space)}
    if isinstance(space, Box):
        fields |= {side: _bounds_to_json(fields[side]) for side in ("low", "high")}
    if fields.get("layout", "") is None:  # None means that the layout follows from the shape
        del fields["layout"]
    return {"kind": type(space).__name__, **fields}


def _bounds_to_json(bound: Bound) -> JsonValue:
    if isinstance(bound, tuple):
        return [_bounds_to_json(element) for element in bound]
    return bound if abs(bound) < 1e30 else None
