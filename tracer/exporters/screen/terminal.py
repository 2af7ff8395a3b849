"""stdout and stderr; a fault of one costs neither the other nor the answer.

A disk may be full behind them, a reader gone, a letter unknown to them. So what is printed goes out in one piece when
everything else is done, and past the stream's own buffer: what stays in there after a failure would fail again when
Python ends, and change its exit status.

Names in a file are somebody else's words, which a terminal would obey: `visible` shows what is no letter.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from tracer.errors import OutputError
from tracer.snapshot.text import printable


@contextmanager
def screen(*, is_shown: bool = True) -> Iterator[Console]:
    r"""A console on stdout; all of it is printed when the block ends well.

    A letter that stdout's encoding does not have is written as its number, `\xe9`. A closed pipe, as after
    `| head` has, is no error.

    Raises:
        OutputError: stdout does not take it.
    """
    text = _Text(sys.stdout)
    yield _VisibleConsole(file=text, highlight=False)
    if is_shown:
        _answer(_unpadded(text.getvalue()))


def text_of(print_on: Callable[[Console], None]) -> str:
    """Return the printed text as a file has it."""
    file = io.StringIO()
    print_on(_VisibleConsole(file=file, highlight=False))
    return _unpadded(file.getvalue())


def _unpadded(text: str) -> str:
    """The text without the spaces that tables have behind their last column."""
    return "\n".join(line.rstrip(" ") for line in text.split("\n"))


def print_json(document: Mapping[str, Any], console: Console) -> None:
    """Print a document as text that rich neither wraps nor colours."""
    console.file.write(json.dumps(document, indent=1) + "\n")


def show(line: str) -> None:
    """Print a line on stdout at once, as commands do that go on for long."""
    _answer(f"{visible(line)}\n")


def visible(text: str) -> str:
    r"""Return text in which all but line ends is printable: `\x1b` and `\u202e` are spelled."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def _answer(text: str) -> None:
    try:
        _put(text, sys.stdout)
    except BrokenPipeError:
        pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(
            f"The answer could not be printed on stdout: {reason}.",
            hint="Files are written before it, and named above.",
        ) from error


def say(line: str) -> None:
    """Print a line on stderr, never wrapped: a path that is broken in two cannot be copied.

    Where stderr is closed or its disk full, the line is dropped: there is nowhere left to say so.
    """
    with suppress(OSError):
        _put(f"{visible(line)}\n", sys.stderr)


def say_beside_bars(line: str) -> None:
    """Print a line on stderr while a user's program runs, without breaking its progress bars."""
    bars = getattr(sys.modules.get("tqdm"), "tqdm", None)
    if bars is None or _is_closed(sys.stderr):  # rich's bars stand in the place of stderr and let lines pass
        say(line)
        return
    with suppress(OSError):
        bars.write(visible(line), file=sys.stderr)


@contextmanager
def progress_bar(words: str, *, is_shown: bool, is_counted: bool = True) -> Iterator[Callable[..., None]]:
    """A bar on stderr, which a terminal shows and a log does not; it is gone at the end.

    Yields:
        What updates it: takes `completed` and `total` of what is counted, or another `description`.
    """
    console = Console(stderr=True, highlight=False)
    if not is_shown or not console.is_terminal:
        yield lambda **changes: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    counts = [MofNCompleteColumn()] if is_counted else []
    columns = (TextColumn("{task.description}"), BarColumn(), *counts, TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        yield partial(bar.update, bar.add_task(words, total=None))


class _VisibleConsole(Console):
    """A console whose only escape sequences are its own colours."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, with text that a terminal does not obey."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text), style, control)


class _Text(io.StringIO):
    """Keeps the text that rich prints, and looks like the stream that it stands for."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the wrapped stream."""
        return _encoding(self._stream)

    def isatty(self) -> bool:
        """Return True if the stream is a terminal, which may have colours."""
        return is_terminal(self._stream)


def is_terminal(stream: TextIO | None) -> bool:
    """Return True if a stream is a terminal; a closed one is none."""
    return not _is_closed(stream) and bool(getattr(stream, "isatty", bool)())


def _is_closed(stream: TextIO | None) -> bool:
    """Return True if a stream is missing or closed; a program may have put in one that can only write."""
    return stream is None or getattr(stream, "closed", False)


def _encoding(stream: TextIO | None) -> str:
    return getattr(stream, "encoding", None) or "utf-8"


def _put(text: str, stream: TextIO | None) -> None:
    """Write a text to a stream now."""
    if stream is None or _is_closed(stream):
        raise OSError("it is closed")
    data = text.encode(_encoding(stream), "backslashreplace")
    stream.flush()
    if any(stream is own for own in (sys.__stdout__, sys.__stderr__)):
        with os.fdopen(os.dup(stream.fileno()), "wb") as unbuffered:
            unbuffered.write(data)
    else:  # somebody else's, which may copy what it is given, or keep it
        stream.write(data.decode(_encoding(stream)))
        stream.flush()
