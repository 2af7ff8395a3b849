"""The container: numpy opens it, and what is no row of numbers is refused before memory is taken for it."""

from __future__ import annotations

import io
import resource
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.errors import RecordingError
from tracer.exporters.recording_file.npz import read_columns, write_columns

COLUMNS = {
    "a.b": np.arange(1000),
    "none": np.empty(0, np.int64),
    "yes": np.array([True, False]),
    "x": np.array([1.5, np.nan]),
    "bytes": np.arange(256, dtype=np.uint8),
}


@pytest.mark.parametrize("columns", [COLUMNS, {}])
def test_what_is_written_is_read_and_numpy_reads_the_same(columns: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "c.npz"
    write_columns(path, columns)
    found = read_columns(path)
    with np.load(path, allow_pickle=False) as theirs:
        assert list(found) == list(columns) == theirs.files
        for name, column in columns.items():
            for read in (found[name], theirs[name]):
                assert read.dtype == column.dtype
                assert read.tobytes() == column.tobytes()


def test_equal_columns_make_equal_files(tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz"):
        write_columns(tmp_path / name, COLUMNS)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


# ---- files of anybody ------------------------------------------------------------------------------------------------


def npy(column: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asanyarray(column), **options)
    return out.getvalue()


def header(text: str, data: bytes = b"", *, version: bytes = b"\x01\x00") -> bytes:
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text.encode() + data


def archive(path: Path, *members: tuple[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as out:
        for name, content in members:
            out.writestr(name, content)
    return path


class Runs:
    """What a pickle runs when it is read."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("ran"),)


HUGE = "{'descr': '<i8', 'fortran_order': False, 'shape': (%d,), }\n"
BAD = {
    "a pickle": npy(np.array([Runs()], object), allow_pickle=True),
    "two dimensions": npy(np.zeros((2, 2))),
    "no dimension": npy(np.int64(5)),
    "texts": npy(np.array(["a", "bc"])),
    "a record": npy(np.zeros(3, [("a", "<i8")])),
    "complex": npy(np.zeros(3, np.complex128)),
    "big-endian": npy(np.zeros(3, ">i8")),
    "a later header": npy(np.zeros(3), version=(2, 0)),
    "more than there is": header(HUGE % 10**15),
    "a few more than there are": npy(np.arange(10))[:-8],
    "more bytes behind": npy(np.arange(10)) + bytes(8),
    "less than nothing": header(HUGE % -1),
    "code in its header": header("__import__('os')\n"),
    "no header": b"\x93NUMPY",
    "nothing": b"",
    "something else": b"GIF89a",
    "a header without end": header("{" * 9000),
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_a_member_that_is_no_row_of_numbers_is_refused(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = archive(tmp_path / "c.npz", ("fine.npy", npy(np.arange(3))), ("bad.npy", content))
    with pytest.raises(RecordingError) as caught:
        read_columns(path)
    assert caught.value.hint
    assert not (tmp_path / "ran").exists()


def test_an_archive_of_other_things_is_refused(tmp_path: Path) -> None:
    fine = npy(np.arange(3))
    with pytest.warns(UserWarning, match="Duplicate"):
        twice = archive(tmp_path / "twice.npz", ("a.npy", fine), ("a.npy", fine))
    other = archive(tmp_path / "other.npz", ("a.txt", fine))
    lzma = archive(tmp_path / "lzma.npz", ("a.npy", fine), compression=zipfile.ZIP_LZMA)
    secret = archive(tmp_path / "secret.npz", ("a.npy", fine))
    secret.write_bytes(
        secret.read_bytes().replace(b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01")
    )
    (tmp_path / "text.npz").write_text("not an archive")
    for path in (twice, other, lzma, secret, tmp_path / "text.npz", tmp_path / "none.npz", tmp_path):
        with pytest.raises(RecordingError):
            read_columns(path)


def test_an_archive_that_unpacks_to_more_than_a_recording_is_refused_unread(tmp_path: Path) -> None:
    """17 GiB of zeros by its own account, which is what it may give."""
    path = archive(tmp_path / "c.npz", *((f"c{n}.npy", npy(np.zeros(8, np.int64))) for n in range(17)))
    data = bytearray(path.read_bytes())
    for at in (at for at in range(len(data)) if data[at : at + 4] == b"PK\x01\x02"):
        data[at + 24 : at + 28] = struct.pack("<I", 1 << 30)
    path.write_bytes(data)
    with pytest.raises(RecordingError, match="more than any recording"):
        read_columns(path)


def test_a_column_that_claims_more_than_it_packs_takes_no_memory_for_it(tmp_path: Path) -> None:
    """A header of 8 EiB is compared with the bytes that are there first."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RecordingError, match="not a row of numbers"):
        read_columns(archive(tmp_path / "c.npz", ("c.npy", header(HUGE % 2**60))))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


@given(data=st.data())
def test_a_damaged_file_is_one_sentence(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Cut, or with some bytes changed: it is refused, or what is read is rows of numbers."""
    path = tmp_path_factory.mktemp("npz") / "c.npz"
    write_columns(path, COLUMNS)
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans(), label="cut"):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    for _ in range(data.draw(st.integers(0, 4))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        found = read_columns(path)
    except RecordingError as error:
        assert error.hint
    else:
        assert all(column.ndim == 1 and column.dtype.kind in "ibfu" for column in found.values())
