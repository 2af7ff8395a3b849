"""What `watch_training` costs a step, on the pretend accelerator: its parts, and a whole step with and without.

    uv run python -m benchmarks.watch [--rounds 8] [--steps 40]

Processor time, which other programs disturb little; of the parts the fastest of many runs, of whole steps the median
difference of neighbouring rounds. The cost does not depend on how long a step takes: it is shown as a part of 20 ms.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import timeit
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from tests.accelerator import pretend
from tracer.capture.device.allocator_history import AllocatorHistory
from tracer.runs.watch import MAX_ENTRIES, TrainingWatch

DEVICE = torch.device(pretend.NAME, 0)
STEP_S = 0.020


class Block(nn.Module):
    """Of a transformer's kind, without attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """One block."""
        return x + self.narrow(torch.nn.functional.gelu(self.wide(self.norm(x))))  # type: ignore[no-any-return]


def per_call_us(work: Callable[[], object], number: int) -> float:
    return min(timeit.repeat(work, number=number, repeat=15, timer=time.thread_time)) / number * 1e6


def allocate(depth: int, number: int) -> None:
    """At a depth of stack that models have."""
    if depth:
        allocate(depth - 1, number)
        return
    for _ in range(number):
        torch.empty(100, device=DEVICE)


def history_us() -> float:
    """What the ring, once full, adds to an allocation and its free."""
    number = 2000
    bare = per_call_us(lambda: allocate(20, number), 1) / number
    history = AllocatorHistory(DEVICE, max_entries=MAX_ENTRIES, stacks_of_frees=False)
    history.start()
    for _ in range(1 + MAX_ENTRIES // number // 2):
        allocate(20, number)
    with_it = per_call_us(lambda: allocate(20, number), 1) / number
    history.stop()
    return with_it - bare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = nn.Sequential(*(Block(32) for _ in range(12))).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(32, 32, device=DEVICE)).pow(2).mean().backward()
        optimizer.step()

    def steps(end: Callable[[], object] = lambda: None) -> float:
        start = time.process_time()
        for _ in range(options.steps):
            step()
            end()
        return (time.process_time() - start) / options.steps

    def called(watch: TrainingWatch, batch: Tensor) -> None:
        """What the hooks do in a step: before and after the model's call, and before the optimizer's step."""
        watch._before_call(model, (batch,))
        watch._after_call(model, (batch,), batch)
        watch._before_optimizer_step(optimizer, (), {})

    def count() -> int:
        return int(torch.accelerator.memory_stats(0)["allocation.all.allocated"])

    for _ in range(5):
        step()
    before = count()
    step()
    num_allocations = count() - before
    differences: list[float] = []
    bare: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            without = steps()
            with TrainingWatch(model, optimizer, save_dir=folder, screen="none") as watch:
                with_it = steps(watch.step)
                if len(bare) == options.rounds - 1:
                    ends_us = per_call_us(watch.step, 20)
                    hooks_us = per_call_us(partial(called, watch, torch.zeros(2, 32, device=DEVICE)), 20)
            differences.append(with_it - without)
            bare.append(without)
    each_us = history_us()
    parts_us = ends_us + hooks_us + each_us * num_allocations
    print(f"allocations a step            {num_allocations:10,}")
    print(f"history, an allocation+free   {each_us:10.2f} us")
    print(f"watch.step()                  {ends_us:10.1f} us")
    print(f"hooks, a step                 {hooks_us:10.1f} us")
    print(f"parts together, a step        {parts_us:10.1f} us = {parts_us / STEP_S / 1e4:.2f} % of 20 ms")
    median = statistics.median(differences)
    print(
        f"whole steps, with - without   {median * 1e6:10.1f} us = {100 * median / STEP_S:.2f} % of 20 ms "
        f"(from {min(differences) * 1e6:.0f} to {max(differences) * 1e6:.0f}; a step without: "
        f"{statistics.median(bare) * 1e3:.1f} ms)"
    )


if __name__ == "__main__":
    main()
