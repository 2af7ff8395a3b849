"""Programs on a modelled device: whose requests have stacks, for causes and changes; that run full, or into pieces."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from tests.allocator.recorded import MIB, Program
from tests.allocator.recording_allocator import RecordingAllocator
from tests.snapshot.dumps import frame
from tracer.allocator.blocks import Block
from tracer.allocator.reserving import OutOfMemoryError
from tracer.answers.allocator.allocator_finding import AllocatorFinding, explain_allocator
from tracer.answers.allocator.reserved import Reserved
from tracer.answers.answer_of_snapshot import allocator_sections, settings_advice
from tracer.answers.history_sections import first_changes_sections
from tracer.answers.snapshot_findings import replay_snapshot
from tracer.answers.why.first_changes import FirstChange, first_changes
from tracer.capture.objects.at_failure import ObjectsAtFailure
from tracer.exporters.screen.text import print_section
from tracer.snapshot.load import snapshot_in_memory

# ---- A program on a modelled device whose requests have stacks, for what is said of causes and changes.
TORCH = "/x/site-packages/torch"
BACKWARD = [frame("torch::autograd::Engine::evaluate_function(x)", "??", 0)]
ACCUMULATE = [frame("torch::autograd::AccumulateGrad::apply(x)", "??", 0), *BACKWARD]
RELEASE = [frame("torch::autograd::generated::MmBackward0::release_variables()", "??", 0), *BACKWARD]
MODULE_CALL = frame("_call_impl", f"{TORCH}/nn/modules/module.py", 1)


class Recorded:
    """Each request and free has a stack; sizes are in MiB."""

    def __init__(self, capacity: int | None = None) -> None:
        self.allocator = RecordingAllocator(device_bytes=None if capacity is None else capacity * MIB)
        self._frames: list[Any] = []

    def make(self, size: int, frames: Any, *, stream: int = 0) -> Block:
        block = self.allocator.allocate(size * MIB, stream)
        self._note(frames)
        return block

    def fail(self, size: int, frames: Any) -> None:
        with pytest.raises(OutOfMemoryError):
            self.allocator.allocate(size * MIB)
        self._note(frames)

    def free(self, block: Block, frames: Any) -> None:
        self.allocator.free(block)
        self._note(frames)

    def use(self, size: int, frames: Any, *, freed: Any = None, stream: int = 0) -> None:
        """Make a block and free it at once, by the same line or by another one."""
        self.free(self.make(size, frames, stream=stream), frames if freed is None else freed)

    def _note(self, frames: Any) -> None:
        self._frames += [frames] * (len(self.allocator.history) - len(self._frames))

    def snapshot(self) -> Any:
        objects = self.allocator.snapshot()
        for row, frames in zip(objects["device_traces"][0], self._frames, strict=True):
            row["frames"] = frames
        return objects

    def snapshot_since(self, entry: int) -> Any:
        """A recording that began behind so many entries; the stacks of blocks from before are known."""
        objects = self.snapshot()
        entries = objects["device_traces"][0]
        known = {row["addr"]: row["frames"] for row in entries if row["action"] == "alloc"}
        for block in (block for segment in objects["segments"] for block in segment["blocks"]):
            block["frames"] = known.get(block["address"], [])
        del entries[:entry]
        return objects

    def changes(self, objects: ObjectsAtFailure | None = None) -> dict[str, FirstChange]:
        """By their causes."""
        return changes_in(self.snapshot(), objects)


def changes_in(recording: Any, objects: ObjectsAtFailure | None = None) -> dict[str, FirstChange]:
    """By their causes, the first one first."""
    replayed = replay_snapshot(snapshot_in_memory(recording))
    (device,) = replayed.devices
    found = first_changes(device, objects=objects)
    assert found is not None
    return {change.cause: change for change in found.changes}


def objects_of(
    *,
    is_evaluating: bool = False,
    is_training: bool = False,
    in_graphs: frozenset[int] | None = None,
    float64: frozenset[int] = frozenset(),
) -> ObjectsAtFailure:
    return ObjectsAtFailure(is_evaluating, is_training, in_graphs, untrained=frozenset(), float64=float64)


def line(number: int, function: str = "main", file: str = "/home/me/train.py") -> dict[str, Any]:
    return frame(function, file, number)


def layer(number: int, caller: int = 3) -> list[dict[str, Any]]:
    """A line of a model's forward, called by a line of the program."""
    return [line(number, "forward", "/home/me/model.py"), MODULE_CALL, line(caller)]


