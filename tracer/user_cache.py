"""Builds of C code in the user's cache, which no other user can change: each made whole, deleted when unused."""

from __future__ import annotations

import fcntl
import grp
import hashlib
import math
import os
import pwd
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

NUM_KEPT = 4
"""Builds that stay however old they are: the last used."""
UNUSED_SECONDS = 24 * 3600
"""A build that was used since may be a running program's, whose next child process loads it by its path."""


def user_cache() -> Path:
    """Return the folder of all builds, below $XDG_CACHE_HOME or ~/.cache.

    It lies below /tmp for a user without a home, or with one where nothing can be written.
    """
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named, "torch-timeline") if Path(named).is_absolute() else temporary_cache()
    # pathlib's `expanduser` raises where a user has no home.
    home = Path(os.path.expanduser("~"))  # noqa: PTH111
    cache_home = home / ".cache"
    is_writable = home.is_absolute() and os.access(cache_home if cache_home.exists() else home, os.W_OK)
    return cache_home / "torch-timeline" if is_writable else temporary_cache()


def temporary_cache() -> Path:
    """Return the folder of builds of a user whose cache cannot be used."""
    return Path(tempfile.gettempdir(), f"torch-timeline-{os.getuid()}")


def digest_of(options: Iterable[str], sources: Iterable[Path]) -> str:
    """Return 12 digits for a build's name, which change with its options and sources."""
    digest = hashlib.sha256(" ".join(options).encode())
    for path in sorted(sources):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def build_once(build: Path, name: str, make: Callable[[Path], None], *, family: str) -> Path:
    """Return a file of a build, which is made if it is not there: beside, then renamed, so that it is whole.

    Processes that come while it is made wait for the first.

    Args:
        name: A file that each whole build has.
        family: Start of the names of builds that replace each other; see `prune`.

    Raises:
        OSError: The cache cannot be written.
    """
    mark_used(build)
    path = build / name
    if not path.is_file():
        make_private(build.parent)
        with locked(build):
            if not path.is_file():
                temporary = Path(tempfile.mkdtemp(prefix=f".{build.name}-", dir=build.parent))
                try:
                    make(temporary)
                    close_to_others(temporary)
                    if build.exists():
                        shutil.rmtree(build)
                    temporary.rename(build)
                finally:
                    shutil.rmtree(temporary, ignore_errors=True)
                prune(build.parent, family)
    return path


@contextmanager
def locked(build: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """A build's lock, held; the file stays, since one that is deleted would be locked by two.

    Raises:
        OSError: It cannot be written, or another holds it and `how` has LOCK_NB.
    """
    build.parent.mkdir(parents=True, exist_ok=True)
    with build.with_name(f".{build.name}.lock").open("w") as lock:
        fcntl.flock(lock, how)
        yield


def mark_used(build: Path) -> None:
    """Set a build's time of last use; one that is not there, or in a cache that cannot be written, is left alone."""
    if not build.is_dir():
        return
    try:
        with locked(build, fcntl.LOCK_SH):
            os.utime(build)
    except OSError:
        return


def prune(cache: Path, family: str) -> None:
    """Delete the builds of a family that were not used for a day, but for the last used, and what was left half-built.

    One that another process holds, or that is not ours to delete, stays.
    """
    used_before = time.time() - UNUSED_SECONDS
    builds = {path: _used_at(path) for path in _folders(cache, family) if not path.name.startswith(".")}
    there = [path for path, used in builds.items() if used < _GONE]
    for build in sorted(there, key=builds.__getitem__, reverse=True)[NUM_KEPT:]:
        try:
            with locked(build, fcntl.LOCK_EX | fcntl.LOCK_NB):
                if _used_at(build) < used_before:
                    build.rename(build.with_name(f".{build.name}-unused-{os.getpid()}"))
        except OSError:
            continue
    for path in _folders(cache, family):
        if path.name.startswith(".") and ("-unused-" in path.name or _used_at(path) < used_before):
            shutil.rmtree(path, ignore_errors=True)


def _folders(cache: Path, family: str) -> list[Path]:
    return [path for path in cache.iterdir() if path.name.lstrip(".").startswith(family) and path.is_dir()]


_GONE = math.inf


def _used_at(build: Path) -> float:
    """Seconds since 1970; `_GONE` where another process just deleted it."""
    try:
        return build.stat().st_mtime
    except FileNotFoundError:
        return _GONE


def how_others_write(path: Path, *, with_contents: bool = False) -> str | None:
    """Return how users other than this one and root can change what a path names, or None.

    The folders above count as well. In a sticky one, such as /tmp, others cannot replace what is this user's.

    Args:
        path: A file or a folder; one that is missing is looked at from the first folder that is there.
    """
    real = path.resolve()
    inside = real.rglob("*") if with_contents else ()
    for entry in (*reversed(real.parents), real, *inside):
        if (how := _how(entry, is_above=entry in real.parents)) is not None:
            return how
    return None


def make_private(folder: Path) -> None:
    """Create a folder, and those above that are missing, for this user alone."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)


def close_to_others(folder: Path) -> None:
    """Let others not write to a folder and what is in it, whatever the umask was."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))


def _how(path: Path, *, is_above: bool) -> str | None:
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if status.st_uid not in (0, os.getuid()):
        return f"{path} belongs to {_user(status.st_uid)}"
    if stat.S_ISLNK(status.st_mode) or (is_above and status.st_mode & stat.S_ISVTX):
        return None
    if status.st_mode & stat.S_IWOTH:
        return f"all users can write to {path}"
    if status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid):
        return f"others of its group can write to {path}"
    return None


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _is_own_group(number: int) -> bool:
    """True of a group that has this user alone, as many systems make one for each user."""
    try:
        user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(number)
    except KeyError:
        return False
    return group.gr_gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
