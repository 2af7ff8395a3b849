"""What it costs to find all that Python can reach: once before each recorded cycle, in small and in large processes.

    python -m benchmarks.walk

Prints the median over some walks, how many objects the garbage collector knows, how many tensors were found, and the
share of a cycle of three recorded steps of the default FNO on this machine. The peer is Python's own full collection of
garbage, which any training loop goes through now and then.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from models.fno_workload import FnoSettings, build_fno_workload
from tracer.capture.objects.live_tensors import live_tensors

NUM_ROUNDS = 7


def median_ms(call: Callable[[], object]) -> float:
    times = []
    for _ in range(NUM_ROUNDS):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return 1000 * statistics.median(times)


def fno_step() -> Callable[[], None]:
    """A step of the default FNO, as `python main.py` trains it."""
    workload = build_fno_workload(FnoSettings(n_modes=16), device="cpu")

    def step() -> None:
        loss = workload.forward(workload.next_batch())
        workload.backward(loss)
        workload.optimizer_step()

    return step


def leaked_graphs(num_nodes: int) -> list[torch.Tensor]:
    """Losses whose graphs are kept, of this many nodes in all."""
    losses = []
    for _ in range(num_nodes // 100):
        x = torch.randn(4, requires_grad=True)
        for _ in range(98):
            x = x.exp()
        losses.append(x.sum())
    return losses


def main() -> None:
    """Measure and print."""
    torch.manual_seed(0)
    kept: list[Any] = [fno_step()]
    kept[0]()
    cycle_ms = 3 * median_ms(kept[0])
    table = Table(box=None, pad_edge=False)
    for column in ("process", "objects", "tensors found", "walk ms", "gc.collect() ms", "ratio", "of a cycle"):
        table.add_column(column, justify="left" if column == "process" else "right")

    def row(name: str) -> None:
        found = live_tensors()
        walk, collect = median_ms(live_tensors), median_ms(gc.collect)
        num_found = f"{len(found.tensors):,}" + ("" if found.is_complete else " (cut)")
        share = f"{100 * walk / cycle_ms:.2f} %"
        table.add_row(
            name,
            f"{len(gc.get_objects()):,}",
            num_found,
            f"{walk:.1f}",
            f"{collect:.1f}",
            f"{walk / collect:.2f}",
            share,
        )

    row("the FNO")
    kept.append([torch.zeros(8) for _ in range(10_000)])
    row("and 10,000 tensors")
    kept.append([[index] for index in range(1_000_000)])
    row("and a million lists")
    kept.append(leaked_graphs(100_000))
    row("and leaked graphs of 100,000 nodes")
    kept.append(leaked_graphs(300_000))
    row("and of 400,000")
    Console(width=140).print(f"torch {torch.__version__}, a cycle of 3 steps takes {cycle_ms:,.0f} ms", table)


if __name__ == "__main__":
    main()