def linear(number: int, caller: int = 3) -> list[dict[str, Any]]:
    return [frame("forward", f"{TORCH}/nn/modules/linear.py", 9), MODULE_CALL, *layer(number, caller)]


LOADING = [frame("restore_location", f"{TORCH}/serialization.py", 5), line(1)]
MOVING = [frame("_apply", f"{TORCH}/nn/modules/module.py", 5), line(2)]
STEP = [frame("step", f"{TORCH}/optim/adam.py", 5), line(5)]
STATE = [frame("_init_group", f"{TORCH}/optim/adam.py", 4), *STEP]
SECOND_STATE = [frame("_init_group", f"{TORCH}/optim/adam.py", 6), *STEP]
FOREACH = [frame("_multi_tensor_adam", f"{TORCH}/optim/adam.py", 9), *STEP]


def train(program: Recorded, *, forward: int = 4, size: int = 10) -> None:
    """A step that ends where it began."""
    batch = program.make(size, [line(2)])
    kept = [program.make(size, layer(7)) for _ in range(forward)]
    gradient = program.make(size, BACKWARD)
    for block in [*kept, gradient, batch]:
        program.free(block, BACKWARD)
    program.use(1, STEP)


def backward_of(program: Recorded, number: int) -> None:
    """Parameters of 10 MiB each, a forward pass, and the first gradients."""
    for _ in range(number):
        program.make(10, MOVING)
    for block in [program.make(10, layer(7)) for _ in range(number)]:
        program.free(block, BACKWARD)
        program.make(10, ACCUMULATE)


def first(program: Recorded) -> FirstChange:
    return next(iter(program.changes().values()))


# ---- Programs of the allocator's model, explained, that several tests share.
SMALL_STACK = [frame("make_small", "/home/me/model.py", 5)]


def explain(objects: Any, **asked: Any) -> AllocatorFinding:
    (device,) = replay_snapshot(snapshot_in_memory(objects)).devices
    return explain_allocator(device, **asked)


def screen(*found: AllocatorFinding) -> str:
    console = Console(file=StringIO(), width=110)
    for finding in found:
        for sentence in settings_advice(finding.what_if) if finding.what_if is not None else ():
            console.print(sentence)
        for section in (*allocator_sections(finding, "device 0"), *first_changes_sections(finding.first)):
            print_section(section, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def by_reason(reserved: Reserved | None) -> dict[str, int]:
    assert reserved is not None
    sums: dict[str, int] = {}
    for row in reserved.rows:
        sums[row.reason] = sums.get(row.reason, 0) + row.bytes
    return sums


def fragmented() -> Program:
    """Blocks that grow from round to round: what is cached is always a little too small."""
    program = Program(0)
    for size in range(30, 90, 3):
        blocks = [program.allocator.allocate(size * MIB), program.allocator.allocate(2 * MIB)]
        program.allocator.free(blocks[0])
    return program


def full() -> Program:
    """A request that fails although its memory is there, in pieces."""
    program = Program(0, capacity=400 * MIB)
    for piece in [program.allocator.allocate(100 * MIB) for _ in range(3)]:
        program.allocator.free(piece)
    kept = [program.allocator.allocate(60 * MIB) for _ in range(3)]
    with pytest.raises(OutOfMemoryError):
        program.allocator.allocate(150 * MIB)
    assert kept
    return program
