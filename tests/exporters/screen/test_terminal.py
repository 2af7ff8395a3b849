"""What is printed comes last, whole, in letters that the stream knows; and what a stream does that takes nothing."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tracer.answers.tables import Table, columns
from tracer.errors import OutputError
from tracer.exporters.screen.terminal import say, say_beside_bars, screen, show, visible
from tracer.exporters.screen.text import print_table, say_wrapped
from tracer.exporters.screen.text import say as say_on

ROOT = Path(__file__).resolve().parents[3]
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full, a device of Linux that takes nothing")


class Stream(io.TextIOWrapper):
    """A stream in some encoding that keeps what it was given, each piece by itself."""

    def __init__(self, encoding: str = "utf-8", error: OSError | None = None) -> None:
        super().__init__(io.BytesIO(), encoding=encoding)
        self.pieces: list[str] = []
        self.error = error

    def write(self, text: str) -> int:
        if self.error is not None:
            raise self.error
        self.pieces.append(text)
        return super().write(text)


def put(monkeypatch: pytest.MonkeyPatch, stream: Any, name: str = "stdout") -> Any:
    monkeypatch.setattr(sys, name, stream)
    return stream


def test_all_is_printed_in_one_piece_when_the_block_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = put(monkeypatch, Stream())
    with screen() as console:
        console.print("one")
        console.print("two")
        assert stream.pieces == []
    assert stream.pieces == ["one\ntwo\n"]


def test_a_block_that_fails_prints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = put(monkeypatch, Stream())
    with pytest.raises(KeyError), screen() as console:
        console.print("half")
        raise KeyError
    assert stream.pieces == []


@pytest.mark.parametrize(
    ("encoding", "text"),
    [("utf-8", "é € \\udcff\n"), ("latin-1", "é \\u20ac \\udcff\n"), ("ascii", "\\xe9 \\u20ac \\udcff\n")],
)
def test_letters_that_a_stream_does_not_know_are_numbers(
    encoding: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = put(monkeypatch, Stream(encoding)), put(monkeypatch, Stream(encoding), "stderr")
    with screen() as console:
        console.print("é € \udcff")
    say("é € \udcff")
    assert out.pieces == err.pieces == [text]


def test_a_stream_that_can_only_write_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    put(monkeypatch, SimpleNamespace(write=written.append, flush=lambda: None))
    with screen() as console:
        console.print("é €", style="bold")
    assert written == ["é €\n"]


def test_a_stdout_that_takes_nothing_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, Stream(error=OSError(28, "No space left on device")))
    refused = pytest.raises(OutputError, match="could not be printed on stdout: No space left on device")
    with refused as caught, screen() as console:
        console.print("x")
    assert "Files are written before it" in caught.value.hint


@pytest.mark.parametrize("is_none", [True, False])
def test_a_stdout_that_is_closed_is_an_error(is_none: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    put(monkeypatch, None if is_none else closed)
    with pytest.raises(OutputError, match="stdout: it is closed"), screen() as console:
        console.print("x")


def test_a_reader_who_has_seen_enough_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, Stream(error=BrokenPipeError(32, "Broken pipe")))
    with screen() as console:
        console.print("x")


def test_without_stderr_nothing_is_said_and_least_of_all_on_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    out = put(monkeypatch, Stream())
    put(monkeypatch, None, "stderr")
    say("x")
    put(monkeypatch, Stream(error=OSError(28, "No space left on device")), "stderr")
    say("x")
    assert out.pieces == []


# ---- streams of a process --------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from tracer.errors import OutputError
from tracer.exporters.screen.terminal import say, screen, say_beside_bars
print("before")
say("a line")
try:
    with screen() as console:
        console.print("answer")
except OutputError as error:
    say(str(error))
"""


def process(program: str, **streams: Any) -> subprocess.CompletedProcess[str]:
    """With the buffers that Python has by itself."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, text=True, check=False, **streams)


def test_what_was_printed_before_comes_before() -> None:
    ended = process(PROGRAM)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "before\nanswer\n", "a line\n")


@needs_full
def test_a_failure_is_over_when_the_process_ends() -> None:
    """What stays in a stream's buffer fails again at the end: a traceback of sorts, and exit status 120."""
    program = PROGRAM.replace('print("before")', "")
    with FULL.open("w") as full:
        ended = process(program, stdout=full)
        assert (ended.returncode, len(ended.stderr.splitlines())) == (0, 2)
        assert "No space left on device" in ended.stderr
        ended = process(program, stderr=full)
        assert (ended.returncode, ended.stdout) == (0, "answer\n")


def test_a_line_goes_beside_bars_of_tqdm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []
    bars = SimpleNamespace(write=lambda line, file: seen.append(line))
    monkeypatch.setitem(sys.modules, "tqdm", SimpleNamespace(tqdm=bars))
    say_beside_bars("One line.")
    assert (seen, capsys.readouterr().err) == (["One line."], "")
    monkeypatch.delitem(sys.modules, "tqdm")
    say_beside_bars("One line.")
    assert capsys.readouterr().err == "One line.\n"


def test_a_program_that_has_closed_stderr_is_not_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(line: str, file: Any) -> None:
        file.write(line)

    monkeypatch.setitem(sys.modules, "tqdm", SimpleNamespace(tqdm=SimpleNamespace(write=write)))
    put(monkeypatch, Stream(), "stderr").close()
    say_beside_bars("One line.")
    put(monkeypatch, None, "stderr")
    say_beside_bars("One line.")


HOSTILE = "a\x1b[31mred\x1b]0;title\x07\u202eright to left\u200f\rover\x9b1m\ud800"
SHOWN = r"a\x1b[31mred\x1b]0;title\x07\u202eright to left\u200f\rover\x9b1m\ud800"


def test_what_a_terminal_would_obey_is_spelled(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = put(monkeypatch, Stream()), put(monkeypatch, Stream(), "stderr")
    say(HOSTILE)
    say_beside_bars(HOSTILE)
    show(HOSTILE)
    with screen() as console:
        console.print(HOSTILE, soft_wrap=True, markup=False)
        say_on(console, HOSTILE)
        say_wrapped(console, HOSTILE)
        print_table(Table(HOSTILE, columns("text", HOSTILE), ((HOSTILE,),), (HOSTILE,)), console)
    shown = "".join([*out.pieces, *err.pieces])
    assert shown.count("a\\x1b[31mred") == 10
    assert {character for character in shown if not character.isprintable()} == {"\n"}


def test_colours_are_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = put(monkeypatch, Stream())
    monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with screen() as console:
        console.print("bold", style="bold")
        say_on(console, HOSTILE)
    assert stream.pieces[0].startswith("\x1b[1mbold\x1b[0m\n") and stream.pieces[0].count("\x1b") == 2


def test_text_that_is_printable_stays_as_it_is() -> None:
    assert visible("loss \u03bc, \u4e2d\u6587\nnext") == "loss \u03bc, \u4e2d\u6587\nnext"
    assert visible(HOSTILE) == SHOWN
