"""Two files of requirements as a row of changes, made one after the other from the old file to the new one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Final

from tracer.errors import TracerError
from tracer.sessions.trials.package_versions import package_name

_HASH: Final = re.compile(r"\s--hash=\S+")
_COMMENT: Final = re.compile(r"(?:^|\s)#.*")
_INDEXES: Final = ("--index-url", "--extra-index-url", "--find-links", "-i ", "-f ", "--pre")
_HINT: Final = "Name two files such as pip freeze prints: a package and its version on each line."


@dataclass(frozen=True, slots=True)
class RequirementChanges:
    """The packages that two files name differently, in an order in which what a package needs changes before it."""

    old_file: str
    packages: tuple[str, ...]
    old: Mapping[str, tuple[str, ...]]  # Lines of each package; none where the file does not name it
    new: Mapping[str, tuple[str, ...]]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the old file and the changes: `old.txt`, `transformers==4.57 (was transformers==4.56)`."""
        old, new = ({name: " ".join(lines) for name, lines in file.items()} for file in (self.old, self.new))
        changes = (f"{new.get(name, f'no {name}')} (was {old.get(name, 'not named')})" for name in self.packages)
        return (self.old_file, *changes)

    @property
    def requirements(self) -> tuple[tuple[str, ...], ...]:
        """Return the lines to install for the old file and after each change."""
        return tuple(self._mixed(count) for count in range(len(self.packages) + 1))

    def _mixed(self, num_changed: int) -> tuple[str, ...]:
        files = (self.new if at < num_changed else self.old for at in range(len(self.packages)))
        lines = [line for name, file in zip(self.packages, files, strict=True) for line in file.get(name, ())]
        return (*(option for option in self.new if option.startswith(_INDEXES)), *lines)


def changes_between(old: Path, new: Path) -> RequirementChanges:
    """Read two files of requirements.

    Raises:
        TracerError: A file cannot be read, a line names no package, or the files name the same.
    """
    before, after = _lines(old), _lines(new)
    packages = [package for package in {**before, **after} if before.get(package) != after.get(package)]
    if not packages:
        raise TracerError(f"{old} and {new} name the same packages and versions.", hint=_HINT)
    if (line := next((line for line in packages if line.startswith("-")), None)) is not None:
        raise TracerError(f"One of the files alone has the line {line!r}, which names no package.", hint=_HINT)
    return RequirementChanges(str(old), tuple(_needed_first(sorted(packages))), before, after)


def _lines(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the lines of each package, by its normal name; of an option, such as an index, by itself."""
    try:
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    except (OSError, UnicodeDecodeError) as error:
        raise TracerError(f"{path} cannot be read: {error}.", hint=_HINT) from None
    lines: dict[str, tuple[str, ...]] = {}
    for whole in text.splitlines():
        line = " ".join(_HASH.sub("", _COMMENT.sub("", whole)).split())
        name = line if line.startswith("-") else package_name(line)
        if line and name is None:
            raise TracerError(f"{path} has the line {line!r}, which names no package.", hint=_HINT)
        if name:
            lines[name] = (*lines.get(name, ()), line)
    return lines


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
