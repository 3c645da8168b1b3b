"""Epochs of minibatches over one rollout, written once for all algorithms that learn from rollouts."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rollax.learning import minibatches

Active = dict[str, jax.Array]  # by part of the network, "actor" and "critic": whether it learns now
Minibatch = Callable[
    [Any, jax.Array, Active], tuple[Any, dict[str, jax.Array]]
]  # (learner, order, active) -> (learner, metrics)


def epochs(
    minibatch: Minibatch,
    learner: Any,
    cut: minibatches.Layout,
    key: jax.Array,
    actor_epochs: int,
    critic_epochs: int,
    target_kl: jax.Array | float,
    shuffle: Callable[[jax.Array, minibatches.Layout], jax.Array] = minibatches.shuffle,
) -> tuple[Any, dict[str, jax.Array]]:
    """Runs `minibatch` over fresh shuffles: exactly `actor_epochs`, unless one ends with "approx_kl" above `target_kl`.

    A separate critic has `critic_epochs` of its own, 0 when there is none. Metrics are the means over the last epoch that ran,
    and "epochs", how many the policy had.
    """

    def epoch(loop: tuple[jax.Array, jax.Array, Any, Any]) -> tuple[jax.Array, jax.Array, Any, Any]:
        index, stop, learner, _ = loop
        active = {"actor": index < stop, "critic": index < critic_epochs}
        orders = shuffle(jax.random.fold_in(key, index), cut)
        learner, metrics = jax.lax.scan(lambda c, order: minibatch(c, order, active), learner, orders)
        metrics = jax.tree.map(jnp.mean, metrics)
        stop = jnp.where(metrics["approx_kl"] > target_kl, jnp.minimum(stop, index + 1), stop)
        return index + 1, stop, learner, metrics

    def unfinished(loop: tuple[jax.Array, jax.Array, Any, Any]) -> jax.Array:
        index, stop, _, _ = loop
        return (index < critic_epochs) | (index < stop)

    first = jnp.zeros((), jnp.int32), jnp.asarray(actor_epochs, jnp.int32), learner
    shapes = jax.eval_shape(lambda loop: epoch((*loop, None))[3], first)
    empty = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    _, stop, learner, metrics = jax.lax.while_loop(unfinished, epoch, (*first, empty))
    return learner, {**metrics, "epochs": stop.astype(jnp.float32)}
