"""Commits of a repository as folders to run a script in: a worktree each, in a folder of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import unquote, urlparse

from tracer.errors import TracerError

_OURS = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit."""

    number: str  # The whole hash
    short: str
    subject: str

    @property
    def words(self) -> str:
        """Return `abc1234 Its subject`."""
        return f"{self.short} {self.subject}".rstrip()


@dataclass(frozen=True, slots=True)
class Repository:
    """The repository that the working folder is in."""

    root: Path
    prefix: str  # The working folder within it, empty at its root

    @staticmethod
    def here() -> Repository:
        """Return the repository of the working folder.

        Raises:
            TracerError: It is in none, or there is no git.
        """
        hint = "Name commits within a git repository, or versions with --between."
        root, prefix = _git("rev-parse", "--show-toplevel", hint=hint), _git("rev-parse", "--show-prefix", hint=hint)
        return Repository(Path(root), prefix.rstrip("/"))

    def commits(self, good: str, bad: str) -> list[Commit]:
        """Return the commits from a good to a bad one, both included; of a merge its first parent comes before it.

        Raises:
            TracerError: There is no such commit, or the good one is no ancestor of the bad one.
        """
        hint = "Name two commits, branches or tags, as in v1.0..main."
        verify = ("rev-parse", "--verify", "--end-of-options")
        first, last = (_git(*verify, f"{name}^{{commit}}", hint=hint) for name in (good, bad))
        common = _git("merge-base", first, last, hint="Name two commits with a common history.")
        if common != first:
            raise TracerError(f"{good} is not an ancestor of {bad}.", hint=f"Begin where they part: {common[:12]}.")
        log = ("log", "--format=%H %h %s")
        lines = [_git(*log, "-1", first)]
        lines += _git(*log, "--reverse", "--first-parent", f"{first}..{last}").splitlines()
        return [Commit(*line.split(" ", 2)) for line in lines]

    def branch_of_merge(self, commit: Commit) -> str | None:
        """Return the range of the commits that a merge brought; None of another commit."""
        parents = _git("rev-list", "--parents", "-n1", commit.number).split()[1:]
        if len(parents) < 2:
            return None
        return f"{_git('merge-base', *parents[:2])[:12]}..{parents[1][:12]}"

    @contextmanager
    def checked_out(self, commit: Commit, folder: Path) -> Iterator[Path]:
        """Within the block a new folder has the files of a commit; the repository's own checkout is not touched."""
        tree = folder / commit.short / self.root.name  # the diff of two peaks matches files by their folder's name
        no_hooks = ("-c", f"core.hooksPath={os.devnull}")
        _git(*no_hooks, "worktree", "add", "--quiet", "--detach", str(tree), commit.number)
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))

    def word_in(self, tree: Path, word: str) -> str:
        """Return a word of a command, where it is the path of a file of this repository that path in another tree."""
        path = Path(word)
        if not path.is_absolute() or not path.is_relative_to(self.root):
            return word
        there = tree / path.relative_to(self.root)
        return str(there) if there.exists() else word

    def import_path(self, tree: Path) -> str:
        """Return PYTHONPATH with which packages that are installed from this repository come from another tree."""
        folders = [tree / folder.relative_to(self.root) for folder in self._imported_from()]
        known = os.environ.get("PYTHONPATH")
        return os.pathsep.join([*map(str, dict.fromkeys(folders)), *([known] if known else [])])

    def _imported_from(self) -> Iterator[Path]:
        """Folders of this repository that Python looks for modules in, those of editable installs among them."""
        for entry in map(Path, sys.path[1:]):
            if self._has(entry) and not entry.is_relative_to(sys.prefix) and entry.resolve() != _OURS:
                yield entry
        for installed in distributions():
            origin = json.loads(installed.read_text("direct_url.json") or "{}")
            folder = Path(unquote(urlparse(origin.get("url", "")).path))
            if origin.get("dir_info", {}).get("editable") and self._has(folder):
                yield from (folder / "src", folder)

    def _has(self, folder: Path) -> bool:
        return folder.is_absolute() and folder.is_relative_to(self.root)


def _git(*words: str, hint: str = "") -> str:
    try:
        done = subprocess.run(
            ["git", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise TracerError("git cannot be started.", hint=hint or "Install git.") from error
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"git {words[0]} failed"])[-1]
        raise TracerError(f"{reason.removeprefix('fatal: ').rstrip('.')}.", hint=hint)
    return done.stdout.rstrip("\n")
