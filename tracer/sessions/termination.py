"""Signals that end a program: results are still written, and Ctrl-C leaves none half-written.

SIGTERM, by which torchrun and batch systems end a program, and SIGHUP, which ends it with its terminal, unwind it like
Ctrl-C. All wait while our own code is at work, as does every handler of the program's own: a recording that is half
read is none. Each listener begins and ends, and the last one that began is told of a signal.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, Self, TypeVar

from tracer.capture import deferred_handlers
from tracer.capture.forked_child import in_forked_child
from tracer.errors import Terminated
from tracer.exporters.screen.next_commands import command_line
from tracer.exporters.screen.terminal import say

LIMIT_S: Final = 3.0
"""How long a signal that ends the program may wait for the main thread."""
_LOOK_EVERY_S: Final = 0.1
_OVER: Final = 0  # no signal has this number


class Handling(Enum):
    """How far a signal has come that ends the program."""

    WAITS = "its handler was not called, or the program caught the exception and went on"
    WORKS = "our code is at work, or the exception unwinds the program"
    DONE = "nobody of ours handles it"


class SignalWatch:
    """A thread that signals wake from `start` to `stop`, both called in the main thread: that may be busy.

    It waits in C++ while a backward runs, or for other ranks. A program without handlers would end there at once.

    That the thread wakes is all that a backward needs whose Python code the profiler traces on autograd's own thread:
    CPython 3.11 repeats a traced thread's instruction while a signal is pending, until another thread takes the GIL.
    """

    def __init__(self, handling: Callable[[int], Handling], end: Callable[[int], None]) -> None:
        """Prepare; nothing is switched on.

        Args:
            end: Called in the thread for one that has waited for too long; it ends the program.
        """
        self._handling, self._end = handling, end
        self._reads, self._writes = socket.socketpair()
        self._writes.setblocking(False)
        self._is_over = threading.Event()
        self._before = -1
        self._thread = threading.Thread(target=self._run, name="torch-timeline signals", daemon=True)

    def start(self) -> None:
        """Begin; a descriptor by which the program wakes itself is written to as before."""
        self._before = signal.set_wakeup_fd(self._writes.fileno(), warn_on_full_buffer=False)
        self._thread.start()

    def stop(self) -> None:
        """End."""
        is_ours = self._put_back()
        self._is_over.set()
        with suppress(BlockingIOError):  # it is full: the thread will wake
            self._writes.send(bytes([_OVER]))
        if self._thread.ident is not None:  # else it could not be started
            self._thread.join()
        if is_ours:  # else the program may still put our descriptor back
            self._reads.close()
            self._writes.close()

    def leave_to_parent(self) -> None:
        """Drop the watch in a forked child, which does not have the thread."""
        self._put_back()

    def _put_back(self) -> bool:
        """Put the program's descriptor back; False where it has set another one meanwhile."""
        found = signal.set_wakeup_fd(self._before, warn_on_full_buffer=False)
        if found != self._writes.fileno():
            signal.set_wakeup_fd(found, warn_on_full_buffer=False)
            return False
        return True

    def _run(self) -> None:
        while _OVER not in (numbers := self._reads.recv(64)):
            if self._before != -1:
                with suppress(OSError):
                    os.write(self._before, numbers)
            for number in set(numbers):
                self._see_to_the_end(number)

    def _see_to_the_end(self, number: int) -> None:
        waits_since = time.monotonic()
        while (handling := self._handling(number)) is not Handling.DONE and not self._is_over.wait(_LOOK_EVERY_S):
            if handling is Handling.WORKS:
                waits_since = time.monotonic()
            elif time.monotonic() - waits_since > LIMIT_S:
                self._end(number)
                return


def end_by(number: int) -> None:
    """End the process as an unhandled signal does, from any thread."""
    ctypes.CDLL(None).signal(number, None)  # SIG_DFL; Python's own way is for the main thread alone
    os.kill(os.getpid(), number)


_LAST_WORDS_S: Final = 10.0
"""How long writing may take in a process whose main thread does not come back."""


