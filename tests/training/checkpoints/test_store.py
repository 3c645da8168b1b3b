"""Tests of saving and restoring checkpoints, and of damaged and incomplete ones."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.config import settings_dataclass, static_field
from rollax.errors import UsageError
from rollax.training.checkpoints import shards
from rollax.training.checkpoints.store import Checkpoints, CheckpointSaveError
from rollax.training.checkpoints.summary import DamagedCheckpointError, json_checksum
from support.command import end_with_test


@settings_dataclass
class Config:
    learning_rate: Any = 3e-4
    num_steps: int = static_field(128)


class Replay(NamedTuple):
    observation: jax.Array
    done: jax.Array
    cursor: jax.Array


class State(NamedTuple):
    key: jax.Array
    environment_keys: jax.Array
    config: Config
    network: eqx.Module
    carry: Any
    replay: Replay
    extra: dict


def make_state(seed: int = 0) -> State:
    key = jax.random.key(seed)
    replay = Replay(
        jax.random.randint(key, (16, 3), 0, 255).astype(jnp.uint8),
        jax.random.bernoulli(key, 0.5, (16,)),
        jnp.int32(7),
    )
    extra = {
        "half": jnp.array([1.5, jnp.nan, -0.0], jnp.bfloat16),
        "other / generator": jax.random.key(3, impl="rbg"),
        "nothing": jnp.zeros((0, 4)),
        "no keys": jax.random.split(key, 2)[:0],
        "infinite": jnp.array([jnp.inf, -jnp.inf, jnp.nan]),
    }
    config = Config(learning_rate=jnp.float32(1e-3))
    return State(
        key, jax.random.split(key, (2, 3)), config, eqx.nn.Linear(4, 5, key=key), (), replay, extra
    )


def same_bits(a: Any, b: Any) -> bool:
    def raw(leaf: Any) -> tuple[str, tuple[int, ...], bytes]:
        data = (
            jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        )
        return str(leaf.dtype), leaf.shape, np.asarray(data).tobytes()

    same_structure = jax.tree.structure(a) == jax.tree.structure(b)
    return same_structure and [raw(x) for x in jax.tree.leaves(a)] == [
        raw(x) for x in jax.tree.leaves(b)
    ]


def small_state(value: float) -> dict[str, jax.Array]:
    return {"weights": jnp.full((3, 2), float(value)), "key": jax.random.key(int(value))}


@pytest.fixture(params=[shards.LARGE_LEAF_BYTES, 0], ids=["small", "large"])
def checkpoints(tmp_path, request, monkeypatch):
    """Return a store in which leaves are saved by orbax, or as separate files like large leaves."""
    monkeypatch.setattr(shards, "LARGE_LEAF_BYTES", request.param)
    opened = Checkpoints(tmp_path / "checkpoints", keep_last=2, keep_best=1)
    yield opened
    opened.close()


def save_all(checkpoints: Checkpoints, returns: dict[int, float]) -> None:
    for step, value in returns.items():
        assert checkpoints.save(step, small_state(step), {"return_mean": value})
    checkpoints.wait()


def folder_of(checkpoints: Checkpoints, step: int) -> Path:
    return checkpoints._folder / f"step_{step:012d}"


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.mark.quick
def test_restored_states_equal_saved_ones_bit_for_bit(checkpoints):
    state = make_state()
    step = 2**31 + 17
    checkpoints.save(step, state, {"return_mean": 1.0})
    found, restored, warnings = checkpoints.restore("last", jax.eval_shape(lambda: state))
    assert (found, warnings) == (step, [])
    assert same_bits(restored, state)
    assert not same_bits(restored, make_state(1))
    assert jax.random.key_impl(restored.extra["other / generator"]) == "rbg"
    assert jax.random.uniform(restored.key) == jax.random.uniform(state.key)


def test_an_empty_folder_is_not_a_checkpoint(checkpoints, tmp_path):
    """A loss of power can leave one.

    The previous checkpoint is the last, and the step can be saved.
    """
    state, other = make_state(), make_state(1)
    checkpoints.save(5, state, {"return_mean": 1.0})
    checkpoints.wait()
    (folder,) = tmp_path.rglob("step_000000000005")
    (folder.parent / "step_000000000010").mkdir()
    assert checkpoints.steps() == [5]
    found, restored, warnings = checkpoints.restore("last", state)
    assert found == 5 and same_bits(restored, state) and "it is empty" in warnings[0]
    assert checkpoints.save(10, other, {"return_mean": 1.0})
    found, restored, warnings = checkpoints.restore("last", state)
    assert (found, warnings) == (10, []) and same_bits(restored, other)


def test_another_process_restores_the_same_state(tmp_path):
    state = make_state()
    first = Checkpoints(tmp_path)
    first.save(5, state, {"return_mean": 1.0})
    first.close()
    second = Checkpoints(tmp_path)
    assert same_bits(second.restore("best", state)[1], state)
    second.close()


def test_sharded_leaves_are_restored_with_their_sharding(checkpoints):
    device = jax.devices()[0]
    mesh = jax.make_mesh((1,), ("environments",), devices=[device])
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("environments"))
    state = jax.device_put(
        {"observation": jnp.arange(8.0), "keys": jax.random.split(jax.random.key(0), 4)}, sharding
    )
    checkpoints.save(1, state, {})
    like = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), state
    )
    restored = checkpoints.restore("last", like)[1]
    assert same_bits(restored, state)
    assert all(leaf.sharding == sharding for leaf in jax.tree.leaves(restored))


def test_the_last_and_the_best_checkpoints_remain(checkpoints):
    save_all(checkpoints, {10: 1.0, 20: 9.0, 30: 3.0, 40: float("nan"), 50: 2.0})
    assert checkpoints.steps() == [20, 40, 50]
    assert checkpoints.best() == 20
    assert checkpoints.restore("best", small_state(0))[0] == 20
    assert checkpoints.restore(40, small_state(0))[0] == 40
    assert checkpoints.restore("last", small_state(0))[0] == 50


def test_the_best_may_be_the_smallest(tmp_path):
    checkpoints = Checkpoints(
        tmp_path, keep_last=1, keep_best=2, best_metric="loss", best_mode="min"
    )
    for step, loss in {1: 5.0, 2: 3.0, 3: 3.0, 4: 8.0, 5: 9.0}.items():
        checkpoints.save(step, small_state(step), {"loss": loss})
    checkpoints.close()
    assert checkpoints.steps() == [2, 3, 5]
    assert checkpoints.best() == 3


def test_without_the_metric_there_is_no_best_checkpoint(checkpoints):
    checkpoints.save(1, small_state(1), {})
    checkpoints.wait()
    assert checkpoints.best() is None
    with pytest.raises(UsageError, match="'return_mean'"):
        checkpoints.restore("best", small_state(0))


def test_an_existing_step_is_not_written_again(checkpoints):
    save_all(checkpoints, {10: 1.0})
    assert not checkpoints.save(10, small_state(99), {"return_mean": 5.0})
    assert same_bits(checkpoints.restore(10, small_state(0))[1], small_state(10))


def test_donation_after_save_does_not_change_the_saved_state(checkpoints):
    overwrite = jax.jit(
        lambda tree: jax.tree.map(lambda leaf: leaf * 0 - 1, tree), donate_argnums=0
    )
    state = {f"leaf {i}": jnp.full((200, 200), float(i)) for i in range(20)}
    expected = {name: np.array(leaf) for name, leaf in state.items()}
    checkpoints.save(1, state, {})
    for _ in range(5):
        state = overwrite(state)
    jax.block_until_ready(state)
    restored = checkpoints.restore("last", state)[1]
    assert all(np.array_equal(restored[name], expected[name]) for name in expected)
    # The restored state may be donated as well.
    assert float(overwrite(overwrite(restored))["leaf 3"][0, 0]) == -1.0


def damage_by_flip(path: Path) -> None:
    flip(path, path.stat().st_size // 2)


def damage_by_truncation(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize("damage", [damage_by_flip, damage_by_truncation, Path.unlink])
def test_damage_to_any_file_is_detected(checkpoints, tmp_path, damage):
    save_all(checkpoints, {10: 1.0, 20: 2.0})
    newest, pristine = folder_of(checkpoints, 20), tmp_path / "pristine"
    shutil.copytree(newest, pristine)
    names = [
        path.relative_to(newest)
        for path in newest.rglob("*")
        if path.is_file() and path.stat().st_size
    ]
    assert len(names) > 4
    for name in names:
        damage(newest / name)
        step, state, warnings = checkpoints.restore("last", small_state(0))
        assert step == 10, name
        assert same_bits(state, small_state(10))
        assert len(warnings) == 1 and newest.name in warnings[0]
        with pytest.raises(DamagedCheckpointError, match=newest.name):
            checkpoints.restore(20, small_state(0))
        shutil.rmtree(newest)
        shutil.copytree(pristine, newest)
    assert checkpoints.restore("last", small_state(0))[0] == 20


def test_a_changed_metric_in_a_summary_is_detected(checkpoints):
    save_all(checkpoints, {10: 1.0, 20: 2.0})
    summary = folder_of(checkpoints, 10) / "summary.json"
    changed = summary.read_text().replace('"return_mean": 1.0', '"return_mean": 9.0')
    assert changed != summary.read_text()
    summary.write_text(changed)
    assert checkpoints.best() == 20
    with pytest.raises(DamagedCheckpointError):
        checkpoints.restore(10, small_state(0))


def test_wrong_arrays_in_listed_files_are_detected(checkpoints):
    """Leaves have separate checksums: here the files match those in the summary."""
    save_all(checkpoints, {10: 1.0, 20: 2.0})
    older, newer = (folder_of(checkpoints, step) for step in (10, 20))
    shutil.rmtree(newer / "state")
    shutil.copytree(older / "state", newer / "state")
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (older, newer)]
    body = summaries[1]["body"] | {"files": summaries[0]["body"]["files"]}
    document = {"checksum": json_checksum(body), "body": body}
    (newer / "summary.json").write_text(json.dumps(document))
    with pytest.raises(DamagedCheckpointError, match=r"\['key'\]|large"):
        checkpoints.restore(20, small_state(0))


def test_an_error_if_all_checkpoints_are_damaged(checkpoints):
    save_all(checkpoints, {10: 1.0, 20: 2.0})
    for step in (10, 20):
        (folder_of(checkpoints, step) / "summary.json").unlink()
    for which in ("last", "best"):
        with pytest.raises(DamagedCheckpointError, match="step_000000000010.*") as error:
            checkpoints.restore(which, small_state(0))
        assert "step_000000000020" in str(error.value)


def test_the_next_best_replaces_a_damaged_best(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep_last=1, keep_best=2)
    for step, value in {10: 9.0, 20: 8.0, 30: 1.0}.items():
        checkpoints.save(step, small_state(step), {"return_mean": value})
    checkpoints.wait()
    damage_by_flip(folder_of(checkpoints, 10) / "state" / "manifest.ocdbt")
    step, _, warnings = checkpoints.restore("best", small_state(0))
    assert step == 20
    assert "step_000000000010" in warnings[0]
    checkpoints.close()


def test_later_checkpoints_are_renamed_when_a_run_continues_earlier(checkpoints):
    save_all(checkpoints, {10: 1.0, 20: 2.0})
    damage_by_flip(folder_of(checkpoints, 20) / "state" / "manifest.ocdbt")
    step, _, _ = checkpoints.restore("last", small_state(0))
    assert checkpoints.set_aside_after(step) == [20]
    assert checkpoints.steps() == [10]
    assert checkpoints.save(20, small_state(21), {"return_mean": 2.0})
    assert same_bits(checkpoints.restore("last", small_state(0))[1], small_state(21))
    assert (checkpoints._folder / "superseded_step_000000000020").is_dir()
    checkpoints.set_aside_after(10)
    assert (checkpoints._folder / "superseded_step_000000000020_again").is_dir()


def test_the_newest_save_remains_with_any_step(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep_last=1, keep_best=0)
    checkpoints.save(100, small_state(1), {})
    checkpoints.save(50, small_state(2), {})
    checkpoints.close()
    assert checkpoints.steps() == [50, 100]


@dataclasses.dataclass(frozen=True)
class Mismatch:
    like: dict
    words: tuple[str, ...]


MISMATCHES = {
    "shape": Mismatch(
        {"weights": jnp.zeros((3, 3)), "key": jax.random.key(0)}, ("weights", "[3, 2]", "[3, 3]")
    ),
    "type": Mismatch(
        {"weights": jnp.zeros((3, 2), jnp.int32), "key": jax.random.key(0)},
        ("weights", "float32", "int32"),
    ),
    "generator": Mismatch(
        {"weights": jnp.zeros((3, 2)), "key": jax.random.key(0, impl="rbg")},
        ("key", "key<fry>", "key<rbg>"),
    ),
    "missing": Mismatch({"key": jax.random.key(0)}, ("weights", "nothing")),
    "added": Mismatch(
        small_state(0) | {"momentum": jnp.zeros(3)}, ("momentum", "nothing", "float32[3]")
    ),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_a_different_state_raises_an_error_that_names_the_leaf(checkpoints, case):
    save_all(checkpoints, {10: 1.0, 20: 2.0})
    with pytest.raises(UsageError) as error:
        checkpoints.restore("last", MISMATCHES[case].like)
    for word in MISMATCHES[case].words:
        assert word in str(error.value)


def test_leaves_are_matched_by_path_not_by_position(checkpoints):
    class Old(NamedTuple):
        first: jax.Array
        second: jax.Array

    class New(NamedTuple):
        second: jax.Array
        first: jax.Array

    checkpoints.save(1, Old(jnp.ones(3), jnp.zeros(3)), {})
    restored = checkpoints.restore("last", New(jnp.zeros(3), jnp.zeros(3)))[1]
    assert float(restored.first[0]) == 1.0 and float(restored.second[0]) == 0.0


def test_unknown_files_in_the_folder_are_not_changed(tmp_path):
    names = [
        "notes",
        "step_7",
        "step_000000000007",
        "7",
        "step_000000000003.orbax-checkpoint-tmp",
        "damaged_step_000000000001",
    ]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.txt").write_text("keep me")
    (tmp_path / "step_000000000008").write_text("a file")
    checkpoints = Checkpoints(tmp_path, keep_last=1, keep_best=1)
    for step in range(10, 15):
        checkpoints.save(step, small_state(step), {"return_mean": float(step)})
    checkpoints.wait()
    assert all((tmp_path / name / "mine.txt").read_text() == "keep me" for name in names)
    assert (tmp_path / "step_000000000008").read_text() == "a file"
    assert checkpoints.restore("last", small_state(0))[0] == 14
    checkpoints.close()


def test_a_failed_save_is_reported_once_and_the_next_can_succeed(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.write_text("in the way")
    checkpoints = Checkpoints(folder)
    checkpoints.save(10, small_state(1), {})
    with pytest.raises(CheckpointSaveError, match="step 10"):
        checkpoints.wait()
    folder.unlink()
    assert checkpoints.save(10, small_state(1), {})
    checkpoints.close()
    assert checkpoints.steps() == [10]


def test_invalid_arguments_raise_usage_error(tmp_path):
    checkpoints = Checkpoints(tmp_path / "none")
    with pytest.raises(UsageError, match="No checkpoint exists"):
        checkpoints.restore("last", small_state(0))
    assert not (tmp_path / "none").exists()
    with pytest.raises(UsageError, match=r"\['activation'\].*function"):
        checkpoints.save(1, {"activation": test_invalid_arguments_raise_usage_error}, {})
    with pytest.raises(UsageError, match="must have at least one element, got none"):
        checkpoints.save(1, {"nothing": jnp.zeros((0, 4))}, {})
    checkpoints.save(1, small_state(0), {})
    with pytest.raises(UsageError, match="step 2"):
        checkpoints.restore(2, small_state(0))
    checkpoints.close()
    with pytest.raises(UsageError, match="keep_last"):
        Checkpoints(tmp_path, keep_last=0)
    with pytest.raises(UsageError, match="best_mode"):
        Checkpoints(tmp_path, best_mode="least")


SAVE_LARGE = """
import resource, sys
import jax, jax.numpy as jnp
from rollax.training.checkpoints.store import Checkpoints

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

