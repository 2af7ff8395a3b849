"""Versions of a package as Python environments to run a script in, made by uv and kept in the user's cache."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from tracer.errors import TracerError, UsageError
from tracer.user_cache.builds import build_once, digest_of, user_cache
from tracer.user_cache.private_folders import how_others_write

_MOST_VERSIONS = 1000
_BETWEEN = re.compile(r"(?P<package>[A-Za-z0-9._-]+(?:\[[\w,.-]+\])?)==(?P<versions>[\w.!+-]+(?:,[\w.!+-]+)+)")


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions of one package in order, the first of them good."""

    package: str
    versions: tuple[str, ...]

    @staticmethod
    def parse(text: str) -> Versions:
        """Read `transformers==4.56,4.57`: two versions are the ends, more are all that are tried.

        Raises:
            UsageError: It is written in another way.
            TracerError: uv is missing, or finds no versions between the two.
        """
        found = _BETWEEN.fullmatch(text.replace(" ", ""))
        if found is None:
            raise UsageError(
                f"{text!r} does not name a package and two versions.", hint="Write --between transformers==4.56,4.57."
            )
        package, versions = found["package"], tuple(found["versions"].split(","))
        return Versions(package, versions if len(versions) > 2 else _all_between(package, *versions))

    def requirement(self, version: str) -> str:
        """Return `transformers==4.56`."""
        return f"{self.package}=={version}"


def python_with(requirement: str) -> Path:
    """Return the Python of an environment that has this package, and all else as this process has it.

    What the package needs is there in the version that this process has, or in another where it refuses that one. torch
    is this process's, unless the requirement names it.

    Raises:
        TracerError: uv is missing, or cannot install it.
    """
    installed = _installed()
    folder = user_cache() / "environments" / digest_of([sys.executable, requirement, *sys.path, *installed], ())
    if (problem := how_others_write(folder)) is not None:
        raise TracerError(
            f"Environments are not kept where others can write: {problem}.",
            hint="Set XDG_CACHE_HOME to a folder that only you can write.",
        )
    return build_once(folder, "bin/python", lambda made: _make(made, requirement, installed), family="")


def _make(folder: Path, requirement: str, installed: Sequence[str]) -> None:
    """Make an environment whose own packages stand before those of this process."""
    _uv("venv", "--quiet", "--python", sys.executable, str(folder))
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "of_this_process.pth").write_text("\n".join(filter(os.path.isabs, sys.path)), encoding="utf-8")
    constraints, excluded = folder / "constraints.txt", folder / "excluded.txt"
    name = re.split(r"[\[=]", requirement)[0].lower().replace("_", "-")
    constraints.write_text("\n".join(one for one in installed if not one.startswith(f"{name}==")), encoding="utf-8")
    excluded.write_text("" if name == "torch" else "torch\n", encoding="utf-8")
    install = ("pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), "--excludes", str(excluded))
    try:
        _uv(*install, "--constraints", str(constraints), requirement)
    except TracerError:
        _uv(*install, requirement)


def _installed() -> list[str]:
    """Return this process's packages as `name==version`, without those that no index has, such as editable ones."""
    public = (one for one in distributions() if one.read_text("direct_url.json") is None and "+" not in one.version)
    return sorted({f"{one.name.lower().replace('_', '-')}=={one.version}" for one in public})


def _all_between(package: str, first: str, last: str) -> tuple[str, ...]:
    """Return the two versions and those between them, from the newest down."""
    versions = [last]
    while len(versions) < _MOST_VERSIONS and (below := _newest(f"{package}>{first},<{versions[0]}")) is not None:
        versions.insert(0, below)
    return (first, *versions)


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
    """Return what uv prints."""
    if (uv := shutil.which("uv")) is None:
        raise TracerError("Versions of a package need uv, which is not here.", hint="Install it: pip install uv.")
    done = subprocess.run([uv, *words], input=text or "", capture_output=True, text=True, errors="replace", check=False)
    if done.returncode == 0:
        return done.stdout
    kind = _NotResolvedError if "No solution found" in done.stderr else TracerError
    reason = " ".join(done.stderr.split())
    raise kind(f"uv: {reason[:500]}", hint="Check the name of the package and its versions.")
