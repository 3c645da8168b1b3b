"""An archive that takes of every batch one solution only: that which comes first, scored several times."""

from typing import Any

import jax
import jax.numpy as jnp

from rollax.archives.core import REJECTED, Added, Archive, Counts, Scored


def of_first(archive: Archive, num_evaluations: int) -> Archive:
    """The archive that adds the first solution of a batch `[B]`, whose first `num_evaluations` rows are all this one, with the
    mean of their fitness and descriptors; what it says of all others is that they were rejected."""

    def add(state: Any, batch: Scored) -> tuple[Any, Added, Counts]:
        state, added, counts = archive.add(state, mean_of_first(batch, num_evaluations))
        number = batch.fitness.shape[0]
        status = jnp.full(number, REJECTED, jnp.int32).at[0].set(added.status[0])
        improvement = jnp.full(number, -jnp.inf).at[0].set(added.improvement[0])
        return state, Added(status, improvement), counts

    return archive._replace(add=add)


def mean_of_first(batch: Scored, number: int) -> Scored:
    """The first solution of a batch, `[1, ...]`, with the mean fitness and descriptor of the first `number` rows."""
    first = jax.tree.map(lambda x: x[:1], batch)
    means = {name: jnp.mean(getattr(batch, name)[:number], axis=0, keepdims=True) for name in ("fitness", "descriptor")}
    return first._replace(**means)
