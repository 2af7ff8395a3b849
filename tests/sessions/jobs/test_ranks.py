"""Several ranks: who is who, what differs between them, and that one that dies takes nothing from the others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.processes import run_python
from tracer.answers.files import RANK_JSON
from tracer.answers.jobs import NullJob, RankRun
from tracer.errors import Terminated
from tracer.exporters.screen.console import QUIET
from tracer.null_gpu.cards import CONTEXT_BYTES, devices_of
from tracer.null_gpu.nccl_buffers import NcclBuffers
from tracer.sessions.jobs import ranks as ranks_module
from tracer.sessions.jobs.ranks import (
    GpuPart,
    Rank,
    RankMessage,
    RankMessages,
    RanksSummary,
    ran_out_later,
    rank_folder,
    read_ranks,
    speaks_for_all,
    summary_text,
    this_rank,
)
from tracer.sessions.jobs.run_ranks import Job, _JobRun
from tracer.sessions.termination import Termination
from tracer.units import GIB

ROOT = Path(__file__).resolve().parents[3]
RUN = "run"


def peak(index: int, size_bytes: int | None = 100, run: str = RUN, **categories: int) -> RankMessage:
    return RankMessage(index, run, device="cpu", peak_bytes=size_bytes, categories=categories, num_steps=9)


def leave(save_dir: Path, left: RankMessage) -> None:
    folder = rank_folder(save_dir, left.index)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RANK_JSON).write_text(json.dumps(asdict(left)))


# ---- who is who ------------------------------------------------------------------------------------------------------


def rank_in(variables: dict[str, str]) -> Rank | None:
    with patch.dict(os.environ, variables):
        return this_rank()


def test_a_jobs_command_does_without_torch() -> None:
    """Its ranks import it: the command reads what they leave."""
    program = "import sys, tracer.sessions.jobs.run_ranks; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_the_environment_says_which_rank_this_is() -> None:
    told = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_PORT": "29500"}
    rank = rank_in(told)
    assert (rank.index, rank.world_size, rank.local_index) == (5, 8, 1)
    assert rank is not None
    assert RankMessages(rank, Path("out")).own_folder == Path("out/rank5")
    assert rank_in(told | {"MASTER_PORT": "29501"}).run != rank.run


@pytest.mark.parametrize("environment", [{}, {"RANK": "0", "WORLD_SIZE": "1"}, {"RANK": "x", "WORLD_SIZE": "2"}])
def test_one_process_alone_has_no_rank(environment: dict[str, str]) -> None:
    assert rank_in(environment) is None


# ---- what differs ----------------------------------------------------------------------------------------------------


def test_a_summary_worked_by_hand() -> None:
    ranks = (peak(0, 100, PARAMETER=60, INPUT=40), peak(1, 130, PARAMETER=60, INPUT=50, ACTIVATION=20), peak(2, None))
    summary = RanksSummary(ranks, (3,))
    assert summary.worst.index == 1
    assert summary.spread_bytes == 30
    assert summary.differences() == {"ACTIVATION": (0, 20), "INPUT": (40, 50)}
    text = summary_text(summary)
    for line in (
        "rank 0: 100 bytes on cpu",
        "rank 2: nothing recorded",
        "rank 3: left no results",
        "Worst: rank 1, 130 B",
        "Spread: 30 B, 23.1 % of the worst",
        "ACTIVATION: 0 to 20 bytes",
    ):
        assert line in text.splitlines()


def test_ranks_that_agree_differ_in_nothing() -> None:
    summary = RanksSummary((peak(0, INPUT=100), peak(1, INPUT=100)), ())
    assert (summary.worst.index, summary.spread_bytes, summary.differences()) == (0, 0, {})
    assert "No category differs." in summary_text(summary)


def test_a_rank_of_which_nobody_knows_kinds_differs_in_none() -> None:
    summary = RanksSummary((peak(0, INPUT=40), peak(1, 900), peak(2, INPUT=50)), ())
    assert summary.differences() == {"INPUT": (40, 50)}
    assert summary.worst is not None and summary.worst.index == 1


@pytest.mark.parametrize("has_spoken", [True, False])
def test_a_rank_that_ran_out_later_keeps_the_steps_that_it_told_of(has_spoken: bool, tmp_path: Path) -> None:
    rank = Rank(3, 4, 3, RUN, job_folder=tmp_path)
    if has_spoken:
        leave(tmp_path, replace(peak(3, INPUT=40), reserved_bytes=200))
    later = ran_out_later(rank, "OutOfMemoryError: no", 900)
    assert (later.index, later.run, later.num_steps) == (3, RUN, 9 if has_spoken else 0)
    recorded = (100, 200, {"INPUT": 40}) if has_spoken else (None, 0, {})
    assert (later.peak_bytes, later.reserved_bytes, later.categories) == recorded
    assert later.out_of_memory
    assert later.failure == "OutOfMemoryError: no, after the recorded steps, with 900 B allocated"


def test_the_worst_rank_is_one_that_ran_out_of_memory() -> None:
    worst = RanksSummary((peak(0, 900), replace(peak(1, 40), out_of_memory=True), peak(2, 50)), ()).worst
    assert worst is not None and worst.index == 1


def test_no_rank_at_all_is_a_summary_too() -> None:
    summary = RanksSummary((), (0, 1))
    assert (summary.worst, summary.spread_bytes) == (None, 0)
    assert "rank 1: left no results" in summary_text(summary)


# ---- the summary -----------------------------------------------------------------------------------------------------


def end(index: int, save_dir: Path, message: RankMessage) -> None:
    RankMessages(Rank(index, 2, index, RUN), save_dir).finish(message)


def test_the_last_rank_puts_all_together(tmp_path: Path) -> None:
    end(0, tmp_path, peak(0))
    assert "rank 1: left no results" in (tmp_path / "ranks.txt").read_text()
    end(1, tmp_path, peak(1, 120))
    assert json.loads((tmp_path / "ranks.json").read_text())["worst_rank"] == 1


def test_what_comes_while_the_summary_is_written_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 has written the summary of both by then, and rank 0 that of its own."""
    write = ranks_module.write_ranks

    def written_late(summary: RanksSummary, save_dir: Path) -> None:
        if summary.missing:
            monkeypatch.setattr(ranks_module, "write_ranks", write)
            end(1, tmp_path, peak(1, 120))
        write(summary, save_dir)

    monkeypatch.setattr(ranks_module, "write_ranks", written_late)
    end(0, tmp_path, peak(0))
    assert json.loads((tmp_path / "ranks.json").read_text())["missing"] == []


