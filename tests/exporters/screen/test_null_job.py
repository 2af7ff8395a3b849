"""What a job on the null GPU says of its ranks, in sentences and as a document."""

from __future__ import annotations

from dataclasses import replace

from tracer.exporters.json_documents.null_job import null_job_json
from tracer.exporters.screen.null_job import job_words
from tracer.null_gpu.cards import CONTEXT_BYTES, H100, Devices
from tracer.null_gpu.nccl_buffers import NcclBuffers
from tracer.results.null_job import NullJob, RankRun

GIB = 1 << 30
FIRST = RankRun(0, 0, 9.0, 3 * GIB, 4 * GIB, {"PARAMETER": 2 * GIB, "ACTIVATION": GIB})
LAST = RankRun(15, 0, 9.0, 2 * GIB, 4 * GIB, {"PARAMETER": GIB, "ACTIVATION": GIB})


def job(*runs: RankRun) -> NullJob:
    return NullJob(Devices(H100, 16), 8, runs)


def test_the_worst_and_what_sets_the_least_apart() -> None:
    words = job_words(job(FIRST, replace(FIRST, rank=8), LAST))
    assert words[0] == "Job of 16 ranks on 16 x H100, 79.10 GiB each, 8 to a node: 3 ran."
    assert words[1].startswith("The worst is rank 0: 3.00 GiB at its peak, of 78.6")
    assert words[2] == "Rank 15 has 1.00 GiB less: parameter -1.00 GiB."
    assert job(FIRST, LAST).fits is True and job(FIRST, LAST).status == 0


def test_what_is_outside_torchs_allocator_is_said_of_the_card() -> None:
    found = job(replace(FIRST, nccl=NcclBuffers(2, 1)), LAST)
    assert job_words(found)[-1] == (
        "Beside torch's memory: CUDA's context, 500.00 MiB, and NCCL's buffers, 84.00 MiB to 1.78 GiB for 2 "
        "communicators and 1 rank that it sends to or receives from. So rank 0 takes 3.57 GiB to 5.27 GiB of 79.10 GiB."
    )
    assert found.fits is True
    shares = job(replace(FIRST, shared_bytes=64 << 20))
    assert job_words(shares)[-1] == (
        "Beside torch's memory: CUDA's context, 500.00 MiB, and symmetric memory, 64.00 MiB. "
        "So rank 0 takes 3.55 GiB of 79.10 GiB."
    )
    assert (
        "500.00 MiB, symmetric memory, 64.00 MiB, and NCCL's"
        in job_words(job(replace(shares.runs[0], nccl=NcclBuffers(1))))[-1]
    )
    document = null_job_json(shares)
    assert document["ranks"][0]["shared_bytes"] == 64 << 20


def test_whether_it_fits_is_about_the_card() -> None:
    room = H100.memory_bytes - CONTEXT_BYTES
    nccl = NcclBuffers(1)
    full = job(replace(FIRST, peak_bytes=room - nccl.least_bytes + 1, nccl=nccl))
    assert full.fits is False and full.status == 0 and job_words(full)[-1].endswith("GiB, and does not fit.")
    tight = job(replace(FIRST, peak_bytes=room - nccl.least_bytes, nccl=nccl))
    assert tight.fits is None and job_words(tight)[-1].endswith(", and fits if NCCL takes no more than 28.00 MiB.")
    assert job(replace(FIRST, peak_bytes=room - nccl.most_bytes, nccl=nccl)).fits is True
    # The fullest card need not be that of the largest peak.
    sends = replace(LAST, peak_bytes=room - GIB, nccl=NcclBuffers(1, 2))
    found = job(replace(FIRST, peak_bytes=room - GIB + 1), sends)
    assert found.worst is not None and found.worst.rank == 0
    assert found.fullest is sends and found.fits is None


def test_equal_ranks_are_one_group_and_the_largest_comes_first() -> None:
    found = job(LAST, FIRST, replace(FIRST, rank=8))
    assert [[run.rank for run in group] for group in found.groups] == [[0, 8], [15]]
    assert job_words(job(FIRST, replace(FIRST, rank=8)))[-1] == "All that ran have the same peak, to the byte."


def test_a_rank_that_ran_out_of_memory_is_the_worst_and_the_job_does_not_fit() -> None:
    failure = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 7 has a total capacity of 79 GiB"
    full = RankRun(7, 3, 9.0, failure=failure, out_of_memory=True)
    found = job(FIRST, full)
    assert found.worst is full and found.fits is False and found.status == 3
    assert job_words(found)[1] == (
        "Rank 7 does not fit: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    )


def test_a_rank_that_ended_for_another_reason_says_nothing_of_whether_it_fits() -> None:
    failed = RankRun(0, 1, 9.0, failure="ZeroDivisionError: division by zero")
    assert job(failed).fits is None and job(failed).status == 1
    assert job_words(job(failed))[-1] == "None of them recorded a step."
    assert job(FIRST, replace(failed, rank=5)).fits is None
    assert job(FIRST, replace(LAST, status=-9)).status == 1


def test_the_document_has_every_rank() -> None:
    document = null_job_json(job(FIRST, LAST))
    assert (document["format"], document["world_size"], document["fits"], document["worst_rank"]) == (
        "torch-timeline null job", 16, True, 0,
    )  # fmt: skip
    assert [rank["peak_bytes"] for rank in document["ranks"]] == [3 * GIB, 2 * GIB]
    assert document["context_bytes"] == CONTEXT_BYTES
    assert document["ranks"][0]["nccl"] == {"communicators": 0, "partners": 0, "least_bytes": 0, "most_bytes": 0}
