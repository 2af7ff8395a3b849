"""Two ranks on two devices of the null GPU, started by torchrun: each explains its own device, one has both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.null_gpu.started import ROOT, needs_null_gpu
from tracer.null_gpu.cards import H100
from tracer.null_gpu.process import environment

pytestmark = [needs_null_gpu, pytest.mark.slow]
TRAIN = """
import os
import torch
import torch.distributed as dist
from torch import nn
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("gloo")
net = nn.parallel.DistributedDataParallel(nn.Linear(512, 512).cuda())
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(8):
    net(torch.randn(1024 * (1 + rank), 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def test_each_rank_explains_its_own_device(tmp_path: Path) -> None:
    script, out = tmp_path / "train.py", tmp_path / "out"
    script.write_text(TRAIN, encoding="utf-8")
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", ROOT / "main.py", "run"]
    words += ["--n-repeats", "1", "--save-dir", out, script]
    ended = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=tmp_path, env=environment([H100] * 2, os.environ | {"OMP_NUM_THREADS": "1"}), capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    peaks = [json.loads((out / f"rank{rank}" / "peak.json").read_text(encoding="utf-8")) for rank in range(2)]
    assert [peak["device"] for peak in peaks] == ["cuda:0", "cuda:1"]
    for peak in peaks:
        assert sum(row["bytes"] for row in peak["rows"]) == peak["allocator_peak_bytes"] == peak["peak_bytes"]
        assert peak["unexplained_bytes"] == 0
        assert "BEFORE_RECORDING" not in {row["category"] for row in peak["rows"]}
    # The second has the larger batch: activations, and an output's gradient.
    assert peaks[1]["peak_bytes"] >= peaks[0]["peak_bytes"] + 2 * 1024 * 512 * 4
    assert "Worst: rank 1" in (out / "ranks.txt").read_text(encoding="utf-8")
