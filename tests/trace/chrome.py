"""Traces written by hand, event by event, for the reader's tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BASE_NS = 1_700_000_000_000_000_000
Event = dict[str, Any]


def operator(name: str, start_us: float, duration_us: float, *, thread: int = 1, **args: Any) -> Event:
    return _slice("cpu_op", name, start_us, duration_us, thread, {key.replace("_", " "): v for key, v in args.items()})


def region(name: str, start_us: float, duration_us: float, *, thread: int = 1) -> Event:
    return _slice("user_annotation", name, start_us, duration_us, thread, {})


def call(
    name: str, start_us: float, duration_us: float, number: int, above: int | None = None, *, came_from: str = "",
    thread: int = 1,
) -> Event:  # fmt: skip
    args = {"Python id": number, "Python parent id": above, **({"CallFrom": came_from} if came_from else {})}
    return _slice("python_function", name, start_us, duration_us, thread, args)


def kernel(
    name: str, start_us: float, duration_us: float, *, launched_by: int = 0, stream: int = 7, category: str = "kernel",
    correlation: int = 0, group: str | None = None,
) -> Event:  # fmt: skip
    args = {"External id": launched_by, "device": 0, "stream": stream, "correlation": correlation}
    if group is not None:
        args["Process Group Ranks"] = group  # type: ignore[assignment]
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": stream, "ts": start_us, "dur": duration_us,
            "args": args}  # fmt: skip


def launch(name: str, start_us: float, duration_us: float, *, correlation: int, thread: int = 1) -> Event:
    return _slice("cuda_runtime", name, start_us, duration_us, thread, {"correlation": correlation})


def memory(
    time_us: float, address: int, size_bytes: int, total_bytes: int | None, *, reserved_bytes: int = 1 << 20,
    device: tuple[int, int] = (1, 0), thread: int = 1,
) -> Event:  # fmt: skip
    totals = {} if total_bytes is None else {"Total Allocated": total_bytes, "Total Reserved": reserved_bytes}
    args = {**totals, "Bytes": size_bytes, "Addr": address, "Device Type": device[0], "Device Id": device[1]}
    return {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": thread,
            "ts": time_us, "args": args}  # fmt: skip


def _slice(category: str, name: str, start_us: float, duration_us: float, thread: int, args: Event) -> Event:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start_us, "dur": duration_us,
            "args": args}  # fmt: skip


def text_of(events: list[Event]) -> str:
    return json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "traceEvents": events, "traceName": "x"})


def write(path: Path, events: list[Event]) -> Path:
    path.write_text(text_of(events))
    return path


def training_step() -> list[Event]:
    """One step: 4,096 bytes from before, an activation of 1,024, its gradient of 1,024, and scratch of 512.

    main() at train.py:20 calls the model at line 21, which calls F.relu at net.py:5; line 22 asks for backward, which
    the engine runs on thread 2. The peak is in backward: 4,096 + 1,024 + 1,024 + 512 = 6,656.
    """
    return [
        region("ProfilerStep#0", 0, 100),
        call("train.py(18): main", 0, 100, 1),
        call("nn.Module: Net_0", 5, 20, 2, 1, came_from="train.py:21"),
        call("net.py(4): forward", 6, 18, 3, 2, came_from="torch/nn/modules/module.py:1784"),
        call("<built-in function relu>", 8, 10, 4, 3, came_from="net.py:5"),
        operator("aten::relu", 9, 8, External_id=11, Sequence_number=3, Input_Dims=[[16, 16]]),
        memory(10, 0x1000, 1024, 5120),
        call("torch/autograd/__init__.py(255): backward", 40, 30, 5, 1, came_from="train.py:22"),
        operator("autograd::engine::evaluate_function: ReluBackward0", 45, 20, thread=2, External_id=12,
                 Sequence_number=3),
        operator("ReluBackward0", 46, 18, thread=2, External_id=13, Sequence_number=3),
        operator("aten::threshold_backward", 47, 16, thread=2, External_id=14),
        memory(50, 0x2000, 1024, 6144, thread=2),
        memory(51, 0x3000, 512, 6656, thread=2),
        memory(52, 0x3000, -512, 6144, thread=2),
        memory(66, 0x1000, -1024, 5120, thread=2),
        memory(90, 0x2000, -1024, 4096),
    ]  # fmt: skip
