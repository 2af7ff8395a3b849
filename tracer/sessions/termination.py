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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from types import CodeType, FrameType
from typing import Any, Final, TypeVar

from tracer.capture import deferred_handlers
from tracer.capture.forked_child import in_forked_child
from tracer.errors import Terminated
from tracer.exporters.screen.terminal import say

LIMIT_S: Final = 3.0
"""Longest time that a signal which ends the program may wait for the main thread."""
_LOOK_EVERY_S: Final = 0.1
_OVER: Final = 0  # no signal has this number


class Handling(Enum):
    """Progress of a signal that ends the program."""

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


_LAST_WORDS_S: Final = 10.0
"""Longest time of writing in a process whose main thread does not come back."""


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

    @property
    def is_due(self) -> bool:
        """True if a signal waits here."""
        return self._due is not None

    def watch(self) -> None:
        """Turn these signals into KeyboardInterrupt and Terminated in the main thread from now on."""
        if self not in SIGNALS.listeners and threading.current_thread() is threading.main_thread():
            SIGNALS.listen(self)
            SIGNALS.watch()

    def arrived(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal that has arrived."""
        must_wait = self.must_wait or SIGNALS.is_uninterrupted(frame)
        if number == signal.SIGINT:
            self.num_interrupts += must_wait
            if not must_wait or self.num_interrupts == 2:  # a third one does not disturb the cleaning up
                self._due = None if self._due == signal.SIGINT else self._due
                raise KeyboardInterrupt
            self._due = self._due or signal.SIGINT
        elif must_wait:
            self._due = self._due or number
        elif not self._has_terminated or not SIGNALS.unwinds:  # what a first one has set going is not disturbed
            self._has_terminated = True
            raise SIGNALS.noted(Terminated(number))

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
            if due is not None and SIGNALS.listeners:
                SIGNALS.listeners[-1].arrived(due, None)
            elif due is not None:
                raise KeyboardInterrupt if due == signal.SIGINT else SIGNALS.noted(Terminated(due))
        finally:
            deferred_handlers.deliver()

    def forget(self) -> int | None:
        """Restore the previous handlers and return the pending signal's number; those handlers are not called."""
        due = self._wait_no_longer()
        if self in SIGNALS.listeners:
            SIGNALS.listen_no_more(self)
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
        SIGNALS.listen(termination)  # without a thread: the block is short, and may be one of many in a step
    try:
        yield
    finally:
        termination.close()


class ProcessSignals:
    """The process's handler of the signals that end it, and who is told of one: the listener that began last.

    Attributes:
        listeners: Those that have begun and not ended.
    """

    def __init__(self) -> None:
        self.listeners: list[Termination] = []
        self._defaults: dict[int, Callable[..., object] | signal.Handlers] = {
            signal.SIGINT: signal.default_int_handler,
            **{number: signal.SIG_DFL for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None))},
        }
        self._handler = deferred_handlers.never_defer(self._arrived)  # One object, by which `getsignal` is compared
        self._forget_forks: Callable[[], object] = lambda: None
        self._seen: set[int] = set()  # Signals that have arrived
        self._uninterrupted: set[CodeType] = set()
        self._terminated: weakref.ref[Terminated] | None = None
        self._watch: SignalWatch | None = None

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        self._seen.add(number)
        if self.listeners:
            self.listeners[-1].arrived(number, frame)

    @property
    def is_one_waiting(self) -> bool:
        """True if a signal has arrived that waits for work of ours."""
        return any(listener.is_due for listener in self.listeners)

    def listen(self, termination: Termination) -> None:
        """Tell a listener of signals from now on; a handler of the program's own stays."""
        if not self.listeners:
            self._forget_forks = in_forked_child(self._leave_to_parent)
        self.listeners.append(termination)
        for number, default in self._defaults.items():
            if signal.getsignal(number) is default:
                signal.signal(number, self._handler)

    def listen_no_more(self, termination: Termination) -> None:
        """End that; with the last listener, restore the defaults."""
        if self.listeners == [termination]:
            watch, self._watch = self._watch, None
            if watch is not None:
                watch.stop()
            self._put_defaults_back()
            self._forget_forks()
            self._seen.clear()
        self.listeners.remove(termination)

    def watch(self) -> None:
        """End the program where its main thread does not come to handle a signal."""
        if self._watch is None:
            self._watch = SignalWatch(self._handling, self._end)
            self._watch.start()

    def _put_defaults_back(self) -> None:
        for number, default in self._defaults.items():
            if signal.getsignal(number) is self._handler:
                signal.signal(number, default)

    def _leave_to_parent(self) -> None:
        self.listeners.clear()
        self._put_defaults_back()
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.leave_to_parent()

    # -------------------------------------------------------------------- where the main thread does not come to it
    def noted(self, error: Terminated) -> Terminated:
        """Note an exception that ends the program, to see whether the program catches it and goes on."""
        self._terminated = weakref.ref(error)
        return error

    @property
    def unwinds(self) -> bool:
        """True while the exception that ends the program propagates; a program that catches it and goes on drops it."""
        return self._terminated is not None and self._terminated() is not None

    def _handling(self, number: int) -> Handling:
        if number == signal.SIGINT or not self.listeners or signal.getsignal(number) is not self._handler:
            return Handling.DONE
        if number in self._seen and (any(one.must_wait for one in self.listeners) or self.unwinds):
            return Handling.WORKS
        return Handling.WAITS

    def _end(self, number: int) -> None:
        """End the process without its main thread, after its listeners have run."""
        error = Terminated(number)
        listeners = list(self.listeners)

        def say_all() -> None:
            for one in reversed(listeners):
                if one.last_words is not None:
                    one.last_words(error)

        words = threading.Thread(target=say_all, daemon=True)
        words.start()
        words.join(_LAST_WORDS_S)
        say(f"Error: Ended by {error.signal_name}. The script did not come back from the call that it was in.")
        ctypes.CDLL(None).signal(number, None)  # SIG_DFL; Python's own way is for the main thread alone
        os.kill(os.getpid(), number)

    # ---------------------------------------------------------------------------------- functions that files depend on
    def leave_uninterrupted(self, code: CodeType) -> None:
        """Have signals wait within a function."""
        self._uninterrupted.add(code)

    def is_uninterrupted(self, frame: FrameType | None) -> bool:
        """True if a frame is within a function of `leave_uninterrupted`."""
        while frame is not None and frame.f_code not in self._uninterrupted:
            frame = frame.f_back
        return frame is not None


SIGNALS: Final = ProcessSignals()
"""One object, since a process has one table of handlers, which a signal finds without an argument."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


def uninterrupted(function: _Function) -> _Function:
    """Mark a function within which signals wait, from its first instruction on: files are at stake."""
    SIGNALS.leave_uninterrupted(function.__code__)
    return function
