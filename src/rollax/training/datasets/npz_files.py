"""Reading and writing of .npz files with arrays of numbers.

A file may come from an untrusted source. Nothing in it is unpickled, and the sizes of all arrays
are checked before memory is allocated.
"""

import json
import math
import os
import zipfile
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from rollax.errors import UsageError
from rollax.runtime.printing import escape_to_one_line
from rollax.training.run_folder.files import fsync_path, open_regular_file
from rollax.user_input.coercion import format_value

METADATA = "metadata"  # name of the array with the JSON document of a file
MAX_ARRAYS = 1000
MAX_TOTAL_BYTES = 16 * 2**30  # of all arrays together
# A compressed file may be larger in memory by this factor. Deflate reaches a factor of 1000.
MAX_COMPRESSION = 200
MAX_HEADER_BYTES = 10_000  # of the description of an array
MAX_METADATA_BYTES = 1_000_000
_NUMERIC_KINDS = "biuf"  # kinds of NumPy types


class NpzContent(NamedTuple):
    """Arrays of a file, keyed by name, and its JSON document, or an empty dictionary."""

    arrays: dict[str, np.ndarray]
    metadata: dict[str, Any]


def check_new_npz(path: Path) -> None:
    """Check that a new file can have a path, before its content is computed.

    Args:
        path: Path of the file.

    Raises:
        UsageError: If the path does not end in .npz, or exists, or its folder cannot be written.
    """
    if path.suffix != ".npz":
        raise UsageError(f"path must end in .npz, got {path}. Use {path.name}.npz.")
    _check_absent(path)
    folder = next(each for each in path.absolute().parents if each.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"{path} cannot be written, because {folder} is not a writable folder.")


def write_npz(path: Path, arrays: dict[str, np.ndarray], metadata: dict[str, Any]) -> Path:
    """Write arrays and a JSON document to a new file.

    Args:
        path: Path of the file. Missing parent folders are created.
        arrays: Arrays, keyed by name.
        metadata: JSON document.

    Returns:
        The path.

    Raises:
        UsageError: If the file exists, or cannot be written.
    """
    check_new_npz(path)
    document = np.frombuffer(json.dumps(metadata, sort_keys=True).encode(), np.uint8)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    named: dict[str, Any] = {METADATA: document, **arrays}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("xb") as file:
            np.savez(file, **named)
            file.flush()
            os.fsync(file.fileno())
        _check_absent(path)
        unfinished.rename(path)
        fsync_path(path.parent)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error}). Choose another path.") from error
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def _check_absent(path: Path) -> None:
    """Raise UsageError if a file exists."""
    if os.path.lexists(path):
        raise UsageError(f"{path} exists and is not overwritten. Choose another path.")


def read_npz(path: Path) -> NpzContent:
    """Read a file with arrays of numbers.

    Args:
        path: Path of the file.

    Returns:
        The content.

    Raises:
        UsageError: If the file does not exist, is damaged or too large, or contains Python objects.
    """
    try:
        with open_regular_file(path) as file, zipfile.ZipFile(file) as archive:
            entries = _check_entries(path, archive, os.fstat(file.fileno()).st_size)
            arrays = {
                entry.filename.removesuffix(".npy"): _read_array(path, archive, entry)
                for entry in entries
            }
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error}).") from error
    except Exception as error:  # damaged archives raise many types in numpy, zipfile and zlib
        raise UsageError(
            f"{path} must be a .npz file, but reading it fails: {escape_to_one_line(str(error))}. "
            "Write it with rollax.save_demonstrations or numpy.savez."
        ) from error
    return NpzContent(arrays, _parse_metadata(path, arrays.pop(METADATA, None)))


def _check_entries(path: Path, archive: zipfile.ZipFile, file_size: int) -> list[zipfile.ZipInfo]:
    """Return the entries of an archive. Raise UsageError if one is not an array, or is too large.

    Entries in folders such as "metadata/" belong to the suite that wrote the file.
    """
    entries = archive.infolist()
    names = [entry.filename for entry in entries]
    if len(names) > MAX_ARRAYS or len(set(names)) != len(names):
        raise UsageError(
            f"{path} must have at most {MAX_ARRAYS} arrays with different names, got {len(names)}."
        )
    for name in names:
        if not name.endswith(".npy") or escape_to_one_line(name) != name:
            raise UsageError(f"{path} must consist of arrays (.npy), got {format_value(name)}.")
    total = sum(entry.file_size for entry in entries)
    if total > min(MAX_TOTAL_BYTES, MAX_COMPRESSION * file_size):
        raise UsageError(
            f"{path} must have at most {MAX_TOTAL_BYTES:,} bytes of arrays, and at most "
            f"{MAX_COMPRESSION} times the size of the file, got {total:,}. Split the file, or "
            "write it without compression."
        )
    return entries


def _read_array(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    """Read an array after its header has been checked against the size of the entry."""
    with archive.open(entry) as file:
        shape, is_fortran, dtype = _read_header(file)
        name = entry.filename
        if dtype.kind not in _NUMERIC_KINDS:
            raise UsageError(f"{path}: {name} must be an array of numbers, got the type {dtype}.")
        size = math.prod(shape) * dtype.itemsize
        if size != entry.file_size - file.tell():
            raise UsageError(
                f"{path}: {name} must have {size:,} bytes for the shape {list(shape)}, got "
                f"{entry.file_size - file.tell():,}. Write the file again."
            )
        array = np.frombuffer(file.read(size), dtype)
    return array.reshape(shape[::-1]).T if is_fortran else array.reshape(shape)


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read the shape of an array, whether it is in Fortran order, and its type."""
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise ValueError(f"the version {version} of an array is unknown")
    return read(file, max_header_size=MAX_HEADER_BYTES)


def _parse_metadata(path: Path, values: np.ndarray | None) -> dict[str, Any]:
    """Return the JSON document of a file."""
    if values is None:
        return {}
    try:
        if values.dtype != np.uint8 or values.size > MAX_METADATA_BYTES:
            raise ValueError(f"it has the type {values.dtype} and {values.size:,} elements")
        document = json.loads(values.tobytes().decode())
        if not isinstance(document, dict):
            raise ValueError(f"it is {format_value(document)}")
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: {METADATA} must be a JSON object in UTF-8, but "
            f"{escape_to_one_line(str(error))}. Write the file with rollax.save_demonstrations."
        ) from error
    return document
