"""Results of runs, jobs and watches: histories are worked out once, a GPU's sum is that of its processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.exporters.recording_file.samples import on_cpu, on_cuda
from tests.snapshot.dumps import block, frame, segment, snapshot
from tests.watched import report_of
from tracer.answers import null_run, run_history
from tracer.answers.answer_of_job import gpu_sentences
from tracer.answers.jobs import NullJob, RankRun, recorded_sums
from tracer.answers.operators import invocations
from tracer.answers.ranks import HeldOnDevice, RankPeak
from tracer.answers.rows import Row
from tracer.answers.run_history import RunHistory
from tracer.answers.watch_report import WatchReport
from tracer.blocks.kinds import Kind
from tracer.capture.objects.storage_observer import StorageObserver
from tracer.capture.sources.source_line import SourceLine
from tracer.null_gpu import cudnn
from tracer.null_gpu.cards import CONTEXT_BYTES, H100, Devices
from tracer.null_gpu.nccl_buffers import NcclBuffers
from tracer.sessions.output_files import write_outputs
from tracer.snapshot import load

BASE, MIB = 1 << 32, 1 << 20
NOTHING_KNOWN = StorageObserver().observations()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each of these was called."""
    found: Counter[str] = Counter()

    def count(module: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(module, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            found[name] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(module, name, counted)

    count(load, "snapshot_in_memory")
    count(run_history, "with_allocator_history")
    count(invocations, "op_instances")
    return found


def test_a_history_tells_how_much_host_memory_is_pinned() -> None:
    """The cache keeps a fourth block, which nothing uses."""
    blocks = [
        block(BASE + MIB * at, size * MIB, frames=[frame("load", line=line)], state=state)
        for at, size, line, state in (
            (0, 1, 7, "active_allocated"), (1, 3, 9, "active_allocated"), (4, 1, 7, "active_pending_free"),
            (5, 8, 5, "inactive"),
        )
    ]  # fmt: skip
    history = RunHistory(snapshot([], host_segments=[segment(BASE, 16 * MIB, blocks)]))
    assert history.pinned_bytes == 5 * MIB
    assert RunHistory(None).pinned_bytes == RunHistory(snapshot([])).pinned_bytes == 0


def test_a_history_becomes_columns_once(calls: Counter[str]) -> None:
    results = on_cuda(oom=True)
    assert results.findings is not None
    history = RunHistory(results.snapshot)
    assert history.joined(results.findings, results.known).parts[-1].source.history is not None
    failed = history.failed_allocation(results.findings, results.known, "cuda:0")
    assert failed is not None
    assert failed.event.asked_bytes == 1 << 40
    assert failed.first is not None and failed.first.num_failed == 1
    assert history.columns is not None
    assert calls == {"snapshot_in_memory": 2, "with_allocator_history": 1}  # once more with what the blocks are


def test_a_history_that_cannot_be_read_is_read_once_and_is_one_note(calls: Counter[str]) -> None:
    results = on_cuda()
    assert results.findings is not None
    history = RunHistory({"dump": 1})
    assert history.joined(results.findings, results.known) is results.findings
    assert history.failed_allocation(results.findings, results.known, "cuda:0") is None
    assert calls == {"snapshot_in_memory": 1}
    (note,) = history.notes
    assert note.startswith("Requested sizes and segments are left out: ")


def test_without_a_history_there_is_nothing_to_read(calls: Counter[str]) -> None:
    findings = on_cpu().findings
    assert findings is not None
    history = RunHistory(None)
    assert history.joined(findings, NOTHING_KNOWN) is findings
    assert (history.columns, history.failed_allocation(None, NOTHING_KNOWN, "cpu")) == (None, None)
    assert not calls


def test_the_files_join_nothing_anew_and_find_the_invocations_of_each_cycle_once(
    calls: Counter[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    results = on_cuda()
    assert results.findings is not None
    calls.clear()
    monkeypatch.setattr("tracer.blocks.from_recording.allocator_join.join_entries", None)
    assert [one.error for one in write_outputs(results, tmp_path)] == [None] * 8
    # Once as it is, and once more with what the blocks are.
    assert calls == {"op_instances": len(results.findings.parts), "snapshot_in_memory": 2}


# ------------------------------------------------------------------------------------------------------------- null run
def notes_with(*operators: str) -> tuple[str, ...]:
    ops = SimpleNamespace(name=np.arange(len(operators)))
    source = SimpleNamespace(recording=SimpleNamespace(strings=operators, ops=ops))
    findings: Any = SimpleNamespace(parts=[SimpleNamespace(source=source)])
    return null_run.notes_of(findings)


@pytest.mark.parametrize(("operator", "is_said"), [("aten::convolution", True), ("prims::convert_element_type", False)])
def test_of_cudnn_is_spoken_where_there_is_a_convolution(
    operator: str, is_said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cudnn, "answered_version", lambda: 0)
    monkeypatch.setattr(NcclBuffers, "of_this_process", NcclBuffers)
    assert any("cuDNN" in note for note in notes_with("aten::mm", operator)) == is_said


# --------------------------------------------------------------------------------------------------------- watch report
def group(kind: Kind, size: int) -> Row:
    return Row(size, 1, kind.name, None, "", "", None, "f", "a.py", 1)


def test_kinds_sum_to_the_groups_the_largest_first() -> None:
    groups = (group(Kind.HELD, 3), group(Kind.PARAMETER, 5), group(Kind.HELD, 4))
    report: WatchReport = report_of(groups=groups)
    assert list(report.by_kind().items()) == [("held", 7), ("parameter", 5)]


# ---- sums of GPUs ----------------------------------------------------------------------------------------------------


GIB = 1 << 30


def rank(number: int | None, **held_gib: int) -> RankPeak:
    parts = tuple(HeldOnDevice(int(name[1:]), size * GIB, "train.py", 6) for name, size in held_gib.items())
    return RankPeak(f"rank{number}", number, held=parts)


def test_a_checkpoint_of_every_rank_is_on_the_first_gpu() -> None:
    """Two nodes with 2 GPUs: all four ranks load 45 GiB to `cuda`, which is GPU 0 of their node."""
    gpus = recorded_sums([rank(0, d0=46), rank(1, d0=45, d1=1), rank(2, d0=46), rank(3, d0=45, d1=1)])
    assert [(gpu.node, gpu.index, gpu.held_bytes) for gpu in gpus] == [
        (0, 0, 91 * GIB + 2 * CONTEXT_BYTES), (0, 1, GIB + CONTEXT_BYTES),
        (1, 0, 91 * GIB + 2 * CONTEXT_BYTES), (1, 1, GIB + CONTEXT_BYTES),
    ]  # fmt: skip
    assert [held.rank for held in gpus[0].guests] == [1] and gpus[0].guests[0].line == SourceLine("train.py", 6)
    assert gpu_sentences(gpus) == (
        "GPU 0 holds up to 92.37 GiB of 2 ranks: rank 0 46.00 GiB, rank 1 45.00 GiB, and about 1.37 GiB of CUDA's "
        "contexts.",
        "Rank 1 takes 45.68 GiB of GPU 0, which is another rank's (like 1 other rank) (train.py:6): call "
        "torch.cuda.set_device(LOCAL_RANK) before anything else of CUDA's, name no GPU by its number, and load "
        'checkpoints with map_location="cpu".',
    )


def test_of_ranks_that_see_one_gpu_each_nothing_is_summed_up() -> None:
    assert recorded_sums([rank(0, d0=46), rank(1, d0=45)]) == ()
    assert recorded_sums([rank(None, d0=46), rank(None, d1=45)]) == ()
    # Rank 1 is on GPU 0, and rank 0 on GPU 1: numbers say nothing of whose a GPU is.
    assert recorded_sums([rank(0, d1=46), rank(1, d0=45)]) == ()
    assert gpu_sentences(recorded_sums([rank(0, d0=46), rank(1, d1=45)])) == ()


@pytest.mark.parametrize(
    ("failure", "line"),
    [("GPU 0 has a total capacity of", 40), ("GPU 1 has a total capacity of", 6), ("", 6)],
)
def test_a_guests_line_is_that_of_its_failure_there_or_of_what_it_holds(failure: str, line: int) -> None:
    """Rank 1, whose GPU is 1, holds something of GPU 0 by line 6; line 40 is where it failed, if it did."""
    guest = RankRun(
        1, int(bool(failure)), 1.0, failure=failure, out_of_memory=bool(failure), line=SourceLine("train.py", 40),
        taken={0: GIB + CONTEXT_BYTES, 1: CONTEXT_BYTES}, lines={0: SourceLine("train.py", 6)},
    )  # fmt: skip
    first = NullJob(Devices(H100, 2), 2, (RankRun(0, 0, 1.0, taken={0: CONTEXT_BYTES}), guest)).gpus[0]
    assert [holding.line for holding in first.guests] == [SourceLine("train.py", line)]


@given(
    st.dictionaries(
        st.integers(0, 15),
        st.tuples(st.integers(0, 90), st.dictionaries(st.integers(0, 7), st.integers(0, 50))),
        min_size=1,
    ),
    st.integers(0, 3),
)
def test_a_gpus_sum_is_that_of_its_processes_with_a_context_each(
    ran: dict[int, tuple[int, dict[int, int]]], communicators: int
) -> None:
    nccl = NcclBuffers(communicators)
    runs = tuple(
        RankRun(
            number, 0, 1.0, size, size, nccl=nccl,
            taken={number % 8: size + CONTEXT_BYTES}
            | {index: most + CONTEXT_BYTES for index, most in others.items() if index != number % 8},
        )
        for number, (size, others) in ran.items()
    )  # fmt: skip
    job = NullJob(Devices(H100, 16), 8, runs)
    for gpu in job.gpus:
        torch_bytes = sum(holding.torch_bytes for holding in gpu.holdings)
        assert gpu.held_bytes == torch_bytes + len(gpu.holdings) * CONTEXT_BYTES
        assert len({holding.rank for holding in gpu.holdings}) == len(gpu.holdings)
        assert all(holding.rank // 8 == gpu.node for holding in gpu.holdings)
    # Every byte that a rank took is on some GPU.
    told = sum(held.torch_bytes for gpu in job.gpus for held in gpu.holdings if not held.is_assumed)
    assert told == sum(size - CONTEXT_BYTES for run in runs for size in run.taken.values())
