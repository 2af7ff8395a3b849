"""Files appear whole or not at all: written beside their place, then moved into it."""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tracer.errors import OutputError
from tracer.null_gpu.writes import own_files
from tracer.working_folder import working_folder

_BLOCK_BYTES = 4096


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to; it takes the place of `path` when the block ends well, and vanishes when it does not.

    Raises:
        OutputError: The folder or file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with own_files():
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.touch(exist_ok=False)
            yield temporary
            temporary.replace(path)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        # Where it cannot be removed, it could not be made either, which is the error to tell.
        with suppress(OSError), own_files():
            temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all."""
    data = content.encode() if isinstance(content, str) else content
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, values: Mapping[str, object]) -> None:
    """Write a JSON document whole or not at all."""
    write_atomically(path, json.dumps(values, indent=1) + "\n")


def remove(path: Path) -> None:
    """Remove a file of an earlier run, if it is there."""
    try:
        with own_files():
            path.unlink(missing_ok=True)
    except OSError as error:
        raise _cannot_write(path, error) from error


def check_folder(folder: Path) -> None:
    """Make sure that files can be written into a folder, without leaving any behind.

    A folder that is missing is not made: the nearest one that exists has to allow it.

    Raises:
        OutputError: They cannot.
    """
    with own_files():
        nearest = working_folder() / folder
        while not nearest.exists():
            if nearest.is_symlink():
                raise OutputError(
                    f"{nearest} is a link that leads nowhere.", hint="Name another folder with --save-dir."
                )
            nearest = nearest.parent
        if not nearest.is_dir():
            raise OutputError(f"{nearest} is a file, not a folder.", hint="Name another folder with --save-dir.")
        try:
            with tempfile.TemporaryFile(dir=nearest) as file:
                file.write(bytes(_BLOCK_BYTES))  # a full disk takes an empty file
        except OSError as error:
            raise _cannot_write(folder, error) from error


def _cannot_write(path: Path, error: OSError) -> OutputError:
    reason = error.strerror or str(error)
    return OutputError(f"{path} cannot be written: {reason}.", hint="Name another folder with --save-dir.")
