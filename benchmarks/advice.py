"""Advice on programs of many kinds, each listed change made for real on the null GPU: predicted beside shown savings.

python -m benchmarks.advice [naive_attention loss_inside unet ...]
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from functools import partial

import torch

from benchmarks.advice_programs import PROGRAMS, Program
from tracer.advice.change import Change
from tracer.advice.planner import Outcome, advise, applied
from tracer.null_gpu.cards import A100
from tracer.null_gpu.process import restart_on
from tracer.units import MIB
from tracer.workloads.workload import Workload, num_micro_batches

_TOLERATED_SHARE, _TOLERATED_BYTES = 0.02, 0.1 * MIB
_NUM_STEPS = 3


def main(names: Sequence[str]) -> None:
    """Print a row for each change of each program, the first of the list first."""
    restart_on([A100])
    num_rows = num_far = num_lines = 0
    for name in names or list(PROGRAMS):
        program = PROGRAMS[name]
        advice = advise(partial(program, torch.device("cpu")), device="cuda", card=A100)
        before = shown_peak_bytes(program, ())
        print(f"{name}: {advice.base.peak_bytes / MIB:.2f} MiB rehearsed, {before / MIB:.2f} MiB shown")
        for outcome in advice.best:
            if all(change.settings for change in outcome.changes):
                continue
            is_near, runs = _row(program, outcome, before)
            num_rows, num_far, num_lines = num_rows + 1, num_far + (not is_near), num_lines + runs
    print(f"{num_rows} changes, {num_far} further off than 2 %, lines of {num_lines} ran")


def _row(program: Program, outcome: Outcome, before: int) -> tuple[bool, bool]:
    shown = before - shown_peak_bytes(program, outcome.changes)
    error = outcome.saved_bytes - shown
    is_near = abs(error) <= max(_TOLERATED_SHARE * abs(shown), _TOLERATED_BYTES)
    ran = lines_run(program, outcome.changes[0])
    print(
        f"  {outcome.group.key:10} predicted {outcome.saved_bytes / MIB:8.2f} MiB, shown {shown / MIB:8.2f} MiB "
        f"{'near' if is_near else 'FAR '}  lines {ran or 'ran'}  {outcome.name}",
        flush=True,
    )
    return is_near, not ran


def shown_peak_bytes(program: Program, changes: Sequence[Change]) -> int:
    """The most that torch's allocator had allocated in some steps on the device, with changes made."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    workload: Workload = applied(program(torch.device("cuda")), changes)
    for _ in range(_NUM_STEPS):
        for _ in range(num_micro_batches(workload)):
            workload.backward(workload.forward(workload.next_batch()))
        workload.optimizer_step()
    peak = torch.cuda.max_memory_allocated() - before
    del workload
    gc.collect()
    return peak


def lines_run(program: Program, change: Change) -> str:
    """Nothing where the lines to paste run in the program; else what was raised."""
    workload = program(torch.device("cuda"))
    args, kwargs = workload.next_batch()
    loss_of = workload.loss
    names = {
        "torch": torch, "model": workload.model, "optimizer": workload.optimizer, "inputs": args[0] if args else None,
        "targets": args[0] if args else None, "loss_fn": lambda output, targets: loss_of(output),
        "batch": (*args, *args), "query": torch.ones(1, 2, 4, 8), "key": torch.ones(1, 2, 4, 8),
        "value": torch.ones(1, 2, 4, 8),
    }  # fmt: skip
    if not args:
        model = workload.model
        tokens = kwargs["input_ids"]
        names |= {"inputs": tokens, "targets": tokens, "batch": (tokens, tokens)}
        names["loss_fn"] = lambda output, targets: output.logits.square().mean()
        workload = None  # type: ignore[assignment]
        names["model"] = model
    try:
        exec("\n".join(change.lines), names)
    except Exception as error:  # a row says so
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


if __name__ == "__main__":
    main(sys.argv[1:])
