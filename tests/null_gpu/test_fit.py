"""`fit` on the null GPU: a script that fits, one that needs changes, and one that nothing helps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPT = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(512, 2048), nn.Linear(2048, 512)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(x)))

model = nn.Sequential(*[Block() for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(12):
    optimizer.zero_grad()
    model(torch.randn(16384, 512, device="cuda")).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("card", "status", "said", "answer"),
    [
        ("h100:8GiB", 0, "GiB left.", ""),
        ("h100:1700MiB", 0, "as it is: out of memory", "run --apply checkpoint train.py --epochs 1"),
        ("h100:300MiB", 3, "Nothing that can be made from outside", ""),
    ],
)
def test_the_least_that_has_to_change_is_found(tmp_path: Path, card: str, status: int, said: str, answer: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT, "utf-8")
    command = [sys.executable, str(ROOT / "main.py"), "fit", "--on", card, "train.py", "--epochs", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=dict(os.environ), check=False)
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert done.stdout.strip().removeprefix("python main.py ").endswith(answer) and bool(done.stdout) == bool(answer)


def test_each_change_alone_says_what_it_saves(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT, "utf-8")
    command = [sys.executable, str(ROOT / "main.py"), "fit", "--each", "--on", "h100:8GiB", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=dict(os.environ), check=False)
    assert done.returncode == 0, done.stderr
    found = {line.partition(":")[0]: line for line in done.stdout.splitlines()}
    assert list(found) == [
        "as it is", "expandable-segments", "fused-optimizer", "checkpoint", "bf16", "bf16-weights",
    ]  # fmt: skip
    assert "at the peak" not in found["as it is"]
    assert "the same peak" in found["expandable-segments"]
    # The hidden tensor of a block is 16,384 x 2,048 x 4 bytes, 128 MiB; of eight blocks one at a time has it, not all.
    assert "896.00 MiB less at the peak" in found["checkpoint"]


def test_a_change_that_a_script_does_not_bear_is_said_and_left_out(tmp_path: Path) -> None:
    script = SCRIPT.replace(
        "return x + ", "assert not torch.is_autocast_enabled(), 'no autocast here'\n        return x + "
    )
    (tmp_path / "train.py").write_text(script, "utf-8")
    command = [sys.executable, str(ROOT / "main.py"), "fit", "--on", "h100:1000MiB", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=dict(os.environ), check=False)
    assert done.returncode == 3, done.stderr
    tried = "expandable-segments, fused-optimizer, checkpoint"
    # What comes after bf16 is tried without it, here in vain.
    for name in ("bf16", "bf16-weights"):
        assert f"{tried}, {name}: the script ended with an error before a step was done.\n" in done.stderr
    assert done.stderr.count("\n  AssertionError: no autocast here\n") == 2
