"""Runs one program on the null GPU under torch's own recording of memory, and notes what its blocks are as it goes.

    python -m benchmarks.recorded_program NAME FILE

`NAME` is a program of tests/truth, `further:NAME` of `benchmarks.further_programs`, or `random:SEED`. Run by
`benchmarks.cut_recordings`. An object is joined with its block by its address and by how many allocations had been
served when it was seen: the last of them at that address.
Nothing here allocates on the device, or is a part of what judges recordings.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import pickle
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.optim import optimizer as optimizer_hooks

from tests.truth.program import Program
from tests.truth.storages import storages_in

NUM_STEPS = 3
_ONE = 0x3F80_0000
"""1.0, as its bits."""


@dataclass
class Notes:
    """Observations, by the number of allocations served so far.

    Attributes:
        seen: When, the address, and as what.
        backwards, steps: Begin and end of each call of backward, and of each step of an optimizer.
        iterations: The end of each iteration of the program.
    """

    seen: set[tuple[int, int, str]] = field(default_factory=set)
    backwards: list[tuple[int, int]] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    iterations: list[int] = field(default_factory=list)

    def see(self, kind: str, tensors: Any) -> None:
        """Note where the memory of tensors lies."""
        now = _served()
        self.seen |= {
            (now, storage.data_ptr(), kind) for storage in storages_in(tensors) if storage.device.type == "cuda"
        }


def _served() -> int:
    served: int = torch._C._cuda_memoryStats(0)["allocation"]["all"]["allocated"]
    return served


def see_program(notes: Notes, program: Program) -> None:
    """Note parameters, buffers, gradients, optimizers' state and the batch, as they are now."""
    models = [model for model in (program.model, *program.others.values()) if model is not None]
    parameters = [parameter for model in models for parameter in model.parameters()] + program.parameters
    parameters += [
        parameter for one in program.optimizers for group in one.param_groups for parameter in group["params"]
    ]
    # In the course of a functional_call a module's parameter may be the result of an operation.
    parameters = [parameter for parameter in parameters if parameter.is_leaf]
    notes.see("parameter", parameters)
    notes.see("gradient", [parameter.grad for parameter in parameters])
    notes.see("buffer", [buffer for model in models for buffer in model.buffers()])
    notes.see("optimizer state", [optimizer.state for optimizer in program.optimizers])
    if program.batch is not None:
        now = _served()
        notes.seen |= {(now, one.data_ptr(), "input") for one in program.batch.storages() if one.device.type == "cuda"}


def saved_by(roots: Iterable[Any]) -> list[Any]:
    """Return the tensors that the graphs behind these keep for backward."""
    waiting = [root.grad_fn for root in roots if isinstance(root, torch.Tensor) and root.grad_fn is not None]
    found, visited = [], set[Any]()
    while waiting:
        node = waiting.pop()
        if node in visited:
            continue
        visited.add(node)
        waiting += [before for before, _ in node.next_functions if before is not None]
        for name in dir(node):
            if name.startswith("_saved_") or name == "saved_tensors":
                try:
                    found.append(getattr(node, name))
                except RuntimeError:  # let go of, or written to since
                    continue
    return found


def observe(notes: Notes, program: Program) -> None:
    """Look at the program around every backward and every step of an optimizer."""
    run_backward = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    begun: list[int] = []

    def observed(roots: Any, *args: Any, **kwargs: Any) -> Any:
        see_program(notes, program)
        notes.see("activation", saved_by(roots))
        begin = _served()
        try:
            return run_backward(roots, *args, **kwargs)
        finally:
            notes.backwards.append((begin, _served()))
            see_program(notes, program)

    def before(*_: Any) -> None:
        see_program(notes, program)
        begun.append(_served())

    def after(*_: Any) -> None:
        notes.steps.append((begun.pop(), _served()))
        see_program(notes, program)

    torch.autograd._engine_run_backward = observed  # type: ignore[attr-defined, assignment]
    optimizer_hooks.register_optimizer_step_pre_hook(before)
    optimizer_hooks.register_optimizer_step_post_hook(after)
    for model in (program.model, *program.others.values()):
        if model is not None:
            # Where no backward follows, nothing else sees a batch before it is freed.
            model.register_forward_pre_hook(lambda *_: see_program(notes, program))
        for parameter in model.parameters() if model is not None else ():
            if parameter.requires_grad and parameter.is_leaf:
                parameter.register_post_accumulate_grad_hook(lambda one: notes.see("gradient", one.grad))


def steps_count_from_one() -> None:
    """Let an optimizer's step read 1 where it reads its count of steps from the device.

    Until torch 2.14 a default device has Adam's counts of steps on it. The null GPU counts nothing, and Adam would
    divide by 1 - beta ** 0.
    """
    answer_reads = ctypes.CDLL(None).null_gpu_answer_reads
    answer_reads.argtypes, answer_reads.restype = (ctypes.c_int, ctypes.c_int64), None
    optimizer_hooks.register_optimizer_step_pre_hook(lambda *_: answer_reads(1, _ONE))
    optimizer_hooks.register_optimizer_step_post_hook(lambda *_: answer_reads(0, 0))


def record(name: str) -> dict[str, Any]:
    """Run it, and return torch's snapshot and what is true of its blocks."""
    torch.set_default_device("cuda")
    if torch.__version__ < "2.15":
        steps_count_from_one()
    torch.manual_seed(0)
    torch.cuda.memory._record_memory_history(stacks="all", max_entries=1_000_000)
    first = _served()
    program = _built(name)
    notes = Notes()
    see_program(notes, program)
    observe(notes, program)
    for _ in range(NUM_STEPS):
        try:
            program.step()
        except torch.OutOfMemoryError:
            notes.iterations.append(_served())
            see_program(notes, program)
            break
        notes.iterations.append(_served())
        see_program(notes, program)
    gc.collect()
    snapshot = torch.cuda.memory._snapshot()
    return {
        "snapshot": {key: snapshot[key] for key in ("segments", "device_traces") if key in snapshot},
        "seen": sorted((when - first, address, kind) for when, address, kind in notes.seen),
        "backwards": [(begin - first, end - first) for begin, end in notes.backwards],
        "steps": [(begin - first, end - first) for begin, end in notes.steps],
        "iterations": [end - first for end in notes.iterations],
    }


def _built(name: str) -> Program:
    kind, _, rest = name.partition(":")
    if kind == "random":
        from benchmarks.random_programs import random_program

        return random_program(int(rest))
    if kind == "further":
        from benchmarks.further_programs import PROGRAMS

        return PROGRAMS[rest]()
    from tests.truth.catalogue import entry_of

    return entry_of(name).build()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    arguments.file.write_bytes(pickle.dumps(record(arguments.name)))


if __name__ == "__main__":
    main()
