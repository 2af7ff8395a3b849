"""Lines of source, the owners of frames, and stretches of time."""

from __future__ import annotations

import importlib.util
import textwrap
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.training_steps import record, recorded_workload
from tracer.answers.recording_findings import find_in_cycle
from tracer.arrays import Ints
from tracer.blocks.from_recording.attribution import Attribution, attribute, frames_of_op
from tracer.blocks.from_recording.source_lines import CodeOwner, line_of_frame, owner_of_frames
from tracer.blocks.from_recording.time_spans import enclosing, merged
from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.recording import Recording


# ---- Lines through which an operator was called, innermost first, and the line of a frame.
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


# ---- A library's line is named with the user's line that led there; torch's, Python's and this program's are not.
LIBRARY = """
import torch

def doubled(x):
    return torch.cat([x, x])

def inline(x):
    return x * 3

def called_back(function, x):
    return function(x)

class Meta(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs or {})
"""


@pytest.fixture
def library(tmp_path: Path) -> ModuleType:
    """A module of an installed package."""
    file = tmp_path / "site-packages" / "somelib" / "shapes.py"
    file.parent.mkdir(parents=True)
    file.write_text(textwrap.dedent(LIBRARY).lstrip())
    spec = importlib.util.spec_from_file_location("somelib_shapes", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Net(nn.Module):
    """Calls the library, is called back by it, and works itself."""

    def __init__(self, library: ModuleType) -> None:
        super().__init__()
        self.library = library
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.library.doubled(x)  # to the library
        x = self.library.inline(x)  # to an operator without a call
        x = self.library.called_back(torch.sin, x)  # back to torch
        x = self.library.called_back(lambda y: y.cos(), x)  # back to a lambda
        return self.layer(x)  # type: ignore[no-any-return]


def recorded(library: ModuleType) -> Recording:
    model = Net(library)
    return read_recording(record(lambda: model(torch.randn(4, 8, requires_grad=True)).sum().backward())[0])


def line_with(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    (number,) = (at for at, line in enumerate(lines, 1) if line.endswith(text) and "line_with(" not in line)
    return number


def test_every_frame_is_somebodys(library: ModuleType) -> None:
    recording = recorded(library)
    whose = owner_of_frames(recording)
    assert len(whose) == len(recording.frames.file)
    for at, file in enumerate(recording.frames.file.tolist()):
        name = recording.strings[file]
        if name == __file__:
            assert whose[at] == CodeOwner.USER
        elif "somelib" in name:
            assert whose[at] == CodeOwner.LIBRARY
        elif name.startswith("torch/"):
            assert whose[at] == CodeOwner.TORCH


def caller_of(recording: Recording, attribution: Attribution, op: int) -> int:
    """Of what an operator allocated."""
    (caller,) = set(attribution.allocation_caller[recording.allocations.op == op].tolist())
    return int(caller)


@pytest.mark.parametrize(
    ("op", "line", "user"),
    [
        ("aten::cat", 4, "# to the library"),
        ("aten::mul", 7, "# to an operator without a call"),
        ("aten::sin", 10, "# back to torch"),
        ("aten::cos", None, "# back to a lambda"),
        ("aten::linear", None, "return self.layer(x)  # type: ignore[no-any-return]"),
    ],
)
def test_the_innermost_line_that_is_not_torchs_and_the_users_that_led_there(
    library: ModuleType, op: str, line: int | None, user: str
) -> None:
    recording = recorded(library)
    attribution = attribute(recording)
    names = [recording.strings[name] for name in recording.ops.name.tolist()]
    row = names.index(op)
    frame, caller = int(attribution.op_frame[row]), caller_of(recording, attribution, row)
    place = recording.strings[recording.frames.file[frame]], int(recording.frames.line[frame])
    if line is None:
        assert (place, caller) == ((__file__, line_with(user)), -1)
    else:
        assert place == (library.__file__, line)
        called_from = recording.strings[recording.frames.file[caller]], int(recording.frames.line[caller])
        assert called_from == (__file__, line_with(user))
    shown = frames_of_op(recording, attribution, row)
    assert (shown[0].file, shown[0].line) == place
    assert shown[-1].file == __file__, "what called the test is no line of anybody's"


def test_backward_belongs_to_the_librarys_line_and_its_caller(library: ModuleType) -> None:
    recording = recorded(library)
    attribution = attribute(recording)
    names = [recording.strings[name] for name in recording.ops.name.tolist()]
    forward, backward = names.index("aten::sin"), names.index("SinBackward0")
    assert attribution.op_frame[backward] == attribution.op_frame[forward]
    callers = {caller_of(recording, attribution, row) for row in (forward, backward)}
    assert len(callers) == 1 and min(callers) >= 0


def test_rows_have_both_lines(library: ModuleType) -> None:
    rows = find_in_cycle(recorded(library)).peak.rows
    of_library = [row for row in rows if row.file == library.__file__]
    assert of_library
    assert {row.caller_file for row in of_library} == {__file__}
    assert all(row.caller_line is not None for row in of_library)
    assert {row.caller_file for row in rows if row.file == __file__} == {None}


def test_a_callers_frame_is_never_the_line_itself(library: ModuleType) -> None:
    attribution = attribute(recorded(library))
    has = attribution.allocation_caller >= 0
    frame, caller = attribution.allocation_frame[has], attribution.allocation_caller[has]
    assert has.any()
    assert (attribution.frame_owner[frame] == CodeOwner.LIBRARY).all()
    assert (attribution.frame_owner[caller] == CodeOwner.USER).all()
    assert not np.any(frame == caller)


def test_operators_on_a_librarys_kind_of_tensor_have_the_lines_that_use_it(library: ModuleType) -> None:
    """Each of them goes through one line of its class, as of MONAI's MetaTensor or kornia's and torchvision's."""
    x = torch.randn(4, 8).as_subclass(library.Meta)

    def step() -> None:
        torch.sin(x)  # directly
        library.doubled(x)

    recording = read_recording(record(step)[0])
    attribution = attribute(recording)
    names = [recording.strings[name] for name in recording.ops.name.tolist()]
    lines = {op: frames_of_op(recording, attribution, names.index(op))[0] for op in ("aten::sin", "aten::cat")}
    assert (lines["aten::sin"].file, lines["aten::sin"].line) == (__file__, line_with("# directly"))
    assert (lines["aten::cat"].file, lines["aten::cat"].line) == (library.__file__, 4)


# ---- Stretches of time, against a plain loop over all of them.
SPAN = st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda one: (one[0], one[0] + one[1]))
SPANS = st.lists(SPAN, max_size=12)


def columns(spans: list[tuple[int, int]]) -> tuple[Ints, Ints]:
    start, end = np.array(spans, np.int64).reshape(-1, 2).T
    return start, end


@given(SPANS)
def test_merged_spans_cover_the_same_moments_and_lie_apart(spans: list[tuple[int, int]]) -> None:
    start, end = merged(*columns(spans))
    wanted = {moment for a, b in spans for moment in range(a, b)}
    assert {moment for a, b in zip(start.tolist(), end.tolist(), strict=True) for moment in range(a, b)} == wanted
    assert (start[1:] > end[:-1]).all()


@given(SPANS, st.lists(st.integers(-5, 80), max_size=20))
def test_the_enclosing_span_is_that_of_a_plain_loop(spans: list[tuple[int, int]], times: list[int]) -> None:
    start, end = merged(*columns(spans))
    expected = [
        next((at for at, (a, b) in enumerate(zip(start.tolist(), end.tolist(), strict=True)) if a <= time < b), -1)
        for time in times
    ]
    assert enclosing(start, end, np.array(times, np.int64)).tolist() == expected
