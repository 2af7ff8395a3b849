"""Takes the profiler's tracing of Python off autograd's threads, where a signal would have it run for ever.

CPython 3.11 repeats a traced thread's instruction for as long as a signal waits for its handler. Only the main thread
runs handlers, and during a backward that thread waits for autograd's.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Final

REPEATS_INSTRUCTIONS: Final = sys.version_info < (3, 12)
_MAIN_THREAD: Final = 1
"""The first state of a thread that the interpreter makes."""


def leave_untraced() -> None:
    """End the tracing of all threads but the main one; what their Python code does is not recorded any more."""
    api: Any = ctypes.pythonapi
    for name in ("PyInterpreterState_Get", "PyInterpreterState_ThreadHead", "PyThreadState_Next"):
        getattr(api, name).restype = ctypes.c_void_p
    api.PyThreadState_GetID.restype = ctypes.c_uint64
    state = api.PyInterpreterState_ThreadHead(ctypes.c_void_p(api.PyInterpreterState_Get()))
    while state:
        if api.PyThreadState_GetID(ctypes.c_void_p(state)) != _MAIN_THREAD:
            api["_PyEval_SetProfile"](ctypes.c_void_p(state), None, None)
        state = api.PyThreadState_Next(ctypes.c_void_p(state))
