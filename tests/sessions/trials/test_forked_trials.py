"""Trials that fork from where a change could first matter: each goes on as a process of its own would have."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import ForkedProgram
from tracer.sessions.trials.trial_channel import Channel, TrialRequest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import ctypes, json, os, random, sys, threading
import torch
from torch import nn
from tracer.sessions.trials.forked_trials import ForkedTrials
from tracer.sessions.trials.trial_channel import Channel

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
    """What each trial that was asked for left, None for nothing, and what the process printed at its end."""
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


@pytest.mark.parametrize("kind", ["alone", "library"])
def test_each_fork_goes_on_as_if_it_were_the_only_one(kind: str, tmp_path: Path) -> None:
    left, said = asked_of(kind, tmp_path)
    first, checkpointed, expandable, again = left
    assert first == again and first[3:] == [0, None]
    assert first[1] == PROGRAM[:40]  # each reads from the same place of the file
    assert checkpointed == [*first[:3], 3, None]
    assert expandable == [*first[:4], "expandable_segments:True"]
    assert said == ""  # neither the process nor a fork went on behind its trials


def test_a_trial_that_fails_leaves_nothing_and_the_next_is_made(tmp_path: Path) -> None:
    left, _ = asked_of("fails", tmp_path)
    assert [answer is None for answer in left] == [False, True, False, False]


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
