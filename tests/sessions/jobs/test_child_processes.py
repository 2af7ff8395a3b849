"""Processes that a command starts: none is missed when it ends, none outlives it, none waits for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from threading import Timer

import pytest

from tracer.errors import Terminated
from tracer.sessions.jobs import child_processes
from tracer.sessions.jobs.child_processes import ChildProcesses, IdleLimit, asked_of_processors_s, end_with_parent
from tracer.sessions.termination import Termination, signals_deferred

pytestmark = pytest.mark.usefixtures("usual_signals")
WAITS = ["sleep", "1000"]
WAITS_AND_IGNORES = ["sh", "-c", "trap '' TERM; echo; while :; do sleep 0.1; done"]


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_processes, "_LOOK_EVERY_S", 0.01)


def starts(command: list[str]) -> Callable[[], subprocess.Popen[bytes]]:
    return lambda: subprocess.Popen(command)


def test_a_process_is_waited_for() -> None:
    assert ChildProcesses().run(starts(["sh", "-c", "exit 3"])) == 3


def test_one_that_waits_for_what_does_not_come_is_ended(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(child_processes, "IDLE_LIMIT_S", 0.1)
    assert ChildProcesses().run(starts(WAITS)) == -signal.SIGTERM
    assert capfd.readouterr().err.startswith("Note: A process asked for no processor for 0 s and is ended")


def test_one_with_a_reason_to_wait_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_processes, "IDLE_LIMIT_S", 0.1)
    asked = count()

    def may_wait() -> bool:
        if next(asked) == 3:
            running.end()
        return True

    running = ChildProcesses()
    assert running.run(starts(WAITS), may_wait) == -signal.SIGTERM
    assert next(asked) > 3


@pytest.mark.parametrize(
    ("asked", "is_over"),
    [
        ([{1: 5.0}, {1: 5.0}], True),
        ([{1: 5.0}, {1: 5.5}], True),  # of 100 s, half a second is what polling takes
        ([{1: 5.0}, {1: 35.0}], False),
        ([{1: 5.0, -2: 0.0}, {1: 5.0, -2: 30.0}], False),  # ready to run, on a busy machine
        ([{1: 5.0, 3: 90.0}, {1: 7.0}], False),  # a child is gone, and its time with it
    ],
)
def test_a_process_that_polls_is_idle_and_one_that_works_is_not(
    asked: list[dict[int, float]], is_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, now = iter([*asked, asked[-1]]), iter([0.0, 100.0, 100.0])
    monkeypatch.setattr(child_processes, "asked_of_processors_s", lambda process: next(looks))
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    assert IdleLimit(1, limit_s=90.0).is_over() == is_over


def test_the_time_of_children_counts() -> None:
    with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as child:
        while asked_of_processors_s(os.getpid()).get(child.pid, 0.0) < 0.2:
            pass
        assert asked_of_processors_s(child.pid)[-child.pid] > 0
        child.kill()


def test_all_are_ended_together_and_none_begins_later() -> None:
    running = ChildProcesses()
    begun: list[int] = []

    def start() -> subprocess.Popen[bytes]:
        begun.append(1)
        return subprocess.Popen(WAITS)

    with ThreadPoolExecutor(6) as pool:
        futures = [pool.submit(running.run, start) for _ in range(12)]
        while len(begun) < 6:
            pass
        running.end()
    ends = [future.exception() or future.result() for future in futures]
    assert [end for end in ends if isinstance(end, int)] == [-signal.SIGTERM] * len(begun)
    assert all(isinstance(end, int | ChildProcessError) for end in ends)


def test_one_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_processes, "END_LIMIT_S", 0.1)
    running = ChildProcesses()

    def start() -> subprocess.Popen[bytes]:
        child = subprocess.Popen(WAITS_AND_IGNORES, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.read(1)  # from now on it ignores SIGTERM
        return child

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(running.run, start)
        while not future.done():
            running.end()
    assert future.result() == -signal.SIGKILL


def test_ctrl_c_ends_what_is_waited_for() -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(WAITS))
        os.kill(os.getpid(), signal.SIGINT)  # right behind the start, which must not be missed
        return started[0]

    with pytest.raises(KeyboardInterrupt):
        ChildProcesses().run(start)
    assert started[0].returncode == -signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGQUIT])
def test_a_child_ends_when_its_parent_is_ended_at_once(number: int) -> None:
    reads, writes = os.pipe()
    parent = os.fork()
    if parent == 0:
        if os.fork() == 0:
            end_with_parent()
            os.write(writes, b"x")
        signal.alarm(60)
        while True:
            signal.pause()
    os.close(writes)
    assert os.read(reads, 1) == b"x"
    os.kill(parent, number)
    assert os.waitstatus_to_exitcode(os.waitpid(parent, 0)[1]) == -number
    assert os.read(reads, 1) == b""
    os.close(reads)


def test_a_signal_that_waits_ends_the_process_that_is_waited_for() -> None:
    """As where a script runs a second time, within work of ours that no signal interrupts."""
    sent = Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
    with pytest.raises(Terminated), closing(Termination()) as termination:
        termination.watch()
        with signals_deferred():
            sent.start()
            assert ChildProcesses().run(starts(WAITS)) == -signal.SIGTERM
