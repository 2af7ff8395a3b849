"""Time that commands take to start, beside another checkout, and the modules of ours that a run of a script loads.

    python -m benchmarks.start                    this checkout
    python -m benchmarks.start --beside FOLDER    another checkout in the same run, with the same Python
    python -m benchmarks.start --scripts          what `run` adds to scripts: one of two layers, one of 3,000

Seconds of a processor, the least of the repeats; the two checkouts in turns. The last line is a script of twenty lines
under `run`. Exits with 1 if `--help` or `diff --help` takes longer than 0.3 s. With `--scripts` each script runs alone
and under `run` in turns: medians, what `run` adds in each turn, the least and the most of that, and the most memory;
the one of 3,000 layers also under torch.profiler with stacks and memory, in the step that `run` records.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_S = 0.3
HELPS = (
    "--help", "diff --help", "snapshot --help", "run --help", "predict --help", "fit --help"
)  # fmt: skip
TIMED = ("--help", "diff --help")
SCRIPT = """\
import atexit, os, sys
import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))
optimizer = torch.optim.AdamW(model.parameters())
loss_of = nn.CrossEntropyLoss()
data = [(torch.randn(32, 64), torch.randint(10, (32,))) for _ in range(8)]


def train():
    for x, y in data:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()


train()
count = lambda: sum(name.split(".")[0] == "tracer" for name in sys.modules)
atexit.register(lambda: open(os.environ["MODULES_FILE"], "w").write(str(count())))
"""


SMALL = """\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(20):
    x, y = torch.randn(32, 64), torch.randint(10, (32,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
CONVOLUTIONS = """\
import torch
from torch import nn

sizes = [(3, 32), (32, 32), (32, 64), (64, 64), (64, 128), (128, 128)]
layers = [
    layer
    for number, (inner, outer) in enumerate(sizes)
    for layer in (
        nn.Conv2d(inner, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU(), nn.MaxPool2d(1 + number % 2)
    )
]
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters())
data = [(torch.randn(64, 3, 32, 32), torch.randint(10, (64,))) for _ in range(4)]
for step in range(16):
    x, y = data[step % 4]
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
WIDE = """\
import torch
from torch import nn

model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3000)))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(12):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""
# The step that `run` records of it, by torch's own profiler with the same flags; nothing is read of it.
WIDE_PROFILED = WIDE.replace(
    "for _ in range(12):\n",
    """\
schedule = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
flags = dict(profile_memory=True, with_stack=True, record_shapes=True)
profiler = torch.profiler.profile(schedule=schedule, on_trace_ready=lambda profiler: None, **flags)
profiler.start()
for _ in range(12):
""",
)
WIDE_PROFILED += "    profiler.step()\nprofiler.stop()\n"
SCRIPTS = {
    "two layers, 20 steps": (SMALL, ()),
    "the same, --watch": (SMALL, ("--watch",)),
    "convolutions, 16 steps": (CONVOLUTIONS, ()),
    "3,000 layers, 12 steps": (WIDE, ()),
}


def cost(command: Sequence[str], folder: Path, variables: dict[str, str] | None = None) -> resource.struct_rusage:
    """Cost of one run, its children included."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        command, cwd=folder, env={**os.environ, **(variables or {})}, stdout=quiet, stderr=quiet
    ) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with status {process.returncode}")
    return used


def processor_seconds(command: Sequence[str], folder: Path, variables: dict[str, str] | None = None) -> float:
    """Processor seconds of one run, its children included."""
    used = cost(command, folder, variables)
    return used.ru_utime + used.ru_stime


def print_scripts(checkouts: Sequence[Path], columns: Sequence[str], repeats: int, chosen: Sequence[str]) -> None:
    """Print what scripts take alone, and what `run` of each checkout adds: all in turns."""
    for name in chosen or SCRIPTS:
        source, options = SCRIPTS[name]
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "train.py"
            script.write_text(source)
            command = ("run", *options, "--device", "cpu", str(script))
            runs = [[str(script)], *([str(checkout / "main.py"), *command] for checkout in checkouts)]
            rows = list(columns)
            if source is WIDE:
                profiled = Path(folder) / "profiled.py"
                profiled.write_text(WIDE_PROFILED)
                runs, rows = [*runs, [str(profiled)]], [*rows, "torch"]
            costs = [[cost([sys.executable, *words], Path(folder)) for words in runs] for _ in range(repeats)]
        seconds = [[used.ru_utime + used.ru_stime for used in turn] for turn in costs]
        most = [max(turn[place].ru_maxrss for turn in costs) / 1024 for place in range(len(runs))]
        print(f"{name:<24}{'alone':<8}{statistics.median(turn[0] for turn in seconds):6.1f} s{most[0]:>24,.0f} MiB")
        for place, column in enumerate(rows, 1):
            added = sorted(turn[place] - turn[0] for turn in seconds)
            ratio = statistics.median(turn[place] / turn[0] for turn in seconds)
            words = f"{statistics.median(added):+.2f} s ({added[0]:.2f} to {added[-1]:.2f})"
            print(f"{'':<24}{column:<8}{ratio:6.2f} x{words:>24}{most[place]:8,.0f} MiB", flush=True)


def run_of_script(checkout: Path) -> tuple[float, int]:
    """Seconds of a run of the script, and the modules of ours that were loaded at its end."""
    with tempfile.TemporaryDirectory() as name:
        script, modules = Path(name) / "train.py", Path(name) / "modules"
        script.write_text(SCRIPT)
        command = [sys.executable, str(checkout / "main.py"), "run", "--device", "cpu", str(script)]
        seconds = processor_seconds(command, Path(name), {"MODULES_FILE": str(modules)})
        return seconds, int(modules.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scripts", nargs="*", choices=SCRIPTS, help="these, or all where none is named")
    arguments = parser.parse_args()
    checkouts = [ROOT] if arguments.beside is None else [ROOT, arguments.beside.resolve()]
    columns = ("here", "beside")[: len(checkouts)]
    if arguments.scripts is not None:
        print_scripts(checkouts, columns, arguments.repeats, arguments.scripts)
        return 0
    print(f"{'seconds of a processor':<28}" + "".join(f"{name:>10}" for name in columns))
    is_missed = False
    for options in HELPS:
        least = [float("inf")] * len(checkouts)
        for _ in range(arguments.repeats):
            for place, checkout in enumerate(checkouts):
                command = [sys.executable, "main.py", *options.split()]
                least[place] = min(least[place], processor_seconds(command, checkout))
        is_missed |= options in TIMED and least[0] > MOST_S
        print(f"{options:<28}" + "".join(f"{seconds:>10.2f}" for seconds in least))
    runs = [run_of_script(checkout) for checkout in checkouts]
    print(f"{'run of 20 lines':<28}" + "".join(f"{seconds:>10.2f}" for seconds, _ in runs))
    print(f"{'  modules of ours':<28}" + "".join(f"{modules:>10,}" for _, modules in runs))
    return int(is_missed)


if __name__ == "__main__":
    sys.exit(main())
