"""Where a run is cut into segments, saved or continued changes no bit of it.

They hold bit for bit. Only the compiled step alone is another program than the step inside a compiled loop: the compiler may
fuse them differently, so that these two agree to rounding. A run always takes the second, however long a segment is.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laws.programs import assert_close, assert_equal, begun, plain, programs
from laws.table import EACH, first

LOOPS = first("ppo-gru", "pqn", "dqn-rainbow", "sac")


@pytest.mark.parametrize("name", LOOPS)
def test_two_segments_are_one(name: str) -> None:
    run = programs(name).segment
    start = begun(name)
    whole, metrics = run(start, 8)
    middle, first = run(start, 3)
    end, second = run(middle, 5)
    assert_equal(end, whole)
    assert_equal(jax.tree.map(lambda a, b: jnp.concatenate([a[:3], b[:5]]), first, second), metrics)
    assert all(not np.any(row[3:]) for row in jax.tree.leaves(plain(first))), "rows after the last update are zero"


@pytest.mark.parametrize("name", LOOPS)
def test_a_segment_is_its_steps(name: str) -> None:
    state, rows = begun(name), []
    end, metrics = programs(name).segment(state, 3)
    for _ in range(3):
        state, row = programs(name).step(state)
        rows.append(row)
    assert_close(state, end, 1e-5)
    assert_close(jax.tree.map(lambda *x: jnp.stack(x), *rows), jax.tree.map(lambda x: x[:3], metrics), 1e-5)


@pytest.mark.parametrize("name", first(*EACH, "ppo-types"))
def test_saved_and_loaded_is_never_stopped(name: str, tmp_path) -> None:
    """Through a file, with everything the state does not hold forgotten."""
    state = begun(name)
    leaves, structure = jax.tree.flatten(state)
    np.savez(tmp_path / "state.npz", *jax.tree.leaves(plain(state)))
    with np.load(tmp_path / "state.npz", allow_pickle=False) as file:
        saved = [file[entry] for entry in file.files]
    is_key = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    loaded = [jax.random.wrap_key_data(jnp.asarray(x)) if key else jnp.asarray(x) for x, key in zip(saved, is_key, strict=True)]
    again = jax.tree.unflatten(structure, loaded)
    for _ in range(2):
        state, metrics = programs(name).step(state)
        again, metrics_again = programs(name).step(again)
    assert_equal((again, metrics_again), (state, metrics))
