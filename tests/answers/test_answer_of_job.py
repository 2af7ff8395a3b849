"""The answer of a job on its ranks: of snapshots, and on the null GPU in sentences and as a document."""

from __future__ import annotations

from dataclasses import replace

from tests.answers.test_ranks import peak
from tracer.answers.answer_of_job import alarm_sentences, answer_sentences, job_sections, job_words
from tracer.answers.jobs import NullJob, RankRun
from tracer.answers.ranks import JobFinding, explain_job
from tracer.capture.sources.source_line import SourceLine
from tracer.exporters.json_documents.job import null_job_json
from tracer.null_gpu.cards import CONTEXT_BYTES, H100, Devices
from tracer.null_gpu.nccl_buffers import NcclBuffers

GIB = 1 << 30
FIRST = RankRun(0, 0, 9.0, 3 * GIB, 4 * GIB, {"PARAMETER": 2 * GIB, "ACTIVATION": GIB})
LAST = RankRun(15, 0, 9.0, 2 * GIB, 4 * GIB, {"PARAMETER": GIB, "ACTIVATION": GIB})


def job(*runs: RankRun) -> NullJob:
    return NullJob(Devices(H100, 16), 8, runs)


def test_the_worst_and_what_sets_the_least_apart() -> None:
    words = job_words(job(FIRST, replace(FIRST, rank=8), LAST))
    assert words[0] == "Job of 16 ranks on 16 x H100, 79.10 GiB each, 8 to a node: 3 ran."
    assert words[1] == "The worst is rank 0: 3.00 GiB allocated at its peak."
    assert words[2] == "Rank 15 has 1.00 GiB less: parameter -1.00 GiB."
    assert job(FIRST, LAST).fits is True and job(FIRST, LAST).status == 0


def test_a_verdict_is_about_what_torch_reserves_and_what_is_outside_its_allocator() -> None:
    found = job(replace(FIRST, nccl=NcclBuffers(2, 1)), LAST)
    assert job_words(found)[-1] == (
        "On the GPU of rank 0, torch reserves 4.00 GiB, CUDA's context takes 700.00 MiB, and NCCL's buffers 84.00 MiB "
        "to 1.78 GiB for 2 communicators and 1 rank that it sends to or receives from: together 4.77 GiB to 6.46 GiB "
        "of 79.10 GiB. It fits."
    )
    assert found.fits is True
    shares = job(replace(FIRST, shared_bytes=64 << 20))
    assert job_words(shares)[-1] == (
        "On the GPU of rank 0, torch reserves 4.00 GiB, CUDA's context takes 700.00 MiB, and symmetric memory 64.00 "
        "MiB: together 4.75 GiB of 79.10 GiB. It fits."
    )
    assert null_job_json(shares)["ranks"][0]["shared_bytes"] == 64 << 20
    # The driver counts the most of the whole run, the recorded step what was reserved at its peak.
    later = job(replace(FIRST, taken={0: 6 * GIB + CONTEXT_BYTES}))
    assert "torch reserves 6.00 GiB" in job_words(later)[-1]
    assert null_job_json(later)["gpus"][0]["most_bytes"] == 6 * GIB + CONTEXT_BYTES


def test_whether_it_fits_is_about_the_card() -> None:
    room = H100.memory_bytes - CONTEXT_BYTES
    nccl = NcclBuffers(1)

    def with_reserved(reserved_bytes: int, peak_bytes: int | None = None) -> NullJob:
        return job(replace(FIRST, peak_bytes=peak_bytes or reserved_bytes, reserved_bytes=reserved_bytes, nccl=nccl))

    full = with_reserved(room - nccl.least_bytes + 1)
    assert full.fits is False and full.status == 0 and job_words(full)[-1].endswith("GiB. It does not fit.")
    tight = with_reserved(room - nccl.least_bytes)
    assert tight.fits is None and "It fits if NCCL takes no more than 28.00 MiB" in job_words(tight)[-1]
    assert with_reserved(room - nccl.most_bytes).fits is True
    # Only the allocator knows whether what it has cached can be given back.
    cached = with_reserved(room - nccl.least_bytes + 1, 40 * GIB)
    assert cached.fits is None and "with more, that is not known" in job_words(cached)[-1]
    # The fullest card need not be that of the largest peak.
    sends = replace(LAST, peak_bytes=room - GIB, nccl=NcclBuffers(1, 2))
    found = job(replace(FIRST, peak_bytes=room - GIB + 1), sends)
    assert found.worst is not None and found.worst.rank == 0
    assert found.fullest is not None and found.fullest.own is not None
    assert found.fullest.own.rank == 15 and found.fits is None


