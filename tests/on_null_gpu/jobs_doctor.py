"""Checks of `doctor` in a process on the null GPU."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tracer.capture.device import devices
from tracer.results.doctor import Outcome
from tracer.sessions.doctor import further, loaded, trained
from tracer.sessions.doctor.examine import answer
from tracer.sessions.doctor.trained import PROGRAMS

DEVICE = torch.device("cuda", 0)
LSTM = next(program for program in PROGRAMS if program.name == "LSTM")


def answers(names: list[str]) -> dict[str, list[Any]]:
    """Status, sentence and facts of checks, as a process of the role leaves them."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "answers")
        answer({"file": str(file), "device": "cuda:0", "names": names, "done": []})
        lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    outcomes = {line["name"]: line["outcome"] for line in lines if "name" in line}
    return {name: [each["status"], each["sentence"], each["facts"]] for name, each in outcomes.items()}


def history_already_on() -> tuple[str, str]:
    torch.zeros(1, device=DEVICE)
    torch.cuda.memory._record_memory_history()
    try:
        return said(loaded.history(DEVICE))
    finally:
        torch.cuda.memory._record_memory_history(None)


def counted_otherwise() -> tuple[str, str]:
    """An LSTM beside which something else allocates in the recorded steps, unseen by the recording's rows."""

    def with_more(device: torch.device) -> int:
        return (torch.cuda.max_memory_allocated(device) or 0) + 512

    with mock.patch.object(devices, "peak_allocated_bytes", with_more):
        return said(trained.train(LSTM, DEVICE))


def moved_line() -> tuple[str, str]:
    with mock.patch.object(further, "_LINE_THAT_KEEPS", further._LINE_THAT_KEEPS + 10):
        return said(further.lines(DEVICE))


def unlimited() -> tuple[str, str]:
    """A driver that serves what the fraction should refuse."""
    with mock.patch.object(torch.cuda, "set_per_process_memory_fraction"):
        return said(further.out_of_memory(DEVICE))


def busy_card() -> tuple[str, str]:
    with mock.patch.object(devices, "device_memory", return_value=(1 << 30, 80 << 30)):
        return said(loaded.card(DEVICE))


def as_if_it_computed() -> dict[str, tuple[str, str]]:
    """The checks that ask a device which computes: the null GPU answers, with made-up kernels and events."""
    asked = {"times": further.times, "kernels": further.kernels, "cost": further.cost, "context": further.context}
    with mock.patch.object(further, "is_active", return_value=False):
        found = {name: said(ask(DEVICE)) for name, ask in asked.items()}
        with mock.patch.object(devices, "profiler_activities", return_value=[torch.profiler.ProfilerActivity.CPU]):
            return found | {"no kernels": said(further.kernels(DEVICE))}


def said(outcome: Outcome) -> tuple[str, str]:
    return str(outcome.status), outcome.sentence
