"""A script that ends its process without Python's own ending, by `os._exit`, or puts another program in its place."""

from __future__ import annotations

import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from tracer.command_line import flush_output
from tracer.exporters.screen.console import Console
from tracer.sessions.script_run import ScriptProfile

__tracebackhide__ = True  # a line of this file explains nothing about the script

_EXECV, _EXECVE, _EXIT = "execv", "execve", "_exit"  # Python's other functions of these kinds call them
_MODULE: Final = "-m"
_PACKAGE: Final = __name__.partition(".")[0]  # forks of a trial end by these functions


class EndedAtOnce(SystemExit):
    """Raised in the place of the function, so that what is recorded is told; `end` then ends the process."""

    def __init__(self, status: int, end: Callable[[], object]) -> None:
        """Keep what ends the process with this status, or replaces it."""
        super().__init__(status)
        self.end = end


@contextmanager
def ends_noticed(profile: ScriptProfile, words: Sequence[str], console: Console, *, is_module: bool) -> Iterator[None]:
    """Within the block these functions raise `EndedAtOnce` in the main thread.

    A program that begins anew before anything was recorded is followed: the command begins anew with it.

    Args:
        words: The script, or the module's name, and its arguments, which end this command.
    """
    functions: dict[str, Any] = {name: getattr(os, name) for name in (_EXECV, _EXECVE, _EXIT)}

    def is_scripts() -> bool:
        caller = str(sys._getframe(2).f_globals.get("__name__")).partition(".")[0]
        is_main = threading.current_thread() is threading.main_thread()
        return is_main and not profile.is_in_child and caller != _PACKAGE

    def replaced(path: Any, arguments: Sequence[Any], variables: Mapping[Any, Any]) -> NoReturn:
        other = [os.fsdecode(word) for word in arguments]
        _put_back(functions)
        if profile.session is None and (command := _followed(other, words, is_module=is_module)) is not None:
            flush_output()
            functions[_EXECVE](sys.executable, command, variables)
        console.say(
            f"Note: The script has put another program in its place, which is not followed: {shlex.join(other)}"
        )
        raise EndedAtOnce(0, partial(functions[_EXECVE], path, arguments, variables))

    def execv(path: Any, arguments: Sequence[Any], /) -> Any:
        return replaced(path, arguments, os.environ) if is_scripts() else functions[_EXECV](path, arguments)

    def execve(path: Any, argv: Sequence[Any], env: Mapping[Any, Any]) -> Any:
        return replaced(path, argv, env) if is_scripts() else functions[_EXECVE](path, argv, env)

    def _exit(status: int) -> Any:
        if not is_scripts():
            functions[_EXIT](status)
        _put_back(functions)
        raise EndedAtOnce(status, partial(functions[_EXIT], status))

    for function in (execv, execve, _exit):
        setattr(os, function.__name__, function)
    try:
        yield
    finally:
        _put_back(functions)


def _put_back(functions: Mapping[str, Any]) -> None:
    for name, function in functions.items():
        setattr(os, name, function)


def _followed(other: Sequence[str], words: Sequence[str], *, is_module: bool) -> list[str] | None:
    """Return this command with the script that another command line starts, if it is Python's and of the same kind."""
    own, num_words = list(sys.orig_argv), len(words)
    is_python = bool(other) and Path(other[0]).name.startswith("python")
    if not is_python or own[-num_words:] != [*words]:
        return None
    if is_module:
        return [*own[:-num_words], *other[2:]] if other[1:2] == [_MODULE] else None
    return [*own[:-num_words], *other[1:]] if len(other) > 1 and Path(other[1]).is_file() else None
