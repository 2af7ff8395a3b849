"""Tests with a limit of GPU memory, on a machine without a GPU: `@pytest.mark.gpu_memory("20 GiB", on="h100")`.

pytest finds this by itself where the package is installed. A marked test runs in a process of its own, on the null GPU
where it names a card; what it allocated at most is compared with the limit and the baseline, and explained where that
is too much. Nothing but pytest is imported here: this is loaded wherever pytest runs.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tracer.answers.difference import SavedPeak
    from tracer.sessions.process_memory import ProcessPeak

MARK = "gpu_memory"
_MARK_HELP = (
    f"{MARK}(limit=None, on=None, fail_above=None): run in a process of its own, on the null GPU where a card is named "
    "(on='h100'), and fail above the limit ('20 GiB') or a growth ('2%') since the baseline."
)
_ON, _BASELINE, _FAIL_ABOVE = "--gpu-memory-on", "--gpu-memory-baseline", "--gpu-memory-fail-above"
_UPDATE = "--gpu-memory-update"
_NUM_ROWS, _LAST_LINES = 8, 30
_OF_THIS_RUN = ("PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID")


@dataclass(frozen=True, slots=True)
class Limits:
    """The questions of a test's mark and of the options."""

    limit_bytes: int | None  # Bytes that may be allocated; None for any number
    on: str | None  # The card, as `--on` takes it; None for the GPU at hand
    fail_above: str  # How much more than in the baseline, such as `2%`

    @classmethod
    def of(cls, item: pytest.Item) -> Limits | None:
        """The limits that a test is marked with; None without the mark."""
        marker = item.get_closest_marker(MARK)
        if marker is None:
            return None
        return cls._of_mark(
            *marker.args,
            **{"on": item.config.getoption(_ON), "fail_above": item.config.getoption(_FAIL_ABOVE), **marker.kwargs},
        )

    @classmethod
    def _of_mark(cls, limit: str | int | None = None, *, on: str | None, fail_above: str) -> Limits:
        from tracer.units import parse_size

        return cls(parse_size(limit) if isinstance(limit, str) else limit, on, fail_above)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options, each of its own prefix."""
    group = parser.getgroup("gpu memory", "limits of GPU memory (torch-timeline)")
    group.addoption(_ON, metavar="CARD", help="Null GPU of marked tests that name none; else the GPU at hand.")
    group.addoption(_BASELINE, metavar="FILE", help="JSON of earlier peaks by test, to compare with.")
    group.addoption(
        _FAIL_ABOVE, metavar="LIMIT", default="1%", help="Growth since the baseline that fails: 1%%, 64MiB."
    )
    group.addoption(_UPDATE, action="store_true", help="Write this run's peaks to the baseline, and compare nothing.")


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark, and what this process is."""
    config.addinivalue_line("markers", _MARK_HELP)
    if config.getoption(_UPDATE) and not config.getoption(_BASELINE):
        raise pytest.UsageError(f"{_UPDATE} needs {_BASELINE} FILE.")
    from tracer.command_line import take_role

    answer = take_role("test")
    config.pluginmanager.register(_OneTest(config, Path(answer)) if answer else _AllTests(config))


class _AllTests:
    """The run that a person started: marked tests go to processes of their own."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._measured: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [_Elsewhere.in_place_of(item) if item.get_closest_marker(MARK) else item for item in items]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        report = yield
        if call.when == "call" and isinstance(item, _Elsewhere):
            report.gpu_memory = item.measured
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if (measured := getattr(report, "gpu_memory", None)) is not None:
            self._measured[report.nodeid] = measured

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Write the baseline: only where all reports arrive, which is not in a worker of xdist."""
        if not self._config.getoption(_UPDATE) or hasattr(self._config, "workerinput") or not self._measured:
            return
        from tracer.errors import SnapshotError
        from tracer.exporters.document import Document, Source
        from tracer.exporters.json_documents.peak import read_baseline, saved_peak_from, write_baseline

        path = Path(self._config.getoption(_BASELINE))
        peaks = read_baseline(path) if path.exists() else {}
        source = Source(str(path), SnapshotError, "")
        peaks |= {name: saved_peak_from(Document(one["peak"], source)) for name, one in self._measured.items()}
        write_baseline(peaks, path)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        from tracer.exporters.screen.terminal import visible

        if not self._measured:
            return
        terminalreporter.section("gpu memory", "=")
        for name, measured in sorted(self._measured.items()):
            terminalreporter.write_line(visible(f"{measured['words']}  {name}"))
        if self._config.getoption(_UPDATE):
            terminalreporter.write_line(f"Written to {self._config.getoption(_BASELINE)}.")


