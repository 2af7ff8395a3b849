"""Mixed precision as a CUDA device has it: its lists of operators in the place of the CPU's.

Fake tensors are the CPU's, and so is the autocast that they meet. While a rehearsal runs, the operators that CUDA's
lists have and the CPU's have not are given kernels that do what CUDA's do, those that only the CPU's have do nothing,
and what asks about, or enters, autocast for `cuda` gets that of the CPU. Operators on which both agree keep torch's own
kernels, and with them its cache of cast weights.

Source: AT_FORALL_LOWER_PRECISION_FP and the lists after it in aten/src/ATen/autocast_mode.h; cached_cast and
TORCH_LIBRARY_IMPL(aten, Autocast) in autocast_mode.cpp; torch/amp/autocast_mode.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tracer.capture.torch_private import torch_dispatch, torch_graph
from tracer.rehearsal.rule import Gpu

LOWER_PRECISION = (
    "_convolution.deprecated", "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv", "addr", "matmul",
    "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot",
    "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "_scaled_dot_product_flash_attention", "scaled_dot_product_attention",
)  # fmt: skip
FLOAT = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt",
    "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm",
    "native_layer_norm", "rms_norm", "group_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim",
    "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d",
    "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss",
    "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss",
    "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp", "upsample_nearest1d",
    "_upsample_nearest_exact1d", "upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_nearest3d",
    "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d", "_upsample_bilinear2d_aa",
    "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa",
)  # fmt: skip
FLOAT_RESULT = (
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm",
    "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList",
)  # fmt: skip
FLOAT_APPENDED = {"norm.Scalar": "ScalarOpt_dtype", "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype"}
"""By operator the overload that takes the type as its last argument."""
WIDEST = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
    "scatter_add",
)  # fmt: skip
_BANNED = "binary_cross_entropy"
_HALF_TO_FLOAT = {"softmax.int": "_softmax", "log_softmax.int": "_log_softmax"}
# Operators on which the CPU's lists agree; their kernels stay as they are.
_KEPT = frozenset({*LOWER_PRECISION, *FLOAT})

Kernel = Callable[..., Any]


class _Casts:
    """Weights that have been cast, until the outermost region of mixed precision ends.

    Source: cached_cast in aten/src/ATen/autocast_mode.cpp.
    """

    def __init__(self) -> None:
        self._of: dict[int, tuple[Tensor, Tensor]] = {}

    def clear(self) -> None:
        """Let go of them."""
        self._of.clear()

    def __call__(self, to: torch.dtype, value: Any) -> Any:
        """A value, or a list, in another type, where it is of floating point and not of 64 bits."""
        if isinstance(value, list | tuple):
            return type(value)(self(to, item) for item in value)
        if not _is_eligible(value) or value.dtype == to:
            return value
        is_weight = value.dtype is torch.float32 and value.requires_grad and torch_graph.is_leaf(value)
        lower = torch.get_autocast_dtype("cpu")
        if to != lower or not is_weight or torch_graph.is_view(value) or not torch.is_autocast_cache_enabled():
            return value.to(to)
        if id(value) not in self._of:
            self._of[id(value)] = value, value.to(to)
        return self._of[id(value)][1]


def _is_eligible(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dtype is not torch.float64


@contextmanager
def cuda_autocast() -> Iterator[None]:
    """Have CUDA's lists while it runs; nothing changes for who does not use mixed precision."""
    casts = _Casts()
    clear = torch.clear_autocast_cache

    def clear_both() -> None:
        casts.clear()
        clear()

    torch.clear_autocast_cache = clear_both
    try:
        with torch_dispatch.kernels_replaced(_kernels(casts), "AutocastCPU"):
            yield
    finally:
        torch.clear_autocast_cache = clear
        casts.clear()


def _kernels(casts: _Casts) -> dict[str, Kernel | None]:
    """By operator and overload what CUDA's autocast does; None where it does nothing."""
    of_cpu, of_cuda = (torch_dispatch.autocast_operators(device) for device in ("CPU", "CUDA"))
    policies: tuple[tuple[Iterable[str], Callable[[_Casts, str, Any], Kernel]], ...] = (
        (LOWER_PRECISION, _lower_precision),
        (FLOAT, _float),
        (FLOAT_RESULT, _float_result),
        (FLOAT_APPENDED, _float_appended),
        (WIDEST, _widest),
    )
    kernels: dict[str, Kernel | None] = {}
    for names, policy in policies:
        for name in names:
            operator = torch_dispatch.operator_with_overload(name)
            # torch 2.11 runs rms_norm in the type of its input.
            if operator is not None and name in of_cuda and not (name in _KEPT and name in of_cpu):
                kernels[name] = policy(casts, name, operator)
    kernels[_BANNED] = _banned
    # oneDNN's recurrent layers are none of CUDA's; a rule of their own stands in for them.
    return kernels | dict.fromkeys(of_cpu - of_cuda - {"mkldnn_rnn_layer"})


