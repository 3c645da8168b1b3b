"""Batches of memory."""

from typing import Any

import jax
import jax.numpy as jnp

from rollax.networks.network import Network


def batch_carry(network: Network, size: int) -> Any:
    """Return the memory of `size` streams at the start of an episode."""
    return jax.tree.map(
        lambda x: jnp.broadcast_to(x, (size, *jnp.shape(x))), network.initial_carry()
    )
