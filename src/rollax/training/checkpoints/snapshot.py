"""Copies of the leaves of a state on the host, and the Orbax checkpointer that writes them."""

import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.distributed import processes
from rollax.errors import UsageError
from rollax.training.checkpoints import shards
from rollax.training.checkpoints.leaves import named_leaves, store_name
from rollax.training.checkpoints.summary import LeafRecord
from rollax.types import State


def open_checkpointer() -> Any:
    """Return a synchronous Orbax checkpointer.

    The checkpointer runs in a background thread, so that `Checkpoints.save` blocks only while the
    state is copied.
    """
    import orbax.checkpoint as ocp

    # Orbax logs to absl's logger, which other libraries use too. Relevant errors are also raised.
    logging.getLogger("absl").addFilter(_is_relevant_record)
    if jax.process_count() == 1:
        return ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    # Each process writes separately. Otherwise all would wait for a process that cannot write.
    process = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=process,
        active_processes={process},
        barrier_sync_key_prefix=f"process_{process}",
    )
    return ocp.Checkpointer(
        ocp.PyTreeCheckpointHandler(multiprocessing_options=alone), multiprocessing_options=alone
    )


def _is_relevant_record(record: logging.LogRecord) -> bool:
    return record.levelno > logging.ERROR or "orbax" not in Path(record.pathname).parts


def take_snapshot(state: State, folder: Path) -> tuple[list[LeafRecord], list[np.ndarray | None]]:
    """Copy every leaf of a state to the host, with typed keys as raw data.

    Args:
        state: State of a run.
        folder: Folder of the unfinished checkpoint. Large leaves are written directly to it.

    Returns:
        Description of each leaf, and the array of each leaf. The array of a large leaf is None.

    Raises:
        UsageError: If a leaf is a shape without data, or all leaves are empty.
    """
    leaves, records = [], []
    for index, (path, leaf) in enumerate(named_leaves(state)):
        if not isinstance(leaf, jax.Array):
            raise UsageError(
                f"{path} must be an array, got a shape without data. Pass the state itself."
            )
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        generator = str(jax.random.key_impl(leaf)) if is_key else None
        records.append(LeafRecord(path, leaf.shape, str(leaf.dtype), generator))
        data = jax.random.key_data(leaf) if is_key else leaf
        if data.nbytes > shards.LARGE_LEAF_BYTES and not is_key:
            shards.write_shards(folder / "large" / store_name(index, records[-1]), data)
            data = None
        leaves.append(data)
    if all(0 in record.shape for record in records):
        raise UsageError("The state must have at least one element, got none. Pass another state.")
    # Gathering from other processes is a collective operation and cannot run in the background.
    # `device_get` starts all transfers together. On a CPU it returns views of buffers that the
    # caller may donate, so they are copied.
    leaves = jax.device_get(processes.gather_arrays(leaves))
    return records, [None if array is None else np.array(array) for array in leaves]
