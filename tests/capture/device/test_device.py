"""What a device is asked: its backend, its counters, its phases and its blocks."""

from __future__ import annotations

import ast
import mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from tracer.capture.device import device_blocks as module_of_blocks
from tracer.capture.device import devices, memory_counters
from tracer.capture.device.allocator_history import snapshot_without_times
from tracer.capture.device.device_blocks import (
    STILL_ASLEEP_NS,
    AsleepMemory,
    DeviceBlocks,
    device_blocks,
    follow_sleep,
    pool_bytes,
)
from tracer.capture.device.host_memory import host_total_bytes, resident_bytes
from tracer.capture.device.memory_counters import Counters, StepReader
from tracer.capture.device.phase_memory import MemoryLevels, PhaseMemory
from tracer.capture.torch_private import torch_cuda
from tracer.commands.workload_options import chosen_device, device_of_rank
from tracer.errors import TracerError
from tracer.exporters.screen.console import Console
from tracer.sessions.workload_run import random_states_kept
from tracer.snapshot.load import snapshot_in_memory
from tracer.units import MIB

# ---- No backend's name decides: a device that torch learns of in a test is asked like any other.

ROOT = Path(__file__).resolve().parents[3]
OTHER = torch.device("privateuseone", 1)
# What is about CUDA alone: its driver, its graphs, the hint to `--on` and the null GPU.
OF_CUDA = {
    "capture/graph_captures.py",
    "commands/workload_options.py",
    "capture/device/device_blocks.py",
    "capture/torch_private/torch_history.py",
    "answers/null_run.py",
}


def register(monkeypatch: pytest.MonkeyPatch, module: SimpleNamespace) -> None:
    """As `torch._register_device_module`, which cannot be undone; torch remembers the modules that it was asked for."""
    monkeypatch.setattr(torch, "privateuseone", module, raising=False)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The module of a backend with two devices, the second current, that draws numbers from a state of its own."""
    states = [torch.tensor([3]), torch.tensor([4])]
    module = SimpleNamespace(
        device_count=lambda: 2,
        current_device=lambda: 1,
        get_device_name=lambda device: "Some accelerator",
        memory_allocated=lambda device: 1024,
        mem_get_info=lambda device: (10, 20),
        Event=SimpleNamespace,
        get_rng_state=lambda device: states[device.index],
        set_rng_state=lambda state, device: states.__setitem__(device.index, state),
        states=states,
    )
    register(monkeypatch, module)
    return module


def test_a_backend_is_asked_for_what_its_module_has(backend: SimpleNamespace) -> None:
    assert devices.is_accelerator(OTHER)
    assert devices.num_devices(OTHER) == 2
    assert devices.with_index(torch.device("privateuseone")) == OTHER
    assert devices.device_name(OTHER) == "Some accelerator"
    assert devices.allocator_counters(OTHER) == {"allocated": 1024, "free on the device": 10, "device": 20}
    assert devices.peak_allocated_bytes(OTHER) is None
    assert devices.lacks(OTHER, has_history=True, has_kernels=True) is None
    assert chosen_device("privateuseone", named=True, console=Console(write=pytest.fail)) == OTHER


def test_a_backend_that_has_nothing_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, SimpleNamespace())
    assert devices.allocator_counters(OTHER) == {} and devices.num_devices(OTHER) == 0
    assert not devices.has_random_state(OTHER) and not devices.has_events(OTHER)
    assert devices.lacks(OTHER, has_history=False, has_kernels=False) == (
        "What privateuseone does not offer: a history of its allocator (requested sizes, segments, and why memory ran "
        "out are left out); kernels of operators to torch's profiler (a replayed graph has none; run times are the "
        "host's); events (phases are timed by the host's clock)."
    )


def test_what_a_timing_pass_draws_is_put_back_on_the_device_too(backend: SimpleNamespace) -> None:
    workload = SimpleNamespace(model=torch.nn.Linear(1, 1), device=OTHER)
    with random_states_kept(workload):  # type: ignore[arg-type]
        backend.states[1] = torch.tensor([5])
    assert [int(state) for state in backend.states] == [3, 4]


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(TracerError, match=r"There is no device xpu:0; torch sees no device of type xpu\."):
        chosen_device("xpu:0", named=True, console=Console(write=pytest.fail))


@pytest.mark.parametrize(
    ("visible", "text", "expected"),
    [(4, "cuda:0", "cuda:3"), (1, "cuda:0", "cuda:0"), (4, "cuda", "cuda:3"), (0, "cuda:0", "cuda:3")],
)
def test_each_rank_has_its_own_device_unless_it_sees_one_only(
    monkeypatch: pytest.MonkeyPatch, visible: int, text: str, expected: str
) -> None:
    """Some launchers show each rank the device that is its own, and no other."""
    monkeypatch.setattr("tracer.capture.device.devices.num_devices", lambda device: visible)
    assert device_of_rank(text, 3) == expected


def test_no_backends_name_decides() -> None:
    """A device's type is compared with the host's and with no backend's, but for what is about CUDA alone."""
    found = set()
    for path in (ROOT / "tracer").rglob("*.py"):
        name = path.relative_to(ROOT / "tracer").as_posix()
        if not name.startswith("null_gpu/") and _compares_with_a_backend(path):
            found.add(name)
    assert found == OF_CUDA


