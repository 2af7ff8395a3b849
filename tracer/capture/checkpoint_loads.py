"""Files that a program loads whole into host memory by `torch.load`, as each rank of a job may do at once."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_ON_HOST = (None, "cpu", torch.device("cpu"))
_followed: dict[str, int] = {}
"""Bytes of each file that was loaded, by its path."""


@dataclass(frozen=True, slots=True)
class LoadedFile:
    """A file that a process has loaded whole into its host memory."""

    path: str
    bytes: int


@contextmanager
def loads_followed() -> Iterator[None]:
    """Within the block calls of `torch.load` are noted, but for those that map a file or load it to a GPU."""
    original = torch.load

    @functools.wraps(original)
    def load(f: Any, map_location: Any = None, *arguments: Any, **options: Any) -> Any:
        if isinstance(f, str | os.PathLike) and _is_on_host(map_location) and not options.get("mmap"):
            _note(Path(os.fspath(f)))
        return original(f, map_location, *arguments, **options)

    torch.load = load
    try:
        yield
    finally:
        if torch.load is load:
            torch.load = original
        _followed.clear()


def loaded_files() -> tuple[LoadedFile, ...]:
    """Return the files loaded so far, the largest first."""
    files = [LoadedFile(path, size_bytes) for path, size_bytes in _followed.items()]
    return tuple(sorted(files, key=lambda file: -file.bytes))


def _is_on_host(map_location: Any) -> bool:
    return isinstance(map_location, str | torch.device | None) and map_location in _ON_HOST


def _note(path: Path) -> None:
    if path.is_file():
        _followed[str(path.absolute())] = path.stat().st_size