def _cast_all(casts: _Casts, to: torch.dtype, operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    with torch_dispatch.below_autocast():
        return operator(*casts(to, args), **{name: casts(to, value) for name, value in kwargs.items()})


def _lower_precision(casts: _Casts, name: str, operator: Any) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _cast_all(casts, torch.get_autocast_dtype("cpu"), operator, args, kwargs)

    return kernel


def _float(casts: _Casts, name: str, operator: Any) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _cast_all(casts, torch.float32, operator, args, kwargs)

    return kernel


def _float_result(casts: _Casts, name: str, operator: Any) -> Kernel:
    """Asks for a result of 32 bits, unless another type is asked for already."""
    fused = _HALF_TO_FLOAT.get(name)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        is_said = kwargs.get("dtype") is not None or (fused is not None and len(args) > 2)
        with torch_dispatch.below_autocast():
            if not is_said and _is_eligible(args[0]):
                kwargs["dtype"] = torch.float32
            if fused is not None:
                return softmax_of_half(fused, args, kwargs, partial(operator))
            return operator(*args, **kwargs)

    return kernel


def _float_appended(casts: _Casts, name: str, operator: Any) -> Kernel:
    packet, overload = name.partition(".")[0], FLOAT_APPENDED[name]
    with_type = torch_dispatch.operator(packet, overload)

    def kernel(x: Tensor, p: Any = 2, *args: Any) -> Any:
        if overload == "ScalarOpt_dim_dtype":
            args = (args[0], args[1] if len(args) > 1 else False)
        with torch_dispatch.below_autocast():
            return with_type(x, p, *args, dtype=torch.float32 if _is_eligible(x) else x.dtype)

    return kernel


def _widest(casts: _Casts, name: str, operator: Any) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        tensors = [element for value in args for element in (value if isinstance(value, list | tuple) else (value,))]
        has_float = any(_is_eligible(tensor) and tensor.dtype is torch.float32 for tensor in tensors)
        to = torch.float32 if has_float else torch.get_autocast_dtype("cpu")
        return _cast_all(casts, to, operator, args, kwargs)

    return kernel


def _banned(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast; CUDA refuses them"
    )


def softmax_of_half(fused: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], otherwise: Kernel) -> Any:
    """Softmax in 32 bits of 16: one kernel reads float16; bfloat16 is copied first, as on the CPU.

    Args:
        fused: `_softmax` or `_log_softmax`.
        args: Tensor and axis, perhaps the type.
        otherwise: Called where it is not that.

    Source: softmax and log_softmax in aten/src/ATen/native/SoftMax.cpp.
    """
    x, dim, *rest = args
    dtype = rest[0] if rest else kwargs.get("dtype")
    if x.dtype is torch.float16 and dtype is torch.float32:
        return torch_dispatch.operator(fused)(x, dim, True)
    return otherwise(*args, **kwargs)


# ---- what a program says about autocast ------------------------------------------------------------------------------


def entered(on_cpu: Kernel, gpu: Gpu) -> Kernel:
    """A replacement of `torch.autocast("cuda")`: the CPU's, with CUDA's type by default."""

    def init(self: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        on_cpu(self, device_type, dtype, *args, **kwargs)

    return init


def is_enabled(on_cpu: Kernel, gpu: Gpu) -> Kernel:
    """A replacement that answers for CUDA where no device is named."""

    def is_autocast_enabled(device_type: str = "cuda") -> bool:
        return bool(on_cpu("cpu" if device_type == "cuda" else device_type))

    return is_autocast_enabled


def type_of(on_cpu: Kernel, gpu: Gpu) -> Kernel:
    """A replacement that gives the type of the entered autocast, or CUDA's default."""

    def get_autocast_dtype(device_type: str) -> torch.dtype:
        is_entered = device_type == "cuda" and torch.is_autocast_enabled("cpu")
        dtype: torch.dtype = on_cpu("cpu" if is_entered else device_type)
        return dtype

    return get_autocast_dtype