class _FailedThereError(Exception):
    """The output of the test's own process."""


class _Elsewhere(pytest.Item):
    """A marked test: no fixture of it is set up here, and it runs in a process of its own."""

    _place: tuple[Path, str]
    location_there: tuple[str, int | None, str]
    measured: dict[str, Any] | None = None

    @classmethod
    def in_place_of(cls, item: pytest.Item) -> _Elsewhere:
        """A stand-in with the same name, place and marks as a test."""
        assert item.parent is not None  # a test is in a file
        stand_in: _Elsewhere = cls.from_parent(item.parent, name=item.name)
        stand_in._place = item.path, item.nodeid.partition("::")[2]
        stand_in.location_there = item.location
        stand_in.own_markers = list(item.iter_markers())
        stand_in.extra_keyword_matches.update(item.listextrakeywords())
        return stand_in

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, self.location_there[1], self.location_there[2]

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if not excinfo.errisinstance(_FailedThereError):
            return super().repr_failure(excinfo)
        from tracer.exporters.screen.terminal import visible

        return visible(str(excinfo.value))

    def runtest(self) -> None:
        """Start its process, and take what that says for its own."""
        from tracer.command_line import in_role
        from tracer.errors import TracerError
        from tracer.sessions.jobs.child_processes import ChildProcesses

        try:
            limits = Limits.of(self)
            variables = _variables(limits.on if limits is not None else None)
        except (TracerError, TypeError, ValueError) as error:
            raise _FailedThereError(f"{error} {getattr(error, 'hint', None) or ''}".strip()) from error
        with tempfile.TemporaryDirectory(prefix="gpu-memory-") as folder:
            answer = Path(folder) / "answer.json"
            ended = ChildProcesses().run_again(
                {**variables, **in_role(test=str(answer))},
                command=self._command(),
                folder=self.config.invocation_params.dir,
            )
            if not answer.exists():
                lines = [f"The test's own process ended with status {ended.status}.", *ended.lines[-_LAST_LINES:]]
                raise _FailedThereError("\n".join(lines))
            self._take(json.loads(answer.read_text(encoding="utf-8")))

    def _take(self, answer: dict[str, Any]) -> None:
        self.measured = answer["measured"]
        if self.measured is not None:
            self.user_properties.append(("gpu_memory_peak_bytes", self.measured["peak"]["peak_bytes"]))
        for title, text in answer["sections"]:
            self.add_report_section("call", title, text)
        if answer["failed"]:
            raise _FailedThereError("\n\n".join(answer["failed"]))
        if answer["skipped"]:
            pytest.skip(answer["skipped"][0])

    def _command(self) -> list[str]:
        config, option = self.config, self.config.getoption
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            __name__,
            "-p",
            "no:cacheprovider",
            "-q",
            "-m",
            "",
            "--runxfail",
        ]
        command += ["--rootdir", str(config.rootpath), _FAIL_ABOVE, option(_FAIL_ABOVE)]
        command += ["-c", str(config.inipath)] if config.inipath is not None else []
        command += ["-n", "0"] if config.pluginmanager.hasplugin("xdist") else []
        command += [_BASELINE, str(Path(option(_BASELINE)).resolve())] if option(_BASELINE) else []
        command += [_UPDATE] if option(_UPDATE) else []
        command += [_ON, option(_ON)] if option(_ON) else []
        path, inside = self._place
        return [*command, f"{path}::{inside}"]


def _variables(on: str | None) -> dict[str, str]:
    """Environment variables of the test's own process."""
    base = {name: value for name, value in os.environ.items() if name not in _OF_THIS_RUN}
    if on is None:
        return base
    from tracer.null_gpu import process
    from tracer.null_gpu.cards import devices_of

    devices = devices_of(on)
    return process.environment([devices.card] * devices.count, base)


