"""Writes a synthetic allocator snapshot of any size, in the layout of real ones, to measure readers with.

    python -m benchmarks.synthetic_snapshot OUT.pickle --entries 1000000

A training run: parameters and optimizer state are there before the recording; each step has a forward pass that keeps
activations, a backward pass that frees them in reverse and makes gradients, and an optimizer step with temporaries.
Frame dicts are shared between entries and lists of frames are not, as in a dump that torch wrote.
"""

from __future__ import annotations

import argparse
import contextlib
import pickle
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Block = tuple[int, int, list[Row]]  # address, bytes, stack

KIB, MIB = 1 << 10, 1 << 20
SEGMENT_BYTES = 20 * MIB
NUM_LAYERS = 200
FIRST_ADDRESS = 0x7F00_0000_0000
FIRST_TIME_US = 1_700_000_000_000_000
TORCH = "/usr/lib/python3.11/site-packages/torch"
FILES = (
    f"{TORCH}/nn/modules/module.py",
    f"{TORCH}/nn/functional.py",
    f"{TORCH}/autograd/graph.py",
    "/srv/project/model/attention.py",
    "/srv/project/model/mlp.py",
    "/srv/project/train.py",
)
NAMES = {
    "forward": ("forward", "_call_impl", "_wrapped_call_impl", "linear", "softmax", "layer_norm"),
    "backward": ("backward", "_engine_run_backward", "apply"),
    "optimizer": ("step", "_multi_tensor_adamw", "_init_group"),
}
TRAIN_LINE: Row = {"name": "main", "filename": "/srv/project/train.py", "line": 340}
TEACHER = [{"name": "load_teacher", "filename": "/srv/project/distill.py", "line": 31}, TRAIN_LINE]
KEEPER = [{"name": "collect_predictions", "filename": "/srv/project/evaluate.py", "line": 77}, TRAIN_LINE]


@dataclass(frozen=True, slots=True)
class Variant:
    """Differences of a training from the usual one.

    Attributes:
        num_layers: Of the model.
        batch_factor: How many times as large activations are.
        held_bytes: Of a second model that is there before the recording.
        kept_bytes: A step leaves behind.
        runs_out: The recording ends with a request for which there was no memory.
    """

    num_layers: int = NUM_LAYERS
    batch_factor: int = 1
    held_bytes: int = 0
    kept_bytes: int = 0
    runs_out: bool = False


class TraceFullError(Exception):
    """The trace has as many entries as were asked for."""


class Recorder:
    """One device with an allocator that reuses blocks of the same size, and its recording."""

    def __init__(self, device: int, num_entries: int, stacks: dict[str, list[list[Row]]], rng: random.Random) -> None:
        self.trace: list[Row] = []
        self._device, self._num_entries, self._stacks, self._rng = device, num_entries, stacks, rng
        self._segments: list[tuple[int, int, list[int]]] = []  # address, bytes, addresses of the blocks
        self._sizes: dict[int, int] = {}
        self._live: dict[int, list[Row]] = {}
        self._free: dict[int, list[int]] = {}
        self._next_address = FIRST_ADDRESS
        self._room = 0
        self.time_us = FIRST_TIME_US

    def alloc(self, size: int, phase: str, *, record: bool = True, stack: list[Row] | None = None) -> int:
        """The address of a block, reused or new."""
        if record and len(self.trace) + 2 > self._num_entries:
            raise TraceFullError
        stack = stack or self._rng.choice(self._stacks[phase])
        cached = self._free.get(size)
        address = cached.pop() if cached else self._new_block(size, stack, record)
        if record:
            self._log("alloc", address, size, stack)
        self._live[address] = stack
        return address

    def free(self, address: int, phase: str) -> None:
        """Give a block back; a free is recorded whole or not at all."""
        if len(self.trace) + 2 > self._num_entries:
            raise TraceFullError
        stack, size = self._rng.choice(self._stacks[phase]), self._sizes[address]
        self._log("free_requested", address, size, stack)
        self._log("free_completed", address, size, stack)
        del self._live[address]
        self._free.setdefault(size, []).append(address)

    def run_out(self, size: int, phase: str) -> None:
        """Ask for more than the device has; its entry takes the place of the last one."""
        self.trace[self._num_entries - 1 :] = []
        self._log("oom", 0, size, self._rng.choice(self._stacks[phase]))

    def segments(self) -> list[Row]:
        """The end state."""
        return [self._segment(address, size, blocks) for address, size, blocks in self._segments]

    def _new_block(self, size: int, stack: list[Row], record: bool) -> int:
        if size > self._room:
            total = max(SEGMENT_BYTES, -(-size // (2 * MIB)) * 2 * MIB)
            self._next_address += self._room + 2 * MIB
            self._segments.append((self._next_address, total, []))
            self._room = total
            if record:
                self._log("segment_alloc", self._next_address, total, stack)
        address = self._next_address
        self._segments[-1][2].append(address)
        self._sizes[address] = size
        self._next_address += size
        self._room -= size
        return address

    def _log(self, action: str, address: int, size: int, stack: list[Row]) -> None:
        self.time_us += self._rng.randint(0, 8)
        self.trace.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": 0,
                "time_us": self.time_us,
                "compile_context": "N/A",
                "user_metadata": "",
                "frames": list(stack),
            }
        )

    def _segment(self, address: int, total: int, addresses: list[int]) -> Row:
        blocks, end = [], address
        for at in addresses:
            live = self._live.get(at)
            state = "inactive" if live is None else "active_allocated"
            size, end = self._sizes[at], at + self._sizes[at]
            blocks.append(
                {"address": at, "size": size, "requested_size": size, "state": state, "frames": list(live or [])}
            )
        if end < address + total:
            rest = address + total - end
            blocks.append({"address": end, "size": rest, "requested_size": 0, "state": "inactive", "frames": []})
        active = sum(self._sizes[at] for at in addresses if at in self._live)
        return {
            "device": self._device,
            "address": address,
            "total_size": total,
            "allocated_size": active,
            "active_size": active,
            "requested_size": active,
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": blocks,
        }


