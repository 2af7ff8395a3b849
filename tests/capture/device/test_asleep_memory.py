"""What vLLM's allocator unmaps while the engine sleeps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from tracer.capture.device import device_blocks
from tracer.capture.device.device_blocks import STILL_ASLEEP_NS, AsleepMemory, follow_sleep

MIB = 1 << 20


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
    with patch.object(device_blocks, "ASLEEP", AsleepMemory()):
        follow_sleep(module)
        allocator = module.CuMemAllocator()
        assert allocator.sleep(("weights",)) == "done"
        assert {piece[:3] for piece in device_blocks.ASLEEP.pieces} == {(0, 1000, 8 * MIB), (0, 2000, 64 * MIB)}
        assert all(piece.awake_ns == STILL_ASLEEP_NS for piece in device_blocks.ASLEEP.pieces)
        allocator.wake_up(tags=["weights"])
        weights, cache = device_blocks.ASLEEP.pieces
        assert (weights.address, cache.address) == (1000, 2000)
        assert weights.asleep_ns <= weights.awake_ns < STILL_ASLEEP_NS == cache.awake_ns
        allocator.wake_up()
        allocator.sleep()
        assert [piece.address for piece in device_blocks.ASLEEP.pieces[:2]] == [1000, 2000]
        assert len(device_blocks.ASLEEP.pieces) == 4


def test_what_has_no_such_allocator_is_left_as_it_is() -> None:
    follow_sleep(SimpleNamespace())