class Termination:
    """Lets Ctrl-C, SIGTERM and SIGHUP unwind the program like any exception, except while our own code is at work.

    The default of the latter two would end the process on the spot, and with it what was recorded. A handler of the
    program's own stays, and only waits while our code is at work; the default is put back when the last listener ends.
    Before `watch`, and in another thread than the main one, every method does nothing.
    """

    def __init__(self, last_words: Callable[[Terminated], object] | None = None) -> None:
        """Prepare; no signal is listened for.

        Args:
            last_words: Writes what there is, in another thread than the main one, when that does not come back and the
                process is about to end.
        """
        self.last_words = last_words
        self.num_interrupts = 0  # How often Ctrl-C has come since it has to wait
        self.must_wait = self._has_terminated = self._holds_handlers = False  # Whether signals wait
        self._due: int | None = None

    def watch(self) -> None:
        """Turn these signals into KeyboardInterrupt and Terminated in the main thread from now on."""
        if self not in _listeners and threading.current_thread() is threading.main_thread():
            _listen(self)
            global _signal_watch
            if _signal_watch is None:
                _signal_watch = SignalWatch(_handling, _end)
                _signal_watch.start()

    def arrived(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal that has arrived."""
        must_wait = self.must_wait or _is_ending(frame)
        if number == signal.SIGINT:
            self.num_interrupts += must_wait
            if not must_wait or self.num_interrupts == 2:  # a third one does not disturb the cleaning up
                self._due = None if self._due == signal.SIGINT else self._due
                raise KeyboardInterrupt
            self._due = self._due or signal.SIGINT
        elif must_wait:
            self._due = self._due or number
        elif not self._has_terminated or not _unwinds():  # what a first one has set going is not disturbed
            self._has_terminated = True
            raise _noted(Terminated(number))

    def hold(self, error: BaseException | None = None) -> None:
        """Defer signals until `resume` or `close`; a second Ctrl-C is not deferred.

        Args:
            error: The exception that ended the program's work; a KeyboardInterrupt counts as the first Ctrl-C.
        """
        if not self.must_wait:
            self.num_interrupts += isinstance(error, KeyboardInterrupt)
            self.must_wait = True
            self._holds_handlers = deferred_handlers.hold()

    def resume(self) -> None:
        """Wait no longer; raises what has waited."""
        due = self._wait_no_longer()
        try:
            if due is not None:
                self.arrived(due, None)
        finally:
            deferred_handlers.deliver()

    def close(self) -> None:
        """Restore the previous listener and deliver a pending signal to it, or raise it where there is none."""
        due = self.forget()
        try:
            if due is not None:
                pass_on(due)
        finally:
            deferred_handlers.deliver()

    def forget(self) -> int | None:
        """Restore the previous handlers and return the pending signal's number; those handlers are not called."""
        due = self._wait_no_longer()
        if self in _listeners:
            _listen_no_more(self)
        return due

    def _wait_no_longer(self) -> int | None:
        due, self._due = self._due, None
        self.must_wait, self.num_interrupts = False, 0
        if self._holds_handlers:
            self._holds_handlers = False
            deferred_handlers.release()
        return due


@contextmanager
def signals_deferred(error: BaseException | None = None) -> Iterator[None]:
    """While the block lasts, which is work of ours between two of the program's, signals wait: `Termination.hold`."""
    termination = Termination()
    termination.hold(error)
    if threading.current_thread() is threading.main_thread():
        _listen(termination)  # without a thread: the block is short, and may be one of many in a step
    try:
        yield
    finally:
        termination.close()


# ---- one handler for all, and who is told ----------------------------------------------------------------------------
_listeners: list[Termination] = []
_ends: list[Callable[[], object]] = []
_DEFAULTS: dict[int, Callable[..., object] | signal.Handlers] = {
    signal.SIGINT: signal.default_int_handler,
    **{number: signal.SIG_DFL for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None))},
}


_seen: set[int] = set()
_terminated: weakref.ref[Terminated] | None = None
_signal_watch: SignalWatch | None = None


@deferred_handlers.never_defer
def _arrived(number: int, frame: FrameType | None) -> None:
    _seen.add(number)
    if _listeners:
        _listeners[-1].arrived(number, frame)


