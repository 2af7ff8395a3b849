"""Files in turn, and who wants the program to end meanwhile: Ctrl-C once, twice, thrice, SIGTERM, somebody else."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tracer.errors import Terminated
from tracer.exporters.files import replacing
from tracer.sessions.termination import FilesInTurn, WritingInterrupted

NAMES = ("a", "b", "c", "d")


pytestmark = pytest.mark.usefixtures("usual_signals")


def send(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


def write_all(folder: Path, during: Callable[[str], None]) -> None:
    """Four files, and something that happens while each is half written."""
    paths = [folder / name for name in NAMES]
    with FilesInTurn(paths) as turn:
        for path in paths:
            with turn.writing(path), replacing(path) as temporary:
                temporary.write_text("ha")
                during(path.name)
                temporary.write_text("half and whole")


def left(folder: Path) -> str:
    assert {path.read_text() for path in folder.iterdir()} <= {"half and whole"}
    return "".join(sorted(path.name for path in folder.iterdir()))


def in_file(name: str, *numbers: int) -> Callable[[str], None]:
    return lambda now: send(*numbers) if now == name else None


def test_ctrl_c_lets_the_file_at_work_come_to_its_end(tmp_path: Path) -> None:
    with pytest.raises(WritingInterrupted, match=r"^Interrupted while writing: wrote a, b; not written: c, d\.$"):
        write_all(tmp_path, in_file("b", signal.SIGINT))
    assert left(tmp_path) == "ab"


def test_ctrl_c_in_the_last_file_is_not_forgotten(tmp_path: Path) -> None:
    with pytest.raises(WritingInterrupted, match=r"^Interrupted while writing: wrote a, b, c, d\.$"):
        write_all(tmp_path, in_file("d", signal.SIGINT))
    assert left(tmp_path) == "abcd"


def test_a_second_one_ends_the_file_at_work_too(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("half and whole")  # of an earlier run
    with pytest.raises(WritingInterrupted, match=r"wrote a; not written: b, c, d\.$"):
        write_all(tmp_path, in_file("b", signal.SIGINT, signal.SIGINT))
    assert left(tmp_path) == "ab"


def test_a_third_one_does_not_disturb_the_cleaning_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink = Path.unlink

    def interrupted(path: Path, **options: bool) -> None:
        send(signal.SIGINT)
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", interrupted)
    with pytest.raises(WritingInterrupted, match=r"not written: a, b, c, d\.$"):
        write_all(tmp_path, in_file("a", signal.SIGINT, signal.SIGINT))
    assert left(tmp_path) == ""


def test_sigterm_waits_for_all_files(tmp_path: Path) -> None:
    with pytest.raises(Terminated):
        write_all(tmp_path, in_file("b", signal.SIGTERM, signal.SIGTERM))
    assert left(tmp_path) == "abcd"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR2])
def test_a_handler_of_the_programs_own_is_called_after_the_last_file(number: int, tmp_path: Path) -> None:
    def theirs(number: int, frame: object) -> None:
        raise TimeoutError("theirs")

    before = signal.signal(number, theirs)
    try:
        with pytest.raises(TimeoutError, match="theirs"):
            write_all(tmp_path, in_file("b", number, number))
        assert signal.getsignal(number) is theirs
    finally:
        signal.signal(number, before)
    assert left(tmp_path) == "abcd"


def test_an_error_of_a_writers_goes_first(tmp_path: Path) -> None:
    def during(name: str) -> None:
        send(signal.SIGINT)
        raise KeyError("bug")

    with pytest.raises(KeyError, match="bug"):
        write_all(tmp_path, during)
    assert left(tmp_path) == ""
