"""Spaces of observations and actions: box, ball, discrete, multi-discrete, grids of symbols, and dictionaries of these.

Spaces are plain hashable values: static, part of the compiled program.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.errors import UsageError

Bound = float | tuple[Any, ...]


def _bound(value: Any) -> Bound:
    """A bound as nested tuples of floats (or one float), so that it can be hashed."""
    array = np.asarray(value, dtype=float)
    return float(array) if array.ndim == 0 else jax.tree.map(float, _tuples(array.tolist()))


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


@dataclasses.dataclass(frozen=True)
class Box:
    """Arrays of one shape and type between `low` and `high` (numbers, or arrays that broadcast to `shape`)."""

    low: Bound
    high: Bound
    shape: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", _bound(self.low))
        object.__setattr__(self, "high", _bound(self.high))
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        object.__setattr__(self, "dtype", np.dtype(self.dtype).name)

    @property
    def is_bounded(self) -> bool:
        """True when no bound is infinite (bounds beyond 1e30 count as infinite: gymnax uses the largest float)."""
        return bool(np.all(np.abs(self.low) < 1e30) and np.all(np.abs(self.high) < 1e30))

    def sample(self, key: jax.Array) -> jax.Array:
        """A uniform sample; where a bound is infinite, uniform within 1 of the finite bound, or within -1 ... 1."""
        low, high = np.broadcast_to(self.low, self.shape), np.broadcast_to(self.high, self.shape)
        no_low, no_high = np.abs(low) > 1e30, np.abs(high) > 1e30
        start = np.where(no_low, np.where(no_high, -1.0, high - 1.0), low)
        stop = np.where(no_high, np.where(no_low, 1.0, low + 1.0), high)
        if np.issubdtype(self.dtype, np.integer):
            return jax.random.randint(key, self.shape, start.astype(int), stop.astype(int) + 1).astype(self.dtype)
        if self.dtype == "bool":
            return jax.random.bernoulli(key, shape=self.shape)
        return jax.random.uniform(key, self.shape, self.dtype, jnp.asarray(start), jnp.asarray(stop))

    def contains(self, value: jax.Array) -> jax.Array:
        """Whether a value of this shape lies within the bounds (a tolerance of 1e-4 covers rounding)."""
        slack = 1e-4 * (1 + np.minimum(np.abs(self.low), np.abs(self.high)))
        most = float(np.finfo(np.float32).max)
        low, high = np.clip(self.low - slack, -most, most), np.clip(self.high + slack, -most, most)
        return jnp.all((value >= low) & (value <= high))


@dataclasses.dataclass(frozen=True)
class Ball:
    """Vectors `[size]` of floats whose Euclidean norm is at most `radius`, such as forces."""

    size: int
    radius: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size,)

    @property
    def dtype(self) -> str:
        return "float32"

    def sample(self, key: jax.Array) -> jax.Array:
        """A uniform sample."""
        return self.radius * jax.random.ball(key, self.size)

    def contains(self, value: jax.Array) -> jax.Array:
        """Whether the norm is within the radius (a relative tolerance of 1e-4 covers rounding)."""
        return jnp.sum(value**2) <= (self.radius * (1 + 1e-4)) ** 2


@dataclasses.dataclass(frozen=True)
class Discrete:
    """The integers 0 ... n - 1."""

    n: int
    dtype: str = "int32"

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    def sample(self, key: jax.Array) -> jax.Array:
        return jax.random.randint(key, (), 0, self.n).astype(self.dtype)

    def contains(self, value: jax.Array) -> jax.Array:
        return (value >= 0) & (value < self.n)


@dataclasses.dataclass(frozen=True)
class MultiDiscrete:
    """Vectors of integers, the i-th from 0 ... sizes[i] - 1.

    >>> MultiDiscrete((2, 3)).shape
    (2,)
    """

    sizes: tuple[int, ...]
    dtype: str = "int32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(int(n) for n in self.sizes))

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.sizes),)

    def sample(self, key: jax.Array) -> jax.Array:
        return jax.random.randint(key, self.shape, 0, jnp.asarray(self.sizes)).astype(self.dtype)

    def contains(self, value: jax.Array) -> jax.Array:
        return jnp.all((value >= 0) & (value < jnp.asarray(self.sizes)))


@dataclasses.dataclass(frozen=True)
class Grid:
    """Cells `[height, width]` of symbols: the i-th symbol of a cell is a category, one of 0 ... sizes[i] - 1.

    A value is an array `[height, width, len(sizes)]`; networks embed every symbol.

    >>> Grid((5, 5), (13, 12)).shape
    (5, 5, 2)
    """

    cells: tuple[int, int]
    sizes: tuple[int, ...]
    dtype: str = "uint8"

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.cells, len(self.sizes))

    def sample(self, key: jax.Array) -> jax.Array:
        return jax.random.randint(key, self.shape, 0, np.broadcast_to(self.sizes, self.shape)).astype(self.dtype)

    def contains(self, value: jax.Array) -> jax.Array:
        return jnp.all((value >= 0) & (value < np.broadcast_to(self.sizes, self.shape)))


@dataclasses.dataclass(frozen=True)
class Dict:
    """Named parts, each with a space of its own: `Dict({"position": Box(...), "action_mask": Box(...)})`.

    The part named "action_mask" is no input of encoders: it says which actions are legal, as a boolean
    array of shape `[n]` for `Discrete(n)` or `[len(sizes), max(sizes)]` for `MultiDiscrete(sizes)`. For a `Box` it has the
    shape of an action, and says which of its numbers there are: the others are 0 (of `sac` and `td3` the middle of their
    bounds, which is 0 for bounds -b ... b).
    """

    items: tuple[tuple[str, "Space"], ...]

    def __init__(self, spaces: Mapping[str, "Space"]) -> None:
        object.__setattr__(self, "items", tuple(sorted(spaces.items())))

    @property
    def spaces(self) -> dict[str, "Space"]:
        return dict(self.items)

    def sample(self, key: jax.Array) -> dict[str, Any]:
        keys = jax.random.split(key, len(self.items))
        return {name: space.sample(k) for (name, space), k in zip(self.items, keys, strict=True)}

    def contains(self, value: Mapping[str, Any]) -> jax.Array:
        return jnp.all(jnp.stack([space.contains(value[name]) for name, space in self.items]))


ActionSpace = Ball | Box | Discrete | MultiDiscrete
Space = ActionSpace | Grid | Dict


def zeros(space: Space) -> Any:
    """A value of the space's structure, shapes and types, all zero."""
    if isinstance(space, Dict):
        return {name: zeros(part) for name, part in space.items}
    return jnp.zeros(space.shape, space.dtype)


def size(space: Space) -> int:
    """How many numbers one value has when flattened."""
    if isinstance(space, Dict):
        return sum(size(part) for _, part in space.items)
    return math.prod(space.shape)


def check_bounded(space: Any) -> Box:
    """The action space, if it is a box of floats with finite bounds. Raises UsageError otherwise."""
    if isinstance(space, Box) and space.dtype.startswith("float") and space.is_bounded:
        return space
    raise UsageError(f"continuous actions need a Box of floats with finite bounds, but the space is {space}: use dqn or ppo")


def check_discrete(space: Any) -> Discrete:
    """The action space, if it is discrete. Raises UsageError otherwise."""
    if isinstance(space, Discrete):
        return space
    raise UsageError(f"values of all actions need a Discrete action space, but it is {space}: use sac, td3 or ppo")
