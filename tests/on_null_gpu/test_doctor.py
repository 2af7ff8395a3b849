"""Checks of `doctor` where torch's CUDA code runs: all well as it is, and a FAIL for each thing that is changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.on_null_gpu import jobs_doctor as jobs
from tests.truth.isolate import Elsewhere

ASKED = ["torch's parts", "card", "allocator", "history", "profiler", "LSTM", "fused", "lines and kinds",
         "out of memory", "watch", "files", "CUDA graph", "times", "kernels", "context", "DDP", "CUDA copies",
         "cuDNN"]  # fmt: skip


def test_all_is_well_there(elsewhere: Elsewhere) -> None:
    found = elsewhere(jobs.answers, ASKED)
    assert list(found) == ASKED
    skipped = {name: sentence for name, (status, sentence, _) in found.items() if status == "SKIP"}
    assert {name: rest for name, rest in found.items() if rest[0] != "PASS" and name not in skipped} == {}
    assert set(skipped) == {"times", "kernels", "context", "DDP"}  # what needs a device that computes
    facts = found["LSTM"][2]
    assert facts["peak"] == facts["counted"] > 0 and facts["addresses"][0] == facts["addresses"][1] > 100
    assert facts["allocated"] <= facts["reserved"]


def test_checks_of_a_device_that_computes_ask_what_they_should(elsewhere: Elsewhere) -> None:
    """Events of the null GPU say a millisecond for each launch, whoever places them, and its kernels something else."""
    found = elsewhere(jobs.as_if_it_computed)
    assert {name: status for name, (status, _) in found.items()} == {
        "times": "PASS", "kernels": "FAIL", "no kernels": "FAIL", "cost": "PASS", "context": "SKIP"
    }  # fmt: skip
    assert "by the profiler, and" in found["kernels"][1]
    assert "has no kernels of this device" in found["no kernels"][1]
    assert "alone" in found["cost"][1] and "this program" in found["cost"][1] and "history on" in found["cost"][1]
    assert "cannot be told apart" in found["context"][1]


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (jobs.history_already_on, "history is on already"),
        (jobs.counted_otherwise, "memory_stats has a peak of"),
        (jobs.moved_line, "The line that keeps 4,194,304 bytes of activations has nothing"),
        (jobs.unlimited, "A request above the memory fraction was served"),
        (jobs.busy_card, "only 1.00 GiB are free"),
    ],
)  # fmt: skip
def test_what_is_not_as_assumed_is_a_failure(
    job: Callable[[], tuple[str, str]], words: str, elsewhere: Elsewhere
) -> None:
    status, sentence = elsewhere(job)
    assert status == "FAIL" and words in sentence