class _OneTest:
    """A test's own process: it is measured, and its reports go to a file."""

    def __init__(self, config: pytest.Config, answer: Path) -> None:
        self._config, self._answer = config, answer
        self._failed: list[str] = []
        self._skipped: list[str] = []
        self._sections: list[tuple[str, str]] = []
        self._has_run = False
        self._measured: dict[str, Any] | None = None
        self._memory: Any = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, Any, Any]:
        from tracer.exporters.screen.console import QUIET
        from tracer.sessions.on_null_gpu import program_runs

        self._has_run = True
        with program_runs({}, None, QUIET):
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        import torch

        from tracer.sessions.process_memory import ProcessMemory

        if not torch.cuda.is_available():
            pytest.skip(f"needs a GPU, or a card in its mark ({MARK}('20 GiB', on='h100')) or by {_ON}")
        self._memory = ProcessMemory()

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
        try:
            result = yield
        except BaseException as error:
            if type(error).__name__ == "OutOfMemoryError":
                error.add_note("\n".join(_rows(self._worst().peak)))
            raise
        from tracer.exporters.json_documents.peak import as_in_checkout, saved_peak_document

        worst = self._worst()
        worst = replace(worst, peak=as_in_checkout(worst.peak, pyfuncitem.config.rootpath))
        limits = Limits.of(pyfuncitem)
        assert limits is not None
        complaints, words = _judged(worst, limits, self._baseline(pyfuncitem.nodeid))
        self._measured = {"words": words, "peak": saved_peak_document(worst.peak)}
        if complaints:
            from tracer.exporters.screen.terminal import visible

            pytest.fail(visible("\n".join(complaints)), pytrace=False)
        return result

    def _worst(self) -> ProcessPeak:
        worst: ProcessPeak = self._memory.worst()
        self._memory.stop()
        return worst

    def _baseline(self, nodeid: str) -> SavedPeak | None:
        file = self._config.getoption(_BASELINE)
        if not file or self._config.getoption(_UPDATE) or not Path(file).exists():
            return None
        from tracer.exporters.json_documents.peak import read_baseline

        return read_baseline(Path(file)).get(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            self._skipped.append(report.longrepr[2].removeprefix("Skipped: "))
        elif report.failed:
            self._failed.append(report.longreprtext)
        if report.when == "teardown":
            self._sections = list(report.sections)

    def pytest_sessionfinish(self) -> None:
        if self._has_run:
            answer = {"measured": self._measured, "failed": self._failed, "skipped": self._skipped}
            self._answer.write_text(json.dumps({**answer, "sections": self._sections}), encoding="utf-8")


def _judged(worst: ProcessPeak, limits: Limits, before: SavedPeak | None) -> tuple[list[str], str]:
    """Return the lines on each exceeded limit, and the peak in a few words."""
    from tracer.answers.difference import diff_peaks
    from tracer.answers.threshold import parse_threshold
    from tracer.exporters.diff import line_changes
    from tracer.exporters.screen.text import table_lines
    from tracer.units import format_bytes

    peak = worst.peak
    where = limits.on or peak.device
    words = f"{format_bytes(peak.bytes):>11} allocated, {format_bytes(worst.reserved_bytes)} reserved on {where}"
    lines: list[str] = []
    if limits.limit_bytes is not None:
        words += f", {format_bytes(limits.limit_bytes)} allowed"
        if peak.bytes > limits.limit_bytes:
            more = format_bytes(peak.bytes - limits.limit_bytes)
            lines += [
                f"{format_bytes(peak.bytes)} were allocated at most on {where}; "
                f"the limit is {format_bytes(limits.limit_bytes)}, {more} less.",
                *_rows(peak),
            ]
    if before is not None:
        diff, threshold = diff_peaks(before, peak), parse_threshold(limits.fail_above)
        words += f", {diff.bytes:+,} B since the baseline"
        if threshold.is_exceeded_by(diff):
            lines += [threshold.sentence(where, diff), *table_lines(line_changes(diff), top=_NUM_ROWS)[1:]]
    if lines and worst.caveat:
        lines.append(worst.caveat)
    return lines, words


def _rows(peak: SavedPeak) -> list[str]:
    """The largest rows of a peak, and what the others are together."""
    from tracer.answers.answer_tables import blocks_table
    from tracer.exporters.screen.text import table_lines

    table = replace(blocks_table(peak.rows, ""), footer=(peak.bytes, "", "", "sum"))
    return table_lines(table, top=_NUM_ROWS)[1:]
