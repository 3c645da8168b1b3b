"""Tests of checkpoints that are moved, copied or deleted while they are used."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rollax
from rollax.training.checkpoints import store
from support.runs import FRAMES, Script, newest


def step_folder(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step_{step:012d}"


def test_deleting_a_linked_checkpoint_keeps_its_target(train: Callable, tmp_path: Path) -> None:
    """Only the link is deleted when the checkpoint is old, and the run continues."""
    run = train("run", updates=2, keep_last=1, keep_best=0).folder
    moved = tmp_path / "elsewhere"
    step_folder(run, 2 * FRAMES).rename(moved)
    step_folder(run, 2 * FRAMES).symlink_to(moved)
    assert rollax.load(run, checkpoint=2 * FRAMES).step == 2 * FRAMES
    assert rollax.resume(run, total_steps=4 * FRAMES, show=Script()).status == "done"
    assert newest(run) == 4 * FRAMES
    assert not step_folder(run, 2 * FRAMES).is_symlink()
    assert (moved / "summary.json").is_file()


def test_an_unfinished_checkpoint_may_be_a_link(train: Callable, tmp_path: Path) -> None:
    run = train("run", updates=2).folder
    (tmp_path / "precious").mkdir()
    (run / "checkpoints" / f"step_{7:012d}.writing").symlink_to(tmp_path / "precious")
    assert rollax.resume(run, total_steps=4 * FRAMES, show=Script()).status == "done"
    assert (tmp_path / "precious").is_dir()


def test_a_copied_checkpoint_under_another_step_raises_usage_error(train: Callable) -> None:
    run = train("run", updates=2).folder
    shutil.copytree(step_folder(run, 2 * FRAMES), step_folder(run, 999))
    with pytest.raises(
        rollax.UsageError,
        match=(
            f"step_{999:012d} must contain the checkpoint of step 999, got that of step 64. "
            "Rename it"
        ),
    ):
        rollax.load(run, checkpoint=999)
    policy = rollax.load(run)
    assert policy.step == 2 * FRAMES
    assert len(policy.warnings) == 1 and "got that of step 64" in policy.warnings[0]
    assert rollax.resume(run, total_steps=4 * FRAMES, show=Script()).status == "done"


def test_a_checkpoint_that_is_deleted_while_checkpoints_are_listed(
    train: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train("run", updates=2, keep_last=9).folder
    oldest, is_dir = step_folder(run, FRAMES), Path.is_dir

    def is_dir_then_delete(self: Path) -> bool:
        found = is_dir(self)
        if found and self == oldest:
            monkeypatch.undo()
            shutil.rmtree(oldest)
        return found

    monkeypatch.setattr(Path, "is_dir", is_dir_then_delete)
    assert rollax.load(run).step == 2 * FRAMES
    assert not oldest.exists()


@pytest.mark.parametrize("name", ["read_summary", "check_file_checksums"])
def test_a_checkpoint_that_is_deleted_while_it_is_read(
    train: Callable, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The run deletes it after a newer one was written. The newer one is loaded with a warning."""
    run = train("run", updates=4, keep_last=9).folder
    read, newer = step_folder(run, 3 * FRAMES), run / "not_there_yet"
    step_folder(run, 4 * FRAMES).rename(newer)
    function, restore = getattr(store, name), store.Checkpoints.restore

    def delete_then_read(path: Path, *arguments: Any) -> Any:
        if path == read and read.exists():
            newer.rename(step_folder(run, 4 * FRAMES))
            shutil.rmtree(read)
        return function(path, *arguments)

    def restore_meanwhile(self: Any, *arguments: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(store, name, delete_then_read)
            return restore(self, *arguments)

    monkeypatch.setattr(store.Checkpoints, "restore", restore_meanwhile)
    policy = rollax.load(run)
    assert policy.step == 4 * FRAMES
    assert policy.warnings == [
        "The run deleted the checkpoint of step 96 while it was read. Step 128 was loaded"
    ]
