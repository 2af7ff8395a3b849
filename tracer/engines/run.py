"""An inference engine, started as a command in processes of its own and ended when it could serve.

Its made-up requests are token ids, which need no tokenizer.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracer.command_line import in_role, take_role
from tracer.errors import TracerError
from tracer.sessions.termination import Termination
from tracer.units import some

if TYPE_CHECKING:
    from tracer.engines.start import EngineStart, WorkerMemory


OUTPUT: Final = "engine.txt"
"""What the engine printed, in the folder of the results."""
_LOOK_EVERY_S: Final = 0.5
_ERROR: Final = re.compile(r"\b\w*Error: .+")
# Pydantic says the reason in the next line, between the name of the process and the value that was given.
_INVALID: Final = re.compile(r"(validation errors? for \w+)\n.*?  (?:Value error, )?(\S.*?) \[type=.*")
PROMPT_TOKENS: Final = 512
NEW_TOKENS: Final = 16
_HOST: Final = "127.0.0.1"
_ROUTE: Final = "/inference/v1/generate"
"""The route of vLLM, from 0.11 on, that takes and returns token ids."""
_MOST_AT_ONCE: Final = 256
_ANSWER_LIMIT_S: Final = 300.0


def free_address() -> tuple[str, int]:
    """Return an address of this machine on which nothing listens."""
    with socket.socket() as listener:
        listener.bind((_HOST, 0))
        return _HOST, int(listener.getsockname()[1])


def send_requests(port: int, num_requests: int, context_tokens: int, *, is_running: Callable[[], bool]) -> None:
    """Send requests to the engine's server all at once, and wait for the answers.

    Args:
        context_tokens: The longest request that the engine takes; half of it is the longest prompt that is sent.
        is_running: Whether the engine has not ended.

    Raises:
        TracerError: The engine ended, or did not answer a request.
    """
    prompt = list(range(1, 1 + max(1, min(PROMPT_TOKENS, context_tokens // 2))))
    new_tokens = min(NEW_TOKENS, context_tokens - len(prompt))
    sampling = {"max_tokens": new_tokens, "min_tokens": new_tokens, "ignore_eos": True, "detokenize": False}
    body = json.dumps({"token_ids": prompt, "sampling_params": sampling})
    _wait_until_it_listens(port, is_running)
    with ThreadPoolExecutor(min(num_requests, _MOST_AT_ONCE)) as senders:
        statuses = list(senders.map(lambda _: _answer(port, "POST", _ROUTE, body), range(num_requests)))
    refused = [words for status, words in statuses if status != http.client.OK]
    if refused:
        raise TracerError(
            f"The engine did not answer {some(len(refused), 'request')} of {num_requests}: {refused[0][:300]}",
            hint="Its memory is said without --requests. Requests are sent to the server of vLLM from 0.11 on.",
        )


def _wait_until_it_listens(port: int, is_running: Callable[[], bool]) -> None:
    while _answer(port, "GET", "/health")[0] != http.client.OK:
        if not is_running():
            raise TracerError(
                "The engine ended before it served.", hint="With --save-dir DIR engine.txt there says why."
            )
        time.sleep(_LOOK_EVERY_S)


def _answer(port: int, method: str, path: str, body: str | None = None) -> tuple[int, str]:
    """Return the status of an answer and its text; status 0 where none came."""
    connection = http.client.HTTPConnection(_HOST, port, timeout=_ANSWER_LIMIT_S)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        answer: Any = connection.getresponse()
        return int(answer.status), answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return 0, f"{type(error).__name__}: {error}"
    finally:
        connection.close()


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


def run_engine(
    command: Sequence[str], output: Path, *, is_server: bool = True, num_requests: int = 0, port: int = 0
) -> EngineStart:
    """Run an engine's command until all of its workers are ready, or it has failed, and end it.

    Args:
        output: File that takes what it prints; its folder is made.
        is_server: Whether it would serve for ever; else it is left to end by itself.
        num_requests: Made-up requests that a server answers before it is ended.
        port: Where it listens on this machine; of no use without requests.

    Raises:
        TracerError: It ended before a worker had begun, or did not answer a request.
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
                started = _wait(process, reports, is_server=is_server)
                if started is not None and num_requests:
                    context_tokens = started.worst.context_tokens
                    send_requests(port, num_requests, context_tokens, is_running=lambda: process.poll() is None)
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


def _wait(process: subprocess.Popen[bytes], folder: Path, *, is_server: bool) -> EngineStart | None:
    """Return a server's start when it is ready; None if the process has ended, or has been idle for too long."""
    from tracer.sessions.jobs.child_processes import IdleLimit

    idle = IdleLimit(process.pid)
    while process.poll() is None:
        start = read_reports(folder) if is_server else None
        if start is not None and start.is_ready and start.cache_tokens is not None:
            return start
        if idle.is_over():
            return None
        time.sleep(_LOOK_EVERY_S)
    return None


def _last_line(output: Path) -> str:
    """Return the last line that an engine printed which says an error, else its last line."""
    printed = _INVALID.sub(r"\1: \2", output.read_text("utf-8", "replace"))
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    found = (_ERROR.search(line) for line in lines if "See root cause above" not in line)
    errors = [match[0] for match in found if match is not None]
    last = (errors or lines or ["it printed nothing"])[-1]
    # runpy's sentence has the error in brackets
    return last.removesuffix(")") if last.count(")") > last.count("(") else last
