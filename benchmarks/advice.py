"""Advice on programs of many kinds, on the null GPU: what the list says, what was rehearsed, what the allocator shows.

python -m benchmarks.advice [naive_attention loss_inside unet ...]
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.advice_programs import PROGRAMS, Program
from tracer.changes.change import Change
from tracer.changes.planner import RehearsedChanges, advise, applied
from tracer.changes.recommendation import Group, Recommendation
from tracer.null_gpu.cards import A100
from tracer.null_gpu.cudnn import cudnn_of
from tracer.null_gpu.process import restart_on
from tracer.sessions.trials.advising import shown_on_null_gpu
from tracer.units import MIB
from tracer.workloads.workload import Workload, num_micro_batches

_TOLERATED_SHARE, _TOLERATED_BYTES = 0.02, 0.1 * MIB
_NUM_STEPS = 3


def main(names: Sequence[str]) -> None:
    """Print a row for each change that a program's list has, in its order, and whether it begins as it should."""
    restart_on([A100])
    counted = _Counted()
    for name in names or list(PROGRAMS):
        start_s = time.process_time()
        program = PROGRAMS[name]
        with cudnn_of(A100) as cudnn:
            advice = advise(partial(program, torch.device("cpu")), device="cuda", card=A100, cudnn=cudnn)
        report = shown_on_null_gpu(advice, partial(program, torch.device("cuda")))
        before = shown_peak_bytes(program, ())
        print(
            f"{name}: {advice.base.peak_bytes / MIB:.2f} MiB rehearsed, {report.peak_bytes / MIB:.2f} MiB listed, "
            f"{before / MIB:.2f} MiB shown; {time.process_time() - start_s:.0f} s of a processor"
        )
        outcomes = {outcome.name: outcome for outcome in advice.best}
        made = [row for row in report.rows if row.measured is not None]
        for row in made:
            _print_row(program, row, outcomes[row.change], before, counted)
        groups = [row.group for row in made]
        counted.programs += 1
        counted.first += not groups or groups[0] == min(groups, key=lambda group: Group[group.upper()])
    print(
        f"{counted.programs} programs, of {counted.first} the first change is one that gives up least; "
        f"{counted.rows} changes: listed within 2 % {counted.listed}, rehearsed within 2 % {counted.rehearsed}, "
        f"lines ran {counted.lines}"
    )


@dataclass
class _Counted:
    programs: int = 0
    first: int = 0
    rows: int = 0
    listed: int = 0
    rehearsed: int = 0
    lines: int = 0


def _print_row(
    program: Program, row: Recommendation, outcome: RehearsedChanges, before: int, counted: _Counted
) -> None:
    shown = before - shown_peak_bytes(program, outcome.changes)
    ran = lines_run(program, outcome.changes[0])
    counted.rows += 1
    counted.listed += _is_near(row.known_bytes, shown)
    counted.rehearsed += _is_near(row.saves_bytes, shown)
    counted.lines += not ran
    near = "near" if _is_near(row.known_bytes, shown) else "FAR "
    print(
        f"  {row.group:10} listed {row.known_bytes / MIB:8.2f} MiB {near}  "
        f"rehearsed {row.saves_bytes / MIB:8.2f}  shown {shown / MIB:8.2f}  lines {ran or 'ran'}  {row.change}",
        flush=True,
    )


def _is_near(predicted: int, shown: int) -> bool:
    return abs(predicted - shown) <= max(_TOLERATED_SHARE * abs(shown), _TOLERATED_BYTES)


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
