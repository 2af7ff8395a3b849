"""A device's blocks: workspaces, buckets, what private pools do not use, and what vLLM unmaps while it sleeps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from tracer.capture.device import device_blocks as module_of_blocks
from tracer.capture.device.device_blocks import (
    STILL_ASLEEP_NS,
    AsleepMemory,
    DeviceBlocks,
    device_blocks,
    follow_sleep,
    pool_bytes,
)
from tracer.capture.torch_private import torch_cuda
from tracer.units import MIB

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
