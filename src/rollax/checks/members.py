"""What can be seen of an environment without running it: its members, its spaces, its leaves."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.checks.faults import short
from rollax.environments.convert import name_fault
from rollax.environments.core import EXTRACTIONS, REDUCTIONS, Environment
from rollax.spaces import ActionSpace, Ball, Box, Dict, Discrete, Grid, MultiDiscrete, Space

_LARGEST = 2**31  # of counts, which are int32 on the device


@dataclasses.dataclass(frozen=True)
class _Member:
    """A member that the contract asks for: what values it may have, in words and as a test."""

    is_right: Callable[[Any], bool]
    meant: str
    is_optional: bool = False


def _is_count_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value < _LARGEST)


_MEMBERS = {
    "name": _Member(lambda x: isinstance(x, str), 'a text such as "mine/Name"'),
    "observation_space": _Member(lambda x: isinstance(x, Space), "a space of rollax.spaces: Box, Discrete, Grid, Dict, ..."),
    "action_space": _Member(lambda x: isinstance(x, ActionSpace), "a rollax.spaces Ball, Box, Discrete or MultiDiscrete"),
    "num_agents": _Member(_is_count_or_none, "None (no axis of agents) or a whole number of agents, from 1"),
    "time_limit": _Member(
        _is_count_or_none, "the most steps an episode can have, a whole number from 1, or None when that is not known"
    ),
    "reset": _Member(callable, "a method reset(key) -> (state, obs)"),
    "step": _Member(callable, "a method step(key, state, action) -> Transition"),
    "keeps_task": _Member(lambda x: isinstance(x, bool), "True or False, or left out", True),
    "info_reductions": _Member(
        lambda x: isinstance(x, Mapping) and all(how in REDUCTIONS for how in x.values()),
        f"a dictionary from names of info to one of {', '.join(REDUCTIONS)}, or left out",
        True,
    ),
    "descriptor_space": _Member(
        lambda x: x is None or isinstance(x, Box), "a rollax.spaces Box of shape [D], None, or left out", True
    ),
}


def member_faults(env: Any) -> list[str]:
    """Faults in the members themselves; a property may raise anything."""
    if isinstance(env, type):
        return [f"it is the class {env.__name__}: pass an environment, as {env.__name__}() makes."]
    faults = [fault for name, member in _MEMBERS.items() for fault in _member_faults(env, name, member)]
    if faults:
        return faults
    fault = name_fault(env.name)
    return [*([] if fault is None else [fault]), *_agent_type_faults(env), *_task_faults(env), *_descriptor_faults(env)]


def _member_faults(env: Any, name: str, member: _Member) -> list[str]:
    try:
        value = getattr(env, name)
    except AttributeError as error:
        # Of a property that is there, the error is one within it.
        is_there = hasattr(type(env), name)
        if not is_there:
            return [] if member.is_optional else [f"{name} is missing: add {member.meant}."]
        return [f"{name} fails with AttributeError: {error}. It must be {member.meant}."]
    except Exception as error:
        return [f"{name} fails with {type(error).__name__}: {str(error).split(chr(10))[0]}. It must be {member.meant}."]
    is_there = member.is_right(value)
    return [] if is_there else [f"{name} is {short(value)}: it must be {member.meant}."]


def _agent_type_faults(env: Any) -> list[str]:
    """Faults in the types of agents."""
    try:
        types = getattr(env, "agent_types", None)
    except Exception as error:
        return [f"agent_types fails with {type(error).__name__}: {error}. Make it a tuple of names, or leave it out."]
    number = env.num_agents
    if types is None or number is None:
        return []
    if isinstance(types, tuple) and len(types) == number and all(isinstance(name, str) and name for name in types):
        return []
    return [f"agent_types is {types!r}: it must be a tuple of {number} names, or left out where all are of one type."]


def _task_faults(env: Any) -> list[str]:
    if not getattr(env, "keeps_task", False):
        return []
    missing = [name for name in ("sample_task", "reset_task") if not callable(getattr(env, name, None))]
    return [f"keeps_task is True but {' and '.join(missing)} missing: add them, or leave keeps_task out."] if missing else []


def _descriptor_faults(env: Any) -> list[str]:
    if getattr(env, "descriptor_space", None) is None:
        return []
    extraction, faults = getattr(env, "descriptor_extraction", None), []
    if extraction not in EXTRACTIONS:
        faults.append(f"descriptor_extraction is {extraction!r}: it must be one of {', '.join(EXTRACTIONS)}.")
    if not callable(getattr(env, "descriptor", None)):
        faults.append("descriptor is missing: add a method descriptor(state) -> float32 [D], or leave descriptor_space out.")
    return faults


def space_faults(env: Environment) -> list[str]:
    """Faults in the spaces, of which no value can be."""
    faults = _space_faults(env.observation_space, "observation_space") + _space_faults(env.action_space, "action_space")
    return faults or _action_mask_faults(env)


def _space_faults(space: Any, what: str) -> list[str]:
    if isinstance(space, Dict):
        if not space.items:
            return [f"{what} is a Dict without parts: name one at least."]
        return [fault for name, part in space.items for fault in _space_faults(part, f"{what}['{name}']")]
    if not isinstance(space, ActionSpace | Grid):
        return [f"{what} is {short(space)}: it must be a space of rollax.spaces."]
    counts: tuple[Any, ...] = ()
    if isinstance(space, Discrete):
        counts = (space.n,)
    elif isinstance(space, MultiDiscrete):
        counts = space.sizes or (0,)
    elif isinstance(space, Grid):
        counts = (*space.cells, *(space.sizes or (0,)))
    elif isinstance(space, Ball):
        counts = (space.size,)
    are_counts = all(isinstance(n, int | np.integer) and not isinstance(n, bool) and 1 <= n < _LARGEST for n in counts)
    if not are_counts or any(n < 1 for n in space.shape):
        return [f"{what} is {space}: its sizes must be whole numbers, 1 or more."]
    if isinstance(space, Ball) and not 0 < space.radius < float("inf"):
        return [f"{what} is {space}: its radius must be a finite number above 0."]
    return _bound_faults(space, what) if isinstance(space, Box) else []


def _bound_faults(space: Box, what: str) -> list[str]:
    try:
        low, high = (np.broadcast_to(bound, space.shape) for bound in (space.low, space.high))
    except ValueError:
        return [f"{what} is {space}: its bounds must be numbers, or arrays that broadcast to its shape {space.shape}."]
    if np.dtype(space.dtype).kind not in "biuf" or space.dtype in ("float64", "int64", "uint64"):
        return [f"{what} is {space}: its type must be bool, or an integer or float of 32 bits or fewer."]
    return [] if (low <= high).all() else [f"{what} is {space}: no low may be above its high, and none may be NaN."]


def _action_mask_faults(env: Environment) -> list[str]:
    """Faults in the space of "action_mask"."""
    space, actions = env.observation_space, env.action_space
    if not isinstance(space, Dict) or "action_mask" not in space.spaces:
        return []
    mask = space.spaces["action_mask"]
    if isinstance(actions, Discrete):
        wanted = (actions.n,)
    elif isinstance(actions, MultiDiscrete):
        wanted = (len(actions.sizes), max(actions.sizes))
    elif isinstance(actions, Box):
        wanted = actions.shape
    else:
        return [f'observations have an "action_mask" but {actions} cannot be masked: rename that part or change the actions.']
    if isinstance(mask, Box) and mask.shape == wanted and mask.dtype == "bool":
        return []
    return [f'the space of "action_mask" is {mask}: for {actions} it must be Box(0, 1, {wanted}, "bool").']


def leaf_faults(value: Any, what: str) -> list[str]:
    """Faults in the leaves of a tree: what is no array of numbers, and arrays whose type is not definite."""
    faults = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(value):
        name = what + jax.tree_util.keystr(path)
        if isinstance(leaf, bool | int | float):
            typed = {bool: "jnp.bool_", int: "jnp.int32", float: "jnp.float32"}[type(leaf)]
            static = ", or mark it static" if what == "the environment" else ""
            faults.append(f"{name} is the Python number {leaf}: make it jnp.asarray({leaf}, {typed}){static}.")
        elif isinstance(leaf, jax.Array) and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) and leaf.weak_type:
            remedy = f"name its type where it is made, for example jnp.asarray(..., jnp.{leaf.dtype.name})"
            faults.append(f"{name} is weakly typed, so its type may change and the program compile again: {remedy}.")
        elif leaf is value and what == "the environment":
            remedy = "make its class an equinox.Module (class Mine(eqx.Module)) whose fields are arrays or static"
            faults.append(f"{name} is no pytree ({type(leaf).__name__}): {remedy}.")
        elif not isinstance(leaf, jax.Array | np.ndarray | np.generic):
            faults.append(f"{name} is {short(leaf)}: leaves must be arrays; mark what is not as static.")
        elif isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind not in "biufc":
            faults.append(f"{name} is of numpy's type {leaf.dtype}: leaves must be arrays of numbers.")
    return faults
