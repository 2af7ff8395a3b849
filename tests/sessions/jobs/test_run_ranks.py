"""Which ranks of a job run again, beside what others take of their GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tracer.null_gpu.cards import CONTEXT_BYTES, devices_of
from tracer.null_gpu.nccl_buffers import NcclBuffers
from tracer.results.null_job import NullJob, RankRun
from tracer.sessions.jobs.run_ranks import Job, _JobRun
from tracer.units import GIB

DEVICES = devices_of("2xh100:2GiB")


@pytest.mark.parametrize(("beside_most_nccl", "ran_again"), [(True, [0]), (False, [])])
def test_a_rank_runs_again_beside_as_much_of_nccl_as_is_asked_for(
    beside_most_nccl: bool, ran_again: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Of 2 GiB 1.68 are taken: 28 MiB of NCCL's fit beside them, 688 MiB do not.
    taken = {rank: {rank: CONTEXT_BYTES + GIB} for rank in range(2)}
    runs = tuple(
        RankRun(rank, 0, 1.0, peak_bytes=GIB, nccl=NcclBuffers(communicators=1), taken=taken[rank]) for rank in range(2)
    )
    asked: list[int] = []

    def unseen(run: _JobRun, rank: int, *, taken: Mapping[int, int]) -> RankRun:
        assert taken == {0: NcclBuffers(communicators=1).most_bytes}
        asked.append(rank)
        return runs[rank]

    monkeypatch.setattr(_JobRun, "unseen", unseen)
    run = _JobRun(Job(DEVICES, 2), tmp_path, None, lambda text: None)
    run.where_full(NullJob(DEVICES, 2, runs), beside_most_nccl=beside_most_nccl)
    assert asked == ran_again
