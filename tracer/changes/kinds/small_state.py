"""Adam with less memory for its state: in 8 bits by a library that is installed, or in bfloat16 between steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from tracer.changes.change import Change, Situation
from tracer.changes.eight_bit_optimizers import EightBitLibrary, installed
from tracer.changes.eight_bit_packages import NOT_INSTALLED
from tracer.changes.kinds.other_optimizer import FAMILY
from tracer.changes.recommendation import Group, Keeps
from tracer.changes.wrapped import inmost, with_inmost
from tracer.workloads.module_steps import StepWorkload
from tracer.workloads.workload import Workload

_IN_BF16 = (
    "def widen(optimizer, *_):",
    "    for values in optimizer.state.values():",
    '        for name in ("exp_avg", "exp_avg_sq"):',
    "            values[name] = values[name].float()",
    "def narrow(optimizer, *_):",
    "    for values in optimizer.state.values():",
    '        for name in ("exp_avg", "exp_avg_sq"):',
    "            bits = values[name].view(torch.int32)  # rounded at random, so that small changes are not lost",
    "            bits.add_(torch.randint_like(bits, 1 << 16)).bitwise_and_(-1 << 16)",
    "            values[name] = values[name].to(torch.bfloat16)",
    "optimizer.register_step_pre_hook(widen)",
    "optimizer.register_step_post_hook(narrow)",
)


def candidates(situation: Situation) -> Iterator[Change]:
    """Of each library that is installed its AdamW8bit, and state in bfloat16, on a GPU."""
    optimizer = situation.workload.optimizer
    kind = type(optimizer)
    if optimizer is None or kind not in (torch.optim.Adam, torch.optim.AdamW) or situation.device == "cpu":
        return
    if isinstance(inmost(situation.workload), StepWorkload):
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if any(parameter.is_complex() for parameter in parameters):
        return
    for library in installed():
        if library.takes(optimizer):
            yield _in_8_bits(library, optimizer)
    if all(parameter.dtype == torch.float32 for parameter in parameters):
        yield Change(
            name=f"state of {kind.__name__} in bfloat16 between steps",
            family=FAMILY,
            group=Group.ARITHMETIC,
            keeps=Keeps.CONVERGENCE,
            lines=_IN_BF16,
            apply=_in_bf16,
            needs="State is rounded to 8 bits of mantissa.",
        )


def not_tried(situation: Situation) -> Iterator[tuple[str, str]]:
    """State in 8 bits where no library has it: the name, and why."""
    kind = type(situation.workload.optimizer)
    if kind in (torch.optim.Adam, torch.optim.AdamW) and situation.device != "cpu" and not installed():
        yield f"{kind.__name__} with state in 8 bits", f"{NOT_INSTALLED}."


def _in_8_bits(library: EightBitLibrary, optimizer: torch.optim.Optimizer) -> Change:
    return Change(
        name=f"{library.kind_for(type(optimizer))} instead of {type(optimizer).__name__}",
        family=FAMILY,
        group=Group.ARITHMETIC,
        keeps=Keeps.CONVERGENCE,
        lines=library.lines_for(optimizer),
        apply=_by(library),
        needs=f"State is rounded to 8 bits, with a scale for 256 values, by {library.words}.",
    )


def _by(library: EightBitLibrary) -> Callable[[Workload], Workload]:
    def apply(workload: Workload) -> Workload:
        optimizer = workload.optimizer
        if optimizer is None:
            return workload
        if workload.device.type == "cpu":  # to be rehearsed: what a library's kernels do cannot be
            return with_inmost(workload, optimizer=library.as_large(optimizer.param_groups))
        return with_inmost(workload, optimizer=library.made(type(optimizer), optimizer.param_groups))

    return apply


def _in_bf16(workload: Workload) -> Workload:
    if workload.optimizer is not None:
        workload.optimizer.register_step_pre_hook(_widen)
        workload.optimizer.register_step_post_hook(_narrow)
    return workload


def _widen(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for values in optimizer.state.values():
        for name in ("exp_avg", "exp_avg_sq"):
            values[name] = values[name].float()


def _narrow(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for values in optimizer.state.values():
        for name in ("exp_avg", "exp_avg_sq"):
            bits = values[name].view(torch.int32)
            bits.add_(torch.randint_like(bits, 1 << 16)).bitwise_and_(-1 << 16)
            values[name] = values[name].to(torch.bfloat16)