def random_stacks(rng: random.Random, count: int, depth: int, phase: str) -> list[list[Row]]:
    """Distinct stacks of about this depth that share their frames."""
    frames = [
        {"name": rng.choice(NAMES[phase]), "filename": rng.choice(FILES), "line": rng.randint(10, 3000)}
        for _ in range(max(200, count))
    ]
    root = [{"name": "main", "filename": "/srv/project/train.py", "line": line} for line in (120, 300, 340)]
    return [
        [frames[i], *rng.choices(frames, k=max(0, int(rng.gauss(depth, depth / 4)) - len(root) - 1)), *root]
        for i in range(count)
    ]


def train(recorder: Recorder, rng: random.Random, variant: Variant = Variant()) -> None:
    """Training steps until the recording is full."""
    parameters = [rng.choice((4 * KIB, 64 * KIB, 4 * MIB, 8 * MIB, 16 * MIB)) for _ in range(variant.num_layers)]
    for size in parameters * 3:
        recorder.alloc(size, "forward", record=False)
    for _ in range(variant.held_bytes // (8 * MIB)):
        recorder.alloc(8 * MIB, "forward", record=False, stack=TEACHER)
    while True:
        kept = []
        for _ in parameters:
            passing = [
                recorder.alloc(rng.choice((512, 2 * KIB, 64 * KIB)), "forward") for _ in range(rng.randint(1, 4))
            ]
            size = variant.batch_factor * rng.choice((64 * KIB, MIB, 4 * MIB, 12 * MIB))
            kept.append(recorder.alloc(size, "forward"))
            for address in passing:
                recorder.free(address, "forward")
        gradients = []
        for size, activation in zip(reversed(parameters), reversed(kept), strict=True):
            gradients.append(recorder.alloc(size, "backward"))
            recorder.free(activation, "backward")
        passing = [recorder.alloc(size, "optimizer") for size in parameters[:20]]
        for address in passing + gradients:
            recorder.free(address, "optimizer")
        if variant.kept_bytes:
            recorder.alloc(variant.kept_bytes, "forward", stack=KEEPER)


def make_snapshot(
    num_entries: int,
    *,
    num_stacks: int = 2000,
    depth: int = 15,
    num_devices: int = 1,
    variant: Variant = Variant(),
) -> Row:
    """A snapshot with this many entries for each device."""
    rng = random.Random(0)
    stacks = {phase: random_stacks(rng, num_stacks // len(NAMES), depth, phase) for phase in NAMES}
    segments, traces = [], []
    for device in range(num_devices):
        recorder = Recorder(device, num_entries, stacks, rng)
        with contextlib.suppress(TraceFullError):
            train(recorder, rng, variant)
        if variant.runs_out:
            recorder.run_out(64 * MIB, "forward")
        segments += recorder.segments()
        traces.append(recorder.trace)
    return {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
        "external_annotations": [],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--depth", type=int, default=15)
    parser.add_argument("--devices", type=int, default=1)
    arguments = parser.parse_args()
    snapshot = make_snapshot(arguments.entries, depth=arguments.depth, num_devices=arguments.devices)
    with arguments.out.open("wb") as file:
        pickle.dump(snapshot, file, protocol=4)


if __name__ == "__main__":
    main()