checkpoints = Checkpoints(sys.argv[1])
checkpoints.save(1, {"row": jnp.zeros(3)}, {})
checkpoints.wait()
state = jax.block_until_ready({"rows": jnp.arange(50_000_000), "more": jnp.arange(50_000_000)})
before = peak()
checkpoints.save(2, state, {})
checkpoints.close()
print(peak() - before)
"""


def test_large_states_are_saved_without_a_copy(tmp_path):
    """The state has 400 MB, and the limit of 200 MB allows for the noise of allocators."""
    output = subprocess.run(
        [sys.executable, "-c", SAVE_LARGE, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(output.stdout) < 200e6


ENDLESS_SAVES = """
import sys
import jax, jax.numpy as jnp
from rollax.training.checkpoints.store import Checkpoints

checkpoints = Checkpoints(sys.argv[1], keep_last=3, keep_best=1)
step = int(sys.argv[2])
while True:
    step += 1
    checkpoints.save(step, {f"leaf {i}": jnp.full((100, 100), float(step)) for i in range(10)}, \
{"return_mean": -float(step)})
    checkpoints.wait()
    print(step, flush=True)
"""


def test_killing_a_save_leaves_only_complete_checkpoints(tmp_path):
    folder = tmp_path / "checkpoints"
    like = {f"leaf {i}": jnp.zeros((100, 100)) for i in range(10)}
    cut_short = 0
    reached = 0
    for delay in (0.005, 0.015, 0.025, 0.035):
        command = [sys.executable, "-c", ENDLESS_SAVES, str(folder), str(reached)]
        process = end_with_test(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        finished = [int(process.stdout.readline()) for _ in range(2)]
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        finished += [int(line) for line in process.communicate()[0].split()]
        checkpoints = Checkpoints(folder, keep_last=3, keep_best=1)
        for step in checkpoints.steps():
            state = checkpoints.restore(step, like)[1]
            assert all((np.asarray(leaf) == step).all() for leaf in state.values())
        reached, _, warnings = checkpoints.restore("last", like)
        assert warnings == []
        assert finished[-1] <= reached <= finished[-1] + 1
        cut_short += any(path.suffix in (".writing", ".deleted") for path in folder.iterdir())
        checkpoints.close()
    assert cut_short > 0, "no save was cut short: the test proves nothing"
    checkpoints = Checkpoints(folder)
    checkpoints.save(reached + 1, like, {})
    checkpoints.close()
    assert not [path for path in folder.iterdir() if path.suffix], (
        "what a killed save left is cleared by the next"
    )
