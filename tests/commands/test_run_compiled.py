"""An unchanged script that compiles something, profiled: its steps are found, and what is compiled is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands.test_run import ROOT, peak, script
from tests.processes import run_python
from tests.skips import by_default

TRAIN = """
import sys, torch
from torch import nn
import torch._dynamo.utils

what = sys.argv[1]
compiled = lambda function: torch.compile(function, backend="aot_eager")
class Signed(torch.optim.SGD):  # compiles a function of its own inside its step, as Muon does
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = sign(parameter.grad)
        return super().step(closure)
sign = compiled(torch.sign) if what == "part of the step" else torch.sign
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
optimizer = (Signed if what == "part of the step" else torch.optim.Adam)(net.parameters(), 0.001)
forward, loss_of = net, lambda output: output.square().mean()
if what == "model":
    forward = compiled(net)
if what == "optimizer":
    optimizer.step = compiled(optimizer.step)

def step(batch):
    optimizer.zero_grad()
    loss = loss_of(forward(batch))
    loss.backward()
    optimizer.step()
    return loss

if what == "step":
    step = compiled(step)
for number in range(16):
    print("loss", step(torch.randn(128, 64)).item())
counters = torch._dynamo.utils.counters
print("graphs", counters["stats"]["unique_graphs"], counters["frames"]["total"], dict(counters["graph_break"]))
"""


def lines_of(command: list[str], folder: Path) -> tuple[list[str], str]:
    """Return the lines that the script printed, and stderr."""
    done = run_python(*command, folder=folder)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith(("loss", "graphs"))], done.stderr


@pytest.mark.parametrize(
    "what",
    by_default(["model", "optimizer", "step", "part of the step"], ()),
)
def test_steps_are_found_and_nothing_else_is_compiled(tmp_path: Path, what: str) -> None:
    arguments = [script(tmp_path, TRAIN), what]
    alone, complaints = lines_of(arguments, tmp_path)
    run = [str(ROOT / "main.py"), "run", "--save-dir", str(tmp_path / "out")]
    watched, said = lines_of([*run, *arguments], tmp_path)
    assert watched == alone
    assert said.count("Warning") == complaints.count("Warning"), said
    assert "Note: " not in said
    explains(peak(tmp_path))


def explains(found: dict[str, Any]) -> None:
    """The rows sum to the allocator's peak, and what is trained and what the optimizer keeps has its kind."""
    assert sum(row["bytes"] for row in found["rows"]) == found["peak_bytes"] == found["allocator_peak_bytes"]
    of_kind: dict[str, int] = {}
    for row in found["rows"]:
        of_kind[row["category"]] = of_kind.get(row["category"], 0) + row["bytes"]
    parameters = 4 * (64 * 256 + 256 + 256 * 8 + 8)
    assert of_kind["PARAMETER"] == parameters
    assert of_kind.get("OPTIMIZER_STATE", 0) in (0, 2 * parameters + 4 * 4)
    assert "BUFFER" not in of_kind


@pytest.mark.slow
def test_a_compiled_model_is_watched_at_every_step(tmp_path: Path) -> None:
    arguments = [script(tmp_path, TRAIN), "model"]
    alone, _ = lines_of(arguments, tmp_path)
    run = [str(ROOT / "main.py"), "run", "--watch", "--save-dir", str(tmp_path / "out")]
    watched, said = lines_of([*run, *arguments], tmp_path)
    assert watched == alone
    assert "UserWarning" not in said
    found = json.loads((tmp_path / "out" / "watch.json").read_text())
    assert found["findings"]["num_steps"] == 16
