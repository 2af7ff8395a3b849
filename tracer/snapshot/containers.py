"""Containers of snapshots: gzip, xz, bzip2, Zstandard, or a zip archive such as torch.save's."""

from __future__ import annotations

import bz2
import errno
import gzip
import importlib
import io
import lzma
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, cast

from tracer.errors import SnapshotError

ZIP_MAGIC: Final = b"PK\x03\x04"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_MAGICS: Final = ((b"\x1f\x8b", "gzip"), (b"\xfd7zXZ\x00", "xz"), (b"BZh", "bzip2"), (_ZSTD_MAGIC, "zstd"))
# How many times larger a snapshot may become. Measured on 3 MB with deep stacks: gzip 17, zstd 18, bzip2 26, xz 28.
_FACTORS: Final = {"gzip": 60, "xz": 200, "bzip2": 200, "zstd": 200, "zip": 60}
_ZSTD_MODULES: Final = ("compression.zstd", "pyzstd", "zstandard", "backports.zstd")


def packing(path: Path) -> str:
    """Return a file's container by its content, not its name; "" without one."""
    with path.open("rb") as file:
        head = file.read(8)
    if head.startswith(ZIP_MAGIC):
        return "zip"
    return next((name for magic, name in _MAGICS if head.startswith(magic)), "")


def packed_factor(path: Path) -> int:
    """How many times larger the content of an honest file may be."""
    return _FACTORS.get(packing(path), 1)


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The unpacked content of a file, with `peek`.

    Raises:
        SnapshotError: It is packed in something that cannot be opened here.
    """
    kind = packing(path)
    with path.open("rb") as file:
        if kind == "zip":
            with _in_archive(file, path) as member:
                yield member
        elif kind:
            # A reader of gzip has `peek`, the others need a buffer.
            with _unpacker(kind, file, path) as unpacked:
                yield unpacked if hasattr(unpacked, "peek") else io.BufferedReader(cast(Any, unpacked))
        else:
            yield file


def why_no_file(path: Path) -> str:
    """Return, as the end of a sentence, why a path is no ordinary file."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "does not exist"
    except OSError as error:
        is_loop = error.errno == errno.ELOOP
        return "is a link that leads back to itself" if is_loop else f"cannot be looked at: {error.strerror}"
    return "is a directory" if stat.S_ISDIR(mode) else "is no file, but a pipe or a device"


def _unpacker(kind: str, file: IO[bytes], path: Path) -> IO[bytes]:
    if kind == "gzip":
        return cast(IO[bytes], gzip.open(file, "rb"))
    if kind == "xz":
        return cast(IO[bytes], lzma.open(file, "rb"))
    if kind == "bzip2":
        return cast(IO[bytes], bz2.open(file, "rb"))
    return _zstd(file, path)


def _zstd(file: IO[bytes], path: Path) -> IO[bytes]:
    for name in _ZSTD_MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        return cast(IO[bytes], module.open(file, "rb"))
    raise SnapshotError(
        f"{path} is packed with Zstandard, which this Python cannot open.", hint="Unpack it first: zstd -d FILE."
    )


@contextmanager
def _in_archive(file: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    """The only member, or torch.save's `data.pkl`."""
    try:
        archive = zipfile.ZipFile(file)
        names = [name for name in archive.namelist() if not name.endswith("/")]
        chosen = [name for name in names if name.endswith("/data.pkl") or name == "data.pkl"] or names
        if names and all(name.endswith(".npy") for name in names):
            raise SnapshotError(
                f"{path} holds numpy's arrays, as a kept recording does, and is not an allocator snapshot.",
                hint="The command `report` reads kept recordings; a snapshot may lie beside it.",
            )
        if len(chosen) != 1:
            raise SnapshotError(
                f"{path} is a zip archive with {len(chosen)} files.", hint="Unpack it and name the snapshot."
            )
        with archive.open(chosen[0]) as member:
            yield io.BufferedReader(cast(Any, member))
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        # An unknown compression or a password.
        raise SnapshotError(
            f"{path} is a zip archive that cannot be read ({error}).", hint="Unpack it first."
        ) from error
