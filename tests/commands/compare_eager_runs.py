"""Runs for test_compare_eager.py: what compiles stays in a process of its own.

python -m tests.commands.compare_eager_runs FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from typer.testing import CliRunner

import main
from tracer.sessions.output_files import OUTPUTS

NET = """
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(32, 256), nn.Linear(256, 4)

    def forward(self, x):
        hidden = F.gelu(self.wide(x)).sin()
        return self.narrow(hidden)


def build():
    return Net()


def compiled_inside():
    model = torch.compile(Net(), backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        model(torch.randn(64, 32)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


def fails_without_compiling():
    class Odd(Net):
        def forward(self, x):
            if not torch.compiler.is_compiling():
                raise RuntimeError("only compiled")
            return super().forward(x)

    return Odd()
"""
SHORT = ["--device", "cpu", "--n-wait-steps", "1", "--n-warmup-steps", "1", "--n-active-steps", "1"]
ONE_CYCLE = [*SHORT, "--n-repeats", "1", "--no-cuda-timing"]
PEAK_ALONE = [f"--no-{one.name}" for one in OUTPUTS if one.name != "peak-json" and one.file.switch_help]
PLAIN = ["--input", "32", "--batch-size", "64"]
COMPILE = ["--compile", "--compile-arg", "backend=aot_eager"]
RUNS: dict[str, list[str]] = {
    "plain": ["build", *PLAIN],
    "compiled": ["build", *PLAIN, *COMPILE],
    "both": ["build", *PLAIN, *COMPILE, "--compare-eager", "--keep-recording"],
    "step": ["compiled_inside", "--compare-eager"],
    "failing": ["fails_without_compiling", *PLAIN, *COMPILE, "--compare-eager"],
}


def _run(*arguments: str) -> dict[str, Any]:
    torch._dynamo.reset()
    ended = CliRunner().invoke(main.app, list(arguments), env={"COLUMNS": "80"})
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    return {"code": ended.exit_code, "stdout": ended.stdout, "stderr": ended.stderr}


def make(folder: Path) -> None:
    """Run all, and leave beside their folders what each of them printed."""
    torch.set_num_threads(1)
    net = folder / "net.py"
    net.write_text(NET)
    ended = {}
    for name, (factory, *options) in RUNS.items():
        where = ["--save-dir", str(folder / name)]
        ended[name] = _run(
            "--model", f"{net}:{factory}", *options, *ONE_CYCLE, *(PEAK_ALONE if name != "both" else ()), *where
        )
    again = ["--save-dir", str(folder / "again"), "--only", "peak-json", "--only", "memory-timeline"]
    ended["report"] = _run("report", str(folder / "both"), *again)
    ended["diff"] = _run("diff", str(folder / "plain"), str(folder / "compiled"))
    (folder / "ended.json").write_text(json.dumps(ended))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
