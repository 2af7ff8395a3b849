"""A script that ends its process without Python's own ending, by `os._exit`, or puts another program in its place."""

from __future__ import annotations

import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import Any, Final

from tracer.exporters.screen.console import Console
from tracer.sessions.script_run import ScriptProfile

__tracebackhide__ = True  # a line of this file explains nothing about the script

_EXIT: Final = "_exit"
_ENDS: Final = (_EXIT, "execv", "execve")  # Python's other functions of these kinds call them
_PACKAGE: Final = __name__.partition(".")[0]  # forks of a trial end by these functions


class EndedAtOnce(SystemExit):
    """Raised in the place of the function, so that what is recorded is told; `end` then ends the process."""

    def __init__(self, status: int, end: Callable[[], object]) -> None:
        """Keep what ends the process with this status, or replaces it."""
        super().__init__(status)
        self.end = end


@contextmanager
def ends_noticed(profile: ScriptProfile, console: Console) -> Iterator[None]:
    """Within the block these functions raise `EndedAtOnce` in the main thread; that a program is replaced is said."""
    functions: dict[str, Any] = {name: getattr(os, name) for name in _ENDS}

    def put_back() -> None:
        for name, own in functions.items():
            setattr(os, name, own)

    def end(name: str, *arguments: Any, **named: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0]
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or profile.is_in_child or caller == _PACKAGE:
            return functions[name](*arguments, **named)
        put_back()
        given = signature(functions[name]).bind(*arguments, **named).arguments
        if name != _EXIT:
            command = shlex.join(map(os.fsdecode, given["argv"]))
            console.say(
                f"Note: The script has put another program in its place. To explain that one, give it: {command}"
            )
        raise EndedAtOnce(given.get("status", 0), partial(functions[name], *arguments, **named))

    for name in functions:
        setattr(os, name, partial(end, name))
    try:
        yield
    finally:
        put_back()
