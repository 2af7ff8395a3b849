"""Two files of requirements as a row of changes, made one after the other from the old file to the new one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires
from itertools import chain
from pathlib import Path
from typing import Final

from tracer.errors import TracerError
from tracer.sessions.trials.package_versions import package_name

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
