"""One signal at each stage of a session: the files are there; then it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

from tests.skips import by_default
from tracer.capture.device.memory_counters import CounterReading
from tracer.capture.torch_private import torch_profiler
from tracer.errors import Terminated
from tracer.sessions import observations, timeline_tracer
from tracer.sessions import output_files as outputs
from tracer.sessions.output_files import OUTPUTS
from tracer.sessions.recorder import Recorder
from tracer.sessions.schedule import Schedule
from tracer.sessions.session import ScriptVoice, Session
from tracer.sessions.termination import uninterrupted
from tracer.sessions.training_profile import TrainingProfile, profile_training

pytestmark = pytest.mark.usefixtures("usual_signals")

PLAN = Schedule(num_wait_steps=1, num_warmup_steps=1, num_active_steps=1, num_repeats=2)
ENDS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated, signal.SIGHUP: Terminated}
IN_LOOP = {"wait": 0, "warm-up": 1, "recording": 2, "second cycle": 5}
WITHIN = {
    "reading a cycle": (timeline_tracer, "read_recording"),
    "keeping a cycle": (torch_profiler, "kineto_results"),
    "reading the counter": (CounterReading, "now"),
    "analysis": (timeline_tracer, "find_in_cycle"),
    "walk": (observations, "live_tensors"),
}
FILES = [output.name for output in OUTPUTS if output.file.switch_help and output.name != "cuda-timing"]


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def first_then(send_it: Callable[[], None], work: Any) -> Any:
    """The work, with something that happens at the beginning of its first call."""
    calls: list[int] = []

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            send_it()
        return work(*args, **kwargs)

    return wrapped


def train(folder: Path, in_step: Callable[[int], None] = lambda step: None, num_steps: int = PLAN.num_steps) -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters())
    with profile_training(model, optimizer, save_dir=folder, schedule=PLAN, screen="none") as running:
        for step in range(num_steps):
            model(torch.randn(4, 8)).sum().backward()
            in_step(step)
            optimizer.step()
            optimizer.zero_grad()
            running.step()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


ALL = {output.file_name for output in OUTPUTS if output.name in FILES}


@pytest.mark.parametrize(
    ("number", "stage"),
    [
        *((number, "recording") for number in ENDS),
        pytest.param(signal.SIGINT, "wait", marks=pytest.mark.slow),
        (signal.SIGTERM, "warm-up"),
        pytest.param(signal.SIGINT, "second cycle", marks=pytest.mark.slow),
    ],
)
def test_in_the_loop(number: int, stage: str, tmp_path: Path) -> None:
    with pytest.raises(ENDS[signal.Signals(number)]):
        train(tmp_path, lambda step: send(number) if step == IN_LOOP[stage] else None)
    assert names(tmp_path) == (ALL if stage in ("recording", "second cycle") else set())


def send_within(stage: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name = WITHIN[stage]
    monkeypatch.setattr(owner, name, first_then(lambda: send(number), getattr(owner, name)))


@pytest.mark.parametrize(
    ("number", "stage", "num_steps"),
    [
        *((signal.SIGINT, stage, PLAN.num_steps) for stage in WITHIN),
        *(pytest.param(signal.SIGTERM, stage, PLAN.num_steps, marks=pytest.mark.slow) for stage in WITHIN),
        # A loop that is shorter than the schedule: all is read when the block ends.
        pytest.param(signal.SIGINT, "reading a cycle", 5, marks=pytest.mark.slow),
        (signal.SIGTERM, "analysis", 5),
    ],
)
def test_while_our_own_code_is_at_work(
    number: int, stage: str, num_steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_within(stage, number, monkeypatch)
    with pytest.raises(ENDS[signal.Signals(number)]):
        train(tmp_path, num_steps=num_steps)
    assert names(tmp_path) == (set() if stage == "walk" else ALL)
    assert signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)


def test_while_a_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupting = replace(OUTPUTS[2], write=first_then(lambda: send(signal.SIGINT), OUTPUTS[2].write))
    monkeypatch.setattr(outputs, "OUTPUTS", (*OUTPUTS[:2], interrupting, *OUTPUTS[3:]))
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path)
    assert names(tmp_path) == ALL


def test_a_second_ctrl_c_ends_the_reading_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on: list[int] = []

    def read(results: Any) -> Any:
        send(signal.SIGINT)
        send(signal.SIGINT)
        goes_on.append(1)

    monkeypatch.setattr(timeline_tracer, "read_recording", read)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, num_steps=5)
    assert (goes_on, names(tmp_path)) == ([], set())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupted_loop_that_is_interrupted_again_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline_tracer, "read_recording", lambda results: send(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, lambda step: send(signal.SIGINT) if step == 3 else None)
    assert names(tmp_path) == set()


def test_a_signal_at_the_first_instruction_of_the_end_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave = profile_training.__exit__

    @uninterrupted
    def end(self: Any, *args: Any) -> None:
        send(signal.SIGINT)
        leave(self, *args)

    monkeypatch.setattr(profile_training, "__exit__", end)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path)
    assert names(tmp_path) == ALL


class LateError(Exception):
    """The program's own time limit is over."""


