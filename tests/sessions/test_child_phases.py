"""Phases of processes that a program starts by multiprocessing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.null_gpu.started import ROOT, needs_null_gpu
from tests.processes import run_python
from tracer.null_gpu.cards import CONTEXT_BYTES

GIB = 1 << 30
STARTS = """
import multiprocessing, os, sys
from pathlib import Path
from tracer.command_line import in_role
from tracer.sessions.child_phases import children_followed
from tracer.sessions.phase_reports import read_phases

fork = multiprocessing.get_context("fork")

class Trainer(fork.Process):
    def run(self):
        print("trains", flush=True)

folder = Path("reports")
os.environ.update(in_role(engine=str(folder)))
own = multiprocessing.process.BaseProcess.start
with children_followed():
    children = [Trainer(name="Trainer"), fork.Process(target=print, args=("rolls out",), kwargs={"flush": True})]
    for child in children:
        child.start()
        child.join()
        assert child.exitcode == 0 and "run" not in vars(child)
assert multiprocessing.process.BaseProcess.start is own
found = read_phases(folder)
fork.Process(target=print, args=("unseen",)).start()
assert read_phases(folder) == found
print(sorted(each.name for each in found))
"""


def test_a_process_runs_as_it_would_and_writes_its_phases_for_its_parent(tmp_path: Path) -> None:
    ended = run_python("-c", STARTS, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert {"trains", "rolls out", "unseen"} <= set(ended.stdout.splitlines())
    assert "['-c, ForkProcess-2', '-c, Trainer']" in ended.stdout


SPAWNED = """
import multiprocessing
import torch
from torch.profiler import record_function

def train():
    for _ in range(2):
        with record_function("rollout"):
            cache = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
        del cache
        with record_function("train"):
            activations = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
        del activations

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=train, name="Trainer")
    child.start()
    child.join()
    assert child.exitcode == 0
"""


@needs_null_gpu
@pytest.mark.slow
def test_phases_of_a_spawned_trainer_are_rows_that_sum(tmp_path: Path) -> None:
    (tmp_path / "rl.py").write_text(SPAWNED, "utf-8")
    # A spawned child goes to the folder in which multiprocessing was loaded: no forked process will do.
    command = [sys.executable, str(ROOT / "main.py"), "run", "--on", "h100", "--save-dir", "out", "rl.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "Memory by phase, each part at its most" in ended.stdout
    (process,) = json.loads((tmp_path / "out" / "phases.json").read_text("utf-8"))["processes"]
    assert process["name"] == "rl.py, Trainer"
    rollout, train, _ = process["phases"]
    assert (rollout["name"], rollout["num_times"], rollout["allocated_bytes"]) == ("rollout", 2, 3 * GIB)
    assert (train["name"], train["num_times"], train["allocated_bytes"]) == ("train", 2, 2 * GIB)
    assert train["held_bytes"] == CONTEXT_BYTES + 3 * GIB  # in the rollout's block, which is cached
    for phase in process["phases"]:
        assert phase["allocated_bytes"] + phase["cached_bytes"] + phase["outside_bytes"] == phase["held_bytes"]
