"""`fit` on the null GPU: a script that fits, one that needs changes, and one that nothing helps."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.processes import ForkingPopen, run_python
from tracer.changes.script_changes import changes_of
from tracer.commands.fit_trials import ScriptTrials
from tracer.null_gpu.cards import devices_of
from tracer.sessions.jobs.run_ranks import Job
from tracer.sessions.trials.trial_channel import TrialRequest, TrialServer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "benchmarks" / "scripts" / "fit"
SCRIPT = (PROGRAMS / "deep_blocks.py").read_text("utf-8")
BLOCK = SCRIPT.partition("model = ")[0]
WIDE = (PROGRAMS / "wide_vocabulary.py").read_text("utf-8")


def answered(
    folder: Path, script: str, *arguments: str, command: str = "fit", status: int = 0
) -> subprocess.CompletedProcess[str]:
    """A command about `train.py`, which is this script."""
    (folder / "train.py").write_text(script, "utf-8")
    done = run_python(ROOT / "main.py", command, *arguments, folder=folder)
    assert done.returncode == status, done.stderr
    return done


@pytest.mark.parametrize(
    ("card", "status", "said", "answer"),
    [
        ("h100:8GiB", 0, "GiB left.", ""),
        ("h100:1900MiB", 0, "as it is: out of memory", "run --apply checkpoint train.py --epochs 1"),
        ("h100:900MiB", 3, "No change that needs no edit", ""),
        ("h100:790MiB", 3, "96.08 MiB are allocated before the first step: no change of the training helps.", ""),
    ],
)
def test_the_least_that_has_to_change_is_found(tmp_path: Path, card: str, status: int, said: str, answer: str) -> None:
    done = answered(tmp_path, SCRIPT, "--on", card, "train.py", "--epochs", "1", status=status)
    assert said in " ".join(done.stdout.split())
    last = done.stdout.splitlines()[-1]
    assert last.endswith(answer) and last.startswith("python main.py ") == bool(answer)


def test_each_change_alone_says_what_it_saves(tmp_path: Path) -> None:
    done = answered(tmp_path, SCRIPT, "--each", "--on", "h100:8GiB", "--json", "train.py")
    report = json.loads(done.stdout)
    found = {"".join(trial["apply"]): trial for trial in report["trials"]}
    assert list(found) == ["", *changes_of(is_job=False)]
    base_bytes = found[""]["allocated_bytes"]
    assert found["expandable-segments"]["allocated_bytes"] == base_bytes
    # The hidden tensor of a block is 16,384 x 2,048 x 4 bytes, 128 MiB; of eight blocks one at a time has it, not all.
    assert base_bytes - found["checkpoint"]["allocated_bytes"] == 896 << 20
    # A linear layer has 2 x 16,384 x 512 x 2,048 operations forward and twice as many backward, but for the gradient of
    # the model's input: 16 x 3 - 1 times that. Of each block the first layer computes again, of which backward needs
    # the result: 8 times that.
    layer = 2 * 16_384 * 512 * 2_048
    assert found[""]["flops"] == found["bf16"]["flops"] == 47 * layer and found["checkpoint"]["flops"] == 55 * layer
    # Hidden tensors and blocks' inputs, 8 x (128 + 32) MiB, but for what one block's backward brings back.
    assert (base_bytes - found["saved-on-host"]["allocated_bytes"]) / (1 << 30) == pytest.approx(1.08, abs=0.005)


def test_what_fit_found_is_applied_and_has_the_peak_that_it_said(tmp_path: Path) -> None:
    done = answered(tmp_path, WIDE, "--on", "h100:2800MiB", "--save-dir", "out", "train.py")
    assert done.stdout.strip().endswith("run --apply chunked-loss train.py")
    assert "chunked-loss: a loss over classes is computed in chunks" in " ".join(done.stdout.split())
    report = json.loads((tmp_path / "out" / "fit.json").read_text("utf-8"))
    assert report["apply"] == ["chunked-loss"]
    fits = [trial for trial in report["trials"] if trial["apply"] == ["chunked-loss"]]
    # Logits and their gradient, 4,096 x 50,000 x 4 bytes each; a third one of them, softmax's, came with the script.
    assert 2 * 819_200_000 < fits[0]["allocated_bytes"] < 3 * 819_200_000
    applied = ("--on", "h100:2800MiB", "--apply", "out/fit.json", "--save-dir", "run")
    answered(tmp_path, WIDE, *applied, "train.py", command="run")
    peak = json.loads((tmp_path / "run" / "peak.json").read_text("utf-8"))
    assert peak["peak_bytes"] == fits[0]["allocated_bytes"]


def test_a_change_that_a_script_does_not_bear_is_said_and_left_out(tmp_path: Path) -> None:
    asserts = "assert not torch.is_autocast_enabled(), 'no autocast here'\n        return x + "
    script = SCRIPT.replace("return x + ", asserts).replace("range(8)", "range(3)")
    done = answered(tmp_path, script, "--on", "h100:900MiB", "--json", "train.py", status=3)
    remarks = json.loads(done.stdout)["answer"]["remarks"]
    made = "expandable-segments, fused-optimizer, free-gradients, checkpoint, saved-on-host"
    # With all at once, which says nothing of the others, and alone.
    ended = [line.partition(": AssertionError: no autocast here")[0] for line in remarks if "no autocast" in line]
    assert ended == [f"{made}, bf16, bf16-weights", "bf16", "bf16-weights"]


LEAK = """
import torch
from torch import nn
model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
losses = []
for _ in range(500):
    loss = model(torch.randn(8192, 1024, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(model(torch.randn(8192, 1024, device="cuda")).mean())
"""


def test_of_a_script_whose_memory_grows_the_line_is_the_answer_and_nothing_is_tried(tmp_path: Path) -> None:
    done = answered(tmp_path, LEAK, "--on", "h100:4GiB", "--save-dir", "out", "train.py", status=3)
    # Of each step the graph keeps the inputs of four layers, 8,192 x 1,024 x 4 bytes each.
    grows = "Memory grows: each of the last steps left 128.00 MiB more in use; if that goes on, it ends in step "
    said = " ".join(done.stdout.split())
    assert grows in said and "the graph that backward needs" in said and "train.py:12" in said
    (trial,) = json.loads((tmp_path / "out" / "fit.json").read_text("utf-8"))["trials"]
    assert trial["fits"] and trial["growth_bytes"] == (128 << 20) + 512
    assert trial["explanation"]["cause"] == "graphs kept"


JOB = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank, rows = dist.get_rank(), int(sys.argv[-1])
torch.cuda.set_device(rank)
model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda())
optimizer = torch.optim.SGD(model.parameters())
for _ in range(12):
    optimizer.zero_grad()
    model(torch.randn(rows * (1 + rank), 256, device="cuda")).square().mean().backward()
    optimizer.step()
"""


def test_of_a_job_the_worst_rank_decides_which_values_fit(tmp_path: Path) -> None:
    values = ("--try", "--rows 200000,20000")
    done = answered(tmp_path, JOB, "--on", "2xh100:2GiB", *values, "--save-dir", "out", "train.py")
    assert done.stdout.splitlines()[-1] == "torchrun --nproc-per-node 2 train.py --rows 20000"
    report = json.loads((tmp_path / "out" / "fit.json").read_text("utf-8"))
    full, fits = report["trials"]
    assert (full["fits"], fits["fits"]) == (False, True)
    # Rank 1 has twice the rows: 40,000 of 1,024 floats, kept by ReLU, and their gradient before and behind it.
    assert fits["worst_rank"] == 1 and 3 * 40_000 * 4096 < fits["allocated_bytes"] < 4 * 40_000 * 4096
    assert report["arguments"] == ["--rows", "20000"] and report["apply"] == []
    assert [(rank["rank"], rank["fits"]) for rank in fits["ranks"]] == [(0, True), (1, True)]
    assert fits["ranks"][1]["allocated_bytes"] == fits["allocated_bytes"] > fits["ranks"][0]["allocated_bytes"]


SHARDED = (
    BLOCK
    + """
import sys
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
model = nn.Sequential(*[Block() for _ in range(4)]).cuda()
if sys.argv[1] == "sharded":
    for block in model:
        fully_shard(block)
    fully_shard(model)
else:
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(12):
    optimizer.zero_grad()
    model(torch.randn(1024, 512, device="cuda")).square().mean().backward()
    optimizer.step()
"""
)


def test_a_job_that_is_sharded_from_outside_takes_what_one_does_that_shards_itself(tmp_path: Path) -> None:
    peaks = []
    for way, apply in (("sharded", []), ("parallel", ["--apply", "shard"])):
        arguments = ("--on", "2xh100", "--rank", "0", *apply, "--save-dir", "out", "train.py", way)
        answered(tmp_path, SHARDED, *arguments, command="run")
        (path,) = (tmp_path / "out").rglob("peak.json")
        peaks.append(json.loads(path.read_text("utf-8"))["peak_bytes"])
        path.unlink()
    assert peaks[0] == peaks[1]


def test_trials_are_forks_although_the_script_asks_for_a_gpu_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What stands between CUDA's beginning, as by a library that is imported, and the first tensor on it is run once.
    asks = "import os, torch\nassert torch.cuda.is_available() and torch.cuda.get_device_name()\nbefore = os.getpid()\n"
    is_fork = "assert os.getpid() != before\noptimizer = "
    (tmp_path / "train.py").write_text(asks + SCRIPT.replace("optimizer = ", is_fork), "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, str(ROOT / "main.py"), "fit", "--on", "h100", "train.py"])
    is_answered = []
    with closing(TrialServer()) as server:
        for number in range(2):
            (folder := tmp_path / str(number)).mkdir()
            is_answered.append(server.answers(TrialRequest((), str(folder))))
    assert is_answered == [True, True]


def test_trials_of_a_job_are_forks_of_a_process_for_each_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(JOB, "utf-8")
    command = ["fit", "--on", "2xh100:800MiB", "train.py", "20000"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, str(ROOT / "main.py"), *command])
    begun: list[list[str]] = []

    def counted(args: list[str], **options: Any) -> Any:
        begun.append(args)
        return ForkingPopen(args, **options)

    monkeypatch.setattr(subprocess, "Popen", counted)
    devices = devices_of("2xh100:800MiB")
    with ScriptTrials(devices.card.usable_bytes, Job(devices, per_node=2)) as trials:
        made = [trials.make(), trials.make(("fused-optimizer",))]
    assert sum(str(ROOT / "main.py") in args for args in begun) == 2
    # On the card, and where memory does not end; rank 1 has twice the rows.
    assert [(trial.fits, trial.worst_rank) for trial in made] == [(False, 1), (False, 1)]
    assert made[0].explanation is not None and made[0].failed_in == 0
    assert made[0].allocated_bytes == made[1].allocated_bytes > devices.card.usable_bytes
