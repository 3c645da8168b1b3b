"""Splitting a run into segments, saving and loading do not change the result, bit for bit.

Only a step that is compiled alone is another program than the step inside a compiled loop. The
compiler may fuse them differently, so these two are equal within rounding. A run always uses the
loop, for segments of any length.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laws.programs import (
    assert_close,
    assert_equal,
    begun,
    plain,
    programs,
    with_one_iteration,
)
from laws.table import ARCHIVES, BY_NAME, EACH, first, names

LOOPS = first("ppo-gru", "pqn", "dqn-rainbow", "sac", "bc-gru", *ARCHIVES)
# All archives are tested, because each needs only one program.
SEGMENTED = first("ppo-gru", "pqn", "dqn-rainbow", "sac", "bc-gru", *names("archive"))


def start_of(name: str) -> Any:
    """Return a state in the middle of episodes, or the initial state of an archive."""
    is_archive = BY_NAME[name].family == "archive"
    return programs(name).init(jax.random.key(3)) if is_archive else begun(name)


@pytest.mark.parametrize("name", SEGMENTED)
def test_two_segments_equal_one(name: str) -> None:
    run = programs(name).segment
    start = start_of(name)
    whole, metrics = run(start, 8)
    middle, first = run(start, 3)
    end, second = run(middle, 5)
    assert_equal(end, whole)
    assert_equal(jax.tree.map(lambda a, b: jnp.concatenate([a[:3], b[:5]]), first, second), metrics)
    assert all(not np.any(row[3:]) for row in jax.tree.leaves(plain(first))), (
        "rows after the last update are zero"
    )
    if BY_NAME[name].family == "archive":
        assert_grows(metrics.values, BY_NAME[name].forgets)


def assert_grows(values: dict[str, jax.Array], forgets: bool) -> None:
    """Check that an archive never loses its best solution or an occupied cell."""
    assert values["coverage"][-1] > 0
    assert np.all(np.diff(values["fitness_best"]) >= 0)
    assert forgets or np.all(np.diff(values["coverage"]) >= 0)


@pytest.mark.parametrize("name", LOOPS)
def test_a_segment_equals_its_steps(name: str) -> None:
    state, rows, number = with_one_iteration(name, start_of(name)), [], BY_NAME[name].comparable
    end, metrics = programs(name).segment(state, number)
    for _ in range(number):
        state, row = programs(name).step(state)
        rows.append(row)
    assert_close(state, end, 1e-5)
    assert_close(
        jax.tree.map(lambda *x: jnp.stack(x), *rows),
        jax.tree.map(lambda x: x[:number], metrics),
        1e-5,
    )


@pytest.mark.parametrize("name", first(*EACH, "ppo-types", *ARCHIVES))
def test_saving_and_loading_does_not_change_the_result(name: str, tmp_path) -> None:
    """The state is saved to a file, and only the arrays are loaded."""
    state = start_of(name)
    leaves, structure = jax.tree.flatten(state)
    np.savez(tmp_path / "state.npz", *jax.tree.leaves(plain(state)))
    with np.load(tmp_path / "state.npz", allow_pickle=False) as file:
        saved = [file[entry] for entry in file.files]
    is_key = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    loaded = [
        jax.random.wrap_key_data(jnp.asarray(x)) if key else jnp.asarray(x)
        for x, key in zip(saved, is_key, strict=True)
    ]
    again = jax.tree.unflatten(structure, loaded)
    for _ in range(2):
        state, metrics = programs(name).step(state)
        again, metrics_again = programs(name).step(again)
    assert_equal((again, metrics_again), (state, metrics))
