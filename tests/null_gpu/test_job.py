"""A job on GPUs that are not there: which ranks run, and what each finds in the place of the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.null_gpu.started import ROOT, called, needs_null_gpu, programs_in
from tests.processes import run_python
from tracer.errors import TracerError
from tracer.null_gpu.cards import CONTEXT_BYTES, H100
from tracer.null_gpu.job.place import (
    RankPlace,
    earlier_ranks_by,
    groups_left,
    nccl_left,
    ranks_that_differ,
    run_earlier_ranks,
    shared_bytes_left,
)
from tracer.null_gpu.job.store import LoneStore, Objects, ProgramsStore
from tracer.null_gpu.nccl_buffers import NcclBuffers
from tracer.null_gpu.process import environment
from tracer.sessions.jobs.ranks import this_rank

TOGETHER = programs_in("job_programs.py")


# ---- which ranks


@pytest.mark.parametrize(
    ("groups", "world_size", "ranks"),
    [
        ([], 128, [0]),
        ([[0]], 128, [0]),
        # Of a group the first, one between and the last.
        ([range(8)], 8, [0, 4, 7]),
        ([[0, 1]], 2, [0, 1]),
        # A mesh of 4 x 8: columns are neighbours, rows 8 apart; the whole is no line of its own.
        ([range(32), range(8), range(0, 32, 8)], 32, [0, 4, 7, 16, 24, 31]),
        # The whole world of 32, and one part of it alone, which is no product of others: a line.
        ([range(32), range(8)], 32, [0, 4, 7, 16, 31]),
        ([[4, 5, 6, 7]], 8, [0]),  # groups of others say nothing of this rank
    ],
)
def test_of_each_line_of_ranks_some_run(groups: list[Sequence[int]], world_size: int, ranks: list[int]) -> None:
    assert ranks_that_differ(groups, world_size) == ranks


# ---- what a rank is told


def test_a_place_is_what_torchrun_says(monkeypatch: pytest.MonkeyPatch) -> None:
    place = RankPlace(11, 16, 8, Path("job"))
    variables = place.variables()
    assert (variables["LOCAL_RANK"], variables["GROUP_RANK"], variables["LOCAL_WORLD_SIZE"]) == ("3", "1", "8")
    assert RankPlace.here() is None
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert RankPlace.here() == place
    rank = this_rank()
    assert rank is not None and (rank.index, rank.local_index, rank.job_folder) == (11, 3, Path("job"))


def test_a_store_waits_for_nobody() -> None:
    store = LoneStore(lambda: {"theirs": b"1"})
    store.wait(["never"])
    assert store.get("theirs") == b"1" and store.get("never") == bytes(128)
    store.set("own", "x")
    store.append("own", "y")
    assert store.get("own") == b"xy" and store.own == {"own": b"xy"}
    assert [store.add("count", 2), store.add("count", 0)] == [2, 2]
    assert not store.check(["theirs"]) and store.check(["own", "count"])
    assert store.compare_set("new", "", "z") == b"z" and store.compare_set("new", "q", "w") == b"z"
    store.set("round/3", "of this rank")
    assert store.get("round/0") == b"of this rank" and store.get("other/0") == store.get("0") == bytes(128)
    assert (
        store.delete_key("round/3")
        and store.delete_key("own")
        and not store.delete_key("own")
        and store.num_keys() == 2
    )


def test_to_a_store_of_the_program_all_have_come() -> None:
    jobs = LoneStore(lambda: {"theirs": b"1"})
    store = ProgramsStore(jobs, 4)
    assert store.add("count", 2) == 2 and store.add("count", 0) == 8 and store.get("count") == b"8"
    assert store.get("theirs") == b"1" and store.check(["never"]) and "count" in jobs.own
    # A process group looks for signals of failure, which nobody has given.
    assert not store.check(["default_pg/0//dump"])
    assert not ProgramsStore(jobs, 1).check(["never"])


def test_objects_without_which_a_rank_cannot_go_on_are_asked_for(tmp_path: Path) -> None:
    def run() -> None:
        Objects(tmp_path, 0).share(["plan"], 0, [0, 1, 2])

    with earlier_ranks_by(run, tmp_path):
        given: list[object] = [None]
        Objects(tmp_path, 2).share(given, 0, [0, 1, 2], are_needed=True)
    assert given == ["plan"]


def test_objects_come_from_the_rank_that_gave_them_or_the_nearest_before(tmp_path: Path) -> None:
    Objects(tmp_path, 0).send(["from 0"], 1)
    second: list[object] = [None]
    Objects(tmp_path, 1).receive(second, 0)
    assert second == ["from 0"]
    Objects(tmp_path, 2).send(["from 2"], 3)
    last: list[object] = [None]
    Objects(tmp_path, 7).receive(last, 6)
    assert last == ["from 2"]
    with pytest.raises(TracerError, match="Rank 0 waits for objects of rank 5"):
        Objects(tmp_path / "empty", 0).receive([None], 5)


def test_a_rank_that_runs_alone_asks_for_the_first_once(tmp_path: Path) -> None:
    ran: list[int] = []

    def run() -> None:
        ran.append(0)
        Objects(tmp_path, 0).send(["from 0"], 1)

    with earlier_ranks_by(run, tmp_path):
        for _ in range(2):
            given: list[object] = [None]
            Objects(tmp_path, 5).receive(given, 4)
            assert given == ["from 0"]
    assert ran == [0]
    assert not run_earlier_ranks(tmp_path)


def test_a_rank_for_which_the_first_has_nothing_does_not_wait(tmp_path: Path) -> None:
    with (
        earlier_ranks_by(lambda: None, tmp_path),
        pytest.raises(TracerError, match="Rank 5 waits for objects of rank 4"),
    ):
        Objects(tmp_path, 5).receive([None], 4)


def test_shared_objects_of_a_rank_that_did_not_run_are_ones_own(tmp_path: Path) -> None:
    own: list[object] = ["mine"]
    Objects(tmp_path, 3).share(own, 2, [2, 3])
    assert own == ["mine"]
    # The second call of the source is the second one here.
    giver, taker = Objects(tmp_path, 2), Objects(tmp_path, 3)
    giver.share(["a"], 2, [2, 3])
    giver.share(["b"], 2, [2, 3])
    first: list[object] = [None]
    second: list[object] = [None]
    taker.share(first, 2, [2, 3])
    taker.share(second, 2, [2, 3])
    assert first + second == ["a", "b"]


# ---- programs


def run_rank(rank: int, folder: Path, world_size: int = 4) -> subprocess.CompletedProcess[str]:
    variables = environment([H100] * world_size) | RankPlace(rank, world_size, world_size, folder).variables()
    variables |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return run_python("-m", "tests.null_gpu.job_programs", *TOGETHER, folder=folder, variables=variables, limit_s=600)


@needs_null_gpu
def test_each_rank_runs_without_the_others(tmp_path: Path) -> None:
    for rank in (0, 2):
        ended = run_rank(rank, tmp_path)
        assert ended.returncode == 0, ended.stderr[-3000:]
        assert ended.stdout.split() == list(TOGETHER)
    assert groups_left(tmp_path, 0) == [[0, 1], [0, 1, 2, 3], [0, 2]]
    assert groups_left(tmp_path, 1) == []
    # Of all programs the most at once: the world's and another; all three others by an all-to-all.
    assert nccl_left(tmp_path, 0) == NcclBuffers(2, 3)
    assert nccl_left(tmp_path, 1) == NcclBuffers(0, 0)
    # 4 MiB, torch's own workspace for what is gathered, and a pad for signals behind each.
    assert shared_bytes_left(tmp_path, 0) in range(6 << 20, 10 << 20)
    assert shared_bytes_left(tmp_path, 1) == 0


# ---- commands

UNEVEN = """
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
dist.init_process_group()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
with torch.device("meta"):
    net = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)], nn.Linear(1024, 1001))
