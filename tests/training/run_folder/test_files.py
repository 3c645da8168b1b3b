"""Tests of durability: content is synced before it is renamed, and before old files are deleted."""

import os
import shutil
from pathlib import Path

import jax.numpy as jnp
import pytest

from rollax.training.checkpoints.store import Checkpoints
from rollax.training.run_folder.files import write_atomically


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that records synced paths, renames and deletions in order."""
    done: list[str] = []
    sync, rename, replace, rmtree = os.fsync, Path.rename, Path.replace, shutil.rmtree

    def named(handle):
        return os.path.relpath(os.readlink(f"/proc/self/fd/{handle}"), tmp_path)

    monkeypatch.setattr(os, "fsync", lambda handle: (done.append(named(handle)), sync(handle)))
    for name, move in (("rename", rename), ("replace", replace)):
        monkeypatch.setattr(
            Path,
            name,
            lambda path, to, move=move: (done.append(f"{path.name} > {to.name}"), move(path, to))[
                1
            ],
        )
    monkeypatch.setattr(
        shutil,
        "rmtree",
        lambda path, *rest: (done.append(f"deleted {Path(path).name}"), rmtree(path, *rest)),
    )
    return done


def test_a_file_is_synced_before_and_after_it_is_renamed(
    tmp_path: Path, journal: list[str]
) -> None:
    """The content is synced first, then the file is renamed, then the folder is synced."""
    write_atomically(tmp_path / "config.yaml", b"new")
    unfinished = f".config.yaml.{os.getpid()}"
    assert journal == [unfinished, f"{unfinished} > config.yaml", "."]
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_a_checkpoint_is_synced_before_the_previous_one_is_deleted(
    tmp_path: Path, journal: list[str]
) -> None:
    """Files and folders are synced before the rename, and the parent folder after it."""
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep_last=1, keep_best=0)
    checkpoints.save(1, {"weights": jnp.ones(3), "steps": jnp.ones(2)}, {})
    checkpoints.wait()
    del journal[:]
    checkpoints.save(2, {"weights": jnp.zeros(3), "steps": jnp.ones(2)}, {})
    checkpoints.close()
    second = "step_000000000002"
    named_at = journal.index(f"{second}.writing > {second}")
    files = [
        path.relative_to(tmp_path / "checkpoints" / second)
        for path in (tmp_path / "checkpoints" / second).rglob("*")
    ]
    assert len(files) > 4
    for path in (Path("."), *files):
        assert os.path.normpath(f"checkpoints/{second}.writing/{path}") in journal[:named_at], path
    assert (
        named_at
        < journal.index("checkpoints", named_at)
        < journal.index("deleted step_000000000001.deleted")
    )
