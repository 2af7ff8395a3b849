"""What cuDNN takes for convolutions: its own answer, asked in a child process, for a card by name.

cuDNN 9.8 and newer plan for a device that is only described. The version asked is the one that torch here would load:
another one chooses other engines for half of all convolutions, so no answer holds for another installation.
"""

from __future__ import annotations

import importlib.util
import json
import select
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from tracer.null_gpu.cards import Card
from tracer.rehearsal.cudnn_answers import FIRST_VERSION
from tracer.rehearsal.recorder import OperatorCall, Scratch
from tracer.rehearsal.rule import Gpu

_PROGRAM = Path(__file__).with_name("cudnn_answers.py")
_PATIENCE_S = 60.0


def device_properties(card: Card) -> dict[str, Any]:
    """A card as cuDNN has it described. Clocks, caches and numbers of the driver change no answer and are made up."""
    major, minor = card.capability
    return {
        "maxGridSize": [2147483647, 65535, 65535],
        "maxBlockSize": [1024, 1024, 64],
        "regsPerBlock": 65536,
        "multiProcessorCount": card.num_sms,
        "smCountOrigin": 0,
        "warpSize": 32,
        "maxSharedMemoryPerBlock": 49152,
        "maxSharedMemoryPerBlockOptin": card.shared_memory_bytes,
        "oversizedSharedMemoryPerBlock": 0,
        "reservedSharedMemoryPerBlock": 1024,
        "maxRegistersPerSM": 65536,
        "maxCtasPerSM": card.blocks_per_sm,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": card.threads_per_sm,
        "pciDeviceId": 0,
        "isTccDriver": 0,
        "supportCoopLaunch": 1,
        "smClockRateKHz": 1700000,
        "memClockRateKHz": 7000000,
        "l2CacheSize": 4 << 20,
        "deviceName": card.label,
        "deviceVer": 100 * major + 10 * minor,
        "driverVer": 13000,
        "cudaDeviceId": 0,
        "totalGlobalMem": card.memory_bytes,
    }


def library_folders() -> list[Path]:
    """Where the packages that torch loads CUDA from keep their libraries; none in a build for the CPU."""
    found = importlib.util.find_spec("nvidia")
    roots = found.submodule_search_locations if found is not None else None
    return sorted({path.parent for root in roots or () for path in Path(root).glob("*/lib/*.so*")})


@contextmanager
def cudnn_of(card: Card | None) -> Iterator[CudnnAnswers | None]:
    """Whom to ask for a card's workspaces; None where no card is named, or no cuDNN is here that could be asked."""
    if card is None or not card.label:
        yield None
        return
    with CudnnAnswers(card) as cudnn:
        yield cudnn if cudnn.version else None


class CudnnAnswers:
    """cuDNN in a child process: what would it take for a convolution on a card?

    Attributes:
        version: cuDNN's, such as 92600; 0 where none could be asked.
    """

    def __init__(self, card: Card) -> None:
        self.version = 0
        self._known: dict[str, int] = {}
        self._process: subprocess.Popen[str] | None = None
        folders = library_folders()
        if not any(list(folder.glob("libcudnn.so*")) for folder in folders):
            return
        self._process = subprocess.Popen(
            [sys.executable, str(_PROGRAM), *map(str, folders)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        version = self._ask(json.dumps(device_properties(card)))
        self.version = version if version >= FIRST_VERSION else 0

    def __enter__(self) -> CudnnAnswers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def workspace_bytes(self, problem: dict[str, Any]) -> int:
        """What the engine takes that it would choose; 0 where it has no answer."""
        line = json.dumps(problem)
        if line not in self._known:
            self._known[line] = max(0, self._ask(line)) if self.version else 0
        return self._known[line]

    def _ask(self, line: str) -> int:
        """A line in, a number out; -1 when the process has ended or does not answer, and then for good."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            return -1
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            if select.select([process.stdout], [], [], _PATIENCE_S)[0] and (answer := process.stdout.readline()):
                return int(answer)
        except BrokenPipeError:
            pass
        self._stop()
        return -1

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


# ---- the convolutions of a rehearsal ---------------------------------------------------------------------------------


def forward(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """One workspace, after the result."""
    x, weight, _, stride, padding, dilation, is_transposed, _, groups = call.args[:9]
    if not isinstance(call.out, Tensor):
        return
    if is_transposed:
        problem = _problem("backward_data", call.out, weight, x, stride, padding, dilation, groups)
    else:
        problem = _problem("forward", x, weight, call.out, stride, padding, dilation, groups)
    if problem is not None:
        yield _workspace([problem], gpu)


def backward(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """One for the input's gradient and then one for the weight's; the larger stands for both, which never coexist."""
    grad, x, weight, _, stride, padding, dilation, is_transposed, _, groups, wanted = call.args[:11]
    large, small = (grad, x) if is_transposed else (x, grad)
    of_input = "forward" if is_transposed else "backward_data"
    operations = [name for name, is_wanted in zip((of_input, "backward_filter"), wanted[:2], strict=True) if is_wanted]
    problems = [_problem(name, large, weight, small, stride, padding, dilation, groups) for name in operations]
    if found := [problem for problem in problems if problem is not None]:
        yield _workspace(found, gpu)


def _workspace(problems: list[dict[str, Any]], gpu: Gpu) -> Scratch:
    """What cuDNN said that it takes, nothing where it was not asked; at most a copy of all in another layout.

    Many of its engines work on channels last: where tensors are not, they copy input, weight and output.
    """
    said = [gpu.cudnn.workspace_bytes(problem) if gpu.cudnn is not None else 0 for problem in problems]
    copies = [
        sum(prod(problem[name][0]) for name in ("x", "w", "y")) * _DTYPES[problem["dtype"]] for problem in problems
    ]
    return Scratch(max(said), at_most_bytes=max(copies))


def _problem(
    operation: str,
    x: Tensor,
    weight: Tensor,
    y: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> dict[str, Any] | None:
    """As cuDNN has it put; None for what torch's own kernels do: depthwise convolutions that are not channels last."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    last = formats.get(x.dim())
    is_last = last is not None and any(
        tensor.is_contiguous(memory_format=last) and not tensor.is_contiguous() for tensor in (x, weight, y)
    )
    is_depthwise = x.dim() == 4 and 1 < groups == x.shape[1] and weight.shape[0] % groups == 0
    if (is_depthwise and not is_last) or str(x.dtype).removeprefix("torch.") not in _DTYPES:
        return None
    sizes = {name: list(each.shape) for name, each in (("x", x), ("w", weight), ("y", y))}
    stride, padding, dilation = list(stride), list(padding), list(dilation)
    if x.dim() == 3:  # torch puts an axis of 1 before the only one
        sizes = {name: [*size[:2], 1, size[2]] for name, size in sizes.items()}
        stride, padding, dilation = [1, *stride], [0, *padding], [1, *dilation]
    return {
        "operation": operation,
        "dtype": str(x.dtype).removeprefix("torch."),
        "allow_tf32": torch.backends.cudnn.allow_tf32,
        **{name: [size, _strides(size, is_last)] for name, size in sizes.items()},
        "padding": padding,
        "stride": stride,
        "dilation": dilation,
    }


_DTYPES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def _strides(sizes: list[int], channels_last: bool) -> list[int]:
    order = [1, *range(len(sizes) - 1, 1, -1), 0] if channels_last else range(len(sizes) - 1, -1, -1)
    strides, step = [0] * len(sizes), 1
    for axis in order:
        strides[axis] = step
        step *= sizes[axis]
    return strides
