"""Spaces of observations and actions.

Spaces are hashable and a static part of the compiled program.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from rollax.types import Observation, PyTree

Bound = float | tuple[Any, ...]  # a number, or nested tuples of numbers
MAX_DISCRETE_SIZE = 2**31  # limit of int32


def _hashable_bound(value: npt.ArrayLike) -> Bound:
    """Convert a bound to a float or to nested tuples of floats, which are hashable."""
    array = np.asarray(value, dtype=float)
    return float(array) if array.ndim == 0 else jax.tree.map(float, _nested_tuples(array.tolist()))


def _nested_tuples(value: list | float) -> Bound:
    return tuple(_nested_tuples(v) for v in value) if isinstance(value, list) else value


@dataclasses.dataclass(frozen=True)
class Box:
    """Arrays of one shape and dtype with elements between `low` and `high`.

    Attributes:
        low: Lower bound, a number or an array that broadcasts to `shape`.
        high: Upper bound, a number or an array that broadcasts to `shape`.
        shape: Shape of the arrays.
        dtype: Name of the dtype.
        layout: Axes of an image, such as "HWC", "CHW" or "NHWC", where C are channels and N are
            stacked frames. "flat" marks an array that is not an image. If None, the layout is
            determined from the shape by `rollax.environments.image_layouts`.
    """

    low: Bound
    high: Bound
    shape: tuple[int, ...]
    dtype: str = "float32"
    layout: str | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", _hashable_bound(self.low))
        object.__setattr__(self, "high", _hashable_bound(self.high))
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        object.__setattr__(self, "dtype", np.dtype(self.dtype).name)

    @property
    def is_bounded(self) -> bool:
        """Whether all bounds are finite. Bounds beyond 1e30 count as infinite."""
        return bool(np.all(np.abs(self.low) < 1e30) and np.all(np.abs(self.high) < 1e30))

    def sample(self, key: jax.Array) -> jax.Array:
        """Return a uniform sample.

        Elements with one infinite bound are sampled within 1 of the other bound. Elements with two
        infinite bounds are sampled between -1 and 1.
        """
        low, high = np.broadcast_to(self.low, self.shape), np.broadcast_to(self.high, self.shape)
        no_low, no_high = np.abs(low) > 1e30, np.abs(high) > 1e30
        start = np.where(no_low, np.where(no_high, -1.0, high - 1.0), low)
        stop = np.where(no_high, np.where(no_low, 1.0, low + 1.0), high)
        if np.issubdtype(self.dtype, np.integer):
            return jax.random.randint(
                key, self.shape, start.astype(int), stop.astype(int) + 1
            ).astype(self.dtype)
        if self.dtype == "bool":
            return jax.random.bernoulli(key, shape=self.shape)
        return jax.random.uniform(
            key, self.shape, self.dtype, jnp.asarray(start), jnp.asarray(stop)
        )

    def contains(self, value: jax.Array) -> jax.Array:
        """Return whether all elements of a value with the shape of the space are within the bounds.

        The absolute tolerance of an element is 1e-4 * (1 + min(|low|, |high|)).
        """
        slack = 1e-4 * (1 + np.minimum(np.abs(self.low), np.abs(self.high)))
        most = float(np.finfo(np.float32).max)
        low, high = np.clip(self.low - slack, -most, most), np.clip(self.high + slack, -most, most)
        return jnp.all((value >= low) & (value <= high))


@dataclasses.dataclass(frozen=True)
class Ball:
    """Vectors of floats `[size]` with a Euclidean norm of at most `radius`, such as forces."""

    size: int
    radius: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size,)

    @property
    def dtype(self) -> str:
        return "float32"

    def sample(self, key: jax.Array) -> jax.Array:
        """Return a uniform sample."""
        return self.radius * jax.random.ball(key, self.size)

    def contains(self, value: jax.Array) -> jax.Array:
        """Return whether the norm is at most the radius (relative tolerance 1e-4)."""
        return jnp.sum(value**2) <= (self.radius * (1 + 1e-4)) ** 2


@dataclasses.dataclass(frozen=True)
class Discrete:
    """The integers from 0 to n - 1."""

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
    """Vectors of integers with element i between 0 and `sizes[i] - 1`.

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
    """Grids of cells with categorical symbols. Symbol i of a cell is an integer below `sizes[i]`.

    A value is an array `[height, width, len(sizes)]` with `cells = (height, width)`. Networks map
    each symbol to a learned embedding vector.

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
        return jax.random.randint(
            key, self.shape, 0, np.broadcast_to(self.sizes, self.shape)
        ).astype(self.dtype)

    def contains(self, value: jax.Array) -> jax.Array:
        return jnp.all((value >= 0) & (value < np.broadcast_to(self.sizes, self.shape)))


@dataclasses.dataclass(frozen=True)
class Dict:
    """Dictionaries of values, such as `Dict({"position": Box(...), "action_mask": Box(...)})`.

    The entries of an action space are chosen independently, for example
    `Dict({"kind": Discrete(3), "power": Box(0, 1, (1,))})`.

    In an observation space, the entry "action_mask" marks legal actions and is not an input of
    encoders. It is a boolean array of shape `[n]` for `Discrete(n)`, or `[len(sizes), max(sizes)]`
    for `MultiDiscrete(sizes)`. For a `Box`, it has the shape of an action and marks the elements
    that the environment uses. Policies set unused elements to 0. With `sac` and `td3`, unused
    elements are at the center of their bounds. For a `Dict` or a `Tuple` of actions, it is a `Dict`
    with the masks of some or all entries, keyed by their name or index, such as "0".
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

    def contains(self, value: Mapping[str, Observation]) -> jax.Array:
        return jnp.all(jnp.stack([space.contains(value[name]) for name, space in self.items]))


