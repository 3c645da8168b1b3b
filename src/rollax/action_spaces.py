"""Action spaces of algorithms: normalized actions, choices of discrete parts, and checks."""

import math
from typing import Any, TypeGuard

import jax

from rollax.errors import UsageError
from rollax.spaces import (
    Ball,
    Box,
    Discrete,
    MultiDiscrete,
    Space,
    flatten_space,
    make_zeros,
    map_space,
)

_INTEGER_REMEDY = "Declare integers as a MultiDiscrete, and use ppo."
MAX_JOINT_CHOICES = 4096  # largest number of values that a critic returns for one observation


def normalize_space(space: Space) -> Box | Ball:
    """Return the space of normalized actions: a `Box` with bounds -1 and 1, or the unit `Ball`.

    Raises:
        UsageError: If the space is neither a `Ball` nor a `Box` of floats with finite bounds. The
            message suggests an algorithm.
    """
    if isinstance(space, Ball):
        return Ball(space.size)
    if _is_bounded_float_box(space):
        return Box(-1.0, 1.0, space.shape)
    raise UsageError(
        f"the action space must be a Box of floats with finite bounds or a Ball, got {space}. "
        f"{_suggest_algorithm(space)}"
    )


def _is_bounded_float_box(space: Space) -> TypeGuard[Box]:
    return isinstance(space, Box) and space.dtype.startswith("float") and space.is_bounded


def _suggest_algorithm(space: Space) -> str:
    """Return a remedy for an action space that is not a bounded box."""
    if isinstance(space, Box) and space.dtype.startswith("float"):
        return "Give the space finite bounds, or use ppo."
    if isinstance(space, Box):
        return _INTEGER_REMEDY
    return "Use dqn, sac or ppo." if isinstance(space, Discrete) else "Use sac or ppo."


def check_discrete(space: Space) -> Discrete:
    """Return the action space if it is `Discrete`.

    Raises:
        UsageError: If the space is not `Discrete`. The message suggests an algorithm.
    """
    if isinstance(space, Discrete):
        return space
    is_bounded = isinstance(space, Ball) or _is_bounded_float_box(space)
    is_unbounded = isinstance(space, Box) and not is_bounded
    remedy = f"Use {'ppo' if is_unbounded else 'sac, td3 or ppo' if is_bounded else 'sac or ppo'}."
    if isinstance(space, Box) and not space.dtype.startswith("float"):
        remedy = _INTEGER_REMEDY
    raise UsageError(f"the action space must be Discrete, got {space}. {remedy}")


def make_normalized_zeros(space: Space) -> Any:
    """Return a normalized action that is all zeros. Discrete actions have the dtype of the space.

    Raises:
        UsageError: If a continuous part is neither a `Ball` nor a bounded `Box`.
    """

    def make_part(part: Space) -> jax.Array:
        is_discrete = isinstance(part, Discrete | MultiDiscrete)
        return make_zeros(part if is_discrete else normalize_space(part))

    return map_space(make_part, space)


def discrete_sizes(space: Space) -> tuple[int, ...]:
    """Return the number of choices of each discrete variable of an action, in the order of parts.

    >>> from rollax.spaces import Tuple
    >>> discrete_sizes(Tuple((Discrete(4), Box(0.0, 1.0, (2,)), MultiDiscrete((2, 3)))))
    (4, 2, 3)

    Raises:
        UsageError: If there are more than `MAX_JOINT_CHOICES` joint choices.
    """
    parts = flatten_space(space, "").values()
    sizes = tuple(
        size
        for part in parts
        if isinstance(part, Discrete | MultiDiscrete)
        for size in ((part.n,) if isinstance(part, Discrete) else part.sizes)
    )
    if math.prod(sizes) > MAX_JOINT_CHOICES:
        raise UsageError(
            f"the discrete parts of the action space must have at most {MAX_JOINT_CHOICES:,} joint "
            f"choices, got {math.prod(sizes):,}. Use ppo."
        )
    return sizes
