"""Whether others can change what is loaded from a folder, by the owners and modes that ssh looks at."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path


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
