"""What the processes of a node hold on each GPU: by hand, and that every sum is of its parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.analysis.snapshots.job import HeldOnDevice, RankPeak
from tracer.capture.sources.source_line import SourceLine
from tracer.exporters.screen.job import gpu_sentences
from tracer.null_gpu.cards import CONTEXT_BYTES, H100, Devices
from tracer.null_gpu.nccl_buffers import NcclBuffers
from tracer.results.gpu_sums import recorded_sums
from tracer.results.null_job import NullJob, RankRun

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
        "torch.cuda.set_device(LOCAL_RANK) before anything else of CUDA's, and load checkpoints with "
        'map_location="cpu".',
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
    # All that those that ran have taken is on some GPU.
    told = sum(held.torch_bytes for gpu in job.gpus for held in gpu.holdings if not held.is_assumed)
    assert told == sum(size - CONTEXT_BYTES for run in runs for size in run.taken.values())
