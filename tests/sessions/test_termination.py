"""Signals: while our own code is at work, and where the main thread does not come to handle them."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.processes import Process
from tracer.errors import Terminated
from tracer.exporters.files import replacing
from tracer.sessions import termination
from tracer.sessions.schedule import Schedule
from tracer.sessions.termination import Handling, SignalWatch, Termination, signals_deferred
from tracer.sessions.training_profile import profile_training

# ---- while our own code is at work ----------------------------------------------------------------------------------


NAMES = ("a", "b", "c", "d")


pytestmark = pytest.mark.usefixtures("usual_signals")


def send(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


def write_all(folder: Path, during: Callable[[str], None]) -> None:
    """Four files, and something that happens while each is half written."""
    paths = [folder / name for name in NAMES]
    with signals_deferred():
        for path in paths:
            with replacing(path) as temporary:
                temporary.write_text("ha")
                during(path.name)
                temporary.write_text("half and whole")


def left(folder: Path) -> str:
    assert {path.read_text() for path in folder.iterdir()} <= {"half and whole"}
    return "".join(sorted(path.name for path in folder.iterdir()))


def in_file(name: str, *numbers: int) -> Callable[[str], None]:
    return lambda now: send(*numbers) if now == name else None


def test_a_second_one_ends_the_file_at_work_too(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("half and whole")  # of an earlier run
    with pytest.raises(KeyboardInterrupt):
        write_all(tmp_path, in_file("b", signal.SIGINT, signal.SIGINT))
    assert left(tmp_path) == "ab"


def test_a_third_one_does_not_disturb_the_cleaning_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink = Path.unlink

    def interrupted(path: Path, **options: bool) -> None:
        send(signal.SIGINT)
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_all(tmp_path, in_file("a", signal.SIGINT, signal.SIGINT))
    assert left(tmp_path) == ""


@pytest.mark.parametrize(
    ("numbers", "ended"),
    [([signal.SIGINT], KeyboardInterrupt), ([signal.SIGTERM, signal.SIGTERM], Terminated)],
)
def test_a_signal_waits_for_all_files(numbers: list[int], ended: type[BaseException], tmp_path: Path) -> None:
    with pytest.raises(ended):
        write_all(tmp_path, in_file("b", *numbers))
    assert left(tmp_path) == "abcd"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR2])
def test_a_handler_of_the_programs_own_is_called_after_the_last_file(number: int, tmp_path: Path) -> None:
    def theirs(number: int, frame: object) -> None:
        raise TimeoutError("theirs")

    before = signal.signal(number, theirs)
    try:
        with pytest.raises(TimeoutError, match="theirs"):
            write_all(tmp_path, in_file("b", number, number))
        assert signal.getsignal(number) is theirs
    finally:
        signal.signal(number, before)
    assert left(tmp_path) == "abcd"


# ---- a main thread that does not come --------------------------------------------------------------------------------


PATIENCE_S = 300.0  # how long a busy machine may take; a limit for what hangs


def never_comes_back(number: int | None = None) -> None:
    """Wait in C for what never comes, as for another rank; unlike `sleep` it is not woken by signals.

    Args:
        number: A signal that the process gets as soon as it waits, so that Python's handler cannot run before.
    """
    lock = ctypes.create_string_buffer(64)
    is_waited_for = b"\2"  # in glibc; 1: locked

    def send(number: int) -> None:
        while lock[0] != is_waited_for:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    if number is not None:
        threading.Thread(target=send, args=(number,), daemon=True).start()
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(lock)


def status_of_child(work: Callable[[], object]) -> int:
    """How a forked child ends that does this: its exit status, or minus the signal."""
    child = os.fork()
    if child == 0:
        signal.alarm(int(PATIENCE_S))  # ends what hangs
        try:
            work()
        except BaseException:
            traceback.print_exc()  # what a failed test shows
        sys.stderr.flush()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_process_whose_main_thread_does_not_come_back_ends_by_the_signal(
    number: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(termination, "LIMIT_S", 0.2)

    def handled() -> None:
        Termination().watch()
        os.kill(os.getpid(), number)
        never_comes_back()

    def blocked() -> None:
        Termination().watch()
        never_comes_back(number)

    def caught() -> None:
        Termination().watch()
        with suppress(SystemExit):
            os.kill(os.getpid(), number)
        never_comes_back()

    assert [status_of_child(each) for each in (handled, blocked, caught)] == [0, -number, -number]
    assert capfd.readouterr().err.count(f"Error: Ended by {signal.Signals(number).name}.") == 2


def train_until_a_signal(folder: Path) -> None:
    setattr(termination, "LIMIT_S", 0.2)  # noqa: B010 - a constant, of this process alone
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters())
    plan = Schedule(num_wait_steps=0, num_warmup_steps=1, num_active_steps=1, num_repeats=2)
    with profile_training(model, optimizer, save_dir=folder, schedule=plan, screen="none") as running:
        for step in range(4):
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            running.step()
            if step == 2:
                never_comes_back(signal.SIGTERM)


def test_what_was_recorded_before_is_written(tmp_path: Path) -> None:
    process = Process(train_until_a_signal, (tmp_path,))  # whose autograd has no threads of this one's tests
    assert process.wait(PATIENCE_S) == -signal.SIGTERM
    assert json.loads((tmp_path / "peak.json").read_text())["peak_bytes"] > 0


def test_a_program_that_wakes_itself_is_woken() -> None:
    reads, writes = socket.socketpair()
    writes.setblocking(False)
    reads.settimeout(PATIENCE_S)
    before = signal.signal(signal.SIGUSR2, lambda *arguments: None)
    try:
        with closing(reads), closing(writes):
            signal.set_wakeup_fd(writes.fileno())
            watch = SignalWatch(lambda number: Handling.DONE, lambda number: None)
            watch.start()
            os.kill(os.getpid(), signal.SIGUSR2)
            assert reads.recv(1) == bytes([signal.SIGUSR2])
            watch.stop()
            assert signal.set_wakeup_fd(-1) == writes.fileno()
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_descriptor_that_the_program_sets_meanwhile_stays() -> None:
    reads, writes = socket.socketpair()
    writes.setblocking(False)
    with closing(reads), closing(writes):
        watch = SignalWatch(lambda number: Handling.DONE, lambda number: None)
        watch.start()
        signal.set_wakeup_fd(writes.fileno())
        watch.stop()
        assert signal.set_wakeup_fd(-1) == writes.fileno()


def test_there_is_no_thread_behind_the_last_listener() -> None:
    before = threading.active_count()
    listeners = [Termination(), Termination()]
    for one in listeners:
        one.watch()
    assert threading.active_count() == before + 1
    for one in listeners:
        one.close()
    assert threading.active_count() == before
    assert signal.set_wakeup_fd(-1) == -1
