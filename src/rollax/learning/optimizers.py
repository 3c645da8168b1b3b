"""Optimizers rebuilt at every trace from numbers that may be traced, so that their states are arrays only."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from rollax import tree

Parts = dict[str, Any]


def adam(rate: jax.Array | float, epsilon: jax.Array | float, max_norm: jax.Array | float) -> optax.GradientTransformation:
    """Adam on gradients clipped by their global norm."""
    return optax.chain(clip_by_global_norm(max_norm), optax.adam(rate, eps=epsilon))


def clip_by_global_norm(max_norm: jax.Array | float) -> optax.GradientTransformation:
    """g where ||g|| < max_norm, else g max_norm / ||g||, of the norm over all arrays together (Pascanu et al. 2013).

    As `optax.clip_by_global_norm`, bit for bit, but for `max_norm` 0 and a gradient of 0, which there is 0 / 0.
    """

    def update(gradient: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        norm = optax.tree.norm(gradient)
        is_small, divisor = norm < max_norm, jnp.where(norm == 0, 1.0, norm)
        return jax.tree.map(lambda g: jnp.where(is_small, g, g / divisor.astype(g.dtype) * max_norm), gradient), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def anneal(end: jax.Array | float, progress: jax.Array | float) -> jax.Array:
    """From 1 to `end` in a straight line as progress goes from 0 to 1."""
    return 1 + (jnp.asarray(end) - 1) * jnp.clip(progress, 0.0, 1.0)


def split(network: Any) -> Parts:
    """A network's parts that have an optimizer of their own: what lies under its field `critic`, and the rest as "actor"."""

    def is_critic(path: tuple[Any, ...], _: Any) -> bool:
        return bool(path) and isinstance(path[0], jax.tree_util.GetAttrKey) and path[0].name == "critic"

    critic, rest = eqx.partition(network, jax.tree_util.tree_map_with_path(is_critic, network))
    return {"actor": rest, "critic": critic} if jax.tree.leaves(critic) else {"actor": rest}


def init(transformations: dict[str, optax.GradientTransformation], network: Any) -> Parts:
    """The state of each part's optimizer."""
    return {name: transformations[name].init(part) for name, part in split(network).items()}


def descend(optimizer: optax.GradientTransformation, state: Any, part: Any, gradient: Any) -> tuple[Any, Any]:
    """One step down the gradient: the part of a network after it, and the optimizer's state."""
    changes, state = optimizer.update(gradient, state, part)
    return eqx.apply_updates(part, changes), state


def blend(target: Any, network: Any, share: jax.Array | float) -> Any:
    """The target moved towards the network: (1 - share) target + share network."""
    return jax.tree.map(lambda t, n: t + share * (n - t), target, network)


def update(
    transformations: dict[str, optax.GradientTransformation],
    network: Any,
    states: Parts,
    gradient: Any,
    active: dict[str, jax.Array],
) -> tuple[Any, Parts]:
    """One step of each part's optimizer, where `active`; the others stay as they are. Returns network and states."""
    gradients, new_parts, new_states = split(gradient), {}, {}
    for name, part in split(network).items():
        new = descend(transformations[name], states[name], part, gradients[name])
        new_parts[name], new_states[name] = tree.where(active[name], new, (part, states[name]))
    return eqx.combine(*new_parts.values()), new_states