def test_what_an_earlier_run_left_is_not_taken_for_this_one(tmp_path: Path) -> None:
    leave(tmp_path, peak(0))
    leave(tmp_path, peak(1, run="earlier"))
    assert read_ranks(tmp_path, 2, run=RUN).missing == (1,)
    (tmp_path / "ranks.txt").write_text("old")
    RankMessages(Rank(0, 2, 0, RUN), tmp_path).begin()
    assert not (tmp_path / "ranks.txt").exists()
    assert read_ranks(tmp_path, 2, run=RUN).missing == (0, 1)


def test_the_end_of_a_rank_that_has_spoken_is_told(tmp_path: Path) -> None:
    RankMessages(Rank(1, 2, 1, RUN), tmp_path).announce(peak(1, 120))
    end(0, tmp_path, peak(0))
    assert "rank 1: 120 bytes on cpu; has not ended so far, after step 9" in (tmp_path / "ranks.txt").read_text()
    end(1, tmp_path, replace(peak(1), failure="ValueError: enough", num_steps=7))
    assert "ended in step 8 by ValueError: enough" in (tmp_path / "ranks.txt").read_text()


def test_whoever_announces_last_puts_all_together(tmp_path: Path) -> None:
    RankMessages(Rank(1, 3, 1, RUN), tmp_path).announce(peak(1))
    assert not (tmp_path / "ranks.json").exists(), "only rank 0 speaks for those who have not spoken"
    RankMessages(Rank(0, 3, 0, RUN), tmp_path).announce(peak(0))
    assert json.loads((tmp_path / "ranks.json").read_text())["missing"] == [2]
    RankMessages(Rank(2, 3, 2, RUN), tmp_path).announce(peak(2))
    document = json.loads((tmp_path / "ranks.json").read_text())
    assert document["missing"] == []
    assert [rank["has_ended"] for rank in document["ranks"]] == [False] * 3


def speakers(save_dir: Path, world_size: int = 3) -> list[int]:
    summary = read_ranks(save_dir, world_size, run=RUN)
    return [
        index for index in range(world_size) if speaks_for_all(Rank(index, world_size, index, RUN), summary, save_dir)
    ]


