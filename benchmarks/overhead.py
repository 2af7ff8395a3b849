"""Cost of profiling the programs in examples/ and the FNO of main.py: each as it stands, with and without us.

    uv run python -m benchmarks.overhead [--programs plain_loop trainer] [--rounds 6]

Each program runs in turn with nothing, with bare torch.profiler with the same flags, and with our session, so that what
disturbs one disturbs all. A step lasts from the end of the one before to its own end, profiler included. Outside are
the steps that are not recorded (but the first of the run), active those that are (but the last of each cycle, which
also ends the recording). Medians over all rounds are shown, in processor time, which other programs do not disturb, and
in wall time; where there is a GPU the FNO trains there, and wall time to the end of each step's kernels is shown alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

from benchmarks.tables import Table, as_markdown
from models.fno_workload import FnoSettings, build_fno_workload
from tracer.sessions.schedule import Schedule
from tracer.sessions.training_profile import TrainingProfile

ROOT = Path(__file__).resolve().parent.parent
MODES = ("nothing", "torch.profiler", "ours")
PLAN = Schedule()
CYCLE = PLAN.num_wait_steps + PLAN.num_warmup_steps + PLAN.num_active_steps
RECORDED = {
    cycle * CYCLE + step for cycle in range(PLAN.num_repeats) for step in range(CYCLE)[-PLAN.num_active_steps :]
}
ENDS_CYCLE = {(cycle + 1) * CYCLE - 1 for cycle in range(PLAN.num_repeats)}
WARMS_UP = {cycle * CYCLE + PLAN.num_wait_steps for cycle in range(PLAN.num_repeats)}
NEEDS = {"trainer": ("transformers", "accelerate"), "lightning_module": ("lightning",)}
Clock = Callable[[], float]
HAS_GPU = torch.cuda.is_available()
CLOCKS: dict[str, Clock] = {} if HAS_GPU else {"processor time": time.process_time}
CLOCKS["wall time"] = time.perf_counter


@dataclass
class Costs:
    """Seconds of each step by its number, by clock."""

    ends: list[dict[str, float]] = field(default_factory=list)
    steps: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: {name: [] for name in CLOCKS})

    def begin(self) -> None:
        """Note that a run begins."""
        self.ends = [now()]

    def end_step(self) -> None:
        """Note that a step has ended."""
        self.ends.append(now())
        for name in CLOCKS:
            self.steps[name].append((len(self.ends) - 2, self.ends[-1][name] - self.ends[-2][name]))

    def seconds(self, clock: str, *, active: bool) -> list[float]:
        """Return the seconds of the active steps, or of those outside, over all rounds."""
        chosen = RECORDED - ENDS_CYCLE if active else set(range(1, 12)) - RECORDED - WARMS_UP
        return [seconds for step, seconds in self.steps[clock] if step in chosen]


def now() -> dict[str, float]:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return {name: clock() for name, clock in CLOCKS.items()}


# ---- in the place of profile_training and of the callbacks -----------------------------------------------------------


def session_of(mode: str, costs: Costs) -> Callable[..., Any]:
    """Return the replacement for `profile_training` in a program."""

    @contextmanager
    def watched(model: Any, optimizer: Any, save_dir: str, **options: Any) -> Iterator[Any]:
        if mode == "ours":
            inner: Any = TrainingProfile(model, optimizer, save_dir=save_dir)
        elif mode == "torch.profiler":
            inner = bare_profiler()
        else:
            inner = nullcontext()
        with inner as running:
            costs.begin()
            yield Stepper(getattr(running, "step", lambda: None), costs)

    return watched


@dataclass
class Stepper:
    """Ends steps, and notes when."""

    end: Callable[[], object]
    costs: Costs

    def step(self) -> None:
        """End one."""
        self.end()
        self.costs.end_step()


def trainer_callback(mode: str, costs: Costs) -> Callable[..., Any]:
    from transformers import TrainerCallback

    from tracer.integrations.transformers import TimelineCallback

    class Watching(TimelineCallback if mode == "ours" else TrainerCallback):  # type: ignore[misc]
        def __init__(self, save_dir: str, **options: Any) -> None:
            super().__init__(*((save_dir,) if mode == "ours" else ()))
            self.running: Any = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            super().on_train_begin(args, state, control, **kwargs)
            self.running = begin_bare(mode)
            costs.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            super().on_step_end(args, state, control, **kwargs)
            self.running.step()
            costs.end_step()

    return Watching


def lightning_callback(mode: str, costs: Costs) -> Callable[..., Any]:
    from lightning.pytorch.callbacks import Callback

    from tracer.integrations.lightning import TimelineCallback

    class Watching(TimelineCallback if mode == "ours" else Callback):  # type: ignore[misc]
        def __init__(self, save_dir: str, **options: Any) -> None:
            super().__init__(*((save_dir,) if mode == "ours" else ()))
            self.running: Any = None

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            super().on_train_start(trainer, pl_module)
            self.running = begin_bare(mode)
            costs.begin()

        def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
            super().on_train_batch_end(*args, **kwargs)
            self.running.step()
            costs.end_step()

    return Watching


def bare_profiler() -> Any:
    """torch.profiler with the flags that memory questions need, as in a session of ours; nobody keeps its results."""
    return profile(
        activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * HAS_GPU,
        schedule=schedule(
            wait=PLAN.num_wait_steps,
            warmup=PLAN.num_warmup_steps,
            active=PLAN.num_active_steps,
            repeat=PLAN.num_repeats,
        ),
        on_trace_ready=lambda prof: None,
        record_shapes=True,
        profile_memory=True,
        with_stack=True,
    )


class Nothing:
    """A profiler that does nothing."""

    def step(self) -> None:
        """Do it."""


def begin_bare(mode: str) -> Any:
    """Bare torch.profiler, switched on; the programs record all cycles, so it has nothing to be switched off."""
    if mode != "torch.profiler":
        return Nothing()
    context = bare_profiler()
    running = context.__enter__()
    running.kept_open = context
    return running


class OneGroup:
    """torch.distributed for a program that runs several times in a process: its group is made once, and stays."""

    get_rank = staticmethod(dist.get_rank)
    barrier = destroy_process_group = staticmethod(dist.barrier)

    @staticmethod
    def init_process_group(backend: str) -> None:
        """Make it the first time."""
        if not dist.is_initialized():
            dist.init_process_group(backend)


# ---- the programs ----------------------------------------------------------------------------------------------------


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_fno(session: Callable[..., Any], save_dir: str) -> None:
    workload = build_fno_workload(FnoSettings(n_modes=16), device="cuda" if HAS_GPU else "cpu")
    with session(workload.model, workload.optimizer, save_dir=save_dir) as running:
        for _ in range(12):
            workload.backward(workload.forward(workload.next_batch()))
            workload.optimizer_step()
            running.step()


def run_program(name: str, mode: str, costs: Costs, save_dir: str) -> None:
    if name == "fno":
        return run_fno(session_of(mode, costs), save_dir)
    module: Any = example(name)
    if name == "trainer":
        module.TimelineCallback = trainer_callback(mode, costs)
    elif name == "lightning_module":
        module.TimelineCallback = lightning_callback(mode, costs)
    else:
        module.profile_training = session_of(mode, costs)
    if name == "torchrun":
        module.dist = OneGroup
        (Path(save_dir) / "ranks.txt").touch()  # which the program prints
    module.main(save_dir)
    return None


def measure(name: str, num_rounds: int, parent: Path | None = None) -> dict[str, Costs]:
    """Run each mode in turn, each round beginning with another one; the first round only warms up.

    Files go to new folders, in a parent that ranks have in common.
    """
    if parent is None:
        with tempfile.TemporaryDirectory() as temporary:
            return measure(name, num_rounds, Path(temporary))
    torch.manual_seed(0)
    torch.set_num_threads(1)  # threads that wait for each other use as much processor time as those that work
    warnings.filterwarnings("ignore")
    for logger in ("lightning", "lightning.pytorch", "transformers"):
        __import__("logging").getLogger(logger).setLevel("ERROR")
    found = {mode: Costs() for mode in MODES}
    for number in range(num_rounds + 1):
        turn = number % len(MODES)
        for mode in (*MODES[turn:], *MODES[:turn]):
            costs = found[mode] if number else Costs()
            folder = parent / f"{number} {mode}"
            folder.mkdir(exist_ok=True)
            with quiet():
                run_program(name, mode, costs, str(folder))
    return found


def measure_alone(name: str, num_rounds: int) -> dict[str, Costs]:
    """Measure in a fresh interpreter, so that one program's leftovers do not weigh on the next."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, name, num_rounds).result()


