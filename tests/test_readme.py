"""The documents' samples of output are what their commands print."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.document_samples import Sample, place_of, printed, samples

SAMPLES = [pytest.param(sample, id=sample.command) for sample in samples()]


def test_there_are_samples() -> None:
    assert len(SAMPLES) == 2


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES)
def test_a_sample_is_what_its_command_prints(sample: Sample, tmp_path: Path) -> None:
    if sample.recording is not None and not sample.recording.exists():
        pytest.skip("the real recordings are not here")
    lines = printed(sample, tmp_path)
    for part in sample.parts:
        at = place_of(part, lines)
        assert tuple(lines[at : at + len(part)]) == part