for layer in net:
    fully_shard(layer)
fully_shard(net)
net.to_empty(device="cuda")
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(8):
    net(torch.randn(64, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
print("rank", dist.is_initialized(), os.environ["RANK"])
"""


def launched(*command: object, folder: Path) -> subprocess.CompletedProcess[str]:
    """A program as two ranks that torchrun starts."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    variables = os.environ | {"OMP_NUM_THREADS": "1"}
    return run_python(*launcher, *command, folder=folder, variables=variables)


def by_category(peak: dict[str, Any]) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in peak["rows"]:
        found[row["category"]] += row["bytes"]
    return found


@needs_null_gpu
@pytest.mark.slow
def test_a_script_of_sixteen_ranks_is_answered_by_those_that_differ(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(UNEVEN, "utf-8")
    launcher = ("torchrun", "--nnodes=2", "--nproc_per_node", "8")  # is left out
    ended = called(tmp_path, "run", "--on", "16xh100", "--save-dir", "out", *launcher, "train.py")
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "So do 8, 15" in ended.stderr
    assert "rank False 0" in ended.stdout
    assert "Job of 16 ranks on 16 x H100" in ended.stdout and "3 ran" in ended.stdout
    document = json.loads((tmp_path / "out" / "ranks.json").read_text("utf-8"))
    assert document["world_size"] == 16 and document["missing"] == []
    assert [rank["index"] for rank in document["ranks"]] == [0, 8, 15]
    # 1,001 rows over 16 ranks: 63 to a rank, and the last has 56 of them.
    sizes = [rank["categories"]["OPTIMIZER_STATE"] for rank in document["ranks"]]
    assert sizes[0] == sizes[1] > sizes[2]
    for rank in (0, 8, 15):
        peak = json.loads((tmp_path / "out" / f"rank{rank}" / "peak.json").read_text("utf-8"))
        assert sum(row["bytes"] for row in peak["rows"]) == peak["allocator_peak_bytes"]
        assert by_category(peak)["COMMUNICATION"] > 0
    assert "rank False 15" in (tmp_path / "out" / "rank15" / "output.txt").read_text("utf-8")


@needs_null_gpu
@pytest.mark.slow
def test_a_rank_can_be_named_and_its_failure_is_the_commands(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(UNEVEN.replace("range(8)", "range(8 if dist.get_rank() else 1 // 0)"), "utf-8")
    command = ("run", "--on", "16xh100", "--rank", "0,5", "--save-dir", "out", "train.py")
    # As a shell starts it, and with ranks that begin by themselves: no process is a fork here.
    ended = subprocess.run(
        [sys.executable, ROOT / "main.py", *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "ZeroDivisionError" in ended.stderr
    assert "0: ZeroDivisionError: integer division" in ended.stdout and "5" in ended.stdout


LATER = """
import torch
import torch.distributed as dist
from torch import nn
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank % 8)
net = nn.parallel.DistributedDataParallel(nn.Linear(1024, 1024).cuda())
optimizer = torch.optim.SGD(net.parameters())
for _ in range(12):
    net(torch.randn(64 * (2 - rank), 1024, device="cuda")).sum().backward()
    optimizer.step()
kept = [torch.empty(256 << 20, dtype=torch.uint8, device="cuda") for _ in range(8 * rank)]
"""


@needs_null_gpu
@pytest.mark.slow
def test_the_worst_rank_is_one_whose_memory_ended_behind_its_recorded_steps(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LATER, "utf-8")
    ended = called(tmp_path, "run", "--on", "2xh100:2GiB", "--save-dir", "out", "train.py")
    assert ended.returncode == 1, ended.stderr  # the script's own
    # Five blocks of 256 MiB fit beside 500 MiB of CUDA's context.
    said = (
        "Rank 1 does not fit: OutOfMemoryError: CUDA out of memory. Tried to allocate 256.00 MiB, after the recorded "
        "steps, with 1.26 GiB allocated"
    )
    assert said in " ".join(ended.stdout.split())
    ranks = json.loads((tmp_path / "out" / "ranks.json").read_text("utf-8"))["ranks"]
    assert [rank["out_of_memory"] for rank in ranks] == [False, True]
    for rank, of_rank in enumerate(ranks):
        document = json.loads((tmp_path / "out" / f"rank{rank}" / "peak.json").read_text("utf-8"))
        assert document["peak_bytes"] == of_rank["peak_bytes"] == sum(of_rank["categories"].values())
    assert f"rank 1: {ranks[1]['peak_bytes']:,} bytes on cuda" in (tmp_path / "out" / "ranks.txt").read_text("utf-8")


GUEST = """
import os
import torch
import torch.distributed as dist
from torch import nn
dist.init_process_group("nccl")
local = int(os.environ["LOCAL_RANK"])
loaded = torch.empty(4 << 30, dtype=torch.uint8, device="cuda")  # each rank's is on GPU 0
net = nn.parallel.DistributedDataParallel(nn.Linear(256, 256).to(local), device_ids=[local])
optimizer = torch.optim.SGD(net.parameters())
for _ in range(4):
    net(torch.randn(64, 256, device=local)).sum().backward()
    optimizer.step()
"""


TO_LOCAL = "nn.Linear(256, 256).to(local)"


@needs_null_gpu
@pytest.mark.slow
def test_ranks_that_torchrun_starts_see_each_other_and_are_summed_up_by_gpu(tmp_path: Path) -> None:
    """Two real ranks over gloo, each with both null GPUs: both load 4 GiB to GPU 0."""
    (tmp_path / "train.py").write_text(
        GUEST.replace('"nccl"', '"gloo"')
        .replace("nn.parallel.DistributedDataParallel(nn.Linear(256, 256).to(local), device_ids=[local])", TO_LOCAL)
        .replace("range(4)", "range(8)"),
        "utf-8",
    )
    options = ["run", "--on", "2xh100", "--one-process", "--save-dir", "out", "train.py"]
    ended = launched(ROOT / "main.py", *options, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    for said in (" ".join(ended.stdout.split()), " ".join((tmp_path / "out" / "ranks.txt").read_text("utf-8").split())):
        assert "GPU 0 holds up to 9." in said and "of 2 ranks: rank 0 4." in said
        assert "of GPU 0, which is another rank's (train.py:8): call torch.cuda.set_device(LOCAL_RANK)" in said
    ranks = json.loads((tmp_path / "out" / "ranks.json").read_text("utf-8"))
    assert [[part["gpu"] for part in rank["held"]] for rank in ranks["ranks"]] == [["0"], ["0", "1"]]


# Two real processes over gloo are the judge of one that is alone: the same kernels of the CPU, the same requests.
ON_CPU = """
import os
import sys
from contextlib import nullcontext
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
dist.init_process_group("gloo")
net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 251))
is_zero = sys.argv[1] == "zero"
if is_zero:
    net = nn.parallel.DistributedDataParallel(net)
else:
    mesh = init_device_mesh("cpu", (2,))
    for layer in (net[0], net[2], net):
        fully_shard(layer, mesh=mesh)
if is_zero:
    optimizer = ZeroRedundancyOptimizer(net.parameters(), optimizer_class=torch.optim.AdamW)
    objects = [None] * 2 if dist.get_rank() == 0 else None
    dist.gather_object(dist.get_rank(), objects)
else:
    optimizer = torch.optim.AdamW(net.parameters())
for _ in range(6):
    for part in range(2 if is_zero else 1):
        with net.no_sync() if is_zero and part == 0 else nullcontext():
            net(torch.randn(64, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["zero", "fsdp2"])
def test_a_lone_rank_allocates_what_one_of_two_real_ones_does(how: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ON_CPU, "utf-8")
    run = [ROOT / "main.py", "run", "--n-repeats", "1", "--save-dir"]
    real = launched(*run, "real", "train.py", how, folder=tmp_path)
    assert real.returncode == 0, real.stderr[-3000:]
    (tmp_path / "job").mkdir()
    for rank in range(2):
        variables = os.environ | {"OMP_NUM_THREADS": "1"} | RankPlace(rank, 2, 2, tmp_path / "job").variables()
        alone = run_python(*run, "alone", "train.py", how, folder=tmp_path, variables=variables)
        assert alone.returncode == 0, alone.stderr[-3000:]
        found = [
            json.loads((tmp_path / name / f"rank{rank}" / "peak.json").read_text("utf-8")) for name in ("real", "alone")
        ]
        real_bytes, alone_bytes = map(by_category, found)
        lasting = ("PARAMETER", "OPTIMIZER_STATE")
        assert [real_bytes[name] for name in lasting] == [alone_bytes[name] for name in lasting]
        # gloo's threads give a buffer back when they are done, which may be behind the peak: some bytes with DDP, up to
        # a layer with FSDP2, so that the peak may be at another moment. Of one that is alone all is done at once.
        if how != "fsdp2":
            assert found[0]["peak_bytes"] - found[1]["peak_bytes"] in range(65)
        else:
            assert found[0]["peak_bytes"] >= found[1]["peak_bytes"]


# ---- ranks of which all fill the first GPU: the verdict is that of the GPU, and the line and its remedy are named


PROGRAMS = Path(__file__).with_name("first_gpu_programs.py")
SIZE = 2 << 30
FULL = (
    "a_checkpoint_by_map_location",
    "a_tensor_in_a_hook",
    "results_of_an_evaluation",
    "a_default_device",
    "a_library_at_import",
)


def answer(name: str, folder: Path) -> tuple[int, dict[str, Any]]:
    """The status and the document of two ranks on cards with room for one of them."""
    ended = called(folder, "predict", "--on", "2xh100:4GiB", "--json", str(PROGRAMS), name)
    assert ended.stdout.startswith("{"), ended.stderr[-3000:]
    return ended.returncode, json.loads(ended.stdout)


def line_of(name: str) -> int:
    """The line of a program that ends with `# there`."""
    lines = PROGRAMS.read_text("utf-8").splitlines()
    begin = next(row for row, line in enumerate(lines) if line == f"def {name}() -> None:")
    return next(row + 1 for row, line in enumerate(lines) if row > begin and line.endswith("# there"))


@needs_null_gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", FULL)
def test_two_ranks_that_fill_the_first_gpu_are_out_of_memory_at_its_line(name: str, tmp_path: Path) -> None:
    status, document = answer(name, tmp_path)
    assert (status, document["fits"]) == (3, False)
    first = document["gpus"][0]
    guest = next(held for held in first["holdings"] if not held["is_own"])
    assert guest["rank"] == 1 and guest["torch_bytes"] >= SIZE
    file, number = guest["line"]
    is_librarys = name == "a_library_at_import"
    assert Path(file).name == ("library_of_tables.py" if is_librarys else PROGRAMS.name)
    assert number == (2 if is_librarys else line_of(name))
    assert document["gpus"][1]["holdings"][0]["torch_bytes"] < SIZE
    # The sum is that of the processes, with a context each; the card has 4 GiB.
    parts = sum(held["torch_bytes"] + held["shared_bytes"] for held in first["holdings"])
    assert first["held_bytes"] == parts + 2 * CONTEXT_BYTES > 4 << 30


@needs_null_gpu
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_guests"), [("a_loader_that_pins", 1), ("a_synchronization", 1), ("each_on_its_own", 0)]
)
def test_a_context_alone_is_told_and_fits(name: str, num_guests: int, tmp_path: Path) -> None:
    status, document = answer(name, tmp_path)
    assert (status, document["fits"]) == (0, True)
    guests = [held for held in document["gpus"][0]["holdings"] if not held["is_own"]]
    assert [held["bytes"] for held in guests] == [CONTEXT_BYTES] * num_guests
