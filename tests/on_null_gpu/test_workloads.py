"""Every step of `tests/training_steps.py` on the null GPU: the laws that need a device's own allocator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tests.skips import by_default
from tests.training_steps import WORKLOADS, record, torch_timeline
from tests.truth.isolate import Elsewhere, runs_elsewhere
from tracer.blocks.from_recording.memory_timeline import memory_timeline
from tracer.blocks.from_recording.torch_categories import categorize
from tracer.blocks.kinds import Kind
from tracer.blocks.table import Phase
from tracer.capture.profiler.event_tree import read_recording
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule

PLAN = Schedule(1, 1, 2, 1)
Block = tuple[str, str, str, str]
"""Kind, phase, module and line."""


@contextmanager
def default_device(device: str) -> Iterator[None]:
    """Build and run what is inside on a device."""
    before = torch.get_default_device()
    torch.set_default_device(device)
    torch.empty(0)  # now torch lists its functions that make tensors, and keeps the list: none may be patched yet
    # Before 2.15 optimizers count their steps on the default device, where nothing is computed.
    of_optimizers = (
        register_optimizer_step_pre_hook(lambda *_: torch.set_default_device(before)),
        register_optimizer_step_post_hook(lambda *_: torch.set_default_device(device)),
    )
    try:
        yield
    finally:
        torch.set_default_device(before)
        for hook in of_optimizers:
            hook.remove()


def profiled(name: str, device: str) -> tuple[ProfileSession, int, int]:
    """Profile a workload of `tests/training_steps.py` on a device.

    Returns:
        The session, the most that the allocator counted over the recorded steps, and what it has reserved.
    """
    counted, is_device, reserved = [0], device != "cpu", 0
    with default_device(device), sdpa_kernel(SDPBackend.MATH):
        workload = WORKLOADS[name]()
        session = ProfileSession(workload.model or nn.Module(), workload.optimizer, device=device, schedule=PLAN)
        with session:
            for step in range(PLAN.num_steps):
                if is_device:
                    torch.accelerator.reset_peak_memory_stats(0)
                workload.step()
                if is_device and 2 <= step < 4:
                    counted.append(torch.accelerator.max_memory_allocated(0))
                    reserved = torch.accelerator.memory_reserved(0)
                session.step()
    return session, max(counted), reserved


def blocks_of(name: str, device: str) -> Counter[Block]:
    """A workload's own blocks, as a reader of the outputs would tell them apart."""
    cycle = profiled(name, device)[0].findings.worst
    recording = cycle.source.recording
    made: Counter[Block] = Counter()
    blocks = cycle.blocks
    columns = (blocks.kind, blocks.phase, blocks.module, blocks.frame, blocks.row)
    for kind, phase, module, frame, allocation in zip(*(column.tolist() for column in columns), strict=True):
        line = ""
        if frame >= 0:
            file = Path(recording.strings[recording.frames.file[frame]]).name
            line = f"{file}:{recording.frames.line[frame]}"
        if allocation >= 0:
            where = blocks.value(module) or ""
            made[Kind(kind).name, Phase(phase).name if phase >= 0 else "", where, line] += 1
    return made


QUICK = {"fno_2d_new_zeros", "checkpointing_reentrant", "lbfgs", "inference_mode", "sparse_and_resize"}


@pytest.mark.parametrize("name", by_default(sorted(WORKLOADS), QUICK))
@runs_elsewhere
def test_the_peak_is_the_allocators_and_its_history_has_every_block(name: str) -> None:
    session, counted_bytes, reserved_bytes = profiled(name, "cuda:0")
    peak = session.findings.worst.peak
    assert sum(row.bytes for row in peak.rows) == peak.allocator_peak_bytes == counted_bytes
    allocator = peak.allocator
    assert allocator is not None and session.notes == ()
    assert allocator.num_joined == allocator.num_blocks
    assert allocator.requested_bytes <= counted_bytes <= allocator.reserved_bytes <= reserved_bytes
    assert allocator.free_bytes == allocator.reserved_bytes - counted_bytes - allocator.pending_bytes


@pytest.mark.parametrize("name", by_default(["checkpointing", "checkpointing_reentrant"], {"checkpointing"}))
def test_what_is_made_again_in_backward_has_a_line_on_a_device_too(elsewhere: Elsewhere, name: str) -> None:
    """There the engine has a thread of its own, on which nothing lies above what a checkpoint calls."""
    on_cpu, on_device = (elsewhere(blocks_of, name, device) for device in ("cpu", "cuda:0"))
    made = [block for block in on_device if block[1] == "BACKWARD" and block[0] in ("ACTIVATION", "GRADIENT")]
    assert made
    for block in made:
        assert block[3], block
        assert block in on_cpu


@pytest.mark.parametrize("name", by_default(["fno_2d_torch_zeros", "checkpointing"], {"checkpointing"}))
@runs_elsewhere
def test_the_timeline_is_torchs_own(name: str) -> None:
    with default_device("cuda:0"), sdpa_kernel(SDPBackend.MATH):
        (results,) = record(WORKLOADS[name]().step, n_cycles=1, n_active=2)
    theirs, their_sizes = torch_timeline(results)._coalesce_timeline("cuda:0")
    recording = read_recording(results)
    ours, our_sizes = memory_timeline(recording, categorize(recording), device="cuda:0").coalesce()
    assert len(ours) == len(theirs) and np.array_equal(our_sizes, np.array(their_sizes))


# ---- kernels on the null GPU: torch's profiler joins them to operators as a GPU's, and no answer has their times


ACTIVITIES = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]


def _profiled() -> torch.profiler.profile:
    weight = torch.ones(64, 64, device="cuda", requires_grad=True)
    side = torch.cuda.Stream()
    with torch.profiler.profile(activities=ACTIVITIES, profile_memory=True) as profiler:
        (torch.ones(8, 64).cuda() @ weight).relu().sum().backward()
        with torch.cuda.stream(side):
            weight.grad.zero_().cpu()  # type: ignore[union-attr]
        torch.cuda.synchronize()
    return profiler


def kernels_by_operator() -> dict[str, list[str]]:
    """Return the kernels that each operator launched, by torch's own list."""
    found: dict[str, list[str]] = {}
    for event in _profiled().events():
        for kernel in event.kernels:
            found.setdefault(event.name, []).append(kernel.name)
    return found


def test_each_operator_has_what_it_launched(elsewhere: Elsewhere) -> None:
    found = elsewhere(kernels_by_operator)
    assert [name[:6] for name in found["aten::mm"]] == ["cublas"] * 2  # forward, and the weight's gradient
    assert len(found["aten::clamp_min"]) == len(found["aten::threshold_backward"]) == 1
    assert "elementwise_kernel" in found["aten::clamp_min"][0]
    copies = [name for kernels in found.values() for name in kernels if name.startswith("Memcpy")]
    assert sorted(name.partition(" (")[0] for name in copies) == ["Memcpy DtoH", "Memcpy HtoD"]
