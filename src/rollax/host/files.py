"""Files that survive a kill and a loss of power: written whole or not at all, and never in the place of something else."""

import errno
import os
from pathlib import Path

from rollax.errors import UsageError, naming


def write_atomically(path: Path, content: bytes) -> None:
    """Whole or not at all: also when the process is killed, and on disk when this returns."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    with naming(path):
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        sync(path.parent)


def sync(path: Path) -> None:
    """Returns when a file's content, or the names in a folder, are on disk (where the file system can say so of a folder)."""
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":  # which cannot open folders
        return
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if not is_folder or error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Returns when everything in a folder is on disk, files before the folders that name them."""
    for root, _, names in os.walk(folder, topdown=False):
        for name in names:
            sync(Path(root) / name)
        sync(Path(root))


def set_aside(path: Path, prefix: str) -> Path:
    """Renames a file or folder to `<prefix>_<name>`, with `_again` after it where that is taken; returns the new path."""
    target = path.with_name(f"{prefix}_{path.name}")
    while target.exists():
        target = target.with_name(f"{target.stem}_again{target.suffix}")
    path.rename(target)
    sync(path.parent)
    return target


def write(target: Path, content: bytes, remedy: str = "") -> Path:
    """Writes a file of the user's, its folder too. Raises UsageError, with the remedy, when it cannot be written."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, content)
    except OSError as error:
        raise UsageError(f"{target} cannot be written ({error}){remedy}") from error
    return target