def _compares_with_a_backend(path: Path) -> bool:
    """Whether a file has `device.type == "cuda"` or the like."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)) if ".type " in text else ():
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            words = {one.value for side in sides for one in ast.walk(side) if isinstance(one, ast.Constant)}
            is_of_a_type = any(isinstance(side, ast.Attribute) and side.attr == "type" for side in sides)
            if is_of_a_type and words & {"cuda", "xpu", "mps", "npu", "hpu"}:
                return True
    return False


# ---- Counters of a step, the host's memory, and the allocator's history without times.


def test_resident_memory_is_asked_for_at_every_sixteenth_step(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(memory_counters, "read_counters", lambda device: Counters(1, 1000, 2000, 0, 10, 0))
    monkeypatch.setattr(memory_counters, "resident_bytes", lambda: asked.append(0) or len(asked))
    reader = StepReader(torch.device("cuda:0"))
    rows = [reader.end_of_step(step, 0) for step in range(33)]
    assert [row["resident_bytes"] for row in rows] == [*[1] * 16, *[2] * 16, 3]
    assert all(row["end_bytes"] == 1 for row in rows)


def test_the_hosts_own_figures_are_plausible() -> None:
    resident, total = resident_bytes(), host_total_bytes()
    assert resident is not None and total is not None
    assert 10 << 20 < resident < total
    with mmap.mmap(-1, 64 << 20) as grown:  # no heap, of which other tests may have freed as much that is resident
        grown.write(b"\1" * (64 << 20))
        after = resident_bytes()
    assert after is not None and after - resident > 50 << 20


# ---------------------------------------------------------------------------------------------------- allocator history
def test_entries_keep_their_order_and_lose_their_times() -> None:
    entry = {"action": "alloc", "addr": 512, "size": 512, "stream": 0, "time_us": 7, "frames": []}
    snapshot = {
        "segments": [],
        "device_traces": [[entry, {**entry, "action": "free_completed", "time_us": 9}], []],
        "external_annotations": [{"name": "step", "stage": "START", "time_us": 8}],
    }
    changed = snapshot_without_times(snapshot)
    assert [one["action"] for one in changed["device_traces"][0]] == ["alloc", "free_completed"]
    assert "time_us" not in str(changed) and entry["time_us"] == 7 and "time_us" in str(snapshot)
    assert snapshot_in_memory(changed).devices[0].trace.time_us.tolist() == [-1, -1]


# ---- Memory of phases: the largest of each part, which sum to what is held of the device.


def test_memory_reserved_between_two_readings_was_on_the_device() -> None:
    """10 of 12 are torch's at both ends, and 15 were reserved in between: 17 were held, with 2 outside of torch."""
    phase = PhaseMemory.of_visit(
        "train", 0, [MemoryLevels(4, 10, 12, 2), MemoryLevels(6, 10, 12, 2)], peak=MemoryLevels(9, 15)
    )
    assert (phase.allocated_bytes, phase.cached_bytes, phase.outside_bytes, phase.held_bytes) == (9, 6, 2, 17)
    assert (phase.begin_bytes, phase.end_bytes, phase.unmapped_bytes) == (12, 12, 0)


def test_memory_of_an_engine_that_sleeps_is_reserved_and_not_on_the_device() -> None:
    """An engine of 50 sleeps at both ends, and is awake in between, when 62 are held."""
    asleep, awake = MemoryLevels(55, 60, 12, 2), MemoryLevels(55, 60, 62, 2)
    assert PhaseMemory.of_visit("train", 0, [asleep, asleep], peak=MemoryLevels(55, 60)).unmapped_bytes == 50
    phase = PhaseMemory.of_visit("rollout", 0, [asleep, awake, asleep], peak=MemoryLevels(55, 60))
    assert (phase.held_bytes, phase.outside_bytes, phase.unmapped_bytes) == (62, 2, 0)


