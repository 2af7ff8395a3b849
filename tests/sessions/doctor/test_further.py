"""Checks that run on the CPU too: a line, files, and two ranks over gloo where doctor takes two GPUs."""

from __future__ import annotations

import pytest
import torch

from tests.truth.isolate import value_in_fresh_process
from tracer.results.doctor import Outcome, Status
from tracer.sessions.doctor import further
from tracer.sessions.doctor.further import train_two_ranks

CPU = torch.device("cpu")


def asked_of_the_cpu() -> list[Outcome]:
    return [further.lines(CPU), further.files(CPU)]


def test_a_line_and_files_on_the_cpu() -> None:
    outcomes = value_in_fresh_process(asked_of_the_cpu)
    assert [outcome.sentence for outcome in outcomes if outcome.status is not Status.PASS] == []


@pytest.mark.slow
def test_two_ranks_each_have_their_rows_sum() -> None:
    outcome = train_two_ranks("cpu")
    assert outcome.status is Status.PASS, outcome.sentence
    peaks = outcome.facts["peaks"]
    assert isinstance(peaks, list) and len(peaks) == 2 and peaks[0] == peaks[1] != 0
