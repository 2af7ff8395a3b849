"""Torch's profiler without its remarks, and the process as it was afterwards."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from tracer.capture.ignored_warnings import ignored
from tracer.capture.torch_private import torch_profiler

# Kineto, the library below the profiler, logs every start and stop of a recording to stderr; 99 is silence. It reads
# the variable once in a process, when a profiler first prepares.
_LOG_LEVEL, _SILENCE = "KINETO_LOG_LEVEL", "99"
# torch says at the end of each cycle that it forgets the events, which are kept here.
_CLEARS = ".*Profiler clears events at the end of each cycle"
# Its Python tracer reads the gradients of every module that is called, also of parameters that are no leaves, as those
# of higher's and torch.func's modules; the line is that of the module's call, which reads none.
_NO_LEAF, _IN_CALL = r"The \.grad attribute of a Tensor that is not a leaf", r"torch\.nn\.modules\.module"
# torch's CPU allocator warns, in C++ and past Python's filters, of a block that is freed under a profiler and was made
# before: of the first one of a process, and then of every thousandth. Each training has such blocks.
_OLDER_BLOCK = b"Memory block of unknown size was allocated before the profiling started"
_has_warned_of_older_blocks = False


@contextmanager
def quiet_profiler() -> Iterator[None]:
    """While the block lasts, torch's profiler says nothing; who has chosen a log level keeps it.

    Filters that others add or remove meanwhile stay as they leave them.
    """
    _warn_of_older_blocks()
    sets_level = _LOG_LEVEL not in os.environ
    if sets_level:
        os.environ[_LOG_LEVEL] = _SILENCE
    try:
        with ignored(_CLEARS), ignored(_NO_LEAF, _IN_CALL):
            yield
    finally:
        if sets_level and os.environ.get(_LOG_LEVEL) == _SILENCE:
            del os.environ[_LOG_LEVEL]


def _warn_of_older_blocks() -> None:
    """Have torch give its first such warning now, where nobody sees it: once in a process, in a fraction of a ms."""
    global _has_warned_of_older_blocks
    if not _has_warned_of_older_blocks:
        _has_warned_of_older_blocks = True
        with without_line(_OLDER_BLOCK):
            torch_profiler.free_an_older_block()


@contextmanager
def without_line(words: bytes) -> Iterator[None]:
    """Keep lines with these words off stderr, whoever in the process writes them; all others come when it ends."""
    try:
        stderr_copy = os.dup(2)
    except OSError:  # there is no stderr
        yield
        return
    try:
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), 2)
            try:
                yield
            finally:
                os.dup2(stderr_copy, 2)
            file.seek(0)
            for line in file.read().splitlines(keepends=True):
                if words not in line:
                    os.write(2, line)
    finally:
        os.close(stderr_copy)