def test_what_a_rank_takes_of_anothers_gpu_counts_there() -> None:
    line = SourceLine("train.py", 6)
    guest = replace(LAST, rank=7, taken={7: 3 * GIB, 0: 11 * GIB}, lines={0: line})
    found = job(FIRST, guest)
    # Ranks 1 to 6 did not run: they are taken to do as the nearest that did. Rank 8 is on another node.
    assert [(gpu.index, len(gpu.guests)) for gpu in found.gpus] == [(0, 7), (7, 0)]
    assert found.fullest is not None and found.fullest.index == 0 and found.fits is False
    assert "other ranks 77.00 GiB" in job_words(found)[-2]
    sentence = (
        "which is another rank's (train.py:6): call torch.cuda.set_device(LOCAL_RANK) before anything else of CUDA's, "
        'name no GPU by its number, and load checkpoints with map_location="cpu".'
    )
    assert job_words(found)[-1] == f"Rank 7 takes 11.00 GiB of GPU 0, {sentence}"
    more = job(FIRST, replace(guest, rank=6, taken={6: GIB, 0: GIB}), guest)
    assert (
        "Rank 7 takes 11.00 GiB of GPU 0, which is another rank's (like 1 other rank) (train.py:6): "
        in (job_words(more)[-1])
    )
    holdings = null_job_json(found)["gpus"][0]["holdings"]
    assert sum(held["bytes"] for held in holdings[1:]) == 77 * GIB and holdings[7]["line"] == line
    failed = replace(
        guest, status=3, failure="OutOfMemoryError: CUDA out of memory. Tried to allocate 10.00 GiB. GPU 0 has",
        out_of_memory=True, line=line, crowded=(0, 71 * GIB),
    )  # fmt: skip
    words = job_words(job(FIRST, failed))
    assert (
        words[1]
        == "Rank 7 does not fit: OutOfMemoryError: CUDA out of memory. Tried to allocate 10.00 GiB (train.py:6)."
    )
    assert words[2].endswith("other ranks 77.00 GiB: together 81.68 GiB of 79.10 GiB. It does not fit.")
    assert words[3] == f"Rank 7 takes 11.00 GiB of GPU 0, {sentence}"
    # Of a rank whose memory ended on its own GPU, the line of that is not what it has on another's.
    for place, named in ((0, " (train.py:9)"), (7, "")):
        failure = f"OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU {place} has a total capacity"
        later = replace(failed, failure=failure, line=SourceLine("train.py", 9), lines={})
        assert f"which is another rank's{named}: " in job_words(job(FIRST, later))[-1]
    context = job(FIRST, replace(guest, taken={7: 3 * GIB, 0: CONTEXT_BYTES}))
    assert job_words(context)[-1].endswith(
        "for CUDA's context alone: call torch.cuda.set_device(LOCAL_RANK) before anything else of CUDA's."
    )


def test_the_gpu_of_a_rank_that_did_not_run_is_full_as_well() -> None:
    """Rank 1 alone ran: 2 GiB of its own, and 50 of GPU 0, whose own rank is taken to do as rank 1."""
    guest = RankRun(1, 0, 9.0, 2 * GIB, 2 * GIB, taken={1: 2 * GIB + CONTEXT_BYTES, 0: 50 * GIB})
    gpu = job(guest).gpus[0]
    assert gpu.own is not None and gpu.own.is_assumed and gpu.own.torch_bytes == 2 * GIB
    assert gpu.held_bytes == 2 * GIB + CONTEXT_BYTES + 7 * 50 * GIB