@pytest.fixture(params=by_default([signal.SIGALRM, signal.SIGINT, signal.SIGTERM], {signal.SIGALRM}))
def limit(request: pytest.FixtureRequest) -> Iterator[int]:
    """A signal that the program handles itself, by an exception."""

    def theirs(number: int, frame: FrameType | None) -> None:
        assert frame is not None
        assert not str(frame.f_globals["__name__"]).startswith("tracer."), "a handler that looks sees the program"
        raise LateError

    number: int = request.param
    before = signal.signal(number, theirs)
    yield number
    assert signal.getsignal(number) is theirs
    signal.signal(number, before)


@pytest.mark.parametrize("stage", ["reading a cycle", "reading the counter", "walk"])
def test_what_a_handler_of_the_programs_own_raises_reaches_the_program_and_costs_nothing(
    limit: int, stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_within(stage, limit, monkeypatch)
    with pytest.raises(LateError):
        train(tmp_path)
    assert names(tmp_path) == (set() if stage == "walk" else ALL)


def test_a_loop_that_catches_what_its_handler_raises_goes_on_and_is_recorded(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every step, inside our code: the training's limit is the training's."""
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters())
    caught = 0
    monkeypatch.setattr(Session, "_note_mode", lambda session: send(limit) if session.num_steps_done > 1 else None)
    with profile_training(model, optimizer, save_dir=tmp_path, schedule=PLAN, screen="none") as running:
        for _ in range(PLAN.num_steps):
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            try:
                running.step()
            except LateError:
                caught += 1
    assert (caught, running.fault) == (PLAN.num_steps - 1, None)
    assert running.results is not None
    assert running.results.findings is not None
    assert len(running.results.findings.parts) == PLAN.num_repeats


def test_a_handler_that_the_loop_sets_meanwhile_stays(tmp_path: Path) -> None:
    def theirs(number: int, frame: object) -> None:
        """Of the loop's."""

    train(tmp_path, lambda step: [signal.signal(signal.SIGTERM, theirs)].clear())
    assert signal.getsignal(signal.SIGTERM) is theirs
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_a_limit_between_two_steps_leaves_a_recording_that_begins_there(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a first step that was recorded too, the schedule's profiler begins where the program is at work."""
    begin = Recorder.begin_schedule
    monkeypatch.setattr(Recorder, "begin_schedule", lambda *arguments: [send(limit), begin(*arguments)].clear())
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters())
    plan = Schedule(num_wait_steps=1, num_warmup_steps=0, num_active_steps=1, num_repeats=1)
    caught = 0
    with TrainingProfile(
        {"model": model}, optimizer, voice=ScriptVoice(), save_dir=tmp_path, schedule=plan, screen="none"
    ) as running:
        for _ in range(plan.num_steps + 1):
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            try:
                with torch.profiler.record_function("open while the step ends"):
                    running.step()
            except LateError:
                caught += 1
    assert (caught, running.fault) == (1, None)
    assert running.results is not None
    assert running.results.findings is not None
