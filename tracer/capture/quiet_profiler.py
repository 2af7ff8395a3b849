"""Torch's profiler without its remarks, and the process as it was afterwards."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

# Kineto, the library below the profiler, logs every start and stop of a recording to stderr; 99 is silence. It reads
# the variable once in a process, when a profiler first prepares.
_LOG_LEVEL, _SILENCE = "KINETO_LOG_LEVEL", "99"
# torch says at the end of each cycle that it forgets the events, which are kept here.
_CLEARS = ".*Profiler clears events at the end of each cycle"


@contextmanager
def quiet_profiler() -> Iterator[None]:
    """While the block lasts, torch's profiler says nothing; who has chosen a log level keeps it.

    Filters that others add or remove meanwhile stay as they leave them.
    """
    sets_level = _LOG_LEVEL not in os.environ
    if sets_level:
        os.environ[_LOG_LEVEL] = _SILENCE
    before = list(warnings.filters)
    warnings.filterwarnings("ignore", message=_CLEARS)
    ours = warnings.filters[0]
    try:
        yield
    finally:
        if ours not in before and ours in warnings.filters:
            warnings.filters.remove(ours)  # type: ignore[attr-defined]
        if sets_level and os.environ.get(_LOG_LEVEL) == _SILENCE:
            del os.environ[_LOG_LEVEL]
