"""Ranks beside each other: groups, odd ones, missing ones, by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.answers.test_snapshot_findings import BASE, FORWARD, MIB, load
from tests.snapshot.dumps import block, entry, frame, segment, snapshot
from tracer.answers.answer_of_job import answer_sentences
from tracer.answers.ranks import (
    HeldOnDevice,
    JobFinding,
    RankPeak,
    explain_job,
    rank_of,
    rank_peak,
    stage_of,
)


def peak(rank: int | None, size: int, *, oom: str = "", problem: str = "", kind: str = "activation") -> RankPeak:
    kinds = ((kind, size * MIB),)
    return RankPeak(f"r{rank}", rank, 0, 9, size * MIB, size * MIB, kinds, oom, problem)


def numbers(finding: JobFinding) -> list[tuple[list[int | None], bool]]:
    return [([one.rank for one in group.ranks], group.is_odd) for group in finding.groups]


def test_equal_ranks_are_one_group_and_few_others_are_odd() -> None:
    """64 ranks of 1000 MiB with a little noise; 37 holds 300 more, 5 half as much, and 9 the same in another kind."""
    ranks = [peak(rank, 1000 + rank % 5) for rank in range(64) if rank not in (5, 9, 37)]
    finding = explain_job([peak(37, 1300), *ranks, peak(5, 500), peak(9, 1000, kind="held")])
    assert [len(group.ranks) for group in finding.groups] == [61, 1, 1, 1]
    assert sorted(one.rank or 0 for group in finding.groups if group.is_odd for one in group.ranks) == [5, 9, 37]
    assert finding.worst is not None and finding.worst.rank == 37
    assert finding.typical is not None and finding.typical.rank == 0
    assert finding.missing == ()


def test_stages_of_a_pipeline_are_groups_and_none_is_odd() -> None:
    finding = explain_job([peak(rank, 1000 * (1 + rank // 4)) for rank in range(16)])
    assert [odd for _, odd in numbers(finding)] == [False] * 4
    # Of groups of one size the one with the largest peak comes first: what is typical is the worst then.
    assert finding.typical is not None and finding.typical.rank == 12


def staged(stage: int, rank: int, size: int) -> RankPeak:
    return replace(peak(rank, size), stage=stage)


def test_a_small_last_stage_is_not_odd_and_an_odd_rank_of_a_stage_is_found_though_it_is_like_another_stage() -> None:
    """28 ranks of stage 0, four of stage 1 with other sizes; rank 3 of stage 0 holds what stage 1 does."""
    ranks = [staged(0, rank, 1000) for rank in range(28) if rank != 3]
    finding = explain_job([*ranks, staged(0, 3, 500), *(staged(1, rank, 500) for rank in range(28, 32))])
    assert [(group.words, len(group.ranks)) for group in finding.groups] == [
        (("stage 0",), 27), (("stage 1",), 4), (("odd", "stage 0"), 1),
    ]  # fmt: skip
    # Without names the four are odd, and nobody can tell that rank 3 is not one of them.
    unnamed = explain_job([replace(one, stage=None) for one in finding.ranks])
    assert [(group.is_odd, len(group.ranks)) for group in unnamed.groups] == [(False, 27), (True, 5)]


def test_the_worst_is_compared_within_its_stage() -> None:
    ranks = [staged(0, rank, 1000) for rank in range(8)] + [staged(1, rank, 500) for rank in range(8, 11)]
    finding = explain_job([*ranks, staged(1, 11, 2000)])
    assert finding.typical is not None and finding.worst is not None
    assert (finding.typical.rank, finding.worst.rank) == (8, 11)
    alone = explain_job([*ranks[:8], staged(1, 11, 2000)])
    assert alone.typical is not None and alone.typical.rank == 0


def test_a_number_that_all_have_is_no_place() -> None:
    finding = explain_job([staged(2, 0, 10), staged(2, 1, 10)])
    assert [one.stage for one in finding.ranks] == [None, None]
    assert explain_job([staged(2, 0, 10)]).ranks[0].stage == 2


def test_who_ran_out_of_memory_is_the_worst_whatever_others_hold() -> None:
    finding = explain_job([peak(0, 1000), peak(1, 1001), peak(2, 990, oom="forward: too little")])
    assert finding.worst is not None and finding.worst.rank == 2
    assert numbers(finding) == [([0, 1], False), ([2], False)]


def test_ranks_without_a_recording_and_those_that_cannot_be_read() -> None:
    finding = explain_job([peak(0, 10), peak(1, 0, problem="broken"), peak(4, 10)])
    assert finding.missing == (2, 3)
    assert [one.rank for one in finding.unreadable] == [1]
    assert numbers(finding) == [([0, 4], False)]
    assert explain_job([]).worst is None


def test_a_second_recording_of_a_rank_hides_no_other() -> None:
    twice = replace(peak(0, 30), file="old/rank0.pickle")
    finding = explain_job([twice, *(peak(rank, 10) for rank in range(8) if rank != 6), peak(8, 0, problem="broken")])
    assert finding.missing == (6,)
    assert finding.num_ranks == "8 ranks in 9 recordings"
    assert [rank.name for rank in finding.ranks[:3]] == ["rank 0 (rank0.pickle)", "rank 0 (r0)", "rank 1"]
    assert finding.worst is not None and finding.worst.name == "rank 0 (rank0.pickle)"
    assert "Worst of 8 ranks in 9 recordings: rank 0" in answer_sentences(finding)[0]
    assert explain_job([peak(0, 1), peak(1, 1)]).num_ranks == "2 ranks"


def test_files_without_numbers_miss_nobody() -> None:
    assert explain_job([peak(None, 10), peak(7, 10)]).missing == ()


@given(st.lists(st.integers(1, 10_000), max_size=40))
def test_every_rank_is_in_one_group(sizes: list[int]) -> None:
    finding = explain_job([peak(number, size) for number, size in enumerate(sizes)])
    placed = sorted(one.rank or 0 for group in finding.groups for one in group.ranks)
    assert placed == list(range(len(sizes)))
    for group in finding.groups:
        first = group.ranks[0].peak_bytes
        assert all(abs(one.peak_bytes - first) <= 0.02 * max(one.peak_bytes, first) for one in group.ranks)


RANKS = st.builds(
    lambda kinds, stage, oom: replace(
        peak(0, 0, oom=oom),
        peak_bytes=sum(kinds.values()),
        kinds=tuple(kinds.items()),
        stage=stage,
    ),
    st.dictionaries(st.sampled_from("abc"), st.integers(90, 110)),
    st.sampled_from([None, 0, 1]),
    st.sampled_from(["", "it ran out"]),
)


@given(st.lists(RANKS, max_size=20))
def test_groups_are_those_of_a_plain_loop(ranks: list[RankPeak]) -> None:
    """Each rank joins the first group whose first rank holds nearly the same of each kind."""
    named = [replace(rank, rank=number) for number, rank in enumerate(ranks)]
    groups: list[list[RankPeak]] = []
    for rank in named:
        for group in groups:
            first, own = dict(group[0].kinds), dict(rank.kinds)
            apart = sum(abs(first.get(kind, 0) - own.get(kind, 0)) for kind in "abc")
            same = (group[0].out_of_memory, group[0].stage) == (rank.out_of_memory, rank.stage)
            if same and apart <= 0.02 * max(group[0].peak_bytes, rank.peak_bytes):
                group.append(rank)
                break
        else:
            groups.append([rank])
    found = sorted([one.rank or 0 for one in group.ranks] for group in explain_job(named).groups)
    assert found == sorted([one.rank or 0 for one in group] for group in groups)


def test_a_recording_is_summed_up(tmp_path: Path) -> None:
    trace = [entry("alloc", BASE, MIB, frames=FORWARD)]
    loaded = load(tmp_path / "s", snapshot(trace, [segment(BASE, 2 * MIB, [block(BASE, MIB, frames=FORWARD)])]))
    found = rank_peak(loaded, "rank3.pkl")
    assert found.stage is None
    assert (found.rank, found.device, found.peak_bytes, found.reserved_bytes) == (3, 0, MIB, 2 * MIB)
    assert sum(dict(found.kinds).values()) == MIB
    assert rank_peak(load(tmp_path / "e", snapshot([])), "empty.pkl").device is None


def test_a_recording_tells_of_each_device_what_is_reserved_there_and_by_which_line(tmp_path: Path) -> None:
    """Two blocks on device 0, the larger of line 30; freed at the end, as its segment stays. Device 1 has no frames."""
    large, small = [frame("load", line=30)], [frame("build", line=20)]
    first = [
        entry("segment_alloc", BASE, 8 * MIB), entry("alloc", BASE, 5 * MIB, frames=large),
        entry("alloc", BASE + 5 * MIB, MIB, frames=small),
    ]  # fmt: skip
    blocks = [block(BASE, 5 * MIB, frames=large), block(BASE + 5 * MIB, MIB, frames=small)]
    objects = snapshot(
        first, [segment(BASE, 8 * MIB, blocks), segment(2 * BASE, MIB, [block(2 * BASE, MIB)], device=1)]
    )
    found = rank_peak(load(tmp_path / "s", {**objects, "device_traces": [first, []]}), "rank1.pkl")
    assert found.held == (HeldOnDevice(0, 8 * MIB, "/home/me/train.py", 30), HeldOnDevice(1, MIB))


@pytest.mark.parametrize(
    ("file", "rank"),
    [
        ("out/rank3/memory_snapshot.pkl", 3), ("snapshot_rank_12.pickle", 12), ("rank-7.pkl", 7), ("mem_5.pkl", None),
        ("node2/rank11/s.pkl", 11), ("memory_snapshot.pkl", None), ("host1/mem.pkl", None),
        ("pp_rank_1_tp_rank_0.pickle", None), ("pp1_rank9.pkl", 9), ("mp_rank_00_001/snapshot.pkl", None),
        ("pp1/rank_12.pkl", 12), ("dp3.pkl", None), ("job_stage2/mem_7.pkl", None),
        # As libraries and people name what they dump: torchtitan, Megatron-Bridge, lmms-engine, NeMo-RL first.
        ("step_000000000010_exit/000003_step_10.pickle", 3), ("snapshot_oom_rank-4.pickle", 4),
        ("memory_snapshot/snapshot_oom_observer_rank3_pid812_1748000000.pickle", 3),
        ("nemo_rl_memory_snapshots/oom_train_rank12_pid812_20261001-120000_1a2b3c4d.pickle", 12),
        ("oom_rank3.pickle", 3), ("oom_rank-4_snapshot.pickle", 4), ("snapshots/oom_rank2_t1712345678.pickle", 2),
        ("memory_snapshot_rank5_step6.pkl", 5), ("iteration_10_exit/rank0_memory_snapshot.pickle", 0),
        ("oom_memory_snapshot_rank4_step100.pkl", 4), ("llama_rank7_memory_snapshot.pickle", 7),
        ("npu_oom_rank6_17.pickle", 6), ("memory_snapshot_rank_6.pickle", 6), ("RANK_3/snapshot.pickle", 3),
        ("global_rank_9_local_rank_1.pickle", 9), ("local_rank_1_global_rank_9.pickle", 9), ("oomRank3.pickle", 3),
        # Other numbers.
        ("bf16.pickle", None), ("mem_bf16_xl_train_512.pickle", None), ("lora_rank16.pickle", None),
        ("epoch3.pickle", None), ("host7_20250101.pickle", None), ("frank3.pickle", None),
        ("lora_rank_8/rank1.pickle", 1), ("cuda_memory_snapshot.pickle", None), ("step100.pickle", None),
        ("outputs/run-3/snapshot.pickle", None), ("memory_2.7B_ctx512_train_bf16.pickle", None),
        ("snapshot_0.pickle", None), ("003000_steps.pickle", None), ("3_step_10.pickle", None),
    ],
)  # fmt: skip
def test_names_tell_the_rank(file: str, rank: int | None) -> None:
    assert rank_of(file) == rank


@pytest.mark.parametrize(
    ("file", "stage"),
    [
        ("pp1_tp3_dp0_rank9.pkl", 1),
        ("pp_rank_1_tp_rank_0.pickle", 1),
        ("job/stage-2/rank5.pkl", 2),
        ("job/pipeline_stage3.pkl", 3),
        ("job/PP0/TP1/memory_snapshot.pkl", 0),
        ("mp_rank_02_003/memory.pkl", 3),
        ("mp_rank_02/memory.pkl", None),
        ("pp7/pp1.pkl", 1),
        ("zero_stage3/rank5.pkl", None),
        ("http1/app2/rank5.pkl", None),
        ("backstage1.pkl", None),
    ],
)
def test_names_tell_the_stage(file: str, stage: int | None) -> None:
    assert stage_of(file) == stage