def test_of_several_times_each_part_is_the_largest_and_the_ends_are_of_the_last() -> None:
    first = PhaseMemory.of_visit(
        "train", 0, [MemoryLevels(1, 2, 3, 1), MemoryLevels(8, 9, 10, 1)], peak=MemoryLevels(8, 9)
    )
    last = PhaseMemory.of_visit(
        "train", 0, [MemoryLevels(4, 6, 8, 2), MemoryLevels(3, 6, 8, 2)], peak=MemoryLevels(5, 6)
    )
    both = first.followed_by(last)
    assert (both.num_times, both.allocated_bytes, both.reserved_bytes, both.held_bytes) == (2, 8, 9, 10)
    assert (both.outside_bytes, both.begin_bytes, both.end_bytes) == (2, 8, 8)


# ---- A device's blocks: workspaces, buckets, what private pools do not use, and what vLLM unmaps while it sleeps.

DEVICE = torch.device("cuda", 0)
SMALL_BYTES = 8_519_680


@pytest.fixture
def blocks_on_an_a100(monkeypatch: pytest.MonkeyPatch) -> None:
    """A workspace of each library is in use in the first segment, and a freed one; the last is a private pool's."""

    def block(size: int, state: str = "active_allocated") -> dict[str, Any]:
        return {"size": size, "requested_size": size, "state": state}

    first = [block(512), block(SMALL_BYTES), block(MIB), block(SMALL_BYTES, "inactive"), block(32 * MIB)]
    segments = [
        {"address": 1 << 30, "device": 0, "total_size": 64 * MIB, "blocks": first},
        {"address": 1 << 31, "device": 1, "total_size": 20 * MIB, "blocks": [block(SMALL_BYTES)]},
        {
            "address": 1 << 29,
            "device": 0,
            "segment_pool_id": (0, 1),
            "total_size": 4 * MIB,
            "allocated_size": 2 * MIB,
            "blocks": [block(512, "inactive"), block(1024), block(2048, "inactive")],
        },
    ]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.delenv("CUBLASLT_WORKSPACE_SIZE", raising=False)
    monkeypatch.setenv("TORCH_CUBLAS_WORKSPACE_CACHE", "1")


def tell_sizes(monkeypatch: pytest.MonkeyPatch, of_cublas: int, of_cublas_lt: int) -> None:
    """Have torch say how large a workspace of each library is."""
    monkeypatch.setattr(torch._C, "_cuda_getCublasWorkspaceSize", lambda: of_cublas, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCublasLtWorkspaceSize", lambda: of_cublas_lt, raising=False)


@pytest.mark.usefixtures("blocks_on_an_a100")
def test_where_torch_does_not_tell_the_sizes_they_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_cuda_getCublasWorkspaceSize", "_cuda_getCublasLtWorkspaceSize"):
        monkeypatch.delattr(torch._C, name, raising=False)
    start = (1 << 30) + 512
    assert device_blocks(DEVICE).workspaces == ((start, SMALL_BYTES), (start + SMALL_BYTES, MIB))
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "0")
    assert device_blocks(DEVICE).workspaces == ((start, SMALL_BYTES),)


@pytest.mark.usefixtures("blocks_on_an_a100")
def test_where_torch_tells_the_sizes_they_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    tell_sizes(monkeypatch, 512, 0)
    assert device_blocks(DEVICE).workspaces == ((1 << 30, 512),)


@pytest.mark.usefixtures("blocks_on_an_a100")
def test_buckets_are_as_large_as_the_program_says(monkeypatch: pytest.MonkeyPatch) -> None:
    tell_sizes(monkeypatch, 0, 0)
    assert device_blocks(DEVICE).buckets == ()
    assert device_blocks(DEVICE, bucket_bytes={512, 3}).buckets == ((1 << 30, 512),)


@pytest.mark.usefixtures("blocks_on_an_a100")
def test_a_bucket_as_large_as_a_workspace_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    tell_sizes(monkeypatch, 512, MIB)
    blocks = device_blocks(DEVICE, bucket_bytes={512})
    assert blocks.buckets == ((1 << 30, 512),)
    assert blocks.workspaces == (((1 << 30) + 512 + SMALL_BYTES, MIB),)


