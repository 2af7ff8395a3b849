"""Files appear whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tracer.errors import OutputError
from tracer.exporters.files import check_folder, remove, replacing, write_atomically


def everything_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.parametrize(("content", "data"), [("grün\n", "grün\n".encode()), (b"\x00\xff", b"\x00\xff"), ("", b"")])
def test_a_file_and_its_folder_are_made(tmp_path: Path, content: str | bytes, data: bytes) -> None:
    path = tmp_path / "a" / "b" / "out.txt"
    write_atomically(path, content)
    assert path.read_bytes() == data
    assert everything_below(tmp_path) == ["a", "a/b", "a/b/out.txt"]


def test_a_report_is_as_readable_as_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "out.txt", "")
    finally:
        after = os.umask(before)
    assert stat.S_IMODE((tmp_path / "out.txt").stat().st_mode) == 0o640
    assert after == 0o027, "the process keeps its mask"


def test_until_the_end_the_old_file_is_there(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == path.parent, "so that moving is one step of the file system"
    assert path.read_text() == "new"


@pytest.mark.parametrize("error", [KeyError("bug"), KeyboardInterrupt()])
def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")
    with pytest.raises(type(error)), replacing(path) as temporary:
        temporary.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert everything_below(tmp_path) == ["out.txt"]


def test_an_error_of_the_system_becomes_a_sentence_with_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    full = pytest.raises(OutputError, match=r"out\.txt cannot be written: No space left on device\.")
    with full as caught, replacing(path):
        raise OSError(28, "No space left on device")
    assert "--save-dir" in caught.value.hint
    assert everything_below(tmp_path) == []


def test_a_folder_in_the_files_place_stays(tmp_path: Path) -> None:
    (tmp_path / "out.txt").mkdir()
    with pytest.raises(OutputError, match=r"out\.txt cannot be written"):
        write_atomically(tmp_path / "out.txt", "x")
    assert everything_below(tmp_path) == ["out.txt"]


def test_a_file_in_the_folders_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot be written"):
        write_atomically(tmp_path / "file" / "out.txt", "x")
    assert everything_below(tmp_path) == ["file"]


# ---- before anything runs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", [".", "new", "new/and/deeper"])
def test_a_folder_is_checked_and_not_made(tmp_path: Path, folder: str) -> None:
    check_folder(tmp_path / folder)
    assert everything_below(tmp_path) == []


@pytest.mark.parametrize("folder", ["file", "file/below", "file/far/below"])
def test_a_folder_that_would_have_to_be_a_file_is_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(OutputError, match=r"file is a file, not a folder\.") as caught:
        check_folder(tmp_path / folder)
    assert "--save-dir" in caught.value.hint
    assert (tmp_path / "file").read_text() == "precious"


def test_a_relative_folder_is_checked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    check_folder(Path("new"))
    with pytest.raises(OutputError):
        check_folder(Path("file"))


def test_a_folder_that_does_not_let_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root nothing is forbidden, so the system's answer is made up."""

    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(OutputError, match=r"new cannot be written: Permission denied\."):
        check_folder(tmp_path / "new")


def test_what_is_removed_is_gone_and_what_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    remove(tmp_path / "file")
    remove(tmp_path / "file")
    with pytest.raises(OutputError, match="folder cannot be written"):
        remove(tmp_path / "folder")
    assert everything_below(tmp_path) == ["folder"]
