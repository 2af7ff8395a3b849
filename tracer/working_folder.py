"""The folder that a program works in, which it may change and delete."""

from __future__ import annotations

from pathlib import Path


def current_folder() -> Path | None:
    """Return the working folder, or None where it has been deleted."""
    try:
        return Path.cwd()
    except OSError:
        return None


_START = current_folder() or Path("/")


def working_folder() -> Path:
    """Return the working folder; the one in which this program began where that has been deleted."""
    return current_folder() or _START


class AnchoredPath:
    """A path that stays the same place when the program changes or deletes its working folder."""

    def __init__(self, path: Path) -> None:
        """Remember the working folder."""
        self._path, self._start = path, working_folder()

    def now(self) -> Path:
        """Return the path as it was given where that is still the same place, else from the root."""
        return self._path if current_folder() == self._start else self._start / self._path
