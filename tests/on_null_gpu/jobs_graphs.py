"""Training loops whose steps replay CUDA graphs, captured before the recorded steps or among them."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from tracer.analysis.peak_row import PeakRow
from tracer.exporters.recording_file.kept_run_file import load_kept_run, save_kept_run
from tracer.exporters.screen.profile import print_peak
from tracer.sessions.schedule import Schedule
from tracer.sessions.stored_results import kept_run, results_of
from tracer.sessions.training_profile import profile_training

WIDTH, BATCH = 512, 4096
LATE = Schedule(4, 1, 1, 1)
"""Long after the capture."""


@dataclass(frozen=True)
class Told:
    """What a profile said, and what the allocator counted."""

    peak_bytes: int
    rows_bytes: int
    counted_bytes: int
    pools: tuple[dict[str, Any], ...]
    uncounted_bytes: int
    screen: str
    is_same_when_read_back: bool
    is_as_before: bool


Replay = Callable[[], object]
Make = Callable[[nn.Module, torch.optim.Optimizer, Tensor], Replay]


def told(make: Make, schedule: Schedule = LATE, num_steps: int = 9) -> Told:
    """Profile a loop whose step is what `make` returns, which captures graphs when it is called."""
    torch.manual_seed(0)
    methods = [torch.cuda.CUDAGraph.__dict__[name] for name in ("capture_begin", "capture_end", "reset")]
    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
    batch, folder = torch.randn(BATCH, WIDTH, device="cuda"), Path(tempfile.mkdtemp())
    with profile_training(model, optimizer, save_dir=folder, schedule=schedule) as session:
        replay = make(model, optimizer, batch)
        for _ in range(num_steps):
            replay()
            torch.cuda.reset_peak_memory_stats()
            session.step()
    results, counted = session.results, json.loads((folder / "peak.json").read_text())
    assert results is not None and results.findings is not None
    pools, peak = results.findings.graph_pools, results.findings.worst.peak
    assert counted["cuda_graphs"] == json.loads(json.dumps([asdict(pool) for pool in pools]))
    save_kept_run(folder / "kept.npz", kept_run(results))
    again = results_of(load_kept_run(folder / "kept.npz")).findings
    assert again is not None
    console = Console(file=io.StringIO(), width=1000)
    print_peak(results.findings, console)
    return Told(
        peak_bytes=peak.peak_bytes,
        rows_bytes=sum(row.bytes for row in peak.rows),
        counted_bytes=peak.allocator_peak_bytes,
        pools=tuple(asdict(pool) for pool in pools),
        uncounted_bytes=results.findings.graph_bytes,
        screen=console.file.getvalue(),  # type: ignore[attr-defined]
        is_same_when_read_back=again.graph_pools == pools,
        is_as_before=methods
        == [torch.cuda.CUDAGraph.__dict__[name] for name in ("capture_begin", "capture_end", "reset")],
    )


def warm_up(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> None:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model(batch).sum().backward()
        optimizer.step()
    torch.cuda.current_stream().wait_stream(side)


def whole_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> Replay:
    """Forward and backward, which add to gradients that stay."""
    warm_up(model, optimizer, batch)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=False)
    with torch.cuda.graph(graph):
        model(batch).sum().backward()

    def replay() -> None:
        optimizer.zero_grad(set_to_none=False)
        batch.copy_(torch.randn(BATCH, WIDTH))
        graph.replay()
        optimizer.step()

    return replay


def deleted(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> Replay:
    """A graph that is gone before the recorded steps, which do without."""
    whole_step(model, optimizer, batch)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return step


def reset(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> Replay:
    """A graph that is alive and has given up what it captured."""
    graph = torch.cuda.CUDAGraph()
    warm_up(model, optimizer, batch)
    with torch.cuda.graph(graph):
        model(batch).sum().backward()
    graph.reset()
    return deleted(model, optimizer, batch)


def two_of_one_pool(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> Replay:
    """Forward in one, backward in another, which needs what the first left."""
    warm_up(model, optimizer, batch)
    pool, first, second = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=False)
    with torch.cuda.graph(first, pool=pool):
        loss = model(batch).sum()
    with torch.cuda.graph(second, pool=pool):
        loss.backward()

    def replay() -> None:
        first.replay()
        second.replay()
        optimizer.step()

    return replay


def graphed_callable(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> Replay:
    """torch's own, of a model."""
    graphed = torch.cuda.make_graphed_callables(model, (batch.clone().requires_grad_(),))

    def step() -> None:
        optimizer.zero_grad()
        graphed(batch.clone().requires_grad_()).sum().backward()
        optimizer.step()

    return step


def teacher(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> Replay:
    """A graph of inference beside a step that is not captured."""
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        target = model(batch)

    def step() -> None:
        graph.replay()
        optimizer.zero_grad()
        (model(batch) - target).square().mean().backward()
        optimizer.step()

    return step


def captured_while_recorded(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> Replay:
    """The first step makes its graph."""
    graphs: list[Replay] = []

    def step() -> None:
        if not graphs:
            graphs.append(whole_step(model, optimizer, batch))
        graphs[0]()

    return step


def lines_of(pool: dict[str, Any]) -> set[tuple[str, int]]:
    """File and line of a pool's rows that have them."""
    rows = (PeakRow(**row) for row in pool["rows"])
    return {(Path(row.file).name, row.line or 0) for row in rows if row.file is not None}
