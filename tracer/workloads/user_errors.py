"""The one error that a user's model, arguments or input specifications can cause before the first step."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any


class UserModelError(ValueError):
    """A mistake in what was asked for: one sentence, and one hint that says what to do.

    Where user code raised, that exception is the cause, and its traceback says where.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.add_note(f"Hint: {hint}")


class WrongValueError(UserModelError):
    """A value that an option lacks, on whatever machine and with whatever model."""


def defined_at(thing: Any) -> str:
    """` (file.py:12)` where a function, method or class is defined in Python, else nothing."""
    try:
        file, line = inspect.getsourcefile(inspect.unwrap(thing)), inspect.getsourcelines(thing)[1]
    except (TypeError, OSError):
        return ""
    return f" ({_short(file)}:{line})" if file else ""


def _short(file: str) -> str:
    path, folder = Path(file).absolute(), Path.cwd()
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
