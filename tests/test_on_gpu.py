"""The whole run on a GPU: the peak is the allocator's own, and its history covers every block of the recording."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from models.fno_workload import build_fno_workload
from tracer.analysis.kinds import Kind
from tracer.results.run_results import RunResults
from tracer.sessions.output_files import OUTPUTS, write_outputs
from tracer.sessions.profile_session import Schedule
from tracer.sessions.workload_run import run_profile
from tracer.snapshot.load import load_snapshot
from tracer.snapshot.replay import replay
from tracer.workloads.user_model import StepOptions, build_user_workload

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*Profiler clears events")]


def fno(device: torch.device, spectrum: str) -> Any:
    return build_fno_workload(
        device=device, batch_size=4, in_channels=3, out_channels=1, hidden_channels=16, data_size=32, n_modes=8,
        n_layers=2, data="random", spectrum=spectrum, seed=0,  # type: ignore[arg-type]
    )  # fmt: skip


def users(device: torch.device, model: str, *model_args: str, **options: Any) -> Any:
    step = StepOptions(batch_size=4, seed=0, **options)
    return build_user_workload(model, device=device, model_args=model_args, options=step, device_named=True)


class Changed:
    """A workload with some of its methods exchanged."""

    def __init__(self, workload: Any, **methods: Any) -> None:
        self._workload = workload
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)


WORKLOADS = {
    "fno": lambda device: fno(device, "new_zeros"),
    "fno with torch_zeros": lambda device: fno(device, "torch_zeros"),
    "convnet": lambda device: users(device, "models.resnet:build"),
    "transformer": lambda device: users(device, "models.gpt:build"),
    "lstm": lambda device: users(device, "models.lstm:build"),
    "mixed precision": lambda device: users(
        device,
        "torch.nn:TransformerEncoderLayer",
        "d_model=64",
        "nhead=4",
        "batch_first=True",
        inputs=("16x64",),
        amp="bfloat16",
    ),
}


def profiled(name: str) -> tuple[RunResults, int]:
    """The results, and the largest count of the allocator over the recorded steps alone."""
    device = torch.device("cuda", 0)
    workload = WORKLOADS[name](device)
    counts: list[int] = []

    def next_batch() -> Any:
        counts.append(torch.cuda.max_memory_allocated(device))
        torch.cuda.reset_peak_memory_stats(device)
        return workload.next_batch()

    watched = Changed(workload, next_batch=next_batch)
    results = run_profile(watched, schedule=Schedule(1, 1, 2, 1), timing=False)
    # Steps 2 and 3 are recorded; what was counted since their batches was read with the next one.
    return results, max(counts[3:5])


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_peak_is_the_allocators_and_its_history_has_every_block(name: str) -> None:
    results, counted = profiled(name)
    assert results.failure is None
    assert results.findings is not None
    peak = results.findings.worst.peak
    assert peak.device == "cuda:0"
    assert sum(row.bytes for row in peak.rows) == peak.peak_bytes == peak.allocator_peak_bytes == counted
    allocator = peak.allocator
    assert allocator is not None, results.notes
    assert allocator.num_joined == allocator.num_blocks
    assert allocator.reserved_bytes == peak.reserved_bytes
    assert allocator.requested_bytes == sum(row.requested_bytes or 0 for row in peak.rows) <= peak.peak_bytes
    assert allocator.free_bytes == allocator.reserved_bytes - peak.peak_bytes - allocator.pending_bytes
    explained = sum(row.bytes for row in peak.rows if row.category not in ("BEFORE_RECORDING", "UNKNOWN"))
    assert explained >= 0.99 * peak.peak_bytes


def test_all_files_are_written(tmp_path: Path) -> None:
    results, _ = profiled("fno")
    written = list(write_outputs(results, tmp_path))
    assert [str(output.error) for output in written if output.error is not None] == []
    # Nobody asked for a timing pass, nor for what is written on request; times are there where something is computed.
    left_out = {"cuda-timing", *(output.name for output in OUTPUTS if not output.file.switch_help)}
    left_out |= {"run-time-report"} if not results.computed else set()
    assert {output.output.name for output in written} == {output.name for output in OUTPUTS} - left_out
    snapshot = load_snapshot(tmp_path / "memory_snapshot.pkl")
    (state,) = (state for state in snapshot.devices if state.device == 0)
    assert (state.trace.category >= 0).any()
    assert replay(state, snapshot.settings).requested_bytes.max() > 0
    with (tmp_path / "memory_snapshot.pkl").open("rb") as file:
        assert pickle.load(file)["device_traces"]


def test_a_first_step_that_does_not_fit_is_explained() -> None:
    device = torch.device("cuda", 0)
    workload = WORKLOADS["fno"](device)

    def backward(loss: Any) -> None:
        torch.empty(1 << 50, dtype=torch.uint8, device=device)

    results = run_profile(Changed(workload, backward=backward), schedule=Schedule(1, 1, 1, 1), timing=False)
    assert results.findings is None
    failed = results.failed_allocation
    assert failed is not None
    assert failed.event.asked_bytes >= 1 << 50
    assert failed.event.site.file == __file__
    assert sum(group.bytes for group in failed.event.groups) == failed.event.requested_bytes
    assert Kind.PARAMETER in {group.kind for group in failed.event.groups}
