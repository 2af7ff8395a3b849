"""Random programs on torch's own allocator, and their recordings replayed by the model of it."""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from tests.allocator.recorded import device_of, reproduced
from tests.on_null_gpu.small_cards import leave_bytes
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
