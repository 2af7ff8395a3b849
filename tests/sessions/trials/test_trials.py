"""Trials: steps counted without a recording, operations and memory, and forks from where a change could matter."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.utils.flop_counter import FlopCounterMode

from tests.processes import ForkedProgram
from tracer.answers.prediction import Sizes
from tracer.changes.applied import AppliedChanges
from tracer.sessions.script_run import FirstStepsDone, ScriptProfile
from tracer.sessions.script_sessions import CountedSteps
from tracer.sessions.trials import forked_trials, script_trial
from tracer.sessions.trials.forked_trials import TrialMemory
from tracer.sessions.trials.script_trial import StepFlops, StepRequests, script_sizes
from tracer.sessions.trials.trial_channel import Channel, TrialRequest


def test_steps_are_counted_until_it_is_enough() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    asked: list[None] = []
    profile = ScriptProfile(CountedSteps.of, is_enough=lambda: len(asked) == 3)
    num_made = 0
    with profile:
        try:
            for _ in range(10):
                model(torch.ones(1, 2)).sum().backward()
                asked.append(None)
                num_made += 1
                optimizer.step()
        except FirstStepsDone:
            pass
    session = profile.session
    assert isinstance(session, CountedSteps) and session.device == torch.device("cpu")
    assert session.num_steps_done == num_made == 3


def test_without_parameters_nothing_is_on_a_gpu() -> None:
    assert CountedSteps.of({}, []).device == torch.device("cpu")
    weight = nn.Parameter(torch.empty(2, device="meta"))
    assert CountedSteps.of({}, [torch.optim.SGD([weight], lr=0.1)]).device.type == "meta"


def counted(monkeypatch: pytest.MonkeyPatch, in_use: Sequence[int], *, totals: int = 7) -> StepRequests:
    """After steps that each asked for `totals` more, with a peak 10 above what was left in use."""
    steps = StepRequests()
    for number, left in enumerate(in_use):
        values = {
            script_trial._TOTALS: (totals * number,),
            script_trial._PEAKS: (max(in_use[: number + 1]) + 10,),
            script_trial._IN_USE: (left // 2, left - left // 2),  # of two devices
        }
        monkeypatch.setattr(script_trial, "_counted", values.__getitem__)
        steps.are_enough()
    return steps


@pytest.mark.parametrize(("in_use_bytes", "built_bytes"), [(10, 12), (20, 20)])
def test_an_evaluation_before_the_first_step_is_no_part_of_what_was_built(
    in_use_bytes: int, built_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    peak_bytes = 12
    monkeypatch.setattr(script_trial, "fullest_sizes", lambda: Sizes(peak_bytes, peak_bytes, peak_bytes, 0))
    monkeypatch.setattr(script_trial, "_counted", lambda names: (in_use_bytes,) * len(names))

    def run(profile: ScriptProfile) -> bool:
        nonlocal peak_bytes
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with profile, suppress(FirstStepsDone):
            with torch.no_grad():
                model(torch.ones(1, 2))
            peak_bytes = 50
            while True:
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
        return True

    counted = script_sizes(run)
    assert counted is not None and counted.built_bytes == built_bytes and counted.sizes.peak_allocated_bytes == 50


@pytest.mark.parametrize(
    ("room_bytes", "num_steps", "is_cut", "is_counted"),
    [(49, 1, True, False), (50, 3, False, False), (60, 3, False, True)],
)
def test_a_script_for_which_there_is_no_room_ends_with_the_step_that_shows_it(
    room_bytes: int, num_steps: int, is_cut: bool, is_counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_trial, "fullest_sizes", lambda: Sizes(50, 50, 60, 0))
    monkeypatch.setattr(script_trial, "_counted", lambda names: (1,) * len(names))

    def run(profile: ScriptProfile) -> bool:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with profile, suppress(FirstStepsDone):
            while True:
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
        return True

    found = script_sizes(run, room_bytes=lambda: room_bytes)
    assert found is not None and (found.num_steps, found.is_cut) == (num_steps, is_cut)
    assert (found.flops is not None) == is_counted


@pytest.mark.parametrize(
    ("in_use", "growth"),
    [
        ([5, 5, 5, 5, 5, 5, 5], 0),
        ([9, 10, 20, 30, 40, 50, 60], 10),
        ([90, 10, 20, 30, 40, 50, 60], 10),  # the last five count
        ([10, 20, 30, 40, 50], 0),  # four are too few
        ([10, 20, 30, 30, 40, 50, 60], 0),
        ([10, 20, 32, 41, 55, 66], 11),
        ([10, 20, 30, 40, 50, 500], 0),  # one step has made something that lasts
    ],
)
def test_memory_grows_where_each_step_leaves_about_as_much_more(
    in_use: list[int], growth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = counted(monkeypatch, in_use)
    assert (steps.growth_bytes, steps.num_steps) == (growth, len(in_use))


ROWS, NARROW, WIDE, BLOCKS = 8, 16, 32, 3
LAYER = 2 * ROWS * NARROW * WIDE


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(NARROW, WIDE), nn.Linear(WIDE, NARROW)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.b(torch.tanh(self.a(x)))


def step(model: nn.Module) -> None:
    model(torch.ones(ROWS, NARROW)).square().sum().backward()


@pytest.mark.parametrize(("changes", "again"), [((), 0), (("checkpoint",), BLOCKS)])
def test_a_step_of_linear_layers_has_what_they_have_by_hand(changes: tuple[()], again: int) -> None:
    """Forward once for each of two layers in a block, backward twice, but for the input's gradient.

    Of a block that computes again, the first layer does: backward needs its result, and not the second one's.
    """
    model = nn.Sequential(*[Block() for _ in range(BLOCKS)])
    flops = StepFlops()
    with AppliedChanges(changes):
        step(model)
        flops.begin()
        step(model)
        flops.end()
    step(model)
    assert flops.flops == (3 * 2 * BLOCKS - 1 + again) * LAYER
    with AppliedChanges(changes), FlopCounterMode(display=False) as torchs:
        step(model)
    assert torchs.get_total_flops() == flops.flops


def test_a_step_that_does_not_end_has_no_count() -> None:
    flops = StepFlops()
    flops.begin()
    step(Block())
    flops.stop()
    flops.stop()
    assert flops.flops is None and not flops.is_on


def test_of_a_sharded_tensor_the_part_of_this_rank_counts_once() -> None:
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        weight = DTensor.from_local(torch.ones(NARROW, WIDE), mesh, [Replicate()])
        rows = DTensor.from_local(torch.ones(ROWS, NARROW), mesh, [Replicate()])
        flops = StepFlops()
        flops.begin()
        _ = rows @ weight
        flops.end()
        assert flops.flops == LAYER
    finally:
        distributed.destroy_process_group()


class Quarter(torch.Tensor):
    """Rows of which a quarter is here."""

    part: torch.Tensor

    @staticmethod
    def __new__(cls, rows: torch.Tensor) -> Any:
        self = torch.Tensor._make_wrapper_subclass(cls, rows.shape)  # type: ignore[attr-defined]
        self.part = rows[: ROWS // 4]
        return self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(args[0].part, args[1])


def test_of_a_tensor_that_is_put_together_of_others_what_these_do_counts() -> None:
    flops = StepFlops()
    rows = Quarter(torch.ones(ROWS, NARROW))
    flops.begin()
    _ = torch.ops.aten.mm(rows, torch.ones(NARROW, WIDE))
    flops.end()
    assert flops.flops == LAYER // 4


# --------------------------------------------------------------------------------------------------------- trial memory
@pytest.mark.parametrize("limit_s", [0, 100])
def test_a_script_that_never_ends_a_step_is_ended(monkeypatch: pytest.MonkeyPatch, limit_s: int) -> None:
    limits: dict[int, int] = {}
    monkeypatch.setattr(forked_trials, "limited_to", lambda *_: nullcontext())
    monkeypatch.setattr(resource, "setrlimit", lambda what, pair: limits.update({what: pair[0]}))
    monkeypatch.setattr(signal, "signal", lambda number, act: limits.update({-number: 0}))
    TrialMemory(1).begin(TrialRequest((), "", is_limited=False, limit_s=limit_s))
    assert (limits.get(resource.RLIMIT_CPU, 0) >= 100) is (-signal.SIGXCPU in limits) is (limit_s > 0)


# ---- forks -----------------------------------------------------------------------------------------------------------


ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import ctypes, json, os, random, sys, threading
import torch
from torch import nn
from tracer.sessions.trials.forked_trials import ForkedTrials
from tracer.sessions.trials.trial_channel import Channel, output_of

requests, replies, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
random.seed(7)
lines = open(__file__, "rb", buffering=0)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
    def forward(self, x):
        return x + self.linear(x)
with ForkedTrials(Channel(requests, replies), lambda request: None) as trials:
    trials.look_out()
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(*[Block() for _ in range(3)]))
    if kind == "thread":
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    if kind == "library":  # threads of a library's, and the one of tqdm's bars
        ctypes.CDLL(None).pthread_create(ctypes.byref(ctypes.c_ulong()), None, ctypes.CDLL(None).pause, None)
        monitor = type("TMonitor", (threading.Thread,), {"__module__": "tqdm._monitor"})
        monitor(target=threading.Event().wait, daemon=True).start()
    if kind == "pipe":
        ends = os.pipe()
    torch.manual_seed(3)
    model(torch.ones(2, 4)).sum().backward()
    num_made = sum(hooks.num_made for hooks in trials.applied.hooks.values())
    said = [random.random(), lines.read(40).decode(), torch.rand(1).item(), num_made]
    if kind == "fails" and num_made:
        raise ValueError("not borne")
    (trials.folder / "0.json").write_text(json.dumps([*said, os.environ.get("PYTORCH_CUDA_ALLOC_CONF")]))
print("the end", flush=True)
"""
ASKED = [(), ("checkpoint",), ("expandable-segments",), ()]