def test_the_last_rank_to_end_speaks_for_all(tmp_path: Path) -> None:
    for time_s, index in enumerate((1, 2, 0)):
        assert speakers(tmp_path) == []
        leave(tmp_path, peak(index))
        os.utime(rank_folder(tmp_path, index) / RANK_JSON, (time_s, time_s))
    assert speakers(tmp_path) == [0]
    os.utime(rank_folder(tmp_path, 1) / RANK_JSON, (2, 2))  # at the same moment as rank 0's
    assert speakers(tmp_path) == [1]


def test_rank_0_speaks_for_ranks_of_which_one_has_failed(tmp_path: Path) -> None:
    for index in (0, 1):
        leave(tmp_path, peak(index))
    assert speakers(tmp_path) == []
    leave(tmp_path, replace(peak(1), failure="OutOfMemoryError"))
    assert speakers(tmp_path) == [0]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"index": 1}'])
def test_a_file_that_is_none_is_a_rank_that_is_missing(tmp_path: Path, text: str) -> None:
    leave(tmp_path, peak(0))
    leave(tmp_path, peak(1))
    (rank_folder(tmp_path, 1) / RANK_JSON).write_text(text)
    assert read_ranks(tmp_path, 2, run=RUN).missing == (1,)


# ---- being ended -----------------------------------------------------------------------------------------------------


def test_sigterm_unwinds_like_an_exception_and_the_default_comes_back() -> None:
    termination = Termination()
    termination.watch()
    with pytest.raises(Terminated, match="ended by SIGTERM") as caught:
        os.kill(os.getpid(), signal.SIGTERM)
    assert isinstance(caught.value, SystemExit)
    assert caught.value.code == 143
    os.kill(os.getpid(), signal.SIGTERM)  # while it unwinds, nothing more
    termination.hold()
    termination.close()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


# ---- real processes --------------------------------------------------------------------------------------------------

DYING = """
    import os, pathlib, signal, sys, time
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from tracer import Schedule, profile_training

    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(8, 8))
    reached = pathlib.Path("reached")  # by rank 0: the step in which rank 1 dies, which it has begun to record
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = Schedule(num_wait_steps=0, num_warmup_steps=1, num_active_steps=1, num_repeats=1)
    with profile_training(model, optimizer, save_dir=sys.argv[1], schedule=schedule) as session:
        for step in range(6):
            batch = torch.randn(4, 8)
            if step == int(sys.argv[3]):
                if dist.get_rank() == 0:
                    reached.touch()
                else:
                    while not reached.exists():
                        time.sleep(0.01)
                    if sys.argv[2] == "killed":
                        os.kill(os.getpid(), signal.SIGKILL)
                    raise ValueError("rank 1 has had enough")
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            session.step()
"""


def launch(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    return run_python(*launcher, *command, folder=folder, variables=variables)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "step"), [("raised", 4), ("killed", 1)])
def test_a_rank_that_dies_takes_nothing_from_the_other(tmp_path: Path, how: str, step: int) -> None:
    """Step 1 is the recorded one; from step 2 on each rank's files are there, and its own error takes nothing back."""
    (tmp_path / "dying.py").write_text(textwrap.dedent(DYING))
    finished = launch("dying.py", "results", how, str(step), folder=tmp_path)
    assert finished.returncode != 0
    results = tmp_path / "results"
    for rank in (0, 1) if step > 1 else (0,):
        left = json.loads((results / f"rank{rank}" / "peak.json").read_text())
        assert sum(row["bytes"] for row in left["rows"]) == left["peak_bytes"] > 0
    summary = json.loads((results / "ranks.json").read_text())
    assert summary["missing"] == ([] if step > 1 else [1])
    assert summary["ranks"][0]["has_ended"]
    if how == "raised":
        assert summary["ranks"][1]["has_ended"]
        assert summary["ranks"][1]["failure"] == "ValueError: rank 1 has had enough"
        assert "rank 1: " in (results / "ranks.txt").read_text()


OWN_WORKLOAD = """
    import os, time
    import torch
    import torch.distributed as dist
    from torch import nn

    class Own:
        optimizer, device = None, torch.device("cpu")

        def __init__(self):
            dist.init_process_group("gloo")
            self.model, self.done = nn.Linear(8, 8), []

        def next_batch(self):
            return torch.randn(4, 8)

        def forward(self, batch):
            return self.model(batch).sum()

        def backward(self, loss):
            loss.backward()
            self.done.append(1)
            if len(self.done) == 3:
                dist.barrier()
                if dist.get_rank() == 1:
                    os._exit(7)
                time.sleep(60)  # as if it waited for its peer: until torchrun ends it

        def optimizer_step(self):
            self.model.zero_grad()

        def copy(self):
            return None

    def build():
        return Own()
"""


