"""Physical parameters of environments: access by name, and domain randomization."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rollax.environments.environment import Environment, Transition
from rollax.environments.wrapper import Wrapper, state_to_render
from rollax.errors import UnknownNameError, UsageError
from rollax.types import Action, Leaf, Observation, PyTree, Setting, State, Task


class DomainRandomization(Wrapper):
    """Wrapper that samples leaves of `env` uniformly from ranges at the start of every episode.

    `DomainRandomization(rollax.make("gymnax/CartPole-v1"), {"gravity": (5.0, 20.0)})` samples the
    gravity of every episode. The state is `(state, values)`: the state of `env`, and the sampled
    value of each randomized leaf.

    Args:
        env: The environment.
        ranges: Range `(low, high)` of each leaf, keyed by the name of the leaf. If several leaves
            have this name, use the path, for example "params.gravity". Bounds are numbers, or
            arrays that broadcast to the leaf. Both bounds of an integer leaf are inclusive.

    Raises:
        UnknownNameError: If a name does not match any leaf.
        UsageError: If a name matches several leaves, or a range is not two finite bounds with low
            <= high.
    """

    low: tuple[jax.Array, ...]
    high: tuple[jax.Array, ...]
    places: tuple[int, ...] = eqx.field(static=True)  # indices in `jax.tree.leaves(env)`

    def __init__(self, env: Environment, ranges: Mapping[str, Setting]) -> None:
        leaves = jax.tree.leaves(env)
        self.env = env
        self.places = find_parameters(env, ranges)
        bounds = [
            _to_leaf_bounds(env.name, name, span, leaves[index])
            for (name, span), index in zip(ranges.items(), self.places, strict=True)
        ]
        self.low, self.high = tuple(low for low, _ in bounds), tuple(high for _, high in bounds)

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        draw_key, reset_key = jax.random.split(key)
        values = self.draw(draw_key)
        state, obs = self.with_values(values).reset(reset_key)
        return (state, values), obs

    def reset_task(self, key: jax.Array, task: Task) -> tuple[State, Observation]:
        draw_key, reset_key = jax.random.split(key)
        values = self.draw(draw_key)
        state, obs = self.with_values(values).reset_task(reset_key, task)
        return (state, values), obs

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        inner, values = state
        transition = self.with_values(values).step(key, inner, action)
        return transition._replace(state=(transition.state, values))

    def descriptor(self, state: State) -> jax.Array:
        return self.with_values(state[1]).descriptor(state[0])

    def inner_state(self, state: State) -> Any:
        return state[0]

    def state_to_render(
        self, key: jax.Array, state: State, action: Action, next_state: State
    ) -> Any:
        return state_to_render(
            self.with_values(state[1]), key, state[0], action, next_state[0]
        ), next_state[1]

    def draw(self, key: jax.Array) -> tuple[jax.Array, ...]:
        """Sample a value for each randomized leaf uniformly from its range."""
        keys = jax.random.split(key, max(len(self.places), 1))
        return tuple(
            _sample_uniform(*arguments)
            for arguments in zip(keys, self.low, self.high, strict=False)
        )

    def with_values(self, values: tuple[jax.Array, ...]) -> Any:
        """Return a copy of `env` whose randomized leaves have the given values."""
        return with_parameters(self.env, self.places, values)


def find_parameters(environment: Environment, names: Iterable[str]) -> tuple[int, ...]:
    """Return the index in `jax.tree.leaves(environment)` of each parameter.

    Args:
        environment: Environment or wrapper.
        names: Names of leaves. If several leaves have a name, use the path, for example
            "params.gravity".

    Raises:
        UnknownNameError: If a name does not match any leaf.
        UsageError: If a name matches several leaves, or two names match the same leaf.
    """
    leaves = jax.tree_util.tree_leaves_with_path(environment)
    paths = [_format_path(path) for path, _ in leaves]
    found: dict[int, str] = {}
    for name in names:
        index = _find_leaf_index(environment.name, name, paths)
        if index in found:
            raise UsageError(
                f"{found[index]} and {name} must be different parameters, got two names of "
                f"{paths[index]} of {environment.name}. Remove one of them."
            )
        found[index] = name
    return tuple(found)


def with_parameters(environment: PyTree, indices: Sequence[int], values: Sequence[Leaf]) -> Any:
    """Return a copy of an environment with other values of the leaves at `indices`."""
    leaves, structure = jax.tree.flatten(environment)
    for index, value in zip(indices, values, strict=True):
        leaves[index] = value
    return structure.unflatten(leaves)


def _format_path(path: jax.tree_util.KeyPath) -> str:
    """Return the path of a leaf as names joined by dots."""
    return ".".join(
        str(getattr(part, "name", getattr(part, "key", getattr(part, "idx", part))))
        for part in path
    )


def _find_leaf_index(environment: str, name: str, paths: list[str]) -> int:
    matches = [
        index for index, path in enumerate(paths) if path == name or path.endswith(f".{name}")
    ]
    if not matches:
        raise UnknownNameError(
            f"leaf of {environment}", name, [path.rpartition(".")[2] for path in paths]
        )
    if len(matches) > 1:
        raise UsageError(
            f"{environment}: {name!r} must be the name of one leaf, got {len(matches)} leaves of "
            f"that name. Write one of {', '.join(paths[index] for index in matches)}."
        )
    return matches[0]


def _sample_uniform(key: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    if jnp.issubdtype(low.dtype, jnp.integer):
        return jax.random.randint(key, low.shape, low, high + 1, low.dtype)
    return jax.random.uniform(key, low.shape, low.dtype, low, high)


def _to_leaf_bounds(
    environment: str, name: str, span: Setting, leaf: Leaf
) -> tuple[jax.Array, jax.Array]:
    """Convert `(low, high)` to arrays with the dtype and shape of the leaf."""
    array = np.asarray(leaf)
    try:
        low, high = (np.broadcast_to(np.asarray(bound, float), array.shape) for bound in span)
        is_range = bool(np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all())
    except (TypeError, ValueError):
        low = high = array
        is_range = False
    if not is_range or array.dtype.kind not in "iuf":
        raise UsageError(
            f"{environment}: the range of {name} must be two finite bounds (low, high) with low <= "
            f"high for a leaf {array.dtype}{list(array.shape)}, got {span!r}. "
            f"Write for example (0.5, 2.0)."
        )
    dtype = jnp.asarray(leaf).dtype  # without 64-bit types
    with np.errstate(over="ignore", invalid="ignore"):
        bounds = [bound.astype(dtype) for bound in (low, high)]
    for bound, converted in zip((low, high), bounds, strict=True):
        is_changed = ~np.isfinite(converted) if dtype.kind == "f" else converted != bound
        if is_changed.any():
            raise UsageError(
                f"{environment}: the range of {name} must consist of {dtype} values, got "
                f"{bound[is_changed][0]:g}. Choose bounds that {dtype} can represent."
            )
    return jnp.asarray(bounds[0]), jnp.asarray(bounds[1])