def _line(request: TrialRequest) -> bytes:
    return f"{request.text}\n".encode()


def asked_of(kind: str, folder: Path) -> tuple[list[Any], str]:
    """Return the answer of each trial that was asked for, None for none, and the output of the process."""
    (folder / "program.py").write_text(PROGRAM, "utf-8")
    to_read, requests = os.pipe()
    replies, to_write = os.pipe()
    command = [sys.executable, "program.py", str(to_read), str(to_write), kind]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    variables.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    with (folder / "said").open("w") as said:
        process = ForkedProgram(command, cwd=folder, env=variables, pass_fds=(to_read, to_write), stdout=said)
    os.close(to_read)
    os.close(to_write)
    left: list[Any] = []
    for number, names in enumerate(ASKED):
        (folder / str(number)).mkdir()
        os.write(requests, _line(TrialRequest(names, str(folder / str(number)))))
        is_served = os.read(replies, 1) == b"\n"
        answer = folder / str(number) / "0.json"
        if not is_served:
            process.wait(300)
        left.append(json.loads(answer.read_text("utf-8")) if answer.exists() else None)
        if not is_served:
            break
    os.close(requests)
    os.close(replies)
    process.wait(300)
    return left, (folder / "said").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["alone", "library"])
def test_each_fork_goes_on_as_if_it_were_the_only_one(kind: str, tmp_path: Path) -> None:
    left, said = asked_of(kind, tmp_path)
    first, checkpointed, expandable, again = left
    assert first == again and first[3:] == [0, None]
    assert first[1] == PROGRAM[:40]  # each reads from the same place of the file
    assert checkpointed == [*first[:3], 3, None]
    assert expandable == [*first[:4], "expandable_segments:True"]
    assert said == ""  # neither the process nor a fork went on behind its trials


@pytest.mark.slow
def test_a_trial_that_fails_leaves_nothing_and_the_next_is_made(tmp_path: Path) -> None:
    left, _ = asked_of("fails", tmp_path)
    assert [answer is None for answer in left] == [False, True, False, False]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["thread", "pipe"])
def test_where_a_fork_would_lack_something_the_first_trial_is_the_process_itself(kind: str, tmp_path: Path) -> None:
    left, said = asked_of(kind, tmp_path)
    assert len(left) == 1 and left[0][3:] == [0, None]
    assert said == "the end\n"


def test_a_request_is_read_whole_and_no_further() -> None:
    to_read, to_write = os.pipe()
    first, second = TrialRequest(("bf16",), "one"), TrialRequest((), "two", ("--rows", "3\n4"), False, True)
    os.write(to_write, _line(first) + _line(second))
    os.close(to_write)
    channel = Channel(to_read, 0)
    assert channel.next() == first
    assert channel.next() == second
    assert channel.next() is None
    os.close(to_read)
