"""Versions to run a script in: commits as worktrees, packages as environments, and two files of requirements."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distributions, requires
from itertools import chain
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlparse

from tracer.errors import TracerError, UsageError
from tracer.user_cache import build_once, digest_of, how_others_write, user_cache

_MOST_VERSIONS = 1000
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?=\s*(?:$|[\[(@;=<>!~]))")
_BETWEEN = re.compile(r"(?P<package>[A-Za-z0-9._-]+(?:\[[\w,.-]+\])?)==(?P<versions>[\w.!+-]+(?:,[\w.!+-]+)+)")


def versions_between(text: str) -> tuple[str, ...]:
    """Return requirements in order, the first of them good: `grows==1.9`, `grows==1.10`, ... of `grows==1.9,2.0`.

    Two versions are the ends, more are all that are tried.

    Raises:
        UsageError: It is written in another way.
        TracerError: uv is missing, or finds no versions between the two.
    """
    found = _BETWEEN.fullmatch(text.replace(" ", ""))
    if found is None:
        raise UsageError(
            f"{text!r} does not name a package and two versions.", hint="Write --between transformers==4.56,4.57."
        )
    package, versions = found["package"], found["versions"].split(",")
    tried = versions if len(versions) > 2 else _all_between(package, *versions)
    return tuple(f"{package}=={version}" for version in tried)


def python_with(requirements: Sequence[str]) -> Path:
    """Return the Python of an environment that has these packages, and all else as this process has it.

    What a package needs is there in the version that this process has, or in another where it refuses that one. torch
    is this process's, unless a requirement names it.

    Args:
        requirements: Lines of a file of requirements, which may name an index too.

    Raises:
        TracerError: uv is missing, or cannot install it.
    """
    installed = _installed()
    folder = user_cache() / "environments" / digest_of([sys.executable, *requirements, *sys.path, *installed], ())
    if (problem := how_others_write(folder)) is not None:
        raise TracerError(
            f"Environments are not kept where others can write: {problem}.",
            hint="Set XDG_CACHE_HOME to a folder that only you can write.",
        )
    return build_once(folder, "bin/python", lambda made: _make(made, requirements, installed), family="")


def _make(folder: Path, requirements: Sequence[str], installed: Sequence[str]) -> None:
    _uv("venv", "--quiet", "--python", sys.executable, str(folder))
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "of_this_process.pth").write_text("\n".join(filter(os.path.isabs, sys.path)), encoding="utf-8")
    named = {package_name(requirement) for requirement in requirements}
    constraints = [one for one in installed if package_name(one) not in named]
    excluded = [] if "torch" in named else ["torch"]
    files = {"requirements": requirements, "constraints": constraints, "excludes": excluded}
    for name, lines in files.items():
        (folder / f"{name}.txt").write_text("\n".join(lines), encoding="utf-8")
    words = [word for name in ("requirements", "excludes") for word in (f"--{name}", str(folder / f"{name}.txt"))]
    install = ("pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), *words)
    try:
        _uv(*install, "--constraints", str(folder / "constraints.txt"))
    except TracerError:
        _uv(*install)


def package_name(requirement: str) -> str | None:
    """Return the normal name of the package that a line names, as `flash-attn` of `Flash_Attn[x]>=2`; None if none."""
    found = _NAME.match(requirement)
    return None if found is None else normal_name(found[0])


def normal_name(package: str) -> str:
    """Return the spelling of a package's name in which names are compared.

    Source:
        packaging.python.org, "Names and normalization".
    """
    return re.sub(r"[-_.]+", "-", package).lower()


def _installed() -> list[str]:
    """Return this process's packages as `name==version`, without those that no index has, such as editable ones."""
    public = (one for one in distributions() if one.read_text("direct_url.json") is None and "+" not in one.version)
    return sorted({f"{normal_name(one.name)}=={one.version}" for one in public})


def _all_between(package: str, first: str, last: str) -> list[str]:
    """Return the two versions and those between them, from the newest down."""
    versions = [last]
    while len(versions) < _MOST_VERSIONS and (below := _newest(f"{package}>{first},<{versions[0]}")) is not None:
        versions.insert(0, below)
    return [first, *versions]


def _newest(requirement: str) -> str | None:
    """Return the newest version that a requirement allows; None if there is none."""
    words = ("pip", "compile", "--quiet", "--no-deps", "--no-header", "--no-annotate", "--python", sys.executable, "-")
    try:
        lines = _uv(*words, text=requirement).splitlines()
    except _NotResolvedError:
        return None
    return next(line.partition("==")[2].split()[0] for line in lines if "==" in line)


