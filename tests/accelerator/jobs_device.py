"""What the tests of the pretend accelerator itself have done on it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from tests.accelerator.registered import pretend
from tests.on_null_gpu.jobs_workloads import default_device
from tests.training_steps import WORKLOADS

Request = tuple[str, int, int]
"""What to do, with how many bytes or with which of the live blocks, on which stream."""


def allocate_and_free(requests: Sequence[Request], capacity: int) -> dict[str, Any]:
    """Serve requests on an empty device.

    Returns:
        The snapshot, the counters, and which requests ran out of memory.
    """
    device = torch.device("pretend", 0)
    pretend().set_capacity(0, capacity)
    # Nothing on another stream ends before somebody waits for it, as in the model.
    pretend().set_lag(1 << 40)
    torch.accelerator.reset_peak_memory_stats(0)
    streams = [torch.accelerator.current_stream(0), *(torch.Stream(device=device) for _ in range(2))]
    pretend().memory._record_memory_history(max_entries=100_000)
    live: list[Tensor] = []
    failed = []
    for number, (what, value, stream) in enumerate(requests):
        if what == "allocate":
            with streams[stream]:
                try:
                    live.append(torch.empty(value, dtype=torch.uint8, device=device))
                except torch.OutOfMemoryError:
                    failed.append(number)
        elif what == "free" and live:
            live.pop(value % len(live))
        elif what == "use" and live:
            used = live[value % len(live)]
            with streams[stream]:
                used.zero_()
            used.record_stream(streams[stream])
            del used
        elif what == "empty":
            torch.accelerator.empty_cache()
        elif what == "wait":
            torch.accelerator.synchronize(0)
    snapshot = pretend().memory._snapshot()
    stats = dict(torch.accelerator.memory_stats(0))
    return {"snapshot": snapshot, "stats": stats, "failed": failed}


def run_out(capacity: int) -> dict[str, Any]:
    """Ask for 50 MiB beside 3 MiB on a device of some capacity: what is said, and what the history has of it."""
    pretend().set_capacity(0, capacity)
    pretend().memory._record_memory_history(max_entries=100)
    held = torch.empty(3 << 20, dtype=torch.uint8, device="pretend:0")
    error: Exception | None = None
    try:
        line = _line() + 1
        torch.empty(50 << 20, dtype=torch.uint8, device="pretend:0")
    except torch.OutOfMemoryError as caught:
        error = caught
    del held
    oom = next(entry for entry in pretend().memory._snapshot()["device_traces"][0] if entry["action"] == "oom")
    return {
        "type": type(error).__name__,
        "message": str(error),
        "oom": {key: oom[key] for key in ("action", "device_free", "size")},
        "line": (__file__, line),
        "frame": (oom["frames"][0]["filename"], oom["frames"][0]["line"]),
    }


def _line() -> int:
    return sys._getframe(1).f_lineno


def time_kernels() -> dict[str, Any]:
    """Time one and three kernels, and an event behind another stream's work."""
    device = torch.device("pretend", 0)
    x = torch.zeros(4, device=device)
    torch.accelerator.synchronize(device)
    events = [torch.Event(device=device, enable_timing=True) for _ in range(4)]
    events[0].record()
    x.add_(1)
    events[1].record()
    for _ in range(3):
        x.add_(1)
    events[2].record()
    done = [events[2].query()]
    torch.accelerator.synchronize(device)
    done.append(events[2].query())
    # A stream that waits for an event begins where that one lies.
    side = torch.Stream(device=device)
    with side:
        x.add_(1)
    side.wait_event(events[2])
    with side:
        x.add_(1)
        x.add_(1)
        events[3].record()
    torch.accelerator.synchronize(device)
    return {
        "elapsed_ms": [events[0].elapsed_time(events[1]), events[1].elapsed_time(events[2])],
        "done": done,
        "behind another stream": events[2].elapsed_time(events[3]),
        "kernel_ms": pretend().KERNEL_MS,
    }


def draw() -> dict[str, Any]:
    """Draw twice from one state of a device, and once on another device."""
    host = torch.get_rng_state().tolist()
    pretend().manual_seed_all(1)
    state = pretend().get_rng_state("pretend:0")
    first = torch.randn(4, device="pretend:0").tolist()
    pretend().set_rng_state(state, "pretend:0")
    again = torch.randn(4, device="pretend:0").tolist()
    other = torch.rand(4, device="pretend:1").tolist()
    return {
        "first": first,
        "again": again,
        "other device": other,
        "host before": host,
        "host after": torch.get_rng_state().tolist(),
    }


def sums_after_steps(name: str, device: str, num_steps: int = 3) -> list[float]:
    """The sum of every parameter and buffer of a workload after some steps with the same numbers on every device."""
    with default_device(device), patch("torch.randn", _randn), patch("torch.randint", _randint):
        _host.manual_seed(0)
        workload = WORKLOADS[name]()
        for parameter in workload.model.parameters() if workload.model is not None else ():
            parameter.data.copy_(_randn(*parameter.shape, dtype=parameter.dtype) * 0.1)
        for _ in range(num_steps):
            workload.step()
        tensors = [*workload.model.parameters(), *workload.model.buffers()] if workload.model is not None else []
        return [float(torch.view_as_real(one).sum() if one.is_complex() else one.sum()) for one in tensors]


_host = torch.Generator()
_true_randn, _true_randint = torch.randn, torch.randint


def _randn(*size: Any, generator: torch.Generator = _host, requires_grad: bool = False, **options: Any) -> Tensor:
    """`torch.randn` with numbers of the host."""
    drawn = _true_randn(*size, generator=generator, device="cpu", **options).to(torch.get_default_device())
    return drawn.requires_grad_(requires_grad)


def _randint(low: int, high: int, size: tuple[int, ...]) -> Tensor:
    return _true_randint(low, high, size, generator=_host, device="cpu").to(torch.get_default_device())
