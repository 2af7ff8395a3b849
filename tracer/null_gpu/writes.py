"""Files that a program on the null GPU writes: they go to a folder of the run, and it reads them back from there.

`sources/writes.c` redirects paths. Processes that the program starts are redirected by their environment.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from tracer.loaded_modules import when_loaded
from tracer.null_gpu.process import is_active

LOCK: Final = ".null-gpu-lock"
"""A file in such a folder, by which one of an earlier run is known."""
_MARK: Final = "/.//"
_PATH_MAX: Final = 4096
_OWN_NAMES: Final = ".null-gpu-"
_VARIABLES: Final = ("NULL_GPU_WRITES", "NULL_GPU_WRITES_ZONES", "NULL_GPU_WRITES_FIRST")
_CACHES: Final = (
    "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TRITON_HOME", "TORCH_HOME", "TORCH_EXTENSIONS_DIR", "HF_HOME",
    "HF_HUB_CACHE", "HF_DATASETS_CACHE", "MPLCONFIGDIR", "NUMBA_CACHE_DIR", "PYTHONPYCACHEPREFIX",
)  # fmt: skip


@cache
def _library() -> Any:
    """The null GPU's functions; None where this process does not run on it, or has loaded it too late to redirect."""
    return ctypes.CDLL(None) if is_active() else None


def begin(folder: Path, aside: Iterable[Path], in_place: Iterable[Path], first_rank: Path | None = None) -> None:
    """Redirect what this process and those that it starts write from now on.

    In the temporary folder, what is made there for a while is not redirected.

    Args:
        folder: An empty folder of this run's own, which mirrors absolute paths.
        aside: Folders whose files are redirected though they may be in the temporary folder; the program's own first.
        in_place: Folders that are not redirected, beside the user's caches.
        first_rank: The same folder of a job's rank 0, for files of a checkpoint that all ranks write together.
    """
    temporary = {os.path.realpath(path) for path in (tempfile.gettempdir(), "/tmp", "/var/tmp")}
    redirected = [f"+{path}" for path in map(os.path.realpath, aside) if path not in temporary]
    others = [f"-{os.path.realpath(path)}" for path in (*in_place, *_caches())] + [f"~{path}" for path in temporary]
    zones = [*redirected[:1], *others, *redirected[1:]]  # of two that are one folder, the first counts
    values = (os.path.realpath(folder), "\n".join(zones), os.path.realpath(first_rank) if first_rank else "")
    os.environ.update(zip(_VARIABLES, values, strict=True))
    _library().null_gpu_writes_begin(*map(os.fsencode, values))


def redirect_safetensors() -> None:
    """Have safetensors write where `begin` says: it renames its files by system calls of its own."""
    if _library() is not None:
        when_loaded("safetensors", _redirect_safetensors)


def _redirect_safetensors(safetensors: Any) -> None:
    original = safetensors.serialize_file
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def serialize_file(tensors: Any, filename: Any, *rest: Any, **options: Any) -> Any:
        return original(tensors, _path_to_write(filename), *rest, **options)

    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "safetensors" and getattr(module, "serialize_file", None) is original:
            module.serialize_file = serialize_file  # type: ignore[attr-defined]


def _path_to_write(path: Any) -> str:
    found = ctypes.create_string_buffer(_PATH_MAX)
    if error := _library().null_gpu_writes_path(os.fsencode(path), found):
        raise OSError(error, os.strerror(error), os.fspath(path))
    return os.fsdecode(found.value)


def _caches() -> list[Path]:
    home = Path.home()
    named = [os.environ.get("XDG_CACHE_HOME") or home / ".cache", *map(os.environ.get, _CACHES)]
    return [*(Path(path) for path in named if path), home / ".triton", home / ".nv"]


def of_child(folder: Path) -> None:
    """Redirect a forked child's files to a copy of its parent's folder, which it does not share with the next child."""
    os.environ[_VARIABLES[0]] = os.path.realpath(folder)
    _library().null_gpu_writes_begin(*(os.fsencode(os.environ[name]) for name in _VARIABLES))


def end() -> None:
    """Processes that are started from now on are not redirected."""
    for name in _VARIABLES:
        os.environ.pop(name, None)
    _library().null_gpu_writes_forget_variables()


def hold(change: int) -> None:
    """Above zero in sum, this thread's files are where their paths say."""
    if (library := _library()) is not None:
        library.null_gpu_writes_pause(change)


@contextmanager
def own_files() -> Iterator[None]:
    """Within the block, files that this thread opens are where their paths say, as this program's own are."""
    hold(1)
    try:
        yield
    finally:
        hold(-1)


def mirror(written_before: Path, folder: Path) -> None:
    """Begin an empty folder with what another one has; its files are copied when they are changed."""
    for path, mode in reversed(list(_entries(written_before))):
        target = folder / path.relative_to(written_before)
        if stat.S_ISDIR(mode):
            target.mkdir()
        elif stat.S_ISLNK(mode):
            os.symlink(os.readlink(path), target)  # noqa: PTH115, PTH211  # see `tidy`
        elif path.name == LOCK:
            shutil.copy(path, target)
        else:
            os.symlink(_MARK + os.path.realpath(path)[1:], target)  # noqa: PTH211


def written(folder: Path) -> list[Path]:
    """The files in such a folder that the program wrote; links of its own are none."""
    return sorted(
        path for path, mode in _entries(folder) if stat.S_ISREG(mode) and not path.name.startswith(_OWN_NAMES)
    )


def tidy(folder: Path) -> None:
    """Remove the links and empty folders that redirecting needs, but for `LOCK`."""
    for path, mode in _entries(folder):
        if stat.S_ISDIR(mode):
            with suppress(OSError):  # it has files
                path.rmdir()
        elif stat.S_ISLNK(mode):
            target = os.readlink(path)  # noqa: PTH115  # Path takes the mark for a longer spelling of "/"
            if target.startswith(_MARK):
                path.unlink()


def _entries(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield every entry below a folder with its mode, the deepest first; links are never followed."""
    for path in list(folder.iterdir()):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            yield from _entries(path)
        yield path, mode