def pass_on(number: int) -> None:
    """Deliver a pending signal to the previous handler; without one, raise it."""
    if _listeners:
        _listeners[-1].arrived(number, None)
    else:
        raise KeyboardInterrupt if number == signal.SIGINT else _noted(Terminated(number))


def _listen(termination: Termination) -> None:
    if not _listeners:
        _ends.append(in_forked_child(_forget_all))
    _listeners.append(termination)
    for number, default in _DEFAULTS.items():
        if signal.getsignal(number) is default:
            signal.signal(number, _arrived)


def _listen_no_more(termination: Termination) -> None:
    global _signal_watch
    if _listeners == [termination]:
        watch, _signal_watch = _signal_watch, None
        if watch is not None:
            watch.stop()
        _put_defaults_back()
        _ends.pop()()
        _seen.clear()
    _listeners.remove(termination)


def _put_defaults_back() -> None:
    for number, default in _DEFAULTS.items():
        if signal.getsignal(number) is _arrived:
            signal.signal(number, default)


def _forget_all() -> None:
    global _signal_watch
    _listeners.clear()
    _ends.clear()
    _put_defaults_back()
    if _signal_watch is not None:
        _signal_watch.leave_to_parent()
        _signal_watch = None


# ---- where the main thread does not come to handle a signal ----------------------------------------------------------
def _noted(error: Terminated) -> Terminated:
    """Note an exception that ends the program, to see whether the program catches it and goes on."""
    global _terminated
    _terminated = weakref.ref(error)
    return error


def _unwinds() -> bool:
    """Whether the exception that ends the program is under way: a program that catches it and goes on lets it go."""
    return _terminated is not None and _terminated() is not None


def _handling(number: int) -> Handling:
    if number == signal.SIGINT or not _listeners or signal.getsignal(number) is not _arrived:
        return Handling.DONE
    is_seen = number in _seen
    if is_seen and (any(one.must_wait for one in _listeners) or _unwinds()):
        return Handling.WORKS
    return Handling.WAITS


def _end(number: int) -> None:
    """End the process without its main thread, after its listeners have run."""
    error = Terminated(number)
    listeners = list(_listeners)

    def say_all() -> None:
        for one in reversed(listeners):
            if one.last_words is not None:
                one.last_words(error)

    words = threading.Thread(target=say_all, daemon=True)
    words.start()
    words.join(_LAST_WORDS_S)
    say(f"Error: Ended by {error.signal_name}. The script did not come back from the call that it was in.")
    end_by(number)


_Function = TypeVar("_Function", bound=Callable[..., Any])
_uninterrupted: set[CodeType] = set()


def uninterrupted(function: _Function) -> _Function:
    """Mark a function within which signals wait, from its first instruction on: files are at stake."""
    _uninterrupted.add(function.__code__)
    return function


def _is_ending(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code not in _uninterrupted:
        frame = frame.f_back
    return frame is not None


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
    hurry, waits for all files, and so does SIGHUP; then Terminated leaves the block. A handler of the program's own is
    called after the last file.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._written: list[Path] = []
        self._keeps_rest: Path | None = None
        self._termination = Termination()

    def __enter__(self) -> Self:
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

    @uninterrupted
    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Listen no longer, and raise what has waited."""
        is_interrupted = self._termination.num_interrupts > 0
        due = self._termination.forget()
        try:
            if isinstance(error, KeyboardInterrupt) or (error is None and is_interrupted):
                raise WritingInterrupted(self._sentence()) from None
            if due is not None and (error is None or due != signal.SIGINT):
                pass_on(due)
        finally:
            deferred_handlers.deliver()

    def _sentence(self) -> str:
        missing = [path for path in self._paths if path not in self._written]
        parts = [
            f"{words} {', '.join(path.name for path in paths)}"
            for words, paths in (("wrote", self._written), ("not written:", missing))
            if paths
        ]
        kept = self._keeps_rest if self._keeps_rest in self._written else None
        rest = f" {command_line('report', kept.parent)} writes these." if kept is not None and missing else ""
        return f"Interrupted while writing: {'; '.join(parts)}.{rest}"