@pytest.mark.usefixtures("blocks_on_an_a100")
def test_where_each_call_has_a_workspace_of_its_own_none_lies_between_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_cuda, "TORCH", (2, 15))
    monkeypatch.delenv("TORCH_CUBLAS_WORKSPACE_CACHE")
    tell_sizes(monkeypatch, 512, MIB)
    assert device_blocks(DEVICE).workspaces == ()
    monkeypatch.setattr(torch_cuda, "TORCH", (2, 14))
    assert device_blocks(DEVICE).workspaces


def test_other_devices_have_none() -> None:
    assert device_blocks(torch.device("cpu")) == DeviceBlocks()


@pytest.mark.usefixtures("blocks_on_an_a100")
def test_what_a_private_pool_does_not_use_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    tell_sizes(monkeypatch, 0, 0)
    begin = 1 << 29
    assert device_blocks(DEVICE).idle == ((begin, begin + 512), (begin + 1536, begin + 3584))
    assert device_blocks(torch.device("cuda", 1)).idle == ()


@pytest.mark.usefixtures("blocks_on_an_a100")
@pytest.mark.parametrize(("device", "pool", "size_bytes"), [(0, (0, 1), 4 * MIB), (1, (0, 1), 0), (0, (0, 2), 0)])
def test_bytes_of_a_pool_are_those_of_its_device(device: int, pool: tuple[int, int], size_bytes: int) -> None:
    found = pool_bytes(device, [pool]).get(pool)
    assert (found.reserved_bytes if found is not None else 0) == size_bytes


@pytest.mark.usefixtures("blocks_on_an_a100")
def test_what_a_storage_takes_is_its_block_and_segments_are_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    tell_sizes(monkeypatch, 0, 0)
    first, freed = 1 << 30, (1 << 30) + 512 + SMALL_BYTES + MIB
    found = device_blocks(DEVICE)
    sizes = found.sizes
    assert sizes[first] == 512 and sizes[first + 512] == SMALL_BYTES and sizes[(1 << 29) + 512] == 1024
    assert freed not in sizes and 1 << 31 not in sizes
    assert found.segments == ((1 << 29, (1 << 29) + 4 * MIB), (1 << 30, (1 << 30) + 64 * MIB))


def allocator_module(*, says_which_sleep: bool) -> Any:
    """An allocator as vLLM's: weights and a KV cache, which sleep, and wake by their tags."""

    class CuMemAllocator:
        def __init__(self) -> None:
            pieces = {"weights": (0, 8 * MIB, 1000, 0), "kv_cache": (0, 64 * MIB, 2000, 0)}
            self.pointer_to_data = {
                handle[2]: SimpleNamespace(handle=handle, tag=tag, **({"is_asleep": False} if says_which_sleep else {}))
                for tag, handle in pieces.items()
            }

        def sleep(self, offload_tags: tuple[str, ...] | None = None) -> str:
            return self._set(None, is_asleep=True)

        def wake_up(self, tags: list[str] | None = None) -> str:
            return self._set(tags, is_asleep=False)

        def _set(self, tags: list[str] | None, *, is_asleep: bool) -> str:
            for data in self.pointer_to_data.values():
                if says_which_sleep and (tags is None or data.tag in tags):
                    data.is_asleep = is_asleep
            return "done"

    return SimpleNamespace(CuMemAllocator=CuMemAllocator)


@pytest.mark.parametrize("says_which_sleep", [True, False], ids=["each piece says it", "earlier versions"])
def test_each_piece_sleeps_until_its_tag_wakes(*, says_which_sleep: bool) -> None:
    module = allocator_module(says_which_sleep=says_which_sleep)
    with patch.object(module_of_blocks, "ASLEEP", AsleepMemory()):
        follow_sleep(module)
        allocator = module.CuMemAllocator()
        assert allocator.sleep(("weights",)) == "done"
        assert {piece[:3] for piece in module_of_blocks.ASLEEP.pieces} == {(0, 1000, 8 * MIB), (0, 2000, 64 * MIB)}
        assert all(piece.awake_ns == STILL_ASLEEP_NS for piece in module_of_blocks.ASLEEP.pieces)
        allocator.wake_up(tags=["weights"])
        weights, cache = module_of_blocks.ASLEEP.pieces
        assert (weights.address, cache.address) == (1000, 2000)
        assert weights.asleep_ns <= weights.awake_ns < STILL_ASLEEP_NS == cache.awake_ns
        allocator.wake_up()
        allocator.sleep()
        assert [piece.address for piece in module_of_blocks.ASLEEP.pieces[:2]] == [1000, 2000]
        assert len(module_of_blocks.ASLEEP.pieces) == 4


def test_what_has_no_such_allocator_is_left_as_it_is() -> None:
    follow_sleep(SimpleNamespace())
