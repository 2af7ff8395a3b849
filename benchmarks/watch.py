"""What `watch_training` costs a step, on the null GPU: its parts, and a whole step with and without.

    uv run python -m benchmarks.watch [--rounds 8] [--steps 40]
    uv run python -m benchmarks.watch --instructions       counted by Valgrind's callgrind, which takes some minutes

Processor time, which other programs disturb little; of the parts the fastest of many runs, of whole steps the median
difference of neighbouring rounds. The cost does not depend on how long a step takes: it is shown as a part of 20 ms.

Whole steps differ from each other by more than the watch takes. Instructions do not: they are the same in every run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from tracer.capture.device.allocator_history import AllocatorHistory
from tracer.null_gpu.cards import H100
from tracer.null_gpu.process import restart_on
from tracer.sessions.training_watch import MAX_ENTRIES, TrainingWatch

DEVICE = torch.device("cuda", 0)
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


def small_training() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    """Twelve blocks, and a step of theirs."""
    torch.set_num_threads(1)
    model = nn.Sequential(*(Block(32) for _ in range(12))).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(32, 32, device=DEVICE)).pow(2).mean().backward()
        optimizer.step()

    return model, optimizer, step


# ---- instructions ----------------------------------------------------------------------------------------------------

_BARE, _COUNTED_STEPS = "a step as it is", 16
_SETTLED_STEPS = 50  # the ring is full, and the moments within a step are looked at in one of eight
_SMALL_RING = 20_000


def count_instructions() -> None:
    """Run the steps under callgrind, and print what each part adds to a step."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "counts"
        tool = ("valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}")
        this = (sys.executable, "-m", "benchmarks.watch", "--counted")
        subprocess.run([*tool, *this], check=True, stderr=subprocess.DEVNULL)
        found = dict(_counted(path) for path in sorted(Path(folder).glob("counts.*")))
    bare = found[_BARE]
    print(f"{_BARE:24} {bare / _COUNTED_STEPS:14,.0f} instructions a step")
    for name, total in found.items():
        if name != _BARE:
            more = total - bare
            print(f"{name:24} {more / _COUNTED_STEPS:+14,.0f} = {100 * more / bare:.2f} %")


def _counted(path: Path) -> tuple[str, int]:
    """What a dump is of, and its number of instructions."""
    lines = dict(line.split(": ", 1) for line in path.read_text().splitlines() if line.startswith(("desc: T", "summ")))
    return lines["desc"].removeprefix("Trigger: dump ").replace("_", " "), int(lines["summary"])


def run_counted() -> None:
    """What callgrind looks at: a step alone, with the history, with the watch and no history, and with all of it."""
    model, optimizer, step = small_training()

    def control(*arguments: str) -> None:
        subprocess.run(["callgrind_control", *arguments, str(os.getpid())], check=True, stdout=subprocess.DEVNULL)

    def count(name: str, end: Callable[[], object] = lambda: None) -> None:
        for number in range(_SETTLED_STEPS + 2 + _COUNTED_STEPS):
            if number == _SETTLED_STEPS:
                control("-i", "on")
            if number == _SETTLED_STEPS + 2:
                control("-z")
            step()
            end()
        control("-d", name.replace(" ", "_"))
        control("-i", "off")

    count(_BARE)
    history = AllocatorHistory(DEVICE, max_entries=_SMALL_RING, stacks_of_frees=False)
    history.start()
    count("with the history alone")
    history.stop()
    with tempfile.TemporaryDirectory() as folder:
        with TrainingWatch(model, optimizer, save_dir=folder, screen="none") as watch:
            watch._history.stop()
            count("without the history", watch.step)
        with TrainingWatch(model, optimizer, save_dir=folder, screen="none", max_entries=_SMALL_RING) as watch:
            count("all of it", watch.step)


# ---- time ------------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--instructions", action="store_true", help="count them instead of measuring time")
    parser.add_argument("--counted", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    restart_on([H100])
    if options.instructions or options.counted:
        (count_instructions if options.instructions else run_counted)()
        return
    model, optimizer, step = small_training()

    def steps(end: Callable[[], object] = lambda: None) -> float:
        start = time.process_time()
        for _ in range(options.steps):
            step()
            end()
        return (time.process_time() - start) / options.steps

    def called(watch: TrainingWatch, batch: Tensor) -> None:
        """What the hooks do in a step: before the model's call, and before the optimizer's step."""
        watch.observe_call(model, (batch,))
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