@pytest.mark.slow
def test_the_command_line_writes_what_it_has_when_its_peer_dies(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(textwrap.dedent(OWN_WORKLOAD))
    options = ["--n-wait-steps", "0", "--n-repeats", "2", "--n-active-steps", "1", "--device", "cpu"]
    finished = launch(
        str(ROOT / "main.py"), "--model", "own.py:build", "--save-dir", "results", *options, folder=tmp_path
    )
    assert finished.returncode != 0
    assert "Error: Ended by SIGTERM in step 3." in finished.stderr
    assert f'File "{ROOT / "main.py"}"' not in finished.stderr
    left = json.loads((tmp_path / "results" / "rank0" / "peak.json").read_text())
    assert sum(row["bytes"] for row in left["rows"]) == left["peak_bytes"] > 0
    summary = json.loads((tmp_path / "results" / "ranks.json").read_text())
    assert summary["missing"] == [1]
    assert summary["ranks"][0]["failure"] == "Terminated: ended by SIGTERM"


def test_a_gpu_that_several_ranks_hold_memory_of_is_summed_up(tmp_path: Path) -> None:
    """Two nodes with two GPUs; rank 3 has loaded 45 GiB to the GPU of rank 2."""
    own = [GpuPart(f"uuid{rank}", True, 2 << 30) for rank in range(4)]
    guest = GpuPart("uuid2", False, 45 << 30, "train.py", 6)
    ranks = [
        replace(peak(rank), place=divmod(rank, 2), held=(own[rank], *([guest] if rank == 3 else [])))
        for rank in range(4)
    ]
    for rank in ranks:
        leave(tmp_path, rank)
    found = read_ranks(tmp_path, 4, run=RUN)
    assert found.ranks == tuple(ranks)
    assert [(gpu.node, gpu.index, len(gpu.holdings)) for gpu in found.gpus] == [
        (0, 0, 1),
        (0, 1, 1),
        (1, 0, 2),
        (1, 1, 1),
    ]
    assert "GPU 0 holds up to 48.37 GiB of 2 ranks: rank 3 45.00 GiB, rank 2 2.00 GiB" in summary_text(found)
    assert "Rank 3 takes 45.68 GiB of GPU 0, which is another rank's (train.py:6)" in summary_text(found)


def test_gpus_of_one_number_on_several_nodes_are_not_one_gpu(tmp_path: Path) -> None:
    """Three nodes with two null GPUs each, whose GPUs are named by their number on the node."""
    for rank in range(6):
        held = (GpuPart(str(rank % 2), True, 2 << 30),)
        leave(tmp_path, replace(peak(rank), place=divmod(rank, 2), held=held))
    found = read_ranks(tmp_path, 6, run=RUN)
    assert [(gpu.node, gpu.index, len(gpu.holdings)) for gpu in found.gpus] == [
        (node, index, 1) for node in range(3) for index in range(2)
    ]
    assert "holds up to" not in summary_text(found)


# ---- which ranks run again -------------------------------------------------------------------------------------------


DEVICES = devices_of("2xh100:2GiB")


@pytest.mark.parametrize(("more_bytes", "ran_again"), [(0, []), (GIB // 2, [0])])
def test_a_rank_runs_again_beside_the_least_that_nccl_takes(
    more_bytes: int, ran_again: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Of 2 GiB 1.68 are taken: 28 MiB of NCCL's fit beside them, and 688 MiB, the most, would not.
    taken = {rank: {rank: CONTEXT_BYTES + GIB + more_bytes} for rank in range(2)}
    runs = tuple(
        RankRun(rank, 0, 1.0, peak_bytes=GIB, nccl=NcclBuffers(communicators=1), taken=taken[rank]) for rank in range(2)
    )
    asked: list[int] = []

    def unseen(run: _JobRun, rank: int, *, taken: Mapping[int, int]) -> RankRun:
        assert taken == {0: NcclBuffers(communicators=1).least_bytes}
        asked.append(rank)
        return runs[rank]

    monkeypatch.setattr(_JobRun, "unseen", unseen)
    run = _JobRun(Job(DEVICES, 2), tmp_path, QUIET)
    run.where_full(NullJob(DEVICES, 2, runs))
    assert asked == ran_again
