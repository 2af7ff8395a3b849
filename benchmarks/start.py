"""How long commands take to start, beside another checkout, and how many modules of ours a run of a script loads.

    python -m benchmarks.start                    this checkout
    python -m benchmarks.start --beside FOLDER    another checkout in the same run, with the same Python

Seconds of a processor, the least of the repeats; the two checkouts in turns. The last line is a script of twenty lines
under `run`. Exits with 1 if `--help` or `diff --help` takes longer than 0.3 s.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_S = 0.3
HELPS = (
    "--help", "diff --help", "snapshot --help", "run --help", "predict --help", "fit --help", "redact --help"
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


def processor_seconds(command: Sequence[str], folder: Path, variables: dict[str, str] | None = None) -> float:
    """Of one run, its children included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, env={**os.environ, **(variables or {})}, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


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
    arguments = parser.parse_args()
    checkouts = [ROOT] if arguments.beside is None else [ROOT, arguments.beside.resolve()]
    print(f"{'seconds of a processor':<28}" + "".join(f"{name:>10}" for name in ("here", "beside")[: len(checkouts)]))
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
