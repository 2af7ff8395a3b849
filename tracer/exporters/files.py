"""Files appear whole or not at all: written beside their place, then moved into it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracer.errors import OutputError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to; it takes the place of `path` when the block ends well, and vanishes when it does not.

    Args:
        path: The file to make or replace. Its folder is made if it is missing.

    Raises:
        OutputError: The folder or file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except OSError as error:
        raise _cannot_write(path, error) from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes files that only the owner may read; a report is as readable as any other new file.
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        OutputError: It cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def remove(path: Path) -> None:
    """Remove a file of an earlier run, if it is there.

    Raises:
        OutputError: It cannot be removed.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise _cannot_write(path, error) from error


def check_folder(folder: Path) -> None:
    """Make sure that files can be written into a folder, without leaving any behind.

    A folder that is missing is not made: the nearest one that exists has to allow it.

    Raises:
        OutputError: They cannot.
    """
    nearest = folder.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir():
        raise OutputError(f"{nearest} is a file, not a folder.", hint="Name another folder with --save-dir.")
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise _cannot_write(folder, error) from error


def _cannot_write(path: Path, error: OSError) -> OutputError:
    reason = error.strerror or str(error)
    return OutputError(f"{path} cannot be written: {reason}.", hint="Name another folder with --save-dir.")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
