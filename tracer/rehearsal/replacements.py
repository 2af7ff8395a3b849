"""What stands in for functions and operators of torch's that a GPU runs as one kernel, or otherwise than the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from tracer.capture.torch_private import torch_fake
from tracer.rehearsal.rule import Gpu


class _RmsNorm(torch.autograd.Function):
    """The result; a number for each row is kept beside the input.

    Source: _fused_rms_norm_cuda and _fused_rms_norm_backward_cuda in aten/src/ATen/native/cuda/layer_norm_kernel.cu.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, num_axes: int) -> Tensor:
        in_order = x.contiguous()
        output = torch.empty_like(in_order)
        rows = x.shape[: x.dim() - num_axes]
        dtype = torch.float32 if x.dtype.itemsize <= 4 else x.dtype
        of_rows = torch.empty((*rows, *[1] * num_axes), dtype=dtype, device=x.device)
        ctx.save_for_backward(x, weight, of_rows)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, weight, _ = ctx.saved_tensors
        in_order = gradients[0].contiguous(), x.contiguous()
        of_x = torch.empty_like(in_order[1])
        of_weight = torch.empty_like(weight) if weight is not None and ctx.needs_input_grad[1] else None
        return of_x, of_weight, None


def rms_norm(on_cpu: Callable[..., Any], gpu: Gpu) -> Callable[..., Any]:
    """A replacement of RMS norm: one kernel, if weight and input have the same type."""

    def normalized(
        input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
    ) -> Tensor:
        is_one_type = weight is None or weight.dtype == input.dtype
        if not torch_fake.is_fake(input) or not is_one_type or input.is_complex():
            return on_cpu(input, normalized_shape, weight, eps)  # type: ignore[no-any-return]
        result: Tensor = _RmsNorm.apply(input, weight, len(normalized_shape))
        return result

    return normalized


def linear(on_cpu: Callable[..., Any], gpu: Gpu) -> Callable[..., Any]:
    """A replacement of linear layers: the bias is added in place, where a fake one would be added to a copy.

    Source: linear in aten/src/ATen/native/Linear.cpp.
    """

    def applied(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        is_one_call = input.dim() == 2 or (input.dim() == 3 and input.is_contiguous())
        if bias is None or is_one_call or not torch_fake.is_fake(input):
            return on_cpu(input, weight, bias)  # type: ignore[no-any-return]
        return torch.matmul(input, weight.t()).add_(bias)

    return applied


class _LogSigmoid(torch.autograd.Function):
    """The CPU keeps a buffer for backward, a GPU none.

    Source: log_sigmoid_forward_cuda in aten/src/ATen/native/cuda/ActivationLogSigmoidKernel.cu and Activation.cpp.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return torch.empty_like(gradients[0])


def log_sigmoid(on_cpu: Callable[..., Any], gpu: Gpu) -> Callable[..., Any]:
    """A replacement of log-sigmoid without the CPU's buffer."""

    def applied(self: Tensor) -> Tensor:
        result: Tensor = _LogSigmoid.apply(self) if torch_fake.is_fake(self) else on_cpu(self)
        return result

    return applied


def running_product_backward(on_cpu: Callable[..., Any], gpu: Gpu) -> Callable[..., Any]:
    """A replacement of the gradient of running products, a quotient where no value is zero; fake ones go another way.

    Source: cumprod_backward in ATen/native/ReduceOps.cpp.
    """

    def gradient(grad: Tensor, input: Tensor, dim: int, output: Tensor) -> Tensor:
        if not torch_fake.is_fake(input) or input.numel() <= 1 or input.shape[dim] == 1:
            return on_cpu(grad, input, dim, output)  # type: ignore[no-any-return]
        weighted = output.conj() * grad
        is_zero = input == 0
        is_zero.any()
        # As in C++, each of these is held until the last one is there.
        flipped = weighted.flip(dim)
        summed = flipped.cumsum(dim)
        reversed_sums = summed.flip(dim)
        del flipped, summed
        return reversed_sums.div(input.conj())

    return gradient


def save_on_host(on_cpu: Callable[..., Any], gpu: Gpu) -> Callable[..., Any]:
    """A replacement of `save_on_cpu.__init__`, which on the CPU would keep every tensor as it is.

    A view is copied without the storage around it, to the host and back, as `Tensor.cpu()` and `Tensor.to()` do.
    """

    def pack(tensor: Tensor) -> Tensor:
        packed = torch.empty(tensor.size(), dtype=tensor.dtype, layout=tensor.layout, device=tensor.device)
        gpu.put_on_host([packed])
        return packed.copy_(tensor)

    def unpack(packed: Tensor) -> Tensor:
        return packed.clone()

    def init(self: Any, pin_memory: bool = False, device_type: str = "cuda") -> None:
        saved_tensors_hooks.__init__(self, pack, unpack)

    return init
