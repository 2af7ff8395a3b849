"""What CUDA graphs work in is said beside a peak that torch counts without it, and explained from their captures."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.answer_screens import peak_screen
from tests.truth.isolate import runs_elsewhere
from tracer.answers.findings import RunFindings
from tracer.capture.torch_private.torch_cuda import are_workspaces_kept
from tracer.exporters.recording_file.kept_run_file import load_kept_run, save_kept_run
from tracer.sessions.schedule import Schedule
from tracer.sessions.stored_results import kept_run, results_of
from tracer.sessions.training_profile import profile_training

WIDTH, BATCH = 512, 4096
LATE = Schedule(4, 1, 1, 1)
"""Long after the capture."""


Replay = Callable[[], object]
Make = Callable[[nn.Module, torch.optim.Optimizer, Tensor], Replay]


def profiled(make: Make, schedule: Schedule = LATE, num_steps: int = 9) -> RunFindings:
    """Profile a loop whose step is what `make` returns, which captures graphs when it is called, and assert the laws.

    The rows sum to the allocator's count and those of a pool to its peak, a kept recording says the same, and torch's
    methods are as they were.
    """
    torch.manual_seed(0)
    names = ("capture_begin", "capture_end", "reset")
    methods = [torch.cuda.CUDAGraph.__dict__[name] for name in names]
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
    written = [asdict(pool) | {"rows": [row.values() for row in pool.rows]} for pool in pools]
    assert counted["cuda_graphs"] == json.loads(json.dumps(written))
    save_kept_run(folder / "kept.npz", kept_run(results))
    again = results_of(load_kept_run(folder / "kept.npz")).findings
    assert again is not None and again.graph_pools == pools
    assert sum(row.bytes for row in peak.rows) == peak.peak_bytes == peak.allocator_peak_bytes
    for pool in pools:
        assert pool.peak_bytes == sum(row.bytes for row in pool.rows) <= pool.reserved_bytes + GENERATOR_BYTES
    assert methods == [torch.cuda.CUDAGraph.__dict__[name] for name in names]
    return results.findings


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


def in_another_pool(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> Replay:
    """A graph of inference that has all but its first result in a pool of the program's, beside a training."""
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        doubled = batch * 2
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            model(doubled)
    step = deleted(model, optimizer, batch)

    def replay() -> None:
        graph.replay()
        step()

    return replay


def captured_while_recorded(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> Replay:
    """The first step makes its graph."""
    graphs: list[Replay] = []

    def step() -> None:
        if not graphs:
            graphs.append(whole_step(model, optimizer, batch))
        graphs[0]()

    return step


HIDDEN_BYTES = 4 * BATCH * 4 * WIDTH
"""Of the result of the first layer, of ReLU's, and of their gradients."""


# Where torch keeps workspaces, before 2.15, a capture also allocates the seed and offset of a generator, in no pool.
GENERATOR_BYTES = 2 * 512 if are_workspaces_kept() else 0


@pytest.mark.parametrize("make", [whole_step, pytest.param(two_of_one_pool, marks=pytest.mark.slow)])
@runs_elsewhere
def test_a_graph_captured_before_the_recorded_steps_is_explained(make: Make) -> None:
    found = profiled(make)
    screen = peak_screen(found)
    (pool,) = found.graph_pools
    # What ReLU made and its gradient are in the graph's memory, and in no row of a step that only replays.
    assert found.graph_bytes >= 2 * HIDDEN_BYTES and found.worst.peak.peak_bytes < 2 * HIDDEN_BYTES
    if make.__name__ == "two_of_one_pool" or not are_workspaces_kept():  # else the sum of a gradient is at the peak
        assert {row.category for row in pool.rows} >= {"ACTIVATION", "AUTOGRAD_DETAIL"}
        activations = [row for row in pool.rows if row.category == "ACTIVATION"]
        assert sum(row.bytes for row in activations) >= HIDDEN_BYTES
        assert "1" in {row.module for row in activations}
    assert {Path(row.file).name for row in pool.rows if row.file is not None} == {"test_graphs.py"}
    assert "of CUDA graphs;" in screen and "With it the step takes" in screen
    assert "In the memory of" in screen


@pytest.mark.parametrize("make", [deleted, pytest.param(reset, marks=pytest.mark.slow)])
@runs_elsewhere
def test_of_a_graph_that_is_gone_nothing_is_said(make: Make) -> None:
    found = profiled(make)
    assert found.graph_pools == () and found.graph_bytes == 0 and "CUDA graph" not in peak_screen(found)


@pytest.mark.skipif(not hasattr(torch.cuda.CUDAGraph, "pools"), reason="this torch does not tell of several pools")
@runs_elsewhere
def test_pools_that_a_capture_is_told_to_use_count_for_the_graph() -> None:
    (pool,) = profiled(in_another_pool).graph_pools
    assert pool.peak_bytes >= HIDDEN_BYTES and pool.num_graphs == 1


@pytest.mark.slow
@runs_elsewhere
def test_what_make_graphed_callables_captures_is_of_one_pool() -> None:
    (pool,) = profiled(graphed_callable).graph_pools
    assert pool.num_graphs == 2 and pool.has_backward
    # Backward's graph works beside what forward's has saved.
    assert {row.category for row in pool.rows} >= {"ACTIVATION", "AUTOGRAD_DETAIL"}


@pytest.mark.slow
@runs_elsewhere
def test_a_graph_of_inference_has_no_backward() -> None:
    (pool,) = profiled(teacher).graph_pools
    assert not pool.has_backward and pool.peak_bytes >= HIDDEN_BYTES
    assert {row.category for row in pool.rows if row.bytes > GENERATOR_BYTES} == {"EVALUATION"}


@runs_elsewhere
def test_a_capture_that_a_cycle_records_is_explained_from_it() -> None:
    found = profiled(captured_while_recorded, Schedule(0, 0, 3, 1))
    (pool,) = found.graph_pools
    assert pool.peak_bytes >= 2 * HIDDEN_BYTES
    # The peak came in the step before it: that memory is in no way beside it.
    assert found.graph_bytes == 0 and " of CUDA graphs;" not in peak_screen(found)
