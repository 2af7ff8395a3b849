"""Phases of processes that a program starts by multiprocessing, and of what trl times."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.null_gpu.started import ROOT, needs_null_gpu
from tests.processes import run_python
from tracer.capture.device.phase_memory import BETWEEN
from tracer.capture.torch_private.torch_profiler import on_regions
from tracer.null_gpu.cards import CONTEXT_BYTES
from tracer.sessions.phase_reports import follow_trl

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


COLOCATED = """
import torch
import torch.multiprocessing as multiprocessing
from torch.profiler import record_function

GIB = 1 << 30
NUM_ELEMENTS = GIB // 4
NUM_STEPS = 2

def used_bytes():
    left_bytes, total_bytes = torch.cuda.mem_get_info()
    return total_bytes - left_bytes

def block(size_bytes):
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")

def serve(orders, answers):
    weights, cache = torch.zeros(NUM_ELEMENTS, device="cuda"), None
    while (order := orders.get()) is not None:
        with record_function(order):
            if order == "wake":
                cache = block(24 * GIB)
            if order == "weight sync":
                weights.copy_(orders.get())
            if order == "rollout":
                logits = block(2 * GIB)
                print("used in rollout:", used_bytes(), flush=True)
                del logits
            if order == "sleep":
                cache = None
                torch.cuda.empty_cache()
        answers.put(order)

class Trainer:
    def __init__(self):
        context = multiprocessing.get_context("spawn")
        self.orders, self.answers = context.Queue(), context.Queue()
        self.engine = context.Process(target=serve, args=(self.orders, self.answers), name="Engine")
        self.engine.start()
        self.weights = torch.nn.Parameter(torch.zeros(NUM_ELEMENTS, device="cuda"))
        self.optimizer = torch.optim.SGD([self.weights], 0.1, momentum=0.9)

    def ask(self, order, *more):
        with record_function("wait for " + order):
            for each in (order, *more):
                self.orders.put(each)
            assert self.answers.get() == order

    def step(self):
        self.ask("wake")
        self.ask("weight sync", self.weights.detach())
        self.ask("rollout")
        self.ask("sleep")
        with record_function("training step"):
            activations = block(20 * GIB)
            (self.weights * 2).sum().backward()
            print("used in training step:", used_bytes(), flush=True)
            self.optimizer.step()
            self.optimizer.zero_grad()
        del activations
        torch.cuda.empty_cache()

if __name__ == "__main__":
    trainer = Trainer()
    for _ in range(NUM_STEPS):
        trainer.step()
    trainer.orders.put(None)
    trainer.engine.join()
    assert trainer.engine.exitcode == 0
"""


ENGINE_PHASES = ("wake", "weight sync", "rollout", "sleep")


SILENT = """
import torch, torch.multiprocessing as mp
from torch.profiler import record_function
def hold(held, done):
    block = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
    held.set()
    done.wait()
if __name__ == "__main__":
    context = mp.get_context("spawn")
    held, done = context.Event(), context.Event()
    child = context.Process(target=hold, args=(held, done), name="Engine")
    child.start()
    held.wait()
    with record_function("train"):
        block = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    done.set()
    child.join()
