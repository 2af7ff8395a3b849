"""Lines through which an operator was called, innermost first, and the line of a frame."""

from __future__ import annotations

from pathlib import Path

from tests.training_steps import recorded_workload
from tracer.analysis.profiles.attribution import attribute, frames_of_op
from tracer.analysis.profiles.source_lines import line_of_frame


def test_frames_lead_from_the_call_outward() -> None:
    recording = recorded_workload("zero_grad_at_end").recordings[0]
    attribution = attribute(recording)
    names = [recording.strings[name] for name in recording.ops.name.tolist()]
    op = names.index("aten::mse_loss")
    innermost, outer, *_ = lines = frames_of_op(recording, attribution, op)
    assert innermost == line_of_frame(recording, int(attribution.op_frame[op]))
    assert innermost.file.rpartition("/")[2] == "training_steps.py"
    source = Path(innermost.file).read_text().splitlines()
    assert "mse_loss" in source[innermost.line - 1]
    assert "step()" in source[outer.line - 1]
    assert len(lines) == len(set(lines)), "no line comes twice in a row, and nothing here is recursive"


def test_no_frame_has_no_line() -> None:
    recording = recorded_workload("zero_grad_at_end").recordings[0]
    assert line_of_frame(recording, -1) is None
    file, line = recording.strings[recording.frames.file[0]], int(recording.frames.line[0])
    assert line_of_frame(recording, 0) == (file, line)
