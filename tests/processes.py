"""Python programs and functions in fresh processes, without the seconds in which each would load torch again.

A process that has loaded torch and the tracer, and has called neither, forks for each of them. A test run has two, for
all of its workers: one has the null GPU's libraries in place of CUDA's. Each starts with the first request.
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import importlib
import importlib.util
import multiprocessing
import os
import pickle
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NoReturn
from unittest.mock import patch

ROOT = Path(__file__).resolve().parent.parent
FOLDER_VARIABLE = "TEST_PROCESSES"
"""Where the servers' sockets are, for all workers of a test run."""
# What an optimizer loads when it is made, what is loaded when something is compiled in a session, what the commands
# load, and the tests' own programs and their modules.
_LOADED = (
    *("torch._dynamo", "torch._functorch.aot_autograd", "torch._inductor.graph", "torch.distributed.fsdp"),
    *("tracer.commands.app", "tracer.sessions.training_profile", "tracer.sessions.output_files"),
    *(f"tracer.commands.{name}" for name in ("run", "predict", "fit", "check", "snapshot", "diff", "report")),
    *("pydantic", "pytest", "tests.truth.running"),
)


def run_python(
    *arguments: object,
    folder: Path,
    variables: Mapping[str, str] | None = None,
    stdout: IO[Any] | None = None,
    stderr: IO[Any] | None = None,
    limit_s: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Run what `python ARGUMENTS` would: a file, `-m` and a module, or `-c` and a program.

    What depends on torch not being loaded yet, such as a variable that the program sets for it, needs `subprocess`.

    Args:
        arguments: What stands behind `python`. A command of ours with `--on` starts on the null GPU at once.
        folder: The current folder.
        variables: The whole environment, by default this process's; one of the null GPU's is heeded.
        stdout: Takes what it prints, which is returned otherwise.
        stderr: Likewise.
        limit_s: After so long it is killed.

    Raises:
        subprocess.TimeoutExpired: It was.
    """
    command = [str(one) for one in arguments]
    variables = _restarted(command, dict(os.environ if variables is None else variables))
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, Path(os.devnull).open("rb") as nothing:
        streams = [nothing.fileno(), (stdout or out).fileno(), (stderr or err).fileno()]
        process = Process(_run_program, (command, str(folder), variables), streams, _is_of_null_gpu(variables))
        status = process.wait(limit_s)
        if status is None:
            process.kill()
            raise subprocess.TimeoutExpired(command, limit_s)
        texts = [os.pread(stream.fileno(), os.fstat(stream.fileno()).st_size, 0).decode() for stream in (out, err)]
    return subprocess.CompletedProcess([sys.executable, *command], status, *texts)


def _restarted(command: Sequence[str], variables: dict[str, str]) -> dict[str, str]:
    """The environment that a command of ours with one card would start itself again in."""
    from tracer.errors import TracerError
    from tracer.null_gpu.cards import A100, devices_of
    from tracer.null_gpu.process import environment

    is_trial, is_prediction = "trial" in variables.get("TORCH_TIMELINE_ROLE", ""), "predict" in command
    named = [
        command[at + 1] for at, word in enumerate(command[:-1]) if word in ("--on", "--gpu-memory")[: 1 + is_prediction]
    ]
    if is_prediction and not named and "--model" in command:
        named = [A100.name]
    if not named or ("fit" in command and not is_trial) or "--settings" in command or _is_of_null_gpu(variables):
        return variables  # `fit` itself needs no GPU
    with suppress(TracerError):
        devices = devices_of(named[0])
        if devices.count == 1 and (devices.card.name or is_prediction):
            return environment([replace(devices.card, name=devices.card.name or A100.name)], variables)
    return variables


def _is_of_null_gpu(variables: Mapping[str, str]) -> bool:
    return "NULL_GPU_COUNT" in variables


class Process:
    """A function in a fork of a server's; it ends there with the status that the function exits with, or 0."""

    def __init__(
        self,
        function: Callable[..., object],
        arguments: Sequence[object],
        streams: Sequence[int] = (0, 1, 2),
        is_on_null_gpu: bool = False,
    ) -> None:
        """Start it.

        Args:
            function: One of a module of the tests.
            arguments: They are pickled.
            streams: Descriptors of its standard streams, and of what it takes beside them from 3 on.
            is_on_null_gpu: Whether CUDA's libraries there are the null GPU's.
        """
        request = pickle.dumps((function.__module__, function.__qualname__, pickle.dumps(arguments)))
        self._socket = _connected(is_on_null_gpu)
        socket.send_fds(self._socket, [struct.pack("!Q", len(request))], list(streams))
        self._socket.sendall(request)
        self.pid = self._number()
        assert self.pid is not None, "the server has ended"

    def wait(self, limit_s: float | None = None) -> int | None:
        """Its exit status, negative for a signal; None if it still runs after a while."""
        self._socket.settimeout(limit_s)
        try:
            return self._number()
        except TimeoutError:
            return None
        finally:
            self._socket.settimeout(None)

    def kill(self) -> None:
        """End it, if it has not ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid or 0, signal.SIGKILL)
        self._number()

    def _number(self) -> int | None:
        text = _received(self._socket, 8)
        return struct.unpack("!q", text)[0] if len(text) == 8 else None


def call(
    function: Callable[..., object], *arguments: object, variables: Mapping[str, str], is_on_null_gpu: bool = False
) -> tuple[Process, Connection]:
    """Start a function in a fresh process, with a connection as its first argument.

    Args:
        function: One of a module of the tests.
        arguments: What it takes behind the connection.
        variables: Of its environment, beside this process's.
        is_on_null_gpu: Whether CUDA's libraries there are the null GPU's.
    """
    ours, theirs = multiprocessing.Pipe()
    # Threads of kernels that spin while they wait take the cores from other processes of a test run.
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "KINETO_LOG_LEVEL": "99", **variables}
    with Path(os.devnull).open("rb") as nothing:
        streams = (nothing.fileno(), 1, 2, theirs.fileno())
        process = Process(_call, (function, arguments, environment), streams, is_on_null_gpu)
    theirs.close()
    return process, ours


class ForkedProgram:
    """`subprocess.Popen` of a program that starts itself again or that torchrun starts: in a fork of a server's."""

    def __init__(
        self,
        args: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        pass_fds: Sequence[int] = (),
        start_new_session: bool = False,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
    ) -> None:
        command = [word for word in args[1:] if word != "-u"]
        variables = _restarted(command, dict(os.environ if env is None else env))
        self.returncode: int | None = None
        with Path(os.devnull).open("r+b") as nothing:
            streams = [
                nothing.fileno() if stream == subprocess.DEVNULL else number if stream is None else stream.fileno()
                for number, stream in enumerate((stdin, stdout, stderr))
            ]
            arguments = (command, str(cwd or Path.cwd()), variables, list(pass_fds), start_new_session)
            self._process = Process(_run_program, arguments, [*streams, *pass_fds], _is_of_null_gpu(variables))
        self.pid = self._process.pid or 0

    @staticmethod
    def starts(words: Sequence[str], options: Mapping[str, Any]) -> bool:
        """Whether it is a command of ours, of pytest for a test of its own, or a rank of torchrun's."""
        if not options.keys() <= ForkedProgram.__init__.__annotations__.keys() or subprocess.PIPE in options.values():
            return False
        is_ours = words[1:2] == [str(ROOT / "main.py")] or words[1:3] in (["-m", "tracer"], ["-m", "pytest"])
        is_rank = words[1:2] == ["-u"] and words[2].endswith(".py")
        return words[:1] == [sys.executable] and (is_ours or is_rank)

    def poll(self) -> int | None:
        """As that of `Popen`, like all below."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0.001)
        return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = self._process.wait(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("a program", timeout or 0)
        return self.returncode

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class ForkingPopen(subprocess.Popen):
    """In place of `subprocess.Popen` in programs."""

    def __new__(cls, args: Any, *rest: Any, **options: Any) -> Any:
        is_forked = not rest and isinstance(args, list | tuple) and ForkedProgram.starts(list(map(str, args)), options)
        return ForkedProgram(args, **options) if is_forked else super().__new__(cls)


# ----------------------------------------------------------------------------------------------------- of a test run
def share_servers() -> None:
    """For this process and every worker of pytest-xdist that it starts."""
    if FOLDER_VARIABLE not in os.environ:
        os.environ[FOLDER_VARIABLE] = tempfile.mkdtemp(prefix="processes-")
        os.environ[f"{FOLDER_VARIABLE}_OF"] = str(os.getpid())


def end_servers() -> None:
    """By the process that began to share them alone; a server ends by itself where that one is gone."""
    if os.environ.get(f"{FOLDER_VARIABLE}_OF") == str(os.getpid()):
        del os.environ[f"{FOLDER_VARIABLE}_OF"]
        shutil.rmtree(os.environ.pop(FOLDER_VARIABLE), ignore_errors=True)


def _connected(is_on_null_gpu: bool) -> socket.socket:
    import fcntl  # not on Windows, where what is here cannot be called

    share_servers()
    folder = Path(os.environ[FOLDER_VARIABLE])
    of_this_checkout = hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]
    path = folder / f"{'null-gpu' if is_on_null_gpu else 'cpu'}-{of_this_checkout}"
    with (folder / f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _start_server(path, is_on_null_gpu)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    return connection


def _start_server(path: Path, is_on_null_gpu: bool) -> None:
    variables = {**os.environ, "KINETO_LOG_LEVEL": "99", "OMP_WAIT_POLICY": "passive", "PYTHONPATH": str(ROOT)}
    if is_on_null_gpu:
        from tracer.null_gpu.cards import H100
        from tracer.null_gpu.process import environment

        variables = environment([H100], variables)
    command = [sys.executable, "-m", "tests.processes", str(path)]
    errors = path.with_name(f"{path.name}.err")  # not this process's, whose reader would wait for the server's end
    with errors.open("wb") as stderr:
        started = subprocess.Popen(
            command, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr,
            start_new_session=True,
        )  # fmt: skip
    assert started.stdout is not None
    assert started.stdout.readline() == b"listening\n", errors.read_text("utf-8", "replace")
    started.stdout.close()
    started.returncode = 0  # nobody waits for it: it ends with the test run


# ------------------------------------------------------------------------------------------------ in a server's process
def _serve(path: str) -> tuple[str, str, bytes]:
    """Fork for each request: its function and arguments, in a process of its own."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(64)
    print("listening", flush=True)
    os.dup2(2, 1)
    # A child's end wakes the server. Page tables are most of what a fork costs: no second process waits for each.
    ended, wakes = socket.socketpair()
    ended.setblocking(False)
    wakes.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno())
    running: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([listening, ended], [], [], 2)
        if ended in ready:
            ended.recv(4096)
        _tell_of_ended(running)
        if listening in ready:
            connection, _ = listening.accept()
            size, streams, _, _ = socket.recv_fds(connection, 8, 8)
            if len(size) < 8:  # who asked has ended
                connection.close()
                continue
            request = _received(connection, *struct.unpack("!Q", size))
            if (pid := os.fork()) == 0:
                break
            running[pid] = connection
            for stream in streams:
                os.close(stream)
            with suppress(ConnectionError):
                connection.sendall(struct.pack("!q", pid))
        elif not ready:
            if not _runs(int(os.environ[f"{FOLDER_VARIABLE}_OF"])):
                shutil.rmtree(Path(path).parent, ignore_errors=True)
            if not Path(path).exists():
                os._exit(0)
    import fcntl

    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for of_the_server in (listening, ended, wakes, connection, *running.values()):
        of_the_server.close()
    high = [fcntl.fcntl(stream, fcntl.F_DUPFD, 64) for stream in streams]
    for number, stream in enumerate(high):
        os.dup2(stream, number)
    os.closerange(len(high), 256)
    return pickle.loads(request)  # type: ignore[no-any-return]


