"""The documents' samples of output are what their commands print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.document_samples import Sample, place_of, printed, samples

_FIGURE = re.compile(r"\d[\d,]*(?:\.\d+)?")
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
        for line, expected in zip(lines[at : at + len(part)], part, strict=True):
            assert _without_figures(line) == _without_figures(expected)
            # oneDNN's workspaces differ by processor, and with them the peak by some tenths of a percent.
            if "workspace" not in line:
                assert _figures(line) == pytest.approx(_figures(expected), rel=0.01, abs=0.6)


def _without_figures(line: str) -> list[str]:
    return _FIGURE.sub("", line).split()


def _figures(line: str) -> list[float]:
    return [float(figure.replace(",", "")) for figure in _FIGURE.findall(line)]
