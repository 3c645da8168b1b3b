"""What a loss of power leaves: content is on disk before it has its name, and the name before anything older is deleted."""

import os
import shutil
from pathlib import Path

import jax.numpy as jnp
import pytest

from rollax.training.checkpoints.store import Checkpoints
from rollax.training.run_folder.files import write_atomically


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced (its path), renamed ("from > to") and deleted, in order."""
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


def test_a_file(tmp_path: Path, journal: list[str]) -> None:
    """The former config.yaml or the new one, whole: content, then name, then the folder that has the name."""
    write_atomically(tmp_path / "config.yaml", b"new")
    unfinished = f".config.yaml.{os.getpid()}"
    assert journal == [unfinished, f"{unfinished} > config.yaml", "."]
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_a_checkpoint(tmp_path: Path, journal: list[str]) -> None:
    """A whole one, the new or the one before: files, their folders and the name, each synced in its turn."""
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
