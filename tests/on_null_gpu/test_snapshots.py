"""Snapshots that a program takes by itself on the null GPU."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.skips import by_default
from tests.snapshot.explained import explain_snapshot
from tests.truth.isolate import Elsewhere
from tracer.answers.allocator.explained import with_allocator
from tracer.answers.snapshot_findings import explain_replayed, replay_snapshot
from tracer.blocks.kinds import Kind
from tracer.snapshot.load import load_snapshot

MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "layers": lambda: (
        nn.Sequential(*(nn.Linear(width, width + 64) for width in range(256, 640, 64))).cuda(),
        torch.randn(4096, 256, device="cuda"),
    ),
    "convolutions": lambda: (
        nn.Sequential(*(nn.Conv2d(16 << at, 32 << at, 3) for at in range(4)), nn.BatchNorm2d(256)).cuda(),
        torch.randn(16, 16, 32, 32, device="cuda"),
    ),
    "recurrent": lambda: (nn.LSTM(256, 512, 2, batch_first=True).cuda(), torch.randn(16, 32, 256, device="cuda")),
}
OPTIMIZERS: dict[str, Callable[[Iterable[Tensor]], torch.optim.Optimizer]] = {
    "Adam": torch.optim.Adam,
    "fused AdamW": partial(torch.optim.AdamW, fused=True),
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "SGD": torch.optim.SGD,
}


def history_with_frames_of_cpp() -> dict[str, Any]:
    """Return the explanation of the peak of three steps."""
    torch.cuda.memory._record_memory_history(stacks="all", max_entries=10_000)
    torch.cuda.reset_peak_memory_stats()
    before_bytes = torch.cuda.memory_allocated()
    model = nn.Linear(256, 256, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(64, 256, device="cuda")).square().mean().backward()
        optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pkl"
        torch.cuda.memory._dump_snapshot(str(path))
        traced = torch.cuda.memory._snapshot()["device_traces"][0]
        (device,) = explain_snapshot(load_snapshot(path)).parts
    torch.cuda.memory._record_memory_history(None)
    return {
        "peak_bytes": device.peak.fragmentation.allocated_bytes,
        "counted_bytes": torch.cuda.max_memory_allocated() - before_bytes,
        "requested_bytes": device.peak.peak_bytes,
        "groups": [(group.kind.words, group.bytes, group.site.file) for group in device.peak.rows],
        "frames": {frame["name"] for entry in traced for frame in entry.get("frames", ())},
    }


def bytes_of_steps_after_a_warm_up(kind_of_model: str, kind_of_optimizer: str) -> Counter[tuple[str, str]]:
    """Bytes of parameters and optimizer state by what they are and what is said of them, of a history of two steps."""
    model, batch = MODELS[kind_of_model]()
    optimizer = OPTIMIZERS[kind_of_optimizer](model.parameters())

    def step() -> None:
        output = model(batch)
        (output[0] if isinstance(output, tuple) else output).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step()
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=10_000)
    for _ in range(2):
        step()
    truth = {parameter.data_ptr(): Kind.PARAMETER for parameter in model.parameters()}
    states = [value for state in optimizer.state.values() for value in state.values()]
    truth |= {value.data_ptr(): Kind.OPTIMIZER_STATE for value in states if value.is_cuda}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pkl"
        torch.cuda.memory._dump_snapshot(str(path))
        (device,) = replay_snapshot(load_snapshot(path)).devices
    torch.cuda.memory._record_memory_history(None)
    lives = device.replay.lives
    rows = lives.alive_after(len(device.state.trace) - 1)
    said: Counter[tuple[str, str]] = Counter()
    for row, kind in zip(rows.tolist(), device.blocks.kind[rows].tolist(), strict=True):
        if (known := truth.get(int(lives.addr[row]))) is not None:
            said[known.words, Kind(kind).words] += int(lives.requested_bytes[row])
    return said


def peak_with_a_rest_that_is_not_split_off() -> tuple[int, int, int]:
    """Bytes at a peak: as torch counts them, as the model of its allocator does, and as each request is rounded."""
    torch.cuda.empty_cache()
    before_bytes = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=10_000)
    kept = torch.empty(24 << 20, dtype=torch.uint8, device="cuda")
    del kept
    kept = torch.empty((24 << 20) - 900 * 1024, dtype=torch.uint8, device="cuda")  # in the same 24 MiB
    more = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
    counted_bytes = torch.cuda.max_memory_allocated() - before_bytes
    del kept, more  # of a block that is still there its size is known
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pkl"
        torch.cuda.memory._dump_snapshot(str(path))
        torch.cuda.memory._record_memory_history(None)
        replayed = replay_snapshot(load_snapshot(path))
    finding = explain_replayed(replayed)
    (device,) = with_allocator(finding).parts
    rounded_bytes = finding.parts[0].peak.fragmentation.allocated_bytes
    return counted_bytes, device.peak.fragmentation.allocated_bytes - before_bytes, rounded_bytes - before_bytes


KIB = 1 << 10


def test_a_history_with_frames_of_cpp_is_explained_as_one_of_python(elsewhere: Elsewhere) -> None:
    found = elsewhere(history_with_frames_of_cpp)
    assert any(name.startswith("at::") for name in found["frames"])
    assert found["peak_bytes"] == found["counted_bytes"]
    assert sum(size for _, size, _ in found["groups"]) == found["requested_bytes"] <= found["peak_bytes"]
    # Weight and bias of 256, two states of each, and their gradients; none of them by a file of torch's.
    kinds = {kind: sum(size for one, size, _ in found["groups"] if one == kind) for kind, _, _ in found["groups"]}
    assert kinds["parameter"] == 257 * KIB and kinds["optimizer state"] == 2 * 257 * KIB
    assert {file for kind, _, file in found["groups"] if kind == "parameter"} == {__file__}


def test_allocated_is_what_torch_counts_with_a_rest_that_it_does_not_split_off(elsewhere: Elsewhere) -> None:
    counted_bytes, modelled_bytes, rounded_bytes = elsewhere(peak_with_a_rest_that_is_not_split_off)
    assert counted_bytes == modelled_bytes == 54 << 20 > rounded_bytes


# Each model and each optimizer once or twice.
QUICK = {("layers", "Adam"), ("convolutions", "momentum"), ("recurrent", "fused AdamW"), ("layers", "SGD")}


@pytest.mark.parametrize(("model", "optimizer"), by_default(product(MODELS, OPTIMIZERS), QUICK))
def test_parameters_and_state_from_before_the_history_are_told_apart(
    elsewhere: Elsewhere, model: str, optimizer: str
) -> None:
    said = elsewhere(bytes_of_steps_after_a_warm_up, model, optimizer)
    right_bytes = sum(size for (true, kind), size in said.items() if true == kind)
    wrong_bytes = sum(size for (true, kind), size in said.items() if kind not in (true, "before recording"))
    assert right_bytes > 0.98 * said.total() and wrong_bytes < 0.005 * said.total(), said
