"""Trains compiled models with and without a session, and prints what torch.compile did: run in a process of its own.

A process that has compiled something once is another one: hooks are then left off the optimizer.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tracer import profile_training
from tracer.sessions.schedule import Schedule

BACKEND = "aot_eager"
Step = Callable[[Tensor], Tensor]


class Net(nn.Module):
    """With code of its own: in torch 2.11, `compile()` of a plain Sequential compiles nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu())  # type: ignore[no-any-return]


def stepping(
    call: Callable[[Tensor], Tensor], optimizer: torch.optim.Optimizer, take: Callable[[], Any] | None = None
) -> Step:
    def step(x: Tensor) -> Tensor:
        loss = call(x).square().mean()
        loss.backward()
        optimizer.step() if take is None else take()
        optimizer.zero_grad()
        return loss.detach()

    return step


def wrapped(net: nn.Module, optimizer: torch.optim.Optimizer, *, fullgraph: bool = False) -> Step:
    """`torch.compile(model)`, as most people write it."""
    return stepping(torch.compile(net, backend=BACKEND, fullgraph=fullgraph), optimizer)


def whole_graph(net: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    return wrapped(net, optimizer, fullgraph=True)


def in_place(net: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """`model.compile()`: the model's own call is the compiled code."""
    net.compile(backend=BACKEND)
    return stepping(net, optimizer)


def whole_step(net: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """The training step is compiled, the optimizer's step in it; it breaks where it must."""
    return torch.compile(stepping(net, optimizer), backend=BACKEND)


def optimizer_alone(net: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    return stepping(net, optimizer, torch.compile(optimizer.step, backend=BACKEND))


def from_the_second_step(net: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """Hooks are on, and have been called, when the first compilation begins."""
    calls: list[Any] = [net, net, torch.compile(net, backend=BACKEND)]
    return stepping(lambda x: (calls.pop(0) if len(calls) > 1 else calls[0])(x), optimizer)


PROGRAMS = (wrapped, whole_graph, in_place, whole_step, optimizer_alone, from_the_second_step)
NUM_STEPS = 7


def run(program: Callable[..., Step], *, watched: bool, num_before: int = 0) -> dict[str, Any]:
    """What training came to, and what torch.compile did for it, step by step; some steps come before the session."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    step = program(net, optimizer)
    losses, compiled, batches = [], [], []

    def one() -> None:
        x = torch.randn(5, 6)
        batches.append(weakref.ref(x))
        losses.append(step(x).item())
        del x
        frames, graphs = counters["frames"]["total"], counters["stats"]["unique_graphs"]
        compiled.append([frames, graphs, sum(counters["graph_break"].values())])

    for _ in range(num_before):
        one()
    if watched:
        with (
            tempfile.TemporaryDirectory() as folder,
            profile_training(net, optimizer, save_dir=folder, schedule=Schedule(1, 1, 3, 1)) as session,
        ):
            for _ in range(NUM_STEPS - 1):
                one()
                session.step()
    else:
        for _ in range(NUM_STEPS - 1):
            one()
    one()
    gc.collect()  # torch.compile leaves cycles, and when those go is chance
    found = {"losses": losses, "compiled": compiled, "alive": [r() is not None for r in batches]}
    return found | ({"names": sorted(session.observed.storages.observations().names)} if watched else {})


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    programs = {one.__name__: one for one in PROGRAMS}
    results = {}
    for case in sys.argv[1:]:
        name, num_before = case.split()
        results[case] = [run(programs[name], watched=one, num_before=int(num_before)) for one in (False, True)]
    json.dump(results, sys.stdout)
