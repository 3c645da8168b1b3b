"""Checks of the attributes, spaces and leaves of an environment without running it."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.checks.faults import format_value
from rollax.environments.conversion import name_fault
from rollax.environments.environment import DESCRIPTOR_EXTRACTIONS, INFO_REDUCTIONS, Environment
from rollax.environments.image_layouts import layout_fault
from rollax.errors import describe_error
from rollax.spaces import (
    ActionSpace,
    Ball,
    Box,
    Dict,
    Discrete,
    Grid,
    MultiDiscrete,
    Space,
    Tuple,
    list_parts,
)

_MAX_COUNT = 2**31  # upper limit of counts, which are int32 on the device


@dataclasses.dataclass(frozen=True)
class _MemberRule:
    """Validity test for an attribute or method, and a description of valid values."""

    is_valid: Callable[[Any], bool]
    expected: str
    is_optional: bool = False


def _is_count_or_none(value: object) -> bool:
    return value is None or (
        isinstance(value, int) and not isinstance(value, bool) and 1 <= value < _MAX_COUNT
    )


_MEMBER_RULES = {
    "name": _MemberRule(lambda x: isinstance(x, str), 'a string such as "mine/Name"'),
    "observation_space": _MemberRule(
        lambda x: isinstance(x, Space), "a space of rollax.spaces: Box, Discrete, Grid, Dict, ..."
    ),
    "action_space": _MemberRule(
        lambda x: isinstance(x, ActionSpace),
        "a rollax.spaces Ball, Box, Discrete, MultiDiscrete, Dict or Tuple",
    ),
    "num_agents": _MemberRule(
        _is_count_or_none, "None (no axis of agents) or a positive integer, the number of agents"
    ),
    "time_limit": _MemberRule(
        _is_count_or_none,
        "the maximum number of steps of an episode, a positive integer, or None if unknown",
    ),
    "reset": _MemberRule(callable, "a method reset(key) -> (state, obs)"),
    "step": _MemberRule(callable, "a method step(key, state, action) -> Transition"),
    "waiting_action": _MemberRule(
        lambda x: x is None or (isinstance(x, int) and not isinstance(x, bool) and x >= 0),
        "the index of the only legal action of an agent that waits for its turn, None, or omitted",
        True,
    ),
    "keeps_task": _MemberRule(lambda x: isinstance(x, bool), "True or False, or omitted", True),
    "info_reductions": _MemberRule(
        lambda x: isinstance(x, Mapping) and all(how in INFO_REDUCTIONS for how in x.values()),
        f"a dictionary from names of info to one of {', '.join(INFO_REDUCTIONS)}, or omitted",
        True,
    ),
    "descriptor_space": _MemberRule(
        lambda x: x is None or isinstance(x, Box),
        "a rollax.spaces Box of shape [D], None, or omitted",
        True,
    ),
}


def member_faults(env: Any) -> list[str]:
    """Return error messages about missing or invalid attributes and methods of an environment.

    Args:
        env: The environment.

    Returns:
        One message per problem.
    """
    if isinstance(env, type):
        return [f"it is the class {env.__name__}. Pass an environment, such as {env.__name__}()."]
    if isinstance(env, str):
        return [f"it is a string. Pass an environment, such as rollax.make({env[:100]!r})."]
    faults = [
        fault
        for name, member in _MEMBER_RULES.items()
        for fault in _member_faults(env, name, member)
    ]
    if faults:
        return faults
    fault = name_fault(env.name)
    return [
        *([] if fault is None else [fault]),
        *_agent_type_faults(env),
        *_task_faults(env),
        *_descriptor_faults(env),
    ]


def _member_faults(env: Any, name: str, member: _MemberRule) -> list[str]:
    """Return an error message if an attribute or method is missing, invalid or raises an error."""
    try:
        value = getattr(env, name)
    except AttributeError as error:
        # If the property exists, the error was raised inside it.
        is_there = hasattr(type(env), name)
        if not is_there:
            return [] if member.is_optional else [f"{name} is missing. Add {member.expected}."]
        return [f"{name} fails with AttributeError: {error}. It must be {member.expected}."]
    except Exception as error:
        return [
            f"{name} fails with {describe_error(error).split(chr(10))[0]}. It must be "
            f"{member.expected}."
        ]
    is_there = member.is_valid(value)
    return [] if is_there else [f"{name} must be {member.expected}, got {format_value(value)}."]


def _agent_type_faults(env: Any) -> list[str]:
    """Return error messages about `agent_types`."""
    try:
        types = getattr(env, "agent_types", None)
    except Exception as error:
        return [
            f"agent_types fails with {describe_error(error)}. Make it a tuple of names, or omit it."
        ]
    num_agents = env.num_agents
    if types is None or num_agents is None:
        return []
    if (
        isinstance(types, tuple)
        and len(types) == num_agents
        and all(isinstance(name, str) and name for name in types)
    ):
        return []
    return [
        f"agent_types must be a tuple of {num_agents} names, or omitted if there is one type, got "
        f"{types!r}."
    ]


def _task_faults(env: Any) -> list[str]:
    if not getattr(env, "keeps_task", False):
        return []
    missing = [
        name for name in ("sample_task", "reset_task") if not callable(getattr(env, name, None))
    ]
    return (
        [f"keeps_task is True but {' and '.join(missing)} missing. Add them, or omit keeps_task."]
        if missing
        else []
    )


def _descriptor_faults(env: Any) -> list[str]:
    if getattr(env, "descriptor_space", None) is None:
        return []
    extraction, faults = getattr(env, "descriptor_extraction", None), []
    if extraction not in DESCRIPTOR_EXTRACTIONS:
        faults.append(
            f"descriptor_extraction must be one of {', '.join(DESCRIPTOR_EXTRACTIONS)}, got "
            f"{extraction!r}."
        )
    if not callable(getattr(env, "descriptor", None)):
        faults.append(
            "descriptor is missing. Add a method descriptor(state) -> float32 [D], or omit "
            "descriptor_space."
        )
    return faults


def space_faults(env: Environment) -> list[str]:
    """Return error messages about spaces that are empty, inconsistent or not supported.

    Args:
        env: The environment.

    Returns:
        One message per problem.
    """
    if _contains_tuple(env.observation_space):
        return [
            "observation_space must not contain a Tuple, which is a space of actions, got "
            f"{env.observation_space}. Use a Dict."
        ]
    faults = _space_faults(env.observation_space, "observation_space") + _space_faults(
        env.action_space, "action_space"
    )
    return faults or _action_mask_faults(env)


def _contains_tuple(space: Space) -> bool:
    return isinstance(space, Tuple) or any(map(_contains_tuple, list_parts(space).values()))


def _space_faults(space: Space, label: str) -> list[str]:
    """Return error messages about the type and sizes of a space, named `label` in messages."""
    if isinstance(space, Dict | Tuple):
        parts = list_parts(space)
        if not parts:
            kind = type(space).__name__
            return [f"{label} must have at least one part, got an empty {kind}."]
        return [
            fault
            for name, part in parts.items()
            for fault in _space_faults(part, f"{label}['{name}']")
        ]
    if not isinstance(space, ActionSpace | Grid):
        return [f"{label} must be a space of rollax.spaces, got {format_value(space)}."]
    counts: tuple[Any, ...] = ()
    if isinstance(space, Discrete):
        counts = (space.n,)
    elif isinstance(space, MultiDiscrete):
        counts = space.sizes or (0,)
    elif isinstance(space, Grid):
        counts = (*space.cells, *(space.sizes or (0,)))
    elif isinstance(space, Ball):
        counts = (space.size,)
    are_counts = all(
        isinstance(n, int | np.integer) and not isinstance(n, bool) and n >= 1 for n in counts
    )
    if not are_counts or any(n < 1 for n in space.shape):
        return [f"The sizes of {label} must be positive integers, got {space}."]
    if any(n >= _MAX_COUNT for n in counts):
        return [
            f"The sizes of {label} must be less than 2^31, got {space}. Use a MultiDiscrete of "
            "digits, or a Box."
        ]
    if isinstance(space, Ball) and not 0 < space.radius < float("inf"):
        return [f"The radius of {label} must be finite and greater than 0, got {space}."]
    return _bound_faults(space, label) if isinstance(space, Box) else []


def _bound_faults(space: Box, label: str) -> list[str]:
    """Return an error message about the bounds, dtype or image layout of a box, if any."""
    try:
        low, high = (np.broadcast_to(bound, space.shape) for bound in (space.low, space.high))
    except ValueError:
        return [
            f"The bounds of {label} must be numbers, or arrays that broadcast to its shape "
            f"{space.shape}, got {space}."
        ]
    if np.dtype(space.dtype).kind not in "biuf" or space.dtype in ("float64", "int64", "uint64"):
        return [
            f"The dtype of {label} must be bool, or an integer or float of at most 32 bits, got "
            f"{space}."
        ]
    fault = layout_fault(space.shape, space.layout)
    if fault is not None:
        return [f"{label} is {space}. Its {fault}"]
    return (
        []
        if (low <= high).all()
        else [f"The bounds of {label} must satisfy low <= high without NaN, got {space}."]
    )


def _action_mask_faults(env: Environment) -> list[str]:
    """Return error messages about the space of "action_mask"."""
    space, actions = env.observation_space, env.action_space
    if not isinstance(space, Dict) or "action_mask" not in space.spaces:
        return []
    return _mask_space_faults(actions, space.spaces["action_mask"], '"action_mask"')


def _mask_space_faults(actions: Space, mask: Space, label: str) -> list[str]:
    """Return error messages about the space of the mask of an action space."""
    if isinstance(actions, Dict | Tuple):
        return _joint_mask_faults(actions, mask, label)
    if isinstance(actions, Discrete):
        mask_shape = (actions.n,)
    elif isinstance(actions, MultiDiscrete):
        mask_shape = (len(actions.sizes), max(actions.sizes))
    elif isinstance(actions, Box):
        mask_shape = actions.shape
    else:
        return [
            f'Observations have an "action_mask", but {actions} cannot be masked. Rename that '
            "part, or change the actions."
        ]
    if isinstance(mask, Box) and mask.shape == mask_shape and mask.dtype == "bool":
        return []
    return [
        f'The space of {label} must be Box(0, 1, {mask_shape}, "bool") for {actions}, got {mask}.'
    ]


def _joint_mask_faults(actions: Dict | Tuple, mask_space: Space, label: str) -> list[str]:
    """Return error messages about the masks of the entries of an action space."""
    parts = list_parts(actions)
    if not isinstance(mask_space, Dict) or not set(mask_space.spaces) <= set(parts):
        names = ", ".join(map(repr, parts))
        return [f"The space of {label} must be a Dict with keys among {names}, got {mask_space}."]
    return [
        fault
        for name, part in mask_space.items
        for fault in _mask_space_faults(parts[name], part, f"{label}[{name!r}]")
    ]


def batch_faults(env: Any) -> list[str]:
    """Return an error message for a batch of environments, made for example with `jax.vmap`.

    Args:
        env: The environment.

    Returns:
        List with one message if all leaves share a leading axis, otherwise an empty list.
    """
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(env)]
    leading_sizes = {shape[0] if shape else None for shape in shapes}
    if len(leading_sizes) != 1 or None in leading_sizes:
        return []
    (leading_size,) = leading_sizes
    return [
        f"its leaves must belong to one environment, but all {len(shapes)} lead with an axis of "
        f"{leading_size}, as under jax.vmap. Pass one environment. To sample leaves for every "
        "episode, pass randomize={NAME: (LOW, HIGH)} to rollax.train, or use "
        "rollax.environments.wrappers.DomainRandomization(environment, {NAME: (LOW, HIGH)})."
    ]


def leaf_faults(value: object, label: str) -> list[str]:
    """Return error messages about leaves that are not strongly typed numeric arrays.

    Args:
        value: The pytree.
        label: Name of the pytree in messages.

    Returns:
        One message per problem.
    """
    faults = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(value):
        leaf_name = label + jax.tree_util.keystr(path)
        if isinstance(leaf, bool | int | float):
            array_type = {bool: "jnp.bool_", int: "jnp.int32", float: "jnp.float32"}[type(leaf)]
            static = ", or mark it static" if label == "the environment" else ""
            faults.append(
                f"{leaf_name} must be an array, got the Python number {leaf}. Use "
                f"jnp.asarray({leaf}, {array_type}){static}."
            )
        elif (
            isinstance(leaf, jax.Array)
            and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            and leaf.weak_type
        ):
            remedy = f"Specify it explicitly, for example jnp.asarray(..., jnp.{leaf.dtype.name})"
            faults.append(
                f"{leaf_name} is weakly typed, so its dtype may change and trigger recompilation. "
                f"{remedy}."
            )
        elif leaf is value and label == "the environment":
            remedy = (
                "Make its class an equinox.Module (class Mine(eqx.Module)) whose fields are "
                "arrays or static"
            )
            faults.append(f"{leaf_name} must be a pytree, got {type(leaf).__name__}. {remedy}.")
        elif not isinstance(leaf, jax.Array | np.ndarray | np.generic):
            faults.append(
                f"{leaf_name} must be an array, got {format_value(leaf)}. Mark other fields as "
                "static."
            )
        elif isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind not in "biufc":
            faults.append(
                f"{leaf_name} must be an array of numbers, got the NumPy dtype {leaf.dtype}."
            )
    return faults
