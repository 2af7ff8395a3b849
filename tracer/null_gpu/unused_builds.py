"""Which of the null GPU's builds are no longer needed: each torch and each version of ours leaves one in the cache."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NUM_KEPT = 4
"""Builds that stay however old they are: the last used."""
UNUSED_SECONDS = 24 * 3600
"""A build that was used since may be a running program's, whose next child process loads it by its path."""


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
    """A build is used now; a cache that cannot be written, or a build that is not there, has nothing to mark."""
    if not build.is_dir():
        return
    try:
        with locked(build, fcntl.LOCK_SH):
            os.utime(build)
    except OSError:
        return


def prune(cache: Path) -> None:
    """Delete the builds in a folder that were not used for a day, but for the last used, and what was left half-built.

    One that another process holds, or that is not ours to delete, stays.
    """
    used_before = time.time() - UNUSED_SECONDS
    builds = [path for path in _folders(cache) if not path.name.startswith(".")]
    for build in sorted(builds, key=_used_at, reverse=True)[NUM_KEPT:]:
        try:
            with locked(build, fcntl.LOCK_EX | fcntl.LOCK_NB):
                if _used_at(build) < used_before:
                    build.rename(build.with_name(f".{build.name}-unused-{os.getpid()}"))
        except OSError:
            continue
    for path in _folders(cache):
        if path.name.startswith(".") and ("-unused-" in path.name or _used_at(path) < used_before):
            shutil.rmtree(path, ignore_errors=True)


def _folders(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.name.lstrip(".").startswith("torch") and path.is_dir()]


def _used_at(build: Path) -> float:
    """Seconds since 1970; now where another process just deleted it."""
    try:
        return build.stat().st_mtime
    except FileNotFoundError:
        return time.time()
