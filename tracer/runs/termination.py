"""What ends a program from outside, so that results are written all the same, and Ctrl-C leaves no half of them.

SIGTERM, by which torchrun and batch systems end a program, unwinds it like Ctrl-C. Both wait while our own code is at
work: a recording that is half read is none. Whoever wants to know of a signal listens, and the last who began is told.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from tracer.capture.forked_child import in_forked_child
from tracer.errors import Terminated
from tracer.exporters.screen.next_commands import command_line


class Termination:
    """Lets Ctrl-C and SIGTERM unwind the program like any exception, except while our own code is at work.

    SIGTERM's default would end the process on the spot, and with it what was recorded. A handler of somebody else's is
    left alone, and the default is put back when nobody listens any more. Before `watch`, and in another thread than the
    main one, every method does nothing.

    Attributes:
        num_interrupts: How often Ctrl-C has come since it has to wait.
    """

    def __init__(self) -> None:
        self.num_interrupts = 0
        self._must_wait = self._has_terminated = False
        self._due: int | None = None

    def watch(self) -> None:
        """Turn these signals into KeyboardInterrupt and Terminated in the main thread from now on."""
        if self not in _listeners and threading.current_thread() is threading.main_thread():
            _listen(self)

    def arrived(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal that has arrived."""
        must_wait = self._must_wait or _is_ending(frame)
        if number == signal.SIGINT:
            self.num_interrupts += must_wait
            if not must_wait or self.num_interrupts == 2:  # a third one does not disturb the cleaning up
                self._due = None if self._due == signal.SIGINT else self._due
                raise KeyboardInterrupt
            self._due = self._due or signal.SIGINT
        elif must_wait:
            self._due = self._due or number
        elif not self._has_terminated:  # a second one does not disturb what the first one has set going
            self._has_terminated = True
            raise Terminated

    def hold(self, error: BaseException | None = None) -> None:
        """Defer signals until `resume` or `close`; a second Ctrl-C is not deferred.

        Args:
            error: The exception that ended the program's work; a KeyboardInterrupt counts as the first Ctrl-C.
        """
        if not self._must_wait:
            self.num_interrupts += isinstance(error, KeyboardInterrupt)
            self._must_wait = True

    def resume(self) -> None:
        """Wait no longer; raises what has waited."""
        due, self._due = self._due, None
        self._must_wait, self.num_interrupts = False, 0
        if due is not None:
            self.arrived(due, None)

    def close(self) -> None:
        """Listen no longer; what has waited is for who listened before, and is raised where nobody did."""
        due = self.forget()
        if due is not None:
            pass_on(due)

    def forget(self) -> int | None:
        """Listen no longer; the number of the signal that has waited."""
        due, self._due = self._due, None
        self._must_wait, self.num_interrupts = False, 0
        if self in _listeners:
            _listen_no_more(self)
        return due


@contextmanager
def signals_deferred(error: BaseException | None = None) -> Iterator[None]:
    """While the block lasts, which is work of ours between two of the program's, signals wait: `Termination.hold`."""
    termination = Termination()
    termination.hold(error)
    termination.watch()
    try:
        yield
    finally:
        termination.close()


# ---- one handler for all, and who is told ----------------------------------------------------------------------------
_listeners: list[Termination] = []
_ends: list[Callable[[], object]] = []
_DEFAULTS: dict[int, Callable[..., object] | signal.Handlers] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


def _arrived(number: int, frame: FrameType | None) -> None:
    if _listeners:
        _listeners[-1].arrived(number, frame)


def pass_on(number: int) -> None:
    """Tell who listened before of a signal that has waited; where nobody did, it is raised."""
    if _listeners:
        _listeners[-1].arrived(number, None)
    else:
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated


def _listen(termination: Termination) -> None:
    if not _listeners:
        _ends.append(in_forked_child(_forget_all))
    _listeners.append(termination)
    for number, default in _DEFAULTS.items():
        if signal.getsignal(number) is default:
            signal.signal(number, _arrived)


def _listen_no_more(termination: Termination) -> None:
    if _listeners == [termination]:
        _put_defaults_back()
        _ends.pop()()
    _listeners.remove(termination)


def _put_defaults_back() -> None:
    for number, default in _DEFAULTS.items():
        if signal.getsignal(number) is _arrived:
            signal.signal(number, default)


def _forget_all() -> None:
    _listeners.clear()
    _ends.clear()
    _put_defaults_back()


def _is_ending(frame: FrameType | None) -> bool:
    """Whether a session has begun to end, be it by the first instruction: from there on files are at stake."""
    while frame is not None:
        if frame.f_code.co_name == "__exit__" and str(frame.f_globals.get("__name__")).startswith("tracer.runs."):
            return True
        frame = frame.f_back
    return False


class WritingInterrupted(KeyboardInterrupt):
    """Ctrl-C has come while files were written; the message says which are there."""


class FilesInTurn:
    """Files that are written one after another, and how the program is ended meanwhile.

        with FilesInTurn(paths) as turn:
            for path in paths:
                with turn.writing(path):
                    ...

    Ctrl-C lets the file at work come to its end and no other one begin, but for one from which the rest can be made; a
    second one ends that one too. Then WritingInterrupted leaves the block. SIGTERM, behind which there is nobody in a
    hurry, waits for all files; then Terminated leaves the block. A handler of somebody else's stays; what it raises
    ends the file at work.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._written: list[Path] = []
        self._keeps_rest: Path | None = None
        self._termination = Termination()

    def __enter__(self) -> Self:
        """Let both wait."""
        self._termination.hold()
        self._termination.watch()
        return self

    def keeps_the_rest_in(self, path: Path) -> bool:
        """Whether one more file may be written behind a Ctrl-C, from which those not written can be made."""
        if self._termination.num_interrupts < 2 and path not in self._written:
            self._keeps_rest = path
        return self._keeps_rest is not None

    @contextmanager
    def writing(self, path: Path) -> Iterator[None]:
        """Around the writing of one file; raises KeyboardInterrupt instead if Ctrl-C has come."""
        if self._termination.num_interrupts and path != self._keeps_rest:
            raise KeyboardInterrupt
        yield
        self._written.append(path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Listen no longer, and raise what has waited."""
        is_interrupted = self._termination.num_interrupts > 0
        due = self._termination.forget()
        if isinstance(error, KeyboardInterrupt) or (error is None and is_interrupted):
            raise WritingInterrupted(self._sentence()) from None
        if due is not None and (error is None or due == signal.SIGTERM):
            pass_on(due)

    def _sentence(self) -> str:
        missing = [path for path in self._paths if path not in self._written]
        parts = [
            f"{words} {', '.join(path.name for path in paths)}"
            for words, paths in (("wrote", self._written), ("not written:", missing))
            if paths
        ]
        rest = f" {command_line('report', path.parent)} writes these." if (path := self._kept()) and missing else ""
        return f"Interrupted while writing: {'; '.join(parts)}.{rest}"

    def _kept(self) -> Path | None:
        return self._keeps_rest if self._keeps_rest in self._written else None
