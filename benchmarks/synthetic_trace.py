"""A trace of any size in the layout that kineto writes: steps of a model on a GPU, with stacks, shapes and memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

EVENTS_A_CALL = 11
CALLS_A_STEP = 1000
_HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [{"id": 0, "name": "synthetic", "totalGlobalMem": 85018279936}],
  "with_stack": 1, "profile_memory": 1, "record_shapes": 1,
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1790857026000000000,
  "traceEvents": [
"""
_SLICE = (
    '  {{\n    "ph": "X", "cat": "{}", "name": "{}", "pid": {}, "tid": {},\n'
    '    "ts": {:.3f}, "dur": {:.3f},\n    "args": {{\n      {}\n    }}\n  }}'
)
_MEMORY = (
    '  {{\n    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",\n    "pid": 7, "tid": 7,\n'
    '    "ts": {:.3f},\n    "args": {{\n      "Total Reserved": 8589934592, "Total Allocated": {}, "Bytes": {}, '
    '"Addr": {}, "Device Id": 0, "Device Type": 1, "Ev Idx": {}\n    }}\n  }}'
)
_FLOW = '  {{\n    "ph": "{}", "id": {}, "pid": {}, "tid": {}, "ts": {:.3f},\n    "cat": "ac2g", "name": "ac2g"\n  }}'
_SHAPES = (
    '"External id": {0}, "Sequence number": {0}, "Fwd thread id": 0, "Record function id": 0, '
    '"Concrete Inputs": ["", "", ""], "Input type": ["float", "float", "float"], '
    '"Input Strides": [[1024, 1], [1, 1024], []], "Input Dims": [[64, 1024], [1024, 1024], []], "Ev Idx": {0}'
)
_BLOCK_BYTES, _BEFORE_BYTES = 262144, 1 << 30


def write_trace(path: Path, num_events: int) -> int:
    """Write it; returns the bytes of the peak."""
    num_calls = -(-num_events // EVENTS_A_CALL)
    with path.open("w") as file:
        file.write(_HEAD)
        events = _events(num_calls)
        while some := list(islice(events, 10_000)):
            file.write(",\n".join(some) + ",\n")
        file.write(_FLOW.format("i", 0, 7, 7, 0.0) + '\n  ], "traceName": "trace.json" }\n')
    return _BEFORE_BYTES + min(CALLS_A_STEP, num_calls) * _BLOCK_BYTES


def _events(num_calls: int) -> Iterator[str]:
    for step in range(-(-num_calls // CALLS_A_STEP)):
        calls = range(step * CALLS_A_STEP, min((step + 1) * CALLS_A_STEP, num_calls))
        length = 20.0 * (len(calls) + 2)
        start = step * 20.0 * (CALLS_A_STEP + 10)
        yield _SLICE.format("user_annotation", f"ProfilerStep#{step}", 7, 7, start, length, '"External id": 0')
        yield _python("train.py(10): main", start + 0.5, length - 1, 0, None, "train.py:30")
        for at, call in enumerate(calls):
            yield from _call(call, at, start + 1 + 20 * at)
        for at, call in enumerate(calls):
            left = _BEFORE_BYTES + (len(calls) - at - 1) * _BLOCK_BYTES
            now = start + length - 15 + at * 0.01
            yield _MEMORY.format(now, left, -_BLOCK_BYTES, 4096 + at * _BLOCK_BYTES, call)


def _call(call: int, at: int, now: float) -> Iterator[str]:
    """A module's call, its forward, an operator in an operator, a launch, a kernel, and an allocation."""
    number, in_use = call + 100_001, _BEFORE_BYTES + (at + 1) * _BLOCK_BYTES
    python = 3 * call + 1
    yield _python(f"nn.Module: Linear_{at % 100}", now, 18, python, 0, "train.py:12")
    yield _python("model.py(40): forward", now + 1, 16, python + 1, python, "torch/nn/modules/module.py:1784")
    yield _python("<built-in function linear>", now + 2, 14, python + 2, python + 1, "model.py:44")
    yield _SLICE.format("cpu_op", "aten::linear", 7, 7, now + 3, 12, _SHAPES.format(2 * number))
    yield _SLICE.format("cpu_op", "aten::addmm", 7, 7, now + 4, 10, _SHAPES.format(2 * number + 1))
    yield _MEMORY.format(now + 5, in_use, _BLOCK_BYTES, 4096 + at * _BLOCK_BYTES, call)
    launch = f'"External id": {2 * number + 1}, "cbid": 211, "correlation": {number}'
    yield _SLICE.format("cuda_runtime", "cudaLaunchKernel", 7, 7, now + 7, 4, launch)
    yield _FLOW.format("s", number, 7, 7, now + 7)
    kernel = (
        f'"External id": {2 * number + 1}, "queued": 0, "device": 0, "context": 1, "stream": 7, '
        f'"correlation": {number}, "registers per thread": 90, "shared memory": 49152, "blocks per SM": 4.2, '
        '"warps per SM": 17.1, "grid": [564, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 27'
    )
    yield _SLICE.format("kernel", "ampere_sgemm_128x64_tn", 0, 7, now + 12, 15, kernel)
    yield _FLOW.format("f", number, 0, 7, now + 12)


def _python(name: str, start: float, length: float, number: int, above: int | None, came_from: str) -> str:
    args = f'"CallFrom": "{came_from}", "Python parent id": {"null" if above is None else above}, '
    return _SLICE.format("python_function", name, 7, 7, start, length, f'{args}"Python id": {number}, "Ev Idx": 0')