@dataclasses.dataclass(frozen=True)
class Tuple:
    """Tuples of actions that are chosen independently, such as `Tuple((Discrete(3), Box(...)))`."""

    parts: tuple["Space", ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))

    def sample(self, key: jax.Array) -> tuple[Any, ...]:
        keys = jax.random.split(key, len(self.parts))
        return tuple(part.sample(k) for part, k in zip(self.parts, keys, strict=True))

    def contains(self, value: tuple[PyTree, ...]) -> jax.Array:
        parts = zip(self.parts, value, strict=True)
        return jnp.all(jnp.stack([part.contains(x) for part, x in parts]))


SimpleActionSpace = Ball | Box | Discrete | MultiDiscrete
ActionSpace = SimpleActionSpace | Dict | Tuple
Space = ActionSpace | Grid


def map_space(function: Callable[..., PyTree], space: Space, *values: PyTree) -> Any:
    """Apply a function to each array of a space, and return the results with its structure.

    Args:
        function: Function of the space of an array and the corresponding part of each value.
        space: A space, which may consist of nested `Dict` and `Tuple` spaces.
        values: Values with the structure of the space.

    Returns:
        Dictionaries for `Dict` spaces, tuples for `Tuple` spaces, and otherwise the result.
    """
    if isinstance(space, Dict):
        return {
            name: map_space(function, part, *(value[name] for value in values))
            for name, part in space.items
        }
    if isinstance(space, Tuple):
        return tuple(
            map_space(function, part, *(value[index] for value in values))
            for index, part in enumerate(space.parts)
        )
    return function(space, *values)


def list_parts(space: Space) -> dict[str, Space]:
    """Return the spaces of the entries of a `Dict` or a `Tuple`, keyed by name or index ("0")."""
    if isinstance(space, Tuple):
        return {str(index): part for index, part in enumerate(space.parts)}
    return space.spaces if isinstance(space, Dict) else {}


def list_values(space: Dict | Tuple, value: PyTree) -> dict[str, Any]:
    """Return the entries of a value of a `Dict` or a `Tuple`, keyed as in `list_parts`."""
    return (
        dict(value) if isinstance(space, Dict) else dict(zip(list_parts(space), value, strict=True))
    )


def join_values(space: Dict | Tuple, values: Mapping[str, PyTree]) -> Any:
    """Return the value of a `Dict` or a `Tuple` from its entries. This inverts `list_values`."""
    return dict(values) if isinstance(space, Dict) else tuple(values.values())


def flatten_space(space: Space, name: str) -> dict[str, Space]:
    """Return the space of each array of a value, keyed by `name` and nested keys joined by "/"."""
    if not isinstance(space, Dict | Tuple):
        return {name: space}
    parts = [flatten_space(part, f"{name}/{key}") for key, part in list_parts(space).items()]
    return {key: part for entries in parts for key, part in entries.items()}


def flatten_value(space: Space, value: PyTree, name: str) -> dict[str, Any]:
    """Return the arrays of a value of a space, keyed as in `flatten_space` with the same `name`."""
    if not isinstance(space, Dict | Tuple):
        return {name: value}
    values = list_values(space, value)
    parts = [
        flatten_value(part, values[key], f"{name}/{key}") for key, part in list_parts(space).items()
    ]
    return {key: array for entries in parts for key, array in entries.items()}


def unflatten_value(space: Space, arrays: Mapping[str, PyTree], name: str) -> Any:
    """Return the value of a space with the given arrays. This inverts `flatten_value`.

    Args:
        space: Space of the value.
        arrays: Arrays of the value, keyed as in `flatten_space`.
        name: Key of the value, or start of the keys of its entries.
    """
    if not isinstance(space, Dict | Tuple):
        return arrays[name]
    return join_values(
        space,
        {
            key: unflatten_value(part, arrays, f"{name}/{key}")
            for key, part in list_parts(space).items()
        },
    )


def make_zeros(space: Space, num_agents: int | None = None) -> Any:
    """Return a value of the space that is all zeros, or one per agent if there are agents.

    Args:
        space: Space of one agent.
        num_agents: Length of the leading axis, or None for a value without an agent axis.
    """
    agents = () if num_agents is None else (num_agents,)
    return map_space(lambda part: jnp.zeros((*agents, *part.shape), part.dtype), space)


def cast_value(space: Space, value: PyTree) -> Any:
    """Return a value of the space as arrays with the dtypes of the space."""
    return map_space(lambda part, x: jnp.asarray(x, part.dtype), space, value)


def describe_space(space: Space) -> str:
    """Return a text with the class, sizes and dtype of a space, but not its bounds.

    The bounds do not affect the shapes of network parameters.
    """
    match space:
        case Dict():
            return (
                "Dict("
                f"{', '.join(f'{name}: {describe_space(part)}' for name, part in space.items)}"
                ")"
            )
        case Tuple():
            return f"Tuple({', '.join(map(describe_space, space.parts))})"
        case Discrete():
            return f"Discrete({space.n})"
        case MultiDiscrete():
            return f"MultiDiscrete({space.sizes})"
        case Grid():
            return f"Grid({space.cells}, {space.sizes})"
        case _:
            return f"{type(space).__name__}({space.shape}, {space.dtype})"


def flat_size(space: Space) -> int:
    """Return the number of elements of a flattened value of the space."""
    if isinstance(space, Dict | Tuple):
        return sum(flat_size(part) for part in list_parts(space).values())
    return math.prod(space.shape)
