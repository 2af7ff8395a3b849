"""What is said of compiled code, on whole programs, and what saying it costs while they compile.

    uv run python -m benchmarks.compiled

Kernels come from Inductor's cache if it has them; graphs do not.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from tests.compiled_programs import PROGRAMS, WITHOUT_INDUCTOR, Steps, gpt, resnet
from tracer.capture.compile_watch import CompileWatch

ROOT = Path(__file__).resolve().parent.parent
NUM_REPEATS = 5


def main() -> None:
    """Print both tables as they stand in results.md."""
    warnings.simplefilter("ignore")
    print(
        "| program | compiled, at the peak | with a line | of it copies | in modules, with it | saved: exact | eager |"
    )
    print("|---|---:|---:|---:|---:|---|---|")
    for one in _figures([one.__name__ for one in (*PROGRAMS, *WITHOUT_INDUCTOR)]):
        print(_row(one))
    print()
    print("| first step, seconds | alone | watched | alone, graphs from torch's cache |")
    print("|---|---:|---:|---:|")
    for program in (gpt, resnet):
        print(_cost(program))


def _figures(names: list[str]) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.compiled_programs", *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def _row(one: dict[str, Any]) -> str:
    sizes = one["bytes"]

    def share(part: int, whole: int) -> str:
        return f"{100 * part / whole:.1f} %" if whole else "-"

    is_exact = not one["said_and_not_saved"] and not one["saved_and_no_activation"]
    saved = ("yes" if is_exact else "no") if one["said_saved_bytes"] else "-"
    cells = [
        one["name"],
        f"{sizes['compiled']:,} B",
        share(sizes["with_line"], sizes["compiled"]),
        share(sizes["copies"], sizes["compiled"]),
        share(sizes["with_module"], sizes["in_module"]),
        saved,
        "-" if not one["lines"] else "yes" if not one["lines_not_in_eager"] else "no",
    ]
    return f"| {' | '.join(cells)} |"


def _cost(build: Any) -> str:
    found: dict[str, list[float]] = {"alone": [], "watched": [], "cached": []}
    for _ in range(NUM_REPEATS):
        for name, seconds in found.items():
            seconds.append(_first_step(build, name))
    medians = (f"{statistics.median(seconds):.2f}" for seconds in found.values())
    return f"| {build.__name__} | {' | '.join(medians)} |"


def _first_step(build: Any, how: str) -> float:
    torch._dynamo.reset()
    torch.manual_seed(0)
    program = build()
    steps, watch = Steps(program, program.compiled()), CompileWatch()
    with contextlib.ExitStack() as stack:
        if how == "alone":
            stack.enter_context(torch._inductor.config.patch(fx_graph_cache=False))
            stack.enter_context(torch._functorch.config.patch(enable_autograd_cache=False))
        if how == "watched":
            watch.start()
            stack.callback(watch.stop)
        begin = time.perf_counter()
        steps()
        return time.perf_counter() - begin


if __name__ == "__main__":
    main()