@contextmanager
def quiet() -> Iterator[None]:
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        yield


def measure_ranks(num_rounds: int) -> dict[str, Costs]:
    """Measure in two ranks; rank 0 tells."""
    with tempfile.TemporaryDirectory() as folder:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        out = Path(folder) / "costs.json"
        command = [*launcher, "-m", "benchmarks.overhead", "--as-rank", str(out), "--rounds", str(num_rounds)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
        return {mode: Costs(**costs) for mode, costs in json.loads(out.read_text()).items()}


def as_rank(out: Path, num_rounds: int) -> None:
    found = measure("torchrun", num_rounds, out.parent)
    if os.environ["RANK"] == "0":
        out.write_text(json.dumps({mode: vars(costs) for mode, costs in found.items()}))


# ---- on the screen ---------------------------------------------------------------------------------------------------


PROGRAMS = ("fno", "plain_loop", "trainer", "lightning_module", "torchrun")


def rows(name: str, found: dict[str, Costs], clock: str) -> list[str]:
    def median(mode: str, *, active: bool) -> float:
        return statistics.median(found[mode].seconds(clock, active=active))

    alone, outside = median("nothing", active=False), median("ours", active=False)
    nothing, bare, ours = (median(mode, active=True) for mode in MODES)
    return [
        name,
        f"{alone * 1e3:.2f} ms",
        f"{outside / alone:.3f}",
        f"{bare / nothing:.2f}",
        f"{ours / nothing:.2f}",
        f"{ours / bare:.3f}",
    ]


HEADER = [
    "program",
    "a step alone",
    "outside, ours",
    "active, torch.profiler",
    "active, ours",
    "ours to torch.profiler",
]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--as-rank", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.as_rank is not None:
        as_rank(options.as_rank, options.rounds)
        return
    tables: dict[str, Table] = {clock: [HEADER] for clock in CLOCKS}
    for name in options.programs:
        if missing := [one for one in NEEDS.get(name, ()) if importlib.util.find_spec(one) is None]:
            print(f"{name} left out: it needs {', '.join(missing)}", file=sys.stderr)
            continue
        rounds = min(options.rounds, 3) if name == "fno" else options.rounds
        found = measure_ranks(rounds) if name == "torchrun" else measure_alone(name, rounds)
        for clock, table in tables.items():
            table.append(rows(name, found, clock))
    print(f"torch {torch.__version__}, 1 thread, {options.rounds} rounds, on the {'GPU' if HAS_GPU else 'CPU'}")
    for clock, table in tables.items():
        print(f"\nMedians, {clock}\n\n{as_markdown(table)}")


if __name__ == "__main__":
    main()
