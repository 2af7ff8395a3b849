"""A script that ends its process without Python's own ending, by `os._exit`."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from tracer.sessions.script_run import ScriptProfile

__tracebackhide__ = True  # a line of this file explains nothing about the script

_PACKAGE: Final = __name__.partition(".")[0]  # forks of a trial end by this function


class EndedAtOnce(SystemExit):
    """Raised in the place of the function, so that what is recorded is told; `end` then ends the process."""

    def __init__(self, status: int, end: Callable[[], object]) -> None:
        """Keep what ends the process with this status."""
        super().__init__(status)
        self.end = end


@contextmanager
def ends_noticed(profile: ScriptProfile) -> Iterator[None]:
    """Within the block `os._exit` raises `EndedAtOnce` in the main thread."""
    own: Any = os._exit

    def _exit(status: int) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0]
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or profile.is_in_child or caller == _PACKAGE:
            own(status)
        os._exit = own
        raise EndedAtOnce(status, partial(own, status))

    os._exit = _exit
    try:
        yield
    finally:
        os._exit = own
