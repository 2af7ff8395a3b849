"""Lets go, in a forked child, of everything that its parent began; the child ends as it would have unwatched."""

from __future__ import annotations

import ctypes
import os
import random
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache

_left: dict[object, Callable[[], None]] = {}
_goes_on = False


def in_forked_child(leave: Callable[[], None]) -> Callable[[], None]:
    """Have something called in every child that is forked from now on, before it does anything else.

    Args:
        leave: Lets go of what the child has of its parent's session; what it raises is dropped.
    """
    _watch_forks()
    key = object()
    _left[key] = leave
    return lambda: _left.pop(key, None) and None


def fork_to_go_on() -> int:
    """Fork a child that goes on with everything that this process began, as this process would have; 0 in it.

    What Python changes in a child besides, the state of `random`, is as it was.
    """
    global _goes_on
    state = random.getstate()
    _goes_on = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of other threads, which libraries begin
            child = os.fork()
    finally:
        _goes_on = False
    if child == 0:
        random.setstate(state)
    return child


@cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_begins)


def _begins() -> None:
    if _goes_on:
        return
    leaves = list(_left.values())
    _left.clear()
    for leave in (_end_without_destructors, _leave_profiler, *leaves):
        with suppress(Exception):  # nobody in the child asked for any of it
            leave()


def _leave_profiler() -> None:
    """Stop the parent's profiler in the child; without torch, as when a snapshot is read, there is none."""
    if "torch" in sys.modules:
        from tracer.capture.torch_private import torch_profiler

        torch_profiler.leave_profiler_of_parent()


def _end_without_destructors() -> None:
    """Have the process end right behind Python's own ending and C's last words to its files.

    torch's profiler has a thread that waits. A child has no such thread, and the destructor of what it waits for would
    wait for it for ever. `on_exit` is glibc's; what is registered last runs first.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit") and hasattr(libc, "__cxa_atexit"):
        libc.on_exit(libc._exit, None)
        getattr(libc, "__cxa_atexit")(libc.fflush, None, None)
