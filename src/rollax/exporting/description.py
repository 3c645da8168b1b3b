"""What an exported policy takes and gives, as JSON: names, shapes, types, bounds, and what each is for."""

import dataclasses
from typing import Any

import numpy as np

from rollax.exporting.policy import ACTION, BATCH, CARRY, KEY, OBSERVATION, RESET, UNIFORM
from rollax.exporting.program import Program
from rollax.spaces import Box, Dict

MEANING = {
    RESET: "true where the observation begins an episode: the memory is then the initial one, whatever the carry is",
    KEY: "the data of a random key of JAX for each environment, another one at every step",
    CARRY: "the memory as the step before has left it; any numbers where reset is true",
    UNIFORM: "random numbers within [0, 1), others at every step, by which the action is sampled",
    f"next_{CARRY}": "the memory after this step: the carry of the next one",
}


def describe(program: Program, environment: Any) -> dict[str, Any]:
    """Inputs and outputs in the order of their names, which is that of positional arguments."""
    spaces = {**space_parts(environment.observation_space, OBSERVATION), ACTION: environment.action_space}

    def of(name: str, number: int) -> dict[str, Any]:
        kind = program.types[number]
        shape = [side if isinstance(side, int) else BATCH for side in kind.shape]
        entry: dict[str, Any] = {"name": name, "shape": shape, "dtype": np.dtype(kind.dtype).name}
        if name in spaces:
            entry["space"] = as_json(spaces[name])
        meaning = MEANING.get(name.partition("/")[0])
        return entry | ({} if meaning is None else {"meaning": meaning})

    return {
        "agents": environment.num_agents,
        "inputs": [of(name, program.inputs[name]) for name in sorted(program.inputs)],
        "outputs": [of(name, program.outputs[name]) for name in sorted(program.outputs)],
    }


def space_parts(space: Any, name: str) -> dict[str, Any]:
    """The spaces of the arrays of an observation, by name."""
    if not isinstance(space, Dict):
        return {name: space}
    parts = [space_parts(part, f"{name}/{key}") for key, part in space.items]
    return {key: part for each in parts for key, part in each.items()}


def as_json(space: Any) -> dict[str, Any]:
    """A space's kind and fields; bounds that are infinite are null."""
    fields = {field.name: getattr(space, field.name) for field in dataclasses.fields(space)}
    if isinstance(space, Box):
        fields |= {side: _bounds(fields[side]) for side in ("low", "high")}
    return {"kind": type(space).__name__, **fields}


def _bounds(bound: Any) -> Any:
    if isinstance(bound, tuple):
        return [_bounds(each) for each in bound]
    return bound if abs(bound) < 1e30 else None
