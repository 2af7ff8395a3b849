"""A published run on the null GPU: the measured loop itself, by torch's own CUDA code and allocator.

    python -m benchmarks.published_on_null_gpu ROW      in a process of its own, as `benchmarks.prediction` calls it

Prints one JSON object. As the measured programs do, the model is made on the host and moved, and what an iteration
makes is made on the device.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from benchmarks.published_loop import Loop
from benchmarks.published_programs import Unknown, program_of
from benchmarks.published_runs import PublishedRun, published_runs
from tracer.null_gpu.cards import CONTEXT_BYTES, Card
from tracer.null_gpu.process import environment
from tracer.null_gpu.values.switch import HostValues
from tracer.units import GIB

ROOT = Path(__file__).resolve().parents[1]
UNLIMITED_BYTES = 1024 * GIB
"""Of a card whose memory nobody has published."""


def on_null_gpu(run: PublishedRun, card: Card, variables: Mapping[str, str]) -> dict[str, Any]:
    """What the allocator counts in a process of its own.

    Args:
        run: The published one.
        card: That it ran on; its memory is taken from the run.
        variables: Of the environment, beside the null GPU's.

    Returns:
        `allocated_bytes`, `reserved_bytes`, `fits`, `parameter_bytes`, `seconds`; or `problem`, a sentence.
    """
    usable_bytes = run.capacity_bytes if run.capacity_bytes is not None else UNLIMITED_BYTES
    there = replace(card, memory_bytes=usable_bytes + CONTEXT_BYTES)
    start = perf_counter()
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.published_on_null_gpu", run.row],
        cwd=ROOT, env=environment([there]) | dict(variables), capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    lines = ended.stdout.strip().splitlines()
    if ended.returncode or not lines or not lines[-1].startswith("{"):
        said = ended.stderr.strip().splitlines() or [f"its process ended with {ended.returncode}"]
        return {"problem": said[-1][:200]}
    return json.loads(lines[-1]) | {"seconds": perf_counter() - start}


def main() -> None:
    (run,) = [run for run in published_runs() if run.row == sys.argv[1]]
    print(json.dumps(_answer(run)))


def _answer(run: PublishedRun) -> dict[str, Any]:
    try:
        program = program_of(run)
        loop = program.build()
    except Unknown as missing:
        return {"problem": str(missing)}
    fits = True
    with closing(HostValues()):
        try:
            _move(loop)
            torch.set_default_device("cuda")
            for _ in range(program.num_steps):
                loop()
        except torch.OutOfMemoryError:
            fits = False
    return {
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "fits": fits,
        "parameter_bytes": sum(each.numel() * each.element_size() for each in loop.model.parameters()),
    }


def _move(loop: Loop) -> None:
    """Model and optimizer, as if that had been made of the moved model; what lies nowhere gets memory."""
    is_on_meta = any(tensor.is_meta for tensor in loop.model.parameters())
    loop.model.to_empty(device="cuda") if is_on_meta else loop.model.cuda()
    for state in loop.optimizer.state.values() if loop.optimizer is not None else ():
        state.update({name: value.cuda() for name, value in state.items() if isinstance(value, Tensor) and value.dim()})


if __name__ == "__main__":
    main()
