"""What a file's name and a recording's frames say of a rank's part in the job."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.snapshots.test_findings import BASE, MIB, load
from tests.snapshot.dumps import block, entry, frame, segment, snapshot
from tracer.analysis.snapshots.job import RankRole, rank_of, rank_peak, role_of_file

TORCH = "/usr/lib/python3/site-packages/torch"


@pytest.mark.parametrize(
    ("file", "rank"),
    [
        ("out/rank3/memory_snapshot.pkl", 3), ("snapshot_rank_12.pickle", 12), ("rank-7.pkl", 7), ("memory_5.pkl", 5),
        ("node2/rank11/s.pkl", 11), ("memory_snapshot.pkl", None), ("host1/mem.pkl", None),
        ("pp_rank_1_tp_rank_0.pickle", None), ("pp1_rank9.pkl", 9), ("mp_rank_00_001/snapshot.pkl", None),
        ("pp1/rank_12.pkl", 12), ("dp3.pkl", None), ("job_stage2/mem_7.pkl", 7),
    ],
)  # fmt: skip
def test_names_tell_the_rank(file: str, rank: int | None) -> None:
    assert rank_of(file) == rank


@pytest.mark.parametrize(
    ("file", "role"),
    [
        ("pp1_tp3_dp0_rank9.pkl", RankRole(1, 3, 0)),
        ("pp_rank_1_tp_rank_0.pickle", RankRole(1, 0)),
        ("job/stage-2/rank5.pkl", RankRole(2)),
        ("job/pipeline_stage3.pkl", RankRole(3)),
        ("job/PP0/TP1/memory_snapshot.pkl", RankRole(0, 1)),
        ("mp_rank_02_003/memory.pkl", RankRole(3, 2)),
        ("mp_rank_02/memory.pkl", RankRole(None, 2)),
        ("pp7/pp1.pkl", RankRole(1)),
        ("zero_stage3/rank5.pkl", RankRole()),
        ("http1/app2/rank5.pkl", RankRole()),
        ("backstage1.pkl", RankRole()),
    ],
)
def test_names_tell_the_stage_and_the_places_in_it(file: str, role: RankRole) -> None:
    assert role_of_file(file) == role


@pytest.mark.parametrize(
    ("file", "strategy"),
    [
        (f"{TORCH}/distributed/fsdp/_flat_param.py", "FSDP"),
        (f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_param.py", "FSDP"),
        (f"{TORCH}/distributed/_composable/fsdp/_fsdp_param.py", "FSDP"),
        (f"{TORCH}/distributed/pipelining/stage.py", "pipeline"),
        (f"{TORCH}/distributed/tensor/parallel/style.py", "tensor parallel"),
        (f"{TORCH}/nn/parallel/distributed.py", "DDP"),
        ("/opt/deepspeed/runtime/zero/stage3.py", "ZeRO"),
        ("C:\\lib\\megatron\\core\\tensor_parallel\\layers.py", "tensor parallel"),
        ("/home/me/fsdp/train.py", None),
        (f"{TORCH}/distributed/tensor/_api.py", None),
    ],
)
def test_frames_tell_how_the_model_is_spread(tmp_path: Path, file: str, strategy: str | None) -> None:
    frames = [frame("forward", file), frame("main")]
    trace = [entry("alloc", BASE, MIB, frames=frames)]
    loaded = load(tmp_path / "s", snapshot(trace, [segment(BASE, 2 * MIB, [block(BASE, MIB, frames=frames)])]))
    found = rank_peak(loaded, "pp1_rank3.pkl")
    assert (found.rank, found.role.stage) == (3, 1)
    assert found.role.strategies == ((strategy,) if strategy is not None else ())
    assert found.role.words == ("stage 1", *found.role.strategies)
