"""Checks of traced resets and steps: structures, shapes, dtypes, and side effects in Python."""

import inspect
import pickle
import random
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from rollax.checks import random_play
from rollax.checks.declarations import leaf_faults
from rollax.checks.faults import (
    attempt,
    describe_failure,
    describe_type,
    find_differences,
    format_value,
)
from rollax.environments.capabilities import capabilities, has_descriptors, has_tasks
from rollax.environments.environment import Environment, Transition
from rollax.environments.trace_cache import trace_once
from rollax.spaces import Dict, Space, Tuple, list_parts, list_values
from rollax.types import Observation, PyTree, State

_COMPARABLE_TYPES = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    list,
    tuple,
    dict,
    set,
    np.ndarray,
    np.random.Generator,
    random.Random,
)
_RANDOMNESS_REMEDY = (
    "Draw randomness only from the key (not from numpy.random or random), and store nothing on "
    "the environment"
)
_TRACING_REMEDY = (
    "To trace it, use jnp.where, lax.cond or lax.while_loop instead of if and while on arrays, "
    "and jnp instead of NumPy."
)


class _TracedPrograms(NamedTuple):
    """Traced programs of a reset and a step, and error messages about their results."""

    reset: Any
    step: Any
    faults: list[str]


def step_faults(env: Environment, is_tested: bool = False) -> list[str]:
    """Return error messages about side effects and invalid results of a reset and a step.

    Both are traced twice, and once more under vmap.

    Args:
        env: The environment.
        is_tested: Whether the environment is known to have no side effects and to support vmap.
            Such an environment is traced only once.

    Returns:
        One message per problem.
    """
    if is_tested:
        return _trace_programs(env, trace_once).faults
    first = _trace_programs(env)
    if first.faults:
        return first.faults
    before = _snapshot_python_state(env)
    second = _trace_programs(env)
    after = _snapshot_python_state(env)
    changed = [name for name in before if before[name] != after.get(name, before[name])]
    faults = second.faults + [
        f"reset or step changes {name}. A compiled program has this side effect only when it is "
        "traced. Store changing values in the state, and draw randomness from the key."
        for name in changed
    ]
    for method, description, first_program, second_program in (
        ("reset", "its key", first.reset, second.reset),
        ("step", "its arguments", first.step, second.step),
    ):
        if not faults and _is_different_program(first_program, second_program):
            faults.append(
                f"{method} is not a function of {description}: traced twice, it gives two "
                f"programs. {_RANDOMNESS_REMEDY}."
            )
    return faults or _vmapped_faults(env)


