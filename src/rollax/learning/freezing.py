"""Parts of a network whose parameters stay fixed for some or all of training."""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import optax

from rollax.errors import UnknownNameError, UsageError
from rollax.types import Leaf, Parameters, Scalar, State


@runtime_checkable
class FreezingConfig(Protocol):
    """Settings of fixed parts of a network."""

    @property
    def frozen(self) -> tuple[str, ...]: ...
    @property
    def frozen_fraction(self) -> float: ...


def freeze_parts(
    optimizer: optax.GradientTransformation,
    config: FreezingConfig,
    progress: Scalar,
    prefix: tuple[str, ...] = (),
) -> optax.GradientTransformation:
    """Return an optimizer that does not change the parts in `config.frozen`.

    Gradients of these parts are zero, so they do not affect the gradient norm. The structure of the
    optimizer state does not change.

    Args:
        optimizer: Optimizer.
        config: Settings with the fixed parts and the end of freezing.
        progress: Completed fraction of training, from 0 to 1.
        prefix: Path in the network of the part that this optimizer trains. Empty for the whole
            network.

    Returns:
        The new optimizer, or `optimizer` itself if `config.frozen` is empty.
    """
    if not config.frozen:
        return optimizer
    is_always_frozen = config.frozen_fraction >= 1
    is_frozen = jnp.asarray(is_always_frozen | (progress < config.frozen_fraction))

    def set_to_zero(updates: Parameters) -> Parameters:
        def select(path: jax.tree_util.KeyPath, update: Leaf) -> Leaf:
            if not _is_in_parts((*prefix, *_path_components(path)), config.frozen):
                return update
            return jnp.where(is_frozen, jnp.zeros_like(update), update)

        return jax.tree_util.tree_map_with_path(select, updates)

    def update(
        updates: Parameters, state: State, params: Parameters | None = None
    ) -> tuple[Parameters, State]:
        updates, state = optimizer.update(set_to_zero(updates), state, params)
        return set_to_zero(updates), state

    return optax.GradientTransformation(optimizer.init, update)


def check_frozen_parts(frozen: Iterable[str], network: Parameters) -> None:
    """Check that every name is a part of the network, and that some parameters are trained.

    A name consists of consecutive components of the path of a parameter, such as "encoder" or
    "critic.head". An index is a component, as in "layers.0".

    Args:
        frozen: Names of the fixed parts.
        network: Network, or the shapes of its parameters.

    Raises:
        UnknownNameError: If a name is not part of a path.
        UsageError: If all parameters are fixed.
    """
    names = tuple(frozen)
    paths = [_path_components(path) for path, _ in jax.tree_util.tree_leaves_with_path(network)]
    for name in names:
        if not any(_is_in_parts(path, (name,)) for path in paths):
            raise UnknownNameError("part of the network in frozen", name, _part_names(paths))
    if names and all(_is_in_parts(path, names) for path in paths):
        raise UsageError(
            f"frozen ({', '.join(names)}) must leave some parameters to train, but it contains all "
            f"of them. Choose some of {', '.join(_part_names(paths))}."
        )


def _path_components(path: jax.tree_util.KeyPath) -> tuple[str, ...]:
    """Return the names and indices along a path, such as ("critic", "dense", "layers", "0")."""
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)


def _is_in_parts(path: tuple[str, ...], names: tuple[str, ...]) -> bool:
    """Return whether one of the names occurs in a path as consecutive components."""
    text = f".{'.'.join(path)}."
    return any(f".{name}." in text for name in names)


def _part_names(paths: Iterable[tuple[str, ...]]) -> list[str]:
    """Return the names of modules of up to two components, outer modules first."""
    names = [".".join(path[:length]) for length in (1, 2) for path in paths if len(path) > length]
    inner = [part for path in paths for part in path[1:-1] if not part.isdecimal()]
    return list(dict.fromkeys([*names, *inner]))
