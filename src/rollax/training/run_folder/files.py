"""Atomic and durable file access: a write is complete or has no effect, even after a power loss.

A folder may come from an untrusted source, so only regular files are read or written. Links, pipes
and devices are rejected.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, cast

from rollax.errors import UsageError, add_path_to_errors

MAX_FILE_BYTES = 1_000_000_000  # limit of a file that is read completely
MAX_SMALL_FILE_BYTES = 10_000_000  # limit of a small file, such as environment.json
# O_NONBLOCK: a pipe without a reader or a writer must not block. Windows has neither flag.
_SAFE_OPEN_FLAGS = (
    getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
)
_BINARY_FLAG = getattr(os, "O_BINARY", 0)
_IRREGULAR_FILE_ERRNOS = (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR, errno.ENODEV)


def open_regular_file(path: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """Open a regular file. Symbolic links, pipes and devices are rejected.

    Args:
        path: Path of the file. Parent folders may be symbolic links.
        flags: Flags of `os.open`.

    Returns:
        The file, opened in binary mode for the access that the flags request.

    Raises:
        UsageError: If the path is a link, a folder, a pipe, a socket or a device.
        OSError: If the file cannot be opened.
    """
    check_not_symlink(path)
    try:
        handle = os.open(path, flags | _SAFE_OPEN_FLAGS | _BINARY_FLAG, 0o666)
    except OSError as error:
        if error.errno in _IRREGULAR_FILE_ERRNOS:
            raise _irregular_file_error(path) from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _irregular_file_error(path)
    mode = {os.O_RDONLY: "rb", os.O_RDWR: "r+b"}.get(
        flags & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR), "wb"
    )
    return cast(BinaryIO, os.fdopen(handle, "ab" if flags & os.O_APPEND else mode))


def check_not_symlink(path: Path) -> None:
    """Check that a path is not a symbolic link.

    Raises:
        UsageError: If the path is a link.
    """
    if os.path.islink(path):  # false for an invalid path, unlike `Path.is_symlink`
        raise UsageError(
            f"{path} must not be a link, because it could lead out of its folder. "
            "Replace it with its target."
        )


def check_regular_tree(folder: Path) -> None:
    """Check that a folder consists of regular files and folders, so that it can be copied.

    Args:
        folder: Path of the folder, which may be missing.

    Raises:
        UsageError: If it is or contains a link, a pipe, a socket or a device.
    """
    for path in (folder, *folder.rglob("*")):
        check_not_symlink(path)
        if path.exists() and not path.is_dir() and not path.is_file():
            raise _irregular_file_error(path)


def _irregular_file_error(path: Path) -> UsageError:
    return UsageError(
        f"{path} must be a regular file, not a folder, a pipe or a device. "
        "Move it away, or restore the file."
    )


def read_regular_file(path: Path, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return the content of a regular file.

    Args:
        path: Path of the file.
        max_bytes: Maximum size in bytes.

    Returns:
        The content.

    Raises:
        UsageError: If the path is not a regular file, or is larger than `max_bytes`.
        OSError: If the file cannot be read.
    """
    with open_regular_file(path) as file:
        is_small = os.fstat(file.fileno()).st_size <= max_bytes
        content = file.read(max_bytes + 1) if is_small else None
    if content is None or len(content) > max_bytes:
        raise UsageError(
            f"{path} must have at most {max_bytes:,} bytes. Move it away, or restore the original "
            "file."
        )
    return content


def open_for_append(path: Path) -> BinaryIO:
    """Open a regular file for appending, or create it.

    A file with several hard links is copied first, so that the content under the other names does
    not change.

    Args:
        path: Path of the file.

    Returns:
        The file.

    Raises:
        UsageError: If the path is not a regular file.
        OSError: If the file cannot be opened.
    """
    file = open_regular_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    if os.fstat(file.fileno()).st_nlink == 1:
        return file
    file.close()
    write_atomically(path, read_regular_file(path))
    return open_regular_file(path, os.O_WRONLY | os.O_APPEND)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the content of a file atomically, and flush it to disk.

    Args:
        path: Path of the file.
        content: New content of the file.

    Raises:
        OSError: If the file cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    with add_path_to_errors(path):
        unfinished.unlink(missing_ok=True)  # left by a killed process, or a planted link
        handle = os.open(
            unfinished,
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE_OPEN_FLAGS | _BINARY_FLAG,
            0o666,
        )
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        fsync_path(path.parent)


def fsync_path(path: Path) -> None:
    """Flush the content of a file, or the entries of a folder, to disk.

    Args:
        path: File or folder. A folder is skipped if the file system cannot flush folders.

    Raises:
        OSError: If flushing fails.
    """
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":  # Windows cannot open folders
        return
    handle = os.open(
        path, (os.O_RDWR if os.name == "nt" else os.O_RDONLY) | getattr(os, "O_NONBLOCK", 0)
    )
    try:
        os.fsync(handle)
    except OSError as error:
        if not is_folder or error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def fsync_tree(folder: Path) -> None:
    """Flush a folder tree to disk, files before the folders that contain them."""
    for root, _, names in os.walk(folder, topdown=False):
        for name in names:
            fsync_path(Path(root) / name)
        fsync_path(Path(root))


def rename_with_prefix(path: Path, prefix: str) -> Path:
    """Rename a file or folder to `<prefix>_<name>`. If this name exists, append `_again`.

    Args:
        path: File or folder.
        prefix: Prefix of the new name.

    Returns:
        The new path.
    """
    target = path.with_name(f"{prefix}_{path.name}")
    while target.exists():
        target = target.with_name(f"{target.stem}_again{target.suffix}")
    path.rename(target)
    fsync_path(path.parent)
    return target


def write_output_file(target: Path, content: bytes, remedy: str = "") -> Path:
    """Write a file to a path that the user chose, and create missing parent folders.

    Args:
        target: Path of the file.
        content: Content of the file.
        remedy: Text at the end of the error message, for example ". Choose another output file."

    Returns:
        The path of the file.

    Raises:
        UsageError: If the file cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, content)
    except OSError as error:
        raise UsageError(f"{target} cannot be written ({error}){remedy}") from error
    return target