class _NotResolvedError(TracerError):
    """No version is what is asked for."""


def _uv(*words: str, text: str | None = None) -> str:
    if (uv := shutil.which("uv")) is None:
        raise TracerError("Versions of a package need uv, which is not here.", hint="Install it: pip install uv.")
    done = subprocess.run([uv, *words], input=text or "", capture_output=True, text=True, errors="replace", check=False)
    if done.returncode == 0:
        return done.stdout
    kind = _NotResolvedError if "No solution found" in done.stderr else TracerError
    reason = " ".join(done.stderr.split())
    raise kind(f"uv: {reason[:500]}", hint="Check the name of the package and its versions.")


_HASH: Final = re.compile(r"\s--hash=\S+")
_COMMENT: Final = re.compile(r"(?:^|\s)#.*")
_INCLUDED: Final = re.compile(r"(?:-r|--requirement)[ =]?(?P<file>.+)")
_CONSTRAINTS: Final = ("-c", "--constraint")
_INDEXES: Final = ("--index-url", "--extra-index-url", "--find-links", "-i ", "-f ", "--pre")
_HINT: Final = "Name two files such as pip freeze prints: a package and its version on each line."


def changes_between(old: Path, new: Path) -> dict[str, tuple[str, ...]]:
    """Return the lines to install for the old file and after each change from it to the new one, by its name.

    A change is named `transformers==4.57 (was transformers==4.56)`, and follows those of packages that it needs.

    Raises:
        TracerError: A file cannot be read, a line names no package, or the files name the same.
    """
    before, after = _lines(old), _lines(new)
    packages = [package for package in {**before, **after} if before.get(package) != after.get(package)]
    if not packages:
        raise TracerError(f"{old} and {new} name the same packages and versions.", hint=_HINT)
    if (line := next((line for line in packages if line.startswith("-")), None)) is not None:
        raise TracerError(f"One of the files alone has the line {line!r}, which names no package.", hint=_HINT)
    indexes = [option for option in after if option.startswith(_INDEXES)]
    lines = {package: before.get(package, ()) for package in _needed_first(sorted(packages))}
    changes = {str(old): (*indexes, *chain(*lines.values()))}
    for package, was in list(lines.items()):
        lines[package] = after.get(package, ())
        name = f"{' '.join(lines[package]) or f'no {package}'} (was {' '.join(was) or 'not named'})"
        changes[name] = (*indexes, *chain(*lines.values()))
    return changes


def _lines(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the lines of each package, by its normal name; of an option, such as an index, by itself."""
    lines: dict[str, tuple[str, ...]] = {}
    for line in _with_included(path, ()):
        name = line if line.startswith("-") else package_name(line)
        if name is None or line.startswith(_CONSTRAINTS):
            raise TracerError(f"{path} has the line {line!r}, which names no package.", hint=_HINT)
        lines[name] = tuple(dict.fromkeys((*lines.get(name, ()), line)))
    return lines


def _with_included(path: Path, outer: tuple[Path, ...]) -> Iterator[str]:
    """Yield the lines of a file, in the place of `-r more.txt` those of that file.

    Args:
        path: Of the file; the names in it are relative to its folder.
        outer: Files whose lines lead to it.
    """
    try:
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    except (OSError, UnicodeDecodeError) as error:
        raise TracerError(f"{path} cannot be read: {error}.", hint=_HINT) from None
    for whole in text.splitlines():
        line = " ".join(_HASH.sub("", _COMMENT.sub("", whole)).split())
        included = _INCLUDED.fullmatch(line)
        if included is None:
            yield from filter(None, [line])
        elif (inner := (path.parent / included["file"].strip()).resolve()) in (*outer, path.resolve()):
            raise TracerError(f"{path} has the line {line!r}, which leads back to that file.", hint=_HINT)
        else:
            yield from _with_included(inner, (*outer, path.resolve()))


def _needed_first(packages: Sequence[str]) -> list[str]:
    """Order packages so that each follows the ones that it needs, as far as the installed packages say."""
    ordered: list[str] = []
    left = dict.fromkeys(packages)

    def append(package: str) -> None:
        del left[package]
        for needed in _needs(package):
            if needed in left:
                append(needed)
        ordered.append(package)

    while left:
        append(next(iter(left)))
    return ordered


def _needs(package: str) -> list[str]:
    try:
        lines = requires(package) or ()
    except PackageNotFoundError:
        return []
    return sorted({name for line in lines if "extra ==" not in line and (name := package_name(line)) is not None})


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
