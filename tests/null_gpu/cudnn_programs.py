"""Convolutions on the null GPU: each function is a program that prints sizes in bytes or raises."""

from __future__ import annotations

import os
import sys

import torch
from torch import Tensor, nn

from tracer.null_gpu.cudnn import answered_version

MIB = 1 << 20


def _layer() -> tuple[nn.Module, Tensor]:
    """One whose tensors are 2.1, 12.25 and 12.25 MiB: no workspace is taken for one of them."""
    layer = nn.Conv2d(256, 256, (3, 3), padding=1, bias=False, device="cuda")
    return layer, torch.randn(4, 256, 56, 56, device="cuda", requires_grad=True)


def workspaces() -> None:
    """What is asked for in forward and backward besides what stays of it: output, gradients of input and weight."""
    layer, x = _layer()
    torch.cuda.memory._record_memory_history(stacks="python")
    y = layer(x)
    y.backward(torch.empty_like(y))
    asked = [event["size"] for event in torch.cuda.memory._snapshot()["device_traces"][0] if event["action"] == "alloc"]
    tensors = {x.nbytes, y.nbytes, next(layer.parameters()).nbytes}
    print(*[size for size in asked if size not in tensors])


def workspaces_of_the_fastest() -> None:
    """With cuDNN's engines tried beside each other, torch takes the largest workspace of all at once."""
    torch.backends.cudnn.benchmark = True
    workspaces()


def workspaces_of_a_forked_child() -> None:
    layer, x = _layer()
    layer(x)
    if child := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        workspaces()
    else:
        os._exit(0)


def next_engine_where_memory_ends() -> None:
    layer, x = _layer()
    torch.cuda.set_per_process_memory_fraction((50 * MIB) / torch.cuda.get_device_properties(0).total_memory)
    layer(x)
    print(torch.cuda.max_memory_allocated(), answered_version())


if __name__ == "__main__":
    globals()[sys.argv[1]]()
