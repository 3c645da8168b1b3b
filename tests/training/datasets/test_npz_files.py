"""Files of arrays: hostile ones are refused before memory is allocated."""

import io
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollax import UsageError
from rollax.training.datasets.npz_files import read_npz, write_npz


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def packed(path: Path, compression: int = zipfile.ZIP_STORED, **entries: bytes) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path


def test_arrays_and_document_are_read_as_written(tmp_path: Path) -> None:
    arrays = {
        "a/b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "c": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "d": np.array(True),
    }
    path = write_npz(tmp_path / "new" / "file.npz", arrays, {"é": [1, None]})
    content = read_npz(path)
    assert content.metadata == {"é": [1, None]} and content.arrays.keys() == arrays.keys()
    for name, values in arrays.items():
        assert content.arrays[name].dtype == values.dtype
        np.testing.assert_array_equal(content.arrays[name], values)
    assert [path.name for path in path.parent.iterdir()] == ["file.npz"]


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    path.write_bytes(b"mine")
    with pytest.raises(UsageError, match="exists and is not overwritten"):
        write_npz(path, {"a": np.zeros(1)}, {})
    assert path.read_bytes() == b"mine" and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(UsageError, match=r"must end in .npz"):
        write_npz(tmp_path / "file.txt", {}, {})


NUMBERS = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"a.npy": npy(NUMBERS, b"\0" * 4)}, "must have 8 bytes for the shape"),
        ({"a.npy": npy(NUMBERS, b"\0" * 12)}, "must have 8 bytes for the shape"),
        (
            {"a.npy": npy(NUMBERS.replace("(2,)", f"({10**15},)"), b"\0" * 8)},
            "must have 4,000,000,000,000,000 bytes",
        ),
        ({"a.npy": npy(NUMBERS.replace("<f4", "|O"), b"\0" * 8)}, "must be an array of numbers"),
        ({"a.npy": npy(NUMBERS.replace("(2,)", "(-2,)"), b"\0" * 8)}, "a.npy|fails"),
        ({"a.npy": npy("__import__('os').abort()")}, "fails"),
        ({"a.npy": b"no array"}, "fails"),
        ({"a.txt": b"text"}, r"must consist of arrays \(.npy\)"),
        ({"a\x1b[2J.npy": b""}, r"must consist of arrays"),
        ({"metadata.npy": npy(NUMBERS, b"\0" * 8)}, "must be a JSON object"),
    ],
)
def test_hostile_entries_are_refused(
    tmp_path: Path, entries: dict[str, bytes], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as error:
        read_npz(packed(tmp_path / "file.npz", **entries))
    assert "\x1b" not in str(error.value)


def test_a_small_file_that_expands_is_refused(tmp_path: Path) -> None:
    size = 50_000_000
    shape = NUMBERS.replace("(2,)", f"({size // 4},)")
    path = packed(tmp_path / "file.npz", zipfile.ZIP_DEFLATED, **{"a.npy": npy(shape, bytes(size))})
    assert path.stat().st_size < 100_000
    with pytest.raises(UsageError, match="at most 200 times the size of the file"):
        read_npz(path)


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    buffer: Any = io.BytesIO()
    np.savez(buffer, a=np.array([{}], object))
    (tmp_path / "file.npz").write_bytes(buffer.getvalue())
    with pytest.raises(UsageError, match="must be an array of numbers"):
        read_npz(tmp_path / "file.npz")


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(UsageError, match=r"must be a .npz file"):
        read_npz(tmp_path / "text.npz")
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(UsageError, match="must be a regular file"):
        read_npz(tmp_path / "pipe.npz")
