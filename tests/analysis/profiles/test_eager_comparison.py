"""What compiling changes, in words: by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.exporters.page.page_samples import peak_row
from tests.training_steps import record
from tracer.analysis.peak_diff import SavedPeak, diff_peaks
from tracer.analysis.profiles.caveats import compared_with_eager, eager_sentences, saved_peak
from tracer.analysis.profiles.findings import find_in_cycle, put_together
from tracer.capture.profiler.event_tree import read_recording


def peak(size: int, phase: str | None = "backward", *, is_compiled: bool = True) -> SavedPeak:
    return SavedPeak("cpu", size, phase, (peak_row(size, is_compiled=is_compiled),))


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (peak(1536), "compiled it is 1.50 KiB in backward: 512 B less, 25.0 %."),
        (peak(3072, None), "compiled it is 3.00 KiB: 1.00 KiB more, 50.0 %."),
        (peak(2048, "forward"), "compiled it is 2.00 KiB in forward: as much."),
    ],
)
def test_both_peaks_are_said(after: SavedPeak, words: str) -> None:
    (sentence,) = eager_sentences(diff_peaks(peak(2048), after))
    assert sentence == f"Without compilation the peak is 2.00 KiB in backward; {words}"


def test_that_nothing_was_compiled_is_said() -> None:
    _, said = eager_sentences(diff_peaks(peak(2048), peak(2048, is_compiled=False)))
    assert said == "Compiled code allocated nothing of the second peak; --compile compiles the model."


def test_the_peak_of_a_run_is_compared() -> None:
    (results,) = record(lambda: torch.zeros(1024))
    findings = put_together([find_in_cycle(read_recording(results))])
    eager = saved_peak(findings)
    assert eager.bytes == findings.worst.peak.peak_bytes == sum(row.bytes for row in eager.rows)
    larger = replace(eager, bytes=eager.bytes + 8, rows=(*eager.rows, peak_row(8)))
    assert compared_with_eager(findings, larger).bytes == -8
