"""The model of the caching allocator against torch's own, at every decision of random programs."""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch

from tests.allocator.recorded import device_of, reproduced
from tests.on_null_gpu.small_cards import leave_bytes
from tests.skips import by_default
from tests.truth.isolate import Elsewhere
from tracer.allocator.reproduce import Reproduction
from tracer.capture.torch_private.torch_cuda import set_allocator_settings

MIB = 1 << 20
NUM_OPERATIONS = 3000


@dataclass(frozen=True)
class Case:
    """Settings, and how wild a program runs under them."""

    settings: str = ""
    capacity_mib: int = 0  # 0: the whole card
    fraction: float = 1.0
    num_streams: int = 1
    waits: bool = False
    pools: bool = False


def replayed(case: Case, seed: int = 1) -> tuple[Reproduction, int, int, int]:
    """Run a program, and replay what torch's allocator recorded of it.

    Returns:
        The replay, and torch's own peak of reserved bytes, retries and failures.
    """
    set_allocator_settings(case.settings)
    if case.capacity_mib:
        leave_bytes(0, case.capacity_mib * MIB)
    torch.cuda.set_per_process_memory_fraction(case.fraction)
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=100_000)
    run(case, random.Random(seed))
    counted = torch.cuda.memory_stats()
    _, device_bytes = torch.cuda.mem_get_info()
    found, _ = reproduced(*device_of(torch.cuda.memory._snapshot()), device_bytes=device_bytes)
    return found, counted["reserved_bytes.all.peak"], counted["num_alloc_retries"], counted["num_ooms"]


def run(case: Case, rng: random.Random) -> None:
    """Allocate and free."""
    streams = [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(case.num_streams - 1))]
    pool, other = torch.cuda.MemPool(), torch.cuda.Stream()
    live: list[torch.Tensor] = []
    for _ in range(NUM_OPERATIONS):
        draw = rng.random()
        if draw < 0.002:
            torch.cuda.empty_cache()
        elif draw < 0.48 and live:
            block = live.pop(rng.randrange(len(live)))
            if case.waits and rng.random() < 0.3:
                block.record_stream(other)
            del block
        else:
            size = int(2 ** rng.uniform(6, 27.5)) if rng.random() < 0.7 else rng.choice((700, MIB, MIB + 1, 30 * MIB))
            taken_from = torch.cuda.use_mem_pool(pool) if case.pools and rng.random() < 0.3 else nullcontext()
            try:
                with torch.cuda.stream(rng.choice(streams)), taken_from:
                    live.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                del live[: len(live) // 2]


CASES = {
    "default": Case(),
    "streams and waiting frees": Case(num_streams=3, waits=True),
    "on a small device": Case(capacity_mib=700, waits=True),
    "private pool": Case(num_streams=2, pools=True),
    "expandable": Case("expandable_segments:True", num_streams=2),
    "expandable on a small device": Case("expandable_segments:True", capacity_mib=700, waits=True),
    "expandable pages of 32 MiB": Case(
        "expandable_segments:True,large_segment_size_mb:32,max_non_split_rounding_mb:32", capacity_mib=1024
    ),
    "max split": Case("max_split_size_mb:64", capacity_mib=900),
    "max split, narrow": Case("max_split_size_mb:20,max_non_split_rounding_mb:20"),
    "max split and expandable": Case("max_split_size_mb:64,expandable_segments:True", capacity_mib=900),
    "large segments of 12 MiB": Case("large_segment_size_mb:12", capacity_mib=1024),
    "divisions": Case("roundup_power2_divisions:4", num_streams=2),
    "divisions by size": Case("roundup_power2_divisions:[1:8,2:1,4:2,>:16]", waits=True),
    "memory fraction": Case(fraction=0.02),
    "garbage collection": Case("garbage_collection_threshold:0.6", fraction=0.02, num_streams=2),
    "garbage collection of little": Case("garbage_collection_threshold:0.2,max_split_size_mb:64", fraction=0.015),
}


# Those with several rules at once; the others are each a part of one.
QUICK = {
    *("streams and waiting frees", "on a small device", "private pool", "expandable on a small device"),
    *("max split and expandable", "divisions by size", "garbage collection of little"),
}


@pytest.mark.parametrize("name", by_default(CASES, QUICK))
def test_the_model_decides_as_torchs_allocator_does(elsewhere: Elsewhere, name: str) -> None:
    """Addresses, segments, what is released and when, failures, and every block at the end."""
    case = CASES[name]
    found, peak_bytes, num_retries, num_failures = elsewhere(replayed, case)
    assert found.is_exact, found
    assert found.addresses.recorded > 1000 and found.releases.recorded > 5
    assert (found.peak_bytes, found.failures.recorded) == (peak_bytes, num_failures)
    assert (num_retries > 0) == (case.capacity_mib > 0 or case.fraction < 1)
