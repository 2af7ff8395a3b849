"""An inference engine, started as a command in processes of its own and ended when it could serve."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracer.command_line import in_role, take_role
from tracer.errors import TracerError
from tracer.sessions.termination import Termination

if TYPE_CHECKING:
    from tracer.engines.start import EngineStart, WorkerMemory


OUTPUT: Final = "engine.txt"
"""File of the engine's output, in the folder of the results."""
_LOOK_EVERY_S: Final = 0.5
_ERROR: Final = re.compile(r"\b\w*Error: .+")
# Pydantic says the reason in the next line, between the name of the process and the value that was given.
_INVALID: Final = re.compile(r"(validation errors? for \w+)\n.*?  (?:Value error, )?(\S.*?) \[type=.*")


@contextmanager
def engine_reports() -> Iterator[Path]:
    """Within the block engines that the program starts leave reports in a folder, which is deleted at its end.

    An engine's first process makes it, since most programs start none; no other user can guess its name.
    """
    folder = Path(tempfile.gettempdir(), f"torch-timeline-engine-{secrets.token_hex(16)}")
    os.environ.update(in_role(engine=str(folder)))
    try:
        yield folder
    finally:
        take_role("engine")
        shutil.rmtree(folder, ignore_errors=True)


def read_reports(folder: Path) -> EngineStart | None:
    """Return what an engine's workers have reported so far; None if none has."""
    workers = [_worker(_read(path)) for path in sorted(folder.glob("worker-*.json"))]
    if not workers:
        return None
    from tracer.engines.start import engine_start

    said: dict[str, Any] = {}
    for path in sorted(folder.glob("engine-*.json")):
        said = _read(path) | said
    return engine_start(
        workers,
        cache_tokens=said.get("cache_tokens"),
        concurrency=said.get("concurrency"),
        failure=said.get("failure", ""),
    )


def _worker(values: dict[str, Any]) -> WorkerMemory:
    from tracer.engines.start import WorkerMemory

    return WorkerMemory(**values)


def _read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return values


def run_engine(command: Sequence[str], output: Path, *, is_server: bool = True) -> EngineStart:
    """Run an engine's command until all of its workers are ready, or it has failed, and end it.

    Args:
        is_server: Whether it would serve for ever; else it is left to end by itself.

    Raises:
        TracerError: It ended before a worker had begun.
        Terminated, KeyboardInterrupt: This process is ended; the engine has ended with it.
    """
    from tracer.engines.start import EngineStart
    from tracer.sessions.jobs.child_processes import end_child

    output.parent.mkdir(parents=True, exist_ok=True)
    with engine_reports() as reports:
        with output.open("wb") as printed, _signals_raised(), _group_that_ends() as group:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT, process_group=group
            )
            try:
                _wait(process, reports, is_server=is_server)
            finally:
                end_child(process)
        start = read_reports(reports)
    if start is None:
        raise TracerError(
            f"The engine ended before it had chosen a GPU: {_last_line(output)}",
            hint=f"With --save-dir DIR all that it printed is kept, in {OUTPUT} there.",
        )
    if start.is_ready or start.failure or start.worst.failure:
        return start
    return EngineStart(start.workers, start.cache_tokens, start.concurrency, _last_line(output))


@contextmanager
def _signals_raised() -> Iterator[None]:
    """Within the block SIGTERM and SIGHUP are raised like Ctrl-C."""
    termination = Termination()
    termination.watch()
    try:
        yield
    finally:
        termination.close()


@contextmanager
def _group_that_ends() -> Iterator[int]:
    """Yield a process group that is killed when the block ends, or when this process dies of whatever signal.

    Its leader is a shell that reads from a pipe. This process alone can write to it, so that it ends with it.
    """
    command = ["/bin/sh", "-c", "read line; kill -KILL 0"]
    leader = subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0)
    try:
        yield leader.pid
    finally:
        os.killpg(leader.pid, signal.SIGKILL)
        leader.wait()


def _wait(process: subprocess.Popen[bytes], folder: Path, *, is_server: bool) -> None:
    """Wait until a server is ready, its process has ended, or it has been idle for too long."""
    from tracer.sessions.jobs.child_processes import IdleLimit

    idle = IdleLimit(process.pid)
    while process.poll() is None:
        start = read_reports(folder) if is_server else None
        if start is not None and start.is_ready and start.cache_tokens is not None:
            return
        if idle.is_over():
            return
        time.sleep(_LOOK_EVERY_S)


def _last_line(output: Path) -> str:
    """Return the last line that an engine printed which says an error, else its last line."""
    printed = _INVALID.sub(r"\1: \2", output.read_text("utf-8", "replace"))
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    found = (_ERROR.search(line) for line in lines if "See root cause above" not in line)
    errors = [match[0] for match in found if match is not None]
    last = (errors or lines or ["it printed nothing"])[-1]
    # runpy's sentence has the error in brackets
    return last.removesuffix(")") if last.count(")") > last.count("(") else last