def _trace_programs(
    env: Environment, method: Callable[[Environment, str], Callable[..., PyTree]] = getattr
) -> _TracedPrograms:
    """Trace a reset and a step, and collect error messages about their results."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    faults: list[str] = []

    def reset(key: jax.Array) -> Any:
        start = method(env, "reset")(key)
        faults.extend(_start_faults(env, start, "reset"))
        are_numbers = all(
            isinstance(leaf, jax.Array | np.ndarray | np.generic | float)
            for leaf in jax.tree.leaves(start)
        )
        return start if isinstance(start, tuple) and len(start) == 2 and are_numbers else ()

    def step(keys: jax.Array, state: State, obs: Observation) -> Any:
        transition = method(env, "step")(
            keys[1], state, random_play.random_action(env, keys[0], obs)
        )
        faults.extend(_transition_faults(env, state, transition))
        return () if faults else transition

    reset_program, start = _attempt_trace(
        faults, "reset(key)", jax.make_jaxpr(reset, return_shape=True), key
    ) or (None, ())
    if start == ():
        return _TracedPrograms(None, None, faults)
    tracing_faults: list[str] = []
    step_program = _attempt_trace(
        tracing_faults, "step(key, state, action)", jax.make_jaxpr(step), (key, key), *start
    )
    if not (faults or tracing_faults):
        attempt(
            faults,
            "sample_task and reset_task",
            lambda: faults.extend(_task_faults(env, key, start)),
        )
    # Errors may be consequences of faults that were found.
    return _TracedPrograms(reset_program, step_program, faults or tracing_faults)


def _attempt_trace(
    faults: list[str], description: str, function: Callable[..., PyTree], *arguments: PyTree
) -> Any:
    """Call a function with `attempt`. The error message explains how to avoid tracing errors."""
    try:
        return function(*arguments)
    except Exception as error:  # User code may raise any error.
        is_tracing_error = isinstance(error, jax.errors.JAXTypeError | jax.errors.JAXIndexError)
        faults.append(
            describe_failure(
                f"tracing {description}" if is_tracing_error else description,
                error,
                _TRACING_REMEDY if is_tracing_error else "",
            )
        )
        return None


def _start_faults(env: Environment, start: PyTree, method: str) -> list[str]:
    if not (isinstance(start, tuple) and len(start) == 2):
        return [f"{method} must return the tuple (state, obs), got {type(start).__name__}."]
    return _value_faults(env, *start, f"after {method}")


def _transition_faults(env: Environment, state: State, transition: PyTree) -> list[str]:
    """Return error messages about the result of a step and the descriptor of its state."""
    if not isinstance(transition, Transition):
        return [
            f"step must return rollax.environments.Transition, got {type(transition).__name__}."
        ]
    faults = _value_faults(env, transition.state, transition.obs, "after step")
    # Leaves that are not arrays have no dtype to compare.
    faults = faults or _type_change_faults(state, transition.state, "state")
    faults += _signal_faults(transition, env.num_agents)
    if not faults:
        attempt(
            faults,
            "descriptor(state)",
            lambda: faults.extend(_descriptor_faults(env, transition.state)),
        )
    return faults


def _value_faults(env: Environment, state: State, obs: Observation, moment: str) -> list[str]:
    """Return error messages about non-array leaves of a state and an invalid observation."""
    faults: list[str] = []
    attempt(
        faults,
        f"reading the state {moment}",
        lambda: faults.extend(leaf_faults(state, f"{moment}, state")),
    )
    attempt(
        faults, f"reading obs {moment}", lambda: faults.extend(leaf_faults(obs, f"{moment}, obs"))
    )
    return faults + structure_faults(obs, env.observation_space, env.num_agents, f"{moment}, obs")


def _is_different_program(first: PyTree, second: PyTree) -> bool:
    """Return whether two closed jaxprs differ in their operations or constants."""
    texts = [re.sub("0x[0-9a-f]+", "", str(program)) for program in (first, second)]
    return texts[0] != texts[1] or bool(find_differences(first.consts, second.consts, 0.0))


def structure_faults(value: PyTree, space: Space, num_agents: int | None, label: str) -> list[str]:
    """Return error messages about the structure, shapes and dtypes of a value.

    Args:
        value: The value.
        space: Declared space of the value.
        num_agents: Number of agents, or None without an agent axis.
        label: Name of the value in messages.

    Returns:
        One message per problem.
    """
    if isinstance(space, Dict) and not (
        isinstance(value, dict) and set(value) == set(space.spaces)
    ):
        received = list(value) if isinstance(value, dict) else type(value).__name__
        return [f"{label} must be a dictionary of {sorted(space.spaces)}, got {received}."]
    if isinstance(space, Tuple) and not (
        isinstance(value, tuple) and len(value) == len(space.parts)
    ):
        received = len(value) if isinstance(value, tuple) else type(value).__name__
        return [f"{label} must be a tuple of {len(space.parts)} values, got {received}."]
    if isinstance(space, Dict | Tuple):
        values = list_values(space, value)
        return [
            f
            for name, part in list_parts(space).items()
            for f in structure_faults(values[name], part, num_agents, f"{label}['{name}']")
        ]
    shape = space.shape if num_agents is None else (num_agents, *space.shape)
    agents = "" if num_agents is None else f" for each of {num_agents} agents"
    expected = f"{space.dtype}{list(space.shape)}{agents}, as its space declares"
    if not isinstance(value, jax.Array | np.ndarray | np.generic):
        is_reported_leaf = jax.tree.structure(value) == jax.tree.structure(0)  # by leaf_faults
        return (
            [] if is_reported_leaf else [f"{label} must be {expected}, got {type(value).__name__}."]
        )
    if value.shape == shape and value.dtype.name == space.dtype:
        return []
    return [f"{label} must be {expected}, got {describe_type(value)}. Change either to match."]


def _type_change_faults(carry: PyTree, next_carry: PyTree, label: str) -> list[str]:
    """Return error messages if a step changes the structure, shapes or dtypes of a state."""
    leaves = {jax.tree_util.keystr(p): x for p, x in jax.tree_util.tree_leaves_with_path(carry)}
    next_leaves = {
        jax.tree_util.keystr(p): x for p, x in jax.tree_util.tree_leaves_with_path(next_carry)
    }
    if jax.tree.structure(carry) != jax.tree.structure(next_carry):
        changed = sorted(set(leaves) ^ set(next_leaves)) or ["the types of its nodes"]
        return [
            f"{label} changes its structure between reset and step ({', '.join(changed)}), so a "
            "scan cannot carry it. Give it the same entries in both."
        ]
    return [
        f"{label}{path} is {describe_type(leaves[path])} after reset and "
        f"{describe_type(next_leaves[path])} after step, so a scan cannot carry it. Give it one "
        "shape and dtype in both, for example with .astype."
        for path in leaves
        if describe_type(leaves[path]) != describe_type(next_leaves[path])
    ]


def _signal_faults(transition: Transition, num_agents: int | None) -> list[str]:
    """Return error messages about `reward`, `terminated`, `truncated` and `info`."""
    faults = []
    shape = () if num_agents is None else (num_agents,)
    for name, dtype in (("reward", "float32"), ("terminated", "bool"), ("truncated", "bool")):
        value = transition._asdict()[name]
        if isinstance(value, jax.Array) and value.shape == shape and value.dtype.name == dtype:
            continue
        received = describe_type(value) if isinstance(value, jax.Array) else format_value(value)
        faults.append(
            f"{name} must be an array {dtype}{list(shape)}, got {received}. Use "
            f"jnp.asarray(..., jnp.{dtype})."
        )
    if not isinstance(transition.info, dict):
        return [
            *faults,
            f"info must be a dictionary of arrays, got {type(transition.info).__name__}. Return "
            f"{{}} if there is none.",
        ]
    if not all(isinstance(name, str) and name for name in transition.info):
        return [
            *faults,
            f"The keys of info must be strings, got {list(transition.info)}. Evaluations use them "
            "as names of metrics.",
        ]
    for path, leaf in jax.tree_util.tree_leaves_with_path(transition.info):
        if not isinstance(leaf, jax.Array | np.ndarray) or leaf.dtype.kind not in "biuf":
            leaf_name = f"info{jax.tree_util.keystr(path)}"
            faults.append(
                f"{leaf_name} must be an array of numbers, got {format_value(leaf)}. Omit other "
                "values."
            )
    return faults


def _descriptor_faults(env: Environment, state: State) -> list[str]:
    """Return error messages about the descriptor of a state, if the environment has descriptors."""
    if not has_descriptors(env):
        return []
    return structure_faults(env.descriptor(state), env.descriptor_space, None, "descriptor(state)")


def _task_faults(env: Environment, key: jax.Array, start: PyTree) -> list[str]:
    """Return error messages about `sample_task` and `reset_task`.

    `start` contains the shapes and dtypes that `reset` returns.
    """
    if not (capabilities(env).keeps_task and has_tasks(env)):
        return []
    faults: list[str] = []

    def start_task(task_key: jax.Array, start_key: jax.Array) -> Any:
        started = env.reset_task(start_key, env.sample_task(task_key))
        faults.extend(_start_faults(env, started, "reset_task"))
        return () if faults else started

    started = jax.eval_shape(start_task, key, key)
    change_faults = [] if faults else _type_change_faults(start, started, "(state, obs)")
    return faults + [
        fault.replace("after step", "after reset_task").replace("and step", "and reset_task")
        for fault in change_faults
    ]


def _snapshot_python_state(env: Environment) -> dict[str, Any]:
    """Return copies of values that side effects may change, keyed by a description.

    The values are states of random number generators, attributes of the environment, and variables
    that methods of the environment use.
    """
    snapshot: dict[str, Any] = {
        "numpy.random's state": pickle.dumps(np.random.get_state()),
        "random's state": random.getstate(),
    }
    parts, index = [("the environment", env)], 0
    while index < len(parts):
        label, part = parts[index]
        index += 1
        values = {**vars(type(part)), **getattr(part, "__dict__", {})}
        parts += [
            (f"{label}.{name}", value)
            for name, value in values.items()
            if isinstance(value, eqx.Module)
        ]
        snapshot |= {
            f"{label}.{name}": _snapshot_value(value)
            for name, value in values.items()
            if not name.startswith("__")
        }
    for function in (env.reset, env.step):
        try:
            variables = inspect.getclosurevars(getattr(function, "__func__", function))
        except (TypeError, ValueError):  # not a Python function
            continue
        snapshot |= {
            f"the variable {name}": _snapshot_value(value)
            for name, value in {**variables.nonlocals, **variables.globals}.items()
        }
    return snapshot


def _snapshot_value(value: PyTree) -> Any:
    """Return a comparable copy of a plain value, or the identity of any other object."""
    if not isinstance(value, _COMPARABLE_TYPES):
        return id(value)
    try:
        return pickle.dumps(value)
    except Exception:  # The value may hold something that cannot be pickled, such as a tracer.
        return id(value), repr(value)


def _vmapped_faults(env: Environment) -> list[str]:
    """Return error messages about methods that fail under vmap."""
    faults: list[str] = []

    def reset_and_step(key: jax.Array) -> tuple[Any, Any]:
        reset_key, step_key, action_key = jax.random.split(key, 3)
        state, obs = env.reset(reset_key)
        return state, env.step(
            step_key, state, random_play.random_action(env, action_key, obs)
        ).state

    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 2))
    traced = attempt(
        faults,
        "vmapping reset and step",
        lambda: jax.eval_shape(jax.vmap(reset_and_step), keys),
        _TRACING_REMEDY,
    )
    return (
        faults
        if traced is None
        else _type_change_faults(traced[0], traced[1], "state of two copies")
    )