def test_ranks_without_a_process_group_train_alone() -> None:
    alone = replace(job(FIRST, replace(FIRST, rank=7)), is_distributed=False)
    assert job_words(alone)[1] == (
        "The script opens no process group: each rank trains alone, and nothing is shared between them."
    )


def test_equal_ranks_are_one_group_and_the_largest_comes_first() -> None:
    found = job(LAST, FIRST, replace(FIRST, rank=8))
    assert [[run.rank for run in group] for group in found.groups] == [[0, 8], [15]]
    assert job_words(job(FIRST, replace(FIRST, rank=8)))[2] == "All that ran have the same peak, to the byte."


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
    killed = "Rank 0 was killed (SIGKILL), as a process is where the host's memory runs out."
    assert job_words(job(replace(failed, status=-9)))[1:] == [killed, "None of them recorded a step."]
    assert killed not in job_words(job(failed))
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


def test_a_rank_that_ends_by_another_error_is_told_and_what_is_known_to_be_too_much_does_not_fit() -> None:
    guest = {0: 70 * GIB + CONTEXT_BYTES, 1: CONTEXT_BYTES}
    fault = RankRun(1, 1, 9.0, failure="RuntimeError: no such file", line=SourceLine("train.py", 7), taken=guest)
    own = {0: 9 * GIB + CONTEXT_BYTES}
    found = job(replace(FIRST, taken=own), fault)
    words = job_words(found)
    assert "Rank 1 ended before a step was recorded: RuntimeError: no such file (train.py:7)." in words
    assert not any("same peak" in line for line in words)
    assert found.fits is False and any(line.endswith("It does not fit.") for line in words)
    assert job(replace(FIRST, taken=own), replace(fault, taken={0: GIB})).fits is None


# ---- snapshots -------------------------------------------------------------------------------------------------------
def planted() -> JobFinding:
    """Twelve ranks of 1000 MiB; 5 ran out of memory with 1300, 9 holds 700, 3 cannot be read and 7 left nothing."""
    ranks = [peak(rank, 1000) for rank in range(14) if rank not in (3, 5, 7, 9)]
    failed = peak(5, 1300, oom="forward (model.py:7): too little.")
    return explain_job([*ranks, failed, peak(9, 700), peak(3, 0, problem="is no pickle")])


def test_by_hand() -> None:
    finding = planted()
    assert alarm_sentences(finding) == ("Rank 5 ran out of memory.", "At forward (model.py:7): too little.")
    assert answer_sentences(finding) == (
        "Worst of 13 ranks: rank 5, with a peak of 1.27 GiB.",
        "10 of them are alike, with a peak of 1000.00 MiB. Odd ones out: 5, 9.",
        "1 recording cannot be read, and there is none of rank 7.",
    )
    groups, lacking = job_sections(finding, ())
    assert [section.title for section in (groups, lacking)] == ["Groups of equal ranks", "What is not there"]
    assert [row[2:4] for row in groups.tables[0].rows] == [(10, "0-2, 4, 6, 8, 10-13"), (1, "5"), (1, "9")]
    assert lacking.tables[0].rows == (("rank 3", "r3", "is no pickle"),)


def test_ranks_that_are_all_alike_need_no_more_words() -> None:
    finding = explain_job([peak(rank, 10) for rank in range(3)])
    assert alarm_sentences(finding) == ()
    assert answer_sentences(finding) == (
        "Worst of 3 ranks: rank 0, with a peak of 10.00 MiB.",
        "All are alike, with a peak of 10.00 MiB.",
    )
    assert [section.title for section in job_sections(finding, ())] == ["Groups of equal ranks"]


def test_several_that_ran_out_are_counted() -> None:
    failed = [peak(rank, 1000 + rank, oom=f"step (train.py:{rank}): full.") for rank in range(3)]
    assert alarm_sentences(explain_job([*failed, peak(3, 990)])) == (
        "3 of 4 ranks (0-2) ran out of memory.",
        "Rank 2, the worst of them: at step (train.py:2): full.",
    )