"""


@needs_null_gpu
@pytest.mark.slow
def test_a_process_without_phases_has_its_name_where_the_gpu_was_fullest(tmp_path: Path) -> None:
    (tmp_path / "rl.py").write_text(SILENT, "utf-8")
    command = [sys.executable, str(ROOT / "main.py"), "run", "--on", "h100", "--save-dir", "out", "rl.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0 and " 3.68 GiB  rl.py, Engine, process " in ended.stdout, ended.stderr


@needs_null_gpu
@pytest.mark.slow
def test_a_trainer_and_an_engine_that_take_turns_are_rows_that_sum(tmp_path: Path) -> None:
    """Each holds a context and 1 GiB of weights, and the trainer 1 GiB of momentum from its first step on."""
    (tmp_path / "rl.py").write_text(COLOCATED, "utf-8")
    # A spawned child goes to the folder in which multiprocessing was loaded: no forked process will do.
    command = [sys.executable, str(ROOT / "main.py"), "run", "--on", "h100", "--save-dir", "out", "rl.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "Memory by phase of rl.py, Engine, process" in ended.stdout
    found = json.loads((tmp_path / "out" / "phases.json").read_text("utf-8"))
    trainer, engine = [{phase["name"]: phase for phase in each["phases"]} for each in found["processes"]]
    assert [*trainer] == [*(f"wait for {each}" for each in ENGINE_PHASES), "training step", BETWEEN]
    assert [*engine] == [*ENGINE_PHASES, BETWEEN]
    for phase in (*trainer.values(), *engine.values()):
        parts = phase["allocated_bytes"] + phase["cached_bytes"] + phase["outside_bytes"] - phase["unmapped_bytes"]
        assert parts == phase["held_bytes"] and (phase["num_times"] == 2 or phase["name"] == BETWEEN)
    asleep = CONTEXT_BYTES + GIB
    assert (engine["wake"]["begin_bytes"], engine["wake"]["end_bytes"]) == (asleep, asleep + 24 * GIB)
    assert engine["weight sync"]["held_bytes"] == asleep + 24 * GIB  # The trainer's weights are counted there
    assert engine["rollout"]["held_bytes"] == engine["sleep"]["held_bytes"] == asleep + 26 * GIB
    assert engine["sleep"]["end_bytes"] == asleep
    assert trainer["wait for rollout"]["held_bytes"] == asleep + GIB
    # What the driver says of the card is what the rows of both processes sum to.
    lines = [line.split(": ") for line in ended.stdout.splitlines() if line.startswith("used in ")]
    in_rollout, in_training = [int(size) for _, size in lines[-2:]]
    assert in_rollout == engine["rollout"]["held_bytes"] + trainer["wait for rollout"]["held_bytes"]
    assert in_training == engine["sleep"]["end_bytes"] + trainer["training step"]["held_bytes"]
    (gpu,) = found["gpus"]
    held = [(each["phase"], each["bytes"]) for each in gpu["holders"]]
    assert held == [("rollout", asleep + 26 * GIB), ("wait for rollout", asleep + GIB)]
    assert gpu["held_bytes"] == in_rollout


# ---- trl -------------------------------------------------------------------------------------------------------------


MODULE = "trl.extras.profiling"
WITH_CONTEXT = """
class ProfilingContext:
    def __init__(self, name):
        self.name = name
    def __enter__(self):
        return self
    def __exit__(self, kind, error, trace):
        if self.name == "fails":
            raise OSError("the metrics could not be sent")
        return kind is ValueError
"""
EARLIER = "def profiling_context(trainer, name): ..."


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    def loaded(source: str) -> Any:
        module = tmp_path / "trl" / "extras" / "profiling.py"
        module.parent.mkdir(parents=True)
        module.write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        for name in [name for name in sys.modules if name.partition(".")[0] == "trl"]:
            monkeypatch.delitem(sys.modules, name)
        for name in ("trl", "trl.extras", MODULE):  # is taken out again
            monkeypatch.setitem(sys.modules, name, None)
            del sys.modules[name]
        return importlib.import_module(MODULE)

    return loaded


@pytest.fixture
def regions() -> Iterator[list[str]]:
    seen: list[str] = []
    stop = on_regions(
        lambda region, frame: seen.append(f"({region.name}"), lambda region: seen.append(f"{region.name})")
    )
    yield seen
    stop()


def test_each_part_of_a_step_that_trl_times_is_a_region(load: Callable[[str], Any], regions: list[str]) -> None:
    finders = [*sys.meta_path]
    end = follow_trl()
    context = load(WITH_CONTEXT).ProfilingContext
    end()
    assert sys.meta_path == finders
    with context("generate") as entered, context("inside"):
        assert entered.name == "generate"
    with context("swallows"):
        int("no number")
    with pytest.raises(OSError, match="metrics"), context("fails"):
        pass
    names = [
        *("(trl: generate", "(trl: inside", "trl: inside)", "trl: generate)"),
        *("(trl: swallows", "trl: swallows)", "(trl: fails", "trl: fails)"),
    ]
    assert regions == names


def test_earlier_versions_of_trl_are_loaded_as_they_are(load: Callable[[str], Any]) -> None:
    end = follow_trl()
    assert load(EARLIER).profiling_context
    end()
