"""Memory of a file's lines in a snapshot, worked out by hand, and beside the rows of the peak."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.snapshots.test_findings import (
    BACKWARD,
    BASE,
    FORWARD,
    FREE_BACKWARD,
    FREE_FORWARD,
    IN_STEP,
    MAIN,
    MALLOC,
    MIB,
    MODEL,
    load,
)
from tests.snapshot.dumps import block, entry, frame, freed, segment, snapshot
from tracer.analysis.line_memory import LineMemory
from tracer.analysis.snapshots.findings import replay_snapshot
from tracer.analysis.snapshots.line_memory import files_of, line_memory
from tracer.capture.sources.source_line import SourceLine

MODEL_FILE, TRAIN_FILE = "/home/me/model.py", "/home/me/train.py"
LATER_LINE = [MALLOC, frame("attend", MODEL_FILE, 9), MODEL, MAIN]
A, B, C, D = (BASE + 8 * MIB * at for at in range(4))


def test_a_block_counts_on_the_innermost_line_of_the_file(tmp_path: Path) -> None:
    """2 MiB of line 7 and 1 of line 9 are the peak; backward makes 0.25 and frees the first, the model the second."""
    trace = [
        entry("alloc", A, 2 * MIB, frames=FORWARD),
        entry("alloc", B, MIB, frames=LATER_LINE),
        *freed(A, 2 * MIB, frames=FREE_BACKWARD),
        entry("alloc", D, MIB // 4, frames=BACKWARD),
        *freed(B, MIB, frames=FREE_FORWARD),
        entry("alloc", C, MIB, frames=IN_STEP),
    ]
    end = [segment(A, 64 * MIB, [block(C, MIB), block(D, MIB // 4)])]
    found = load(tmp_path / "s", snapshot(trace, end))
    assert {MODEL_FILE, TRAIN_FILE} <= set(files_of(found.stacks)) and "??" not in files_of(found.stacks)
    (device,) = replay_snapshot(found).devices
    seven, nine = SourceLine(MODEL_FILE, 7), SourceLine(MODEL_FILE, 9)
    assert line_memory(device, MODEL_FILE) == (
        LineMemory(seven, 2 * MIB, 0, 2 * MIB, "backward", None),
        LineMemory(nine, MIB, 0, MIB, "freed", seven),
    )
    (main,) = line_memory(device, TRAIN_FILE)
    assert main == LineMemory(SourceLine(TRAIN_FILE, 70), 3 * MIB, 0, 3 * MIB, "backward", None)
    assert line_memory(device, "/home/me/other.py") == ()


def test_memory_from_before_that_stays_is_not_freed(tmp_path: Path) -> None:
    end = [segment(BASE, 2 * MIB, [block(BASE, 300, frames=FORWARD)])]
    (device,) = replay_snapshot(load(tmp_path / "s", snapshot([], end))).devices
    assert line_memory(device, MODEL_FILE) == (LineMemory(SourceLine(MODEL_FILE, 7), 300, 0, 300, None, None),)


def test_backward_counts_on_its_operations_line_and_a_step_frees(tmp_path: Path) -> None:
    operation = frame("torch::autograd::VariableType::(anonymous namespace)::mm(at::Tensor const&)", "??", 0)
    trace = [
        entry("alloc", C, MIB, frames=IN_STEP),  # Before it a forward may have begun
        *freed(C, MIB, frames=IN_STEP),
        entry("alloc", A, 2 * MIB, frames=[MALLOC, operation, MODEL, MAIN]),
        entry("alloc", B, MIB, frames=BACKWARD),
        entry("alloc", D, MIB, frames=BACKWARD),
        *freed(A, 2 * MIB, frames=IN_STEP),
        entry("alloc", C, MIB // 4, frames=IN_STEP),
    ]
    end = [segment(A, 64 * MIB, [block(B, MIB), block(C, MIB // 4), block(D, MIB)])]
    (device,) = replay_snapshot(load(tmp_path / "s", snapshot(trace, end))).devices
    assert line_memory(device, MODEL_FILE) == (
        LineMemory(SourceLine(MODEL_FILE, 7), 4 * MIB, 2 * MIB, 4 * MIB, "optimizer", None),
    )


def test_a_script_has_two_paths_and_a_tracers_label_says_backward(tmp_path: Path) -> None:
    script = frame("<module>", "train.py", 25)
    labelled = [frame("gradient in backward", "<explained as gradient>", 0), frame("backward of main", TRAIN_FILE, 70)]
    trace = [
        entry("alloc", A, MIB, frames=[MALLOC, script]),
        entry("alloc", B, 2 * MIB, frames=labelled),
        entry("alloc", C, MIB, frames=[MALLOC, frame("<module>", "rain.py", 70)]),
    ]
    end = [segment(A, 64 * MIB, [block(A, MIB), block(B, 2 * MIB), block(C, MIB)])]
    (device,) = replay_snapshot(load(tmp_path / "s", snapshot(trace, end))).devices
    found = [(one.at.line, one.peak_bytes, one.backward_bytes) for one in line_memory(device, TRAIN_FILE)]
    assert found == [(70, 2 * MIB, 2 * MIB), (25, MIB, 0)]