def _tell_of_ended(running: dict[int, socket.socket]) -> None:
    """Send the exit status of each process that has ended to whom it belongs."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with running.pop(pid) as connection, suppress(ConnectionError):
            connection.sendall(struct.pack("!q", os.waitstatus_to_exitcode(status)))


def _received(connection: socket.socket, size: int) -> bytes:
    text = b""
    while len(text) < size and (more := connection.recv(size - len(text))):
        text += more
    return text


def _runs(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def _set_environment(variables: Mapping[str, str]) -> None:
    import torch

    os.environ.clear()
    os.environ.update(variables)
    tempfile.tempdir = None  # asked for when torch was loaded
    if "OMP_NUM_THREADS" in variables:  # which OpenMP has read when torch was loaded
        torch.set_num_threads(int(variables["OMP_NUM_THREADS"]))


def _call(function: Callable[..., object], arguments: Sequence[object], variables: Mapping[str, str]) -> None:
    _set_environment(variables)
    function(Connection(3), *arguments)


def _run_program(
    arguments: list[str],
    folder: str,
    variables: Mapping[str, str],
    passed: Sequence[int] = (),
    is_of_new_session: bool = False,
) -> None:
    """Do with arguments as the interpreter does, in a process that has started already.

    Args:
        passed: The numbers of the descriptors that it has beside the standard streams.
    """
    from tracer.exporters.screen import next_commands

    if is_of_new_session:
        os.setsid()
    _give_descriptors(passed)
    if FOLDER_VARIABLE in variables:
        subprocess.Popen = ForkingPopen  # type: ignore[misc,assignment]
    _set_environment(variables)
    os.chdir(folder)
    for stream in (sys.stdout, sys.stderr):
        encoding, _, errors = variables.get("PYTHONIOENCODING", "").partition(":")
        stream.reconfigure(encoding=encoding or "utf-8", errors=errors or None)  # type: ignore[union-attr]
    sys.orig_argv = [sys.executable, *arguments]
    search = [*filter(None, variables.get("PYTHONPATH", "").split(os.pathsep)), *_PATH]
    what, *rest = arguments
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    if what == "-m":
        sys.argv, sys.path[:] = rest, [folder, *search]
        # Read when it was imported, which is long ago.
        next_commands._CALLED_AS = _file_of(rest[0])
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
        return
    sys.argv = ["-c", *rest[1:]] if what == "-c" else arguments
    sys.path[:] = ["" if what == "-c" else str(Path(what).resolve().parent), *search]
    next_commands._CALLED_AS = sys.argv[0]
    if what == "-c":
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        main.__file__ = what
        exec(compile(Path(what).read_bytes(), what, "exec"), main.__dict__)


def _give_descriptors(numbers: Sequence[int]) -> None:
    """Have those behind the standard streams under these numbers, and under no others."""
    import fcntl

    high = [fcntl.fcntl(3 + index, fcntl.F_DUPFD, 256) for index in range(len(numbers))]
    os.closerange(3, 3 + len(numbers))
    for descriptor, number in zip(high, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)


def _file_of(module: str) -> str:
    found = importlib.util.find_spec(module)
    if found is not None and found.submodule_search_locations is not None:
        found = importlib.util.find_spec(f"{module}.__main__")
    return str(found.origin) if found is not None else module


def _end(error: BaseException | None) -> NoReturn:
    """End as the interpreter does, but for the objects that are still there: the system takes their memory."""
    status = 0
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if not isinstance(error.code, int | None):
            print(error.code, file=sys.stderr)
    elif error is not None:
        status, trace = 1, error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error, trace)
    with suppress(KeyboardInterrupt):
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            status = 120  # the interpreter's own
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status & 0xFF)


_PATH = [path for path in sys.path if path and Path(path) != ROOT]


def _load() -> None:
    """Import what programs load.

    Inductor of torch 2.11 asks for CUDA when it is imported, after which no fork could use CUDA or read variables of
    the null GPU. It is answered without CUDA.
    """
    import torch

    with patch.object(torch.cuda, "is_available", lambda: _is_of_null_gpu(os.environ)):
        for name in _LOADED:
            if importlib.util.find_spec(name.partition(".")[0]) is not None:  # pydantic comes with other packages
                importlib.import_module(name)


def _main() -> NoReturn:
    # Requests name functions of `tests.processes`: this module, which runs as `__main__`, under its name.
    sys.modules["tests.processes"] = sys.modules["__main__"]
    _load()
    gc.collect()
    gc.freeze()
    module, name, arguments = _serve(sys.argv[1])
    error: BaseException | None = None
    try:
        getattr(importlib.import_module(module), name)(*pickle.loads(arguments))
    except BaseException as raised:
        error = raised
    _end(error)


if __name__ == "__main__":
    _main()
