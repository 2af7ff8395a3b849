"""`torch-timeline bisect`: which commit, or which version of a package, made a script need more GPU memory."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from tracer.command_line import program
from tracer.commands.common import THRESHOLD_EXCEEDED, errors_for_people, not_said, say_all
from tracer.commands.options import option
from tracer.commands.run_options import AsJson, Quiet, Top
from tracer.errors import TracerError, UsageError
from tracer.exporters.screen.next_commands import after_bisection
from tracer.exporters.screen.terminal import print_json, say, screen
from tracer.units import format_bytes

if TYPE_CHECKING:
    from tracer.analysis.peak_diff import SavedPeak, Threshold
    from tracer.exporters.bisection import Bisection
    from tracer.sessions.jobs.child_processes import Ended
    from tracer.sessions.trials.versions import Commit, Repository

_HINT = "Behind the commits stands what check takes: bisect v1.0..main -- --on h100 train.py"


def bisect(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="GOOD..BAD, two commits, then -- and what `check` takes: --on h100 train.py --epochs 1"),
    ] = None,
    between: Annotated[
        str | None,
        option("Instead of commits, versions of a package: transformers==4.56,4.57.", metavar="<package==a,b>"),
    ] = None,
    requirements: Annotated[
        tuple[Path, Path] | None,
        option("Or two files of requirements, which name versions.", metavar="<old.txt> <new.txt>"),
    ] = None,
    fail_above: Annotated[
        str | None,
        option(
            "Growth since the first that is bad, such as 2% or 64MiB. [default: half of the growth to the last]",
            metavar="<limit>",
        ),
    ] = None,
    as_json: AsJson = False,
    top: Top = 10,
    quiet: Quiet = False,
) -> None:
    """Find the commit, or the version of a package, that made a script need more GPU memory, without a GPU.

    The script runs by `check` on the null GPU: for each commit in a worktree of its own, for each version in an
    environment that uv makes. Commits and versions on which it does not run are left out. Of two files of requirements
    the packages that differ are changed one after the other.

        torch-timeline bisect v1.0..main -- --on h100 train.py --epochs 1

        torch-timeline bisect --between transformers==4.56,4.57 -- --on h100 train.py

        torch-timeline bisect --requirements old.txt new.txt -- --on h100 train.py
    """
    from tracer.exporters.bisection import bisection_json, print_bisection

    with errors_for_people(), tempfile.TemporaryDirectory(prefix="bisect-") as folder:
        tell = not_said if quiet else say
        points, asked = _points(words or [], between, requirements, Path(folder))
        found = _search(_Measured(points, asked, Path(folder), tell), fail_above)
        with screen(is_shown=as_json or not quiet) as console:
            if as_json:
                print_json(bisection_json(found), console)
            else:
                print_bisection(found, console, top=top)
        if not quiet and not as_json:
            say_all(after_bisection(found.merged, asked))


class _Points(Protocol):
    @property
    def point(self) -> str:
        """The word for one of them: commit, version, or change."""

    @property
    def names(self) -> Sequence[str]:
        """Their names, for people."""

    def run(self, index: int, words: Sequence[str]) -> Ended:
        """Run this program with these words at one of them."""

    def merged(self, index: int) -> str | None:
        """The range of commits that this one merged, if it is a merge."""


@dataclass(frozen=True)
class _Commits:
    repository: Repository
    commits: Sequence[Commit]
    folder: Path  # For worktrees
    point: str = "commit"

    @property
    def names(self) -> Sequence[str]:
        return [commit.words for commit in self.commits]

    def run(self, index: int, words: Sequence[str]) -> Ended:
        repository = self.repository
        with repository.checked_out(self.commits[index], self.folder) as tree:
            moved = [repository.word_in(tree, word) for word in words]
            variables = {**os.environ, "PYTHONPATH": repository.import_path(tree)}
            return _run([sys.executable, *program(), *moved], variables, tree / repository.prefix)

    def merged(self, index: int) -> str | None:
        return self.repository.branch_of_merge(self.commits[index])


@dataclass(frozen=True)
class _Environments:
    """Versions of a package, or changes between two files of requirements."""

    point: str
    requirements: Mapping[str, Sequence[str]]  # By name, lines of a file of requirements

    @property
    def names(self) -> Sequence[str]:
        return list(self.requirements)

    def run(self, index: int, words: Sequence[str]) -> Ended:
        from tracer.sessions.jobs.child_processes import Ended
        from tracer.sessions.trials.versions import python_with

        try:
            python = python_with(self.requirements[self.names[index]])
        except TracerError as error:
            return Ended(1, f"Error: {error}")
        return _run([str(python), *program(), *words], dict(os.environ), None)

    def merged(self, index: int) -> str | None:
        return None


def _run(command: list[str], variables: dict[str, str], folder: Path | None) -> Ended:
    from tracer.sessions.jobs.child_processes import ChildProcesses, Ended

    if folder is not None and not folder.is_dir():
        return Ended(1, "Error: The working folder is not there.")
    return ChildProcesses().run_again(variables, command=command, folder=folder)


def _points(
    words: Sequence[str], between: str | None, files: tuple[Path, Path] | None, folder: Path
) -> tuple[_Points, Sequence[str]]:
    has_commits = between is None and files is None
    commits, asked = ("".join(words[:1]), words[1:]) if has_commits else ("", words)
    asked = asked[asked[:1] == ["--"] :]
    if has_commits and ".." not in commits:
        raise UsageError("Which commits? Two are missing.", hint=_HINT)
    if not asked:
        raise UsageError("Which script is to run? It is missing.", hint=_HINT)
    if between is not None and files is not None:
        raise UsageError("--between and --requirements are two questions.", hint="Leave out one of them.")
    if between is not None:
        return _versions(between), asked
    return (_commits(commits, folder) if files is None else _changes(*files)), asked


def _commits(commits: str, folder: Path) -> _Commits:
    from tracer.sessions.trials.versions import Repository

    good, _, bad = commits.partition("..")
    repository = Repository.here()
    return _Commits(repository, repository.commits(good or "HEAD", bad.lstrip(".") or "HEAD"), folder)


def _versions(between: str) -> _Environments:
    from tracer.sessions.trials.versions import versions_between

    return _Environments("version", {version: [version] for version in versions_between(between)})


def _changes(old: Path, new: Path) -> _Environments:
    from tracer.sessions.trials.versions import changes_between

    return _Environments("change", changes_between(old, new))


@dataclass
class _Measured:
    points: _Points
    asked: Sequence[str]  # Words for `check`
    folder: Path
    tell: Callable[[str], None]
    peaks: dict[int, SavedPeak] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)  # Of points that do not run, the reason that was printed

    def has_run(self, index: int) -> bool:
        """Measure a point; False where the script does not run there. Without a peak it ran out of memory."""
        file = self.folder / f"{index}.json"
        ended = self.points.run(index, ["check", "--update", "--baseline", str(file), *self.asked])
        if ended.status == 0:
            self.peaks[index] = _only_peak(file)
        elif ended.status != THRESHOLD_EXCEEDED:
            self.failures[index] = _reason(ended.lines)
        self.tell(f"{self.points.names[index]}: {self._result(index)}")
        return index not in self.failures

    def _result(self, index: int) -> str:
        if index in self.failures:
            return f"does not run. {self.failures[index]}".rstrip()
        return format_bytes(self.peaks[index].bytes) if index in self.peaks else "out of memory"

    def need(self, index: int) -> None:
        """Measure an end of the range, which must run."""
        if not self.has_run(index):
            reason = self.failures[index].removeprefix("Error: ") or "The command check failed."
            raise TracerError(f"{self.points.names[index]}: {reason}", hint=f"Name another {self.points.point}.")


def _reason(lines: Sequence[str]) -> str:
    """Return the last error that `check` printed, else its last line, such as that of a traceback."""
    errors = (line for line in reversed(lines) if line.startswith("Error: "))
    return next(errors, next(filter(str.strip, reversed(lines)), "")).strip()


def _only_peak(file: Path) -> SavedPeak:
    from tracer.exporters.json_documents.peak import read_baseline

    if not file.exists():
        raise TracerError("check wrote no peak.", hint="Leave out --baseline; bisect compares by itself.")
    (peak,) = read_baseline(file).values()
    return peak


def _search(measured: _Measured, fail_above: str | None) -> Bisection:
    from tracer.analysis.peak_diff import parse_threshold
    from tracer.exporters.bisection import Bisection
    from tracer.sessions.trials.bisections import find_first_bad

    threshold = parse_threshold(fail_above) if fail_above is not None else None
    points, names, last = measured.points, measured.points.names, len(measured.points.names) - 1
    if not last:
        raise TracerError(f"There is only one {points.point}, {names[0]}.", hint=f"Name an earlier {points.point}.")
    for end in (0, last):
        measured.need(end)
    if 0 not in measured.peaks:
        raise TracerError(
            f"{names[0]}: out of memory already.", hint=f"Name an earlier {points.point}, or a larger card."
        )
    is_bad = _criterion(measured.peaks, last, threshold)
    if not is_bad(last):
        raise TracerError(
            f"{names[last]} needs no more than {names[0]}: {format_bytes(measured.peaks[last].bytes)}.",
            hint="Name other ends, or another script.",
        )
    found = find_first_bad(len(names), lambda index: is_bad(index) if measured.has_run(index) else None)
    return Bisection(
        point=points.point,
        good=names[found.good],
        bad=names[found.bad],
        unknown=tuple(names[found.good + 1 : found.bad]),
        num_measured=found.num_asked + 2,
        num_points=len(names),
        good_peak=measured.peaks[found.good],
        bad_peak=measured.peaks.get(found.bad),
        merged=points.merged(found.bad),
    )


def _criterion(peaks: Mapping[int, SavedPeak], last: int, threshold: Threshold | None) -> Callable[[int], bool]:
    """Whether a point is bad: without a peak, it ran out of memory."""
    from tracer.analysis.peak_diff import diff_peaks

    first, end = peaks[0], peaks.get(last)
    if threshold is not None:
        return lambda index: index not in peaks or threshold.is_exceeded_by(diff_peaks(first, peaks[index]))
    if end is None:
        return lambda index: index not in peaks
    return lambda index: index not in peaks or 2 * (peaks[index].bytes - first.bytes) > max(end.bytes - first.bytes, 0)
