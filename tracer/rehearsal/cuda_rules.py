"""What a CUDA device does differently from the CPU: one table, a row for each difference, each with its source.

A rehearsal runs on fake tensors of the CPU, whose operators ask for what the CPU's would. Every row here can be left
out by name, so that what it explains can be measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tracer.capture.torch_private import torch_cuda, torch_fake
from tracer.rehearsal import attention, cuda_autocast, replacements
from tracer.rehearsal import kernel_scratch as kernels
from tracer.rehearsal.cuda_autocast import softmax_of_half
from tracer.rehearsal.recorder import OperatorCall, Scratch
from tracer.rehearsal.recurrent import flatten_weights, recurrence
from tracer.rehearsal.rule import CudaRule, Gpu, Replacement
from tracer.units import MIB
from tracer.workloads.module_steps import ModuleWorkload
from tracer.workloads.workload import Workload

# ---- optimizers ------------------------------------------------------------------------------------------------------


_ONE_BY_ONE = ("Adafactor",)  # torch/optim/_adafactor.py: of all, the only one that foreach is not the default of


def _foreach(optimizer: torch.optim.Optimizer) -> None:
    if type(optimizer).__name__ in _ONE_BY_ONE:
        return
    for group in optimizer.param_groups:
        is_open = "foreach" in group and group["foreach"] is None
        if is_open and not group.get("fused") and not group.get("differentiable"):
            group["foreach"] = True


def _below_one(original: Callable[..., Any], gpu: Gpu) -> Callable[..., Any]:
    return lambda value: 0.5 if torch_fake.is_fake(value) else original(value)


_ALL_ON_THE_DEVICE = ("ASGD",)


def _steps_on_host(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    if type(optimizer).__name__ in _ALL_ON_THE_DEVICE:
        return
    for group in optimizer.param_groups:
        if group.get("fused") or group.get("capturable"):
            continue
        for parameter in group["params"]:
            step = optimizer.state.get(parameter, {}).get("step")
            if isinstance(step, Tensor) and step.dim() == 0:
                yield step
            product = optimizer.state.get(parameter, {}).get("mu_product")
            if isinstance(product, Tensor):
                yield product


# ---- dropout, softmax, attention -------------------------------------------------------------------------------------


def _dropout(on_cpu: Callable[..., Any], gpu: Gpu) -> Callable[..., Any]:
    def dropout(input: Tensor, p: float, train: bool) -> Tensor:
        is_fused = train and 0 < p < 1 and input.numel() > 0
        if not is_fused or not torch_fake.is_fake(input):
            return on_cpu(input, p, train)  # type: ignore[no-any-return]
        return torch.native_dropout(input, p, True)[0]

    return dropout


def _softmax(fused: str) -> Replacement:
    def replaced(on_cpu: Callable[..., Any], gpu: Gpu) -> Callable[..., Any]:
        def softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
            if dtype is None or not torch_fake.is_fake(input):
                return on_cpu(input, dim, dtype)  # type: ignore[no-any-return]
            return softmax_of_half(fused, (input, dim, dtype), {}, on_cpu)  # type: ignore[no-any-return]

        return softmax

    return replaced


def _prefer_cudnn(gpu: Gpu) -> None:
    gpu.memory[attention.PREFERS_CUDNN] = True


# ---- mixed precision -------------------------------------------------------------------------------------------------


def _with_scaler(workload: Workload) -> Workload:
    is_scaled = isinstance(workload, ModuleWorkload) and workload.amp == "float16" and not workload.inference
    if not is_scaled or not isinstance(workload, ModuleWorkload) or workload.scaler is not None:
        return workload
    return replace(workload, scaler=torch.amp.GradScaler("cpu"))


# ---- libraries' workspaces -------------------------------------------------------------------------------------------

_MATRIX_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mv", "aten::addmv", "aten::dot")
_ADDING = ("aten::addmm",)


def _cublas_workspace(call: OperatorCall, gpu: Gpu) -> Iterable[Scratch]:
    """The workspace of cuBLAS: in each call since torch 2.15, before that one for forward and one for backward."""
    size_bytes = torch_cuda.workspace_bytes(gpu.card.capability)
    if not size_bytes:
        return
    if not torch_cuda.are_workspaces_kept():
        if call.out.numel():
            yield Scratch(MIB if _is_by_cublaslt(call) else size_bytes)
        return
    passes = gpu.memory.setdefault("cublas-workspace", set())
    if call.is_backward in passes:
        return
    passes.add(call.is_backward)
    yield Scratch(size_bytes, kept_as="cuBLAS")


def _is_by_cublaslt(call: OperatorCall) -> bool:
    """A sum with a bias, or in 16 bits with a matrix; vectors are cuBLAS's own."""
    if call.name not in _ADDING:
        return False
    added, left, right = call.args[:3]
    is_matrix = left.shape[0] > 1 and left.shape[1] > 1 and right.shape[1] > 1
    has_bias = added.dim() == 1 and added.shape[0] == right.shape[1]
    return bool(is_matrix and (has_bias or added.dtype.itemsize == 2) and call.kwargs.get("beta", 1) == 1)


RULES: tuple[CudaRule, ...] = (
    CudaRule(
        "foreach",
        "torch/optim/optimizer.py, _default_to_fused_or_foreach",
        "Optimizers update all parameters at once, and hold temporary copies of that size, unless told otherwise.",
        optimizer=_foreach,
    ),
    CudaRule(
        "optimizer-steps",
        "torch/optim/adam.py, Adam._init_group, and its like in other files there",
        "Optimizers count their steps on the host, unless they are fused or capturable.",
        on_host=_steps_on_host,
    ),
    CudaRule(
        "dropout-mask",
        "aten/src/ATen/native/Dropout.cpp, dropout; aten/src/ATen/native/cuda/Dropout.cu, native_dropout_cuda",
        "Dropout keeps a mask of one byte an element, where the CPU keeps one of the input's type.",
        operators={"dropout": _dropout},
        order={"aten::native_dropout": (1, 0)},
    ),
    CudaRule(
        "softmax-half",
        "aten/src/ATen/native/SoftMax.cpp, softmax, log_softmax",
        "Softmax of float16 with a result of 32 bits reads it as it is, where the CPU copies it first.",
        operators={"softmax.int": _softmax("_softmax"), "log_softmax.int": _softmax("_log_softmax")},
    ),
    CudaRule(
        "rms-norm",
        "aten/src/ATen/native/layer_norm.cpp, rms_norm_symint; cuda/layer_norm_kernel.cu, _fused_rms_norm_cuda",
        "RMSNorm is one kernel that keeps its input and a number for each row, where the CPU runs it as operators.",
        operators={"rms_norm": replacements.rms_norm},
    ),
    CudaRule(
        "linear-bias",
        "aten/src/ATen/native/Linear.cpp, linear",
        "A linear layer of what is not contiguous adds its bias in place, where a fake one would be added to a copy.",
        operators={"linear": replacements.linear},
    ),
    CudaRule(
        "log-sigmoid",
        "aten/src/ATen/native/Activation.cpp, log_sigmoid_forward_cuda",
        "The logarithm of a sigmoid keeps no buffer for backward, where the CPU keeps one.",
        operators={"log_sigmoid": replacements.log_sigmoid},
    ),
    CudaRule(
        "running-products",
        "aten/src/ATen/native/ReduceOps.cpp, cumprod_backward",
        "The gradient of a running product is a quotient where no value is zero, which a rehearsal takes for granted.",
        operators={"cumprod_backward": replacements.running_product_backward},
    ),
    CudaRule(
        "nadam-product",
        "torch/optim/nadam.py, NAdam._init_group",
        "NAdam reads a product on the host that is below 1 from its first step on.",
        functions={"torch.optim.nadam._get_value": _below_one},
    ),
    CudaRule(
        "attention",
        "aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, select_sdp_backend",
        "Attention runs as one kernel, flash in 16 bits and efficient else, and keeps its log-sum-exp only.",
        operators={"scaled_dot_product_attention": attention.attention},
        order={"aten::_scaled_dot_product_efficient_attention": (2, 3, 0, 1)},
    ),
    CudaRule(
        "saved-on-host",
        "torch/autograd/graph.py, save_on_cpu",
        "What forward saves under save_on_cpu is copied to the host, and back when backward uses it.",
        functions={"torch.autograd.graph.save_on_cpu.__init__": replacements.save_on_host},
    ),
    CudaRule(
        "cudnn-attention",
        "aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, check_prefer_cudnn_attention",
        "On Hopper and the large Blackwell cards attention in 16 bits is cuDNN's, with a mask too.",
        prepare=_prefer_cudnn,
    ),
    CudaRule(
        "recurrent",
        "aten/src/ATen/native/cudnn/RNN.cpp, _cudnn_rnn, _cudnn_rnn_backward",
        "Recurrent layers are one operator of cuDNN's with scratch and a reserve, as on an H100.",
        operators={
            f"{kind}.{overload}": recurrence(kind)
            for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")
            for overload in ("input", "data")
        },
        together=flatten_weights,
    ),
    CudaRule(
        "autocast",
        "aten/src/ATen/autocast_mode.h, AT_FORALL_FP32 and its like; autocast_mode.cpp, cached_cast",
        "Mixed precision runs norms, softmaxes, losses, powers and sums in 32 bits.",
        around=cuda_autocast.cuda_autocast,
        functions={
            "torch.amp.autocast_mode.autocast.__init__": cuda_autocast.entered,
            "torch.is_autocast_enabled": cuda_autocast.is_enabled,
            "torch.get_autocast_dtype": cuda_autocast.type_of,
        },
    ),
    CudaRule(
        "grad-scaler",
        "torch/amp/grad_scaler.py, GradScaler",
        "Gradients in float16 are scaled: a copy of the loss, the factor, and what counts infinities.",
        workload=_with_scaler,
    ),
    CudaRule(
        "cublas-workspace",
        "aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize",
        "Since 2.15 each product takes a workspace, 8.125 MiB, from Hopper on 32 MiB; before, each thread kept one.",
        scratch=dict.fromkeys(_MATRIX_PRODUCTS, _cublas_workspace),
    ),
    CudaRule(
        "cudnn-workspace",
        "aten/src/ATen/native/cudnn/Conv_v8.cpp, run_conv_plan; cuDNN's graph API",
        "cuDNN's engines take a workspace for each convolution: its own answer, where it could be asked for the card.",
        scratch={"aten::convolution": kernels.convolution, "aten::convolution_backward": kernels.convolution_backward},
    ),
    CudaRule(
        "group-norm",
        "aten/src/ATen/native/cuda/group_norm_kernel.cu, GroupNorm(Backward)KernelImplInternal",
        "Group norm works with factors and sums for every channel of every sample.",
        scratch={
            "aten::native_group_norm": kernels.group_norm,
            "aten::native_group_norm_backward": kernels.group_norm_backward,
        },
    ),
    CudaRule(
        "layer-norm",
        "aten/src/ATen/native/cuda/layer_norm_kernel.cu, layer_norm_cuda, LaunchGammaBetaBackwardCUDAKernel",
        "Layer norm copies what is not contiguous; over more than 65,536 rows its backward keeps partial sums.",
        scratch={
            "aten::native_layer_norm": kernels.layer_norm,
            "aten::native_layer_norm_backward": kernels.layer_norm_backward,
        },
    ),
    CudaRule(
        "softmax-backward",
        "aten/src/ATen/native/cuda/SoftMax.cu, softmax_backward_cuda_out, host_softmax_backward",
        "Softmax's backward multiplies gradient and result first; that of its logarithm copies what is not contiguous.",
        scratch={
            "aten::_softmax_backward_data": kernels.softmax_backward,
            "aten::_log_softmax_backward_data": kernels.log_softmax_backward,
        },
    ),
    CudaRule(
        "embedding-backward",
        "aten/src/ATen/native/cuda/Embedding.cu, embedding_dense_backward_cuda; EmbeddingBackwardKernel.cu",
        "More than 3,072 indices are sorted; each index, and each ten of one, has a row of sums. CUB's are not in it.",
        scratch={"aten::embedding_dense_backward": kernels.embedding_backward},
    ),
    CudaRule(
        "index-put",
        "aten/src/ATen/native/cuda/Indexing.cu, index_put_with_sort_kernel",
        "Adding at indices, as the backward of indexing does, sorts them. CUB's counters are not in it.",
        scratch=dict.fromkeys(
            ("aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index_put"),
            kernels.index_put,
        ),
    ),
    CudaRule(
        "sort",
        "aten/src/ATen/native/cuda/Sort.cpp, sort_cuda_kernel; SortStable.cu",
        "More than 4,096 values along an axis are sorted by CUB, with a second pair of buffers.",
        scratch={"aten::sort": kernels.sort},
    ),
    CudaRule(
        "median",
        "aten/src/ATen/native/cuda/Sorting.cpp, median_impl",
        "The median of all values is taken out of a sorted copy. CUB's counters are not in it.",
        scratch={"aten::median": kernels.median},
    ),
    CudaRule(
        "topk",
        "aten/src/ATen/native/cuda/TensorTopK.cpp, topk_out_cuda",
        "More than 4,096 largest values are sorted afterwards, and their indices gathered.",
        scratch={"aten::topk": kernels.topk},
    ),
    CudaRule(
        "flash-backward",
        "aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_bwd",
        "Flash attention's backward adds up the query's gradient in float.",
        scratch={"aten::_scaled_dot_product_flash_attention_backward": kernels.flash_backward},
    ),
    CudaRule(
        "cudnn-attention-backward",
        "cudnn-frontend, scaled_dot_product_flash_attention.h, SDPABackwardNode; ATen/native/cudnn/MHA.cpp",
        "cuDNN's attention adds up the query's gradient in float, too. What its engine takes besides is not in it.",
        scratch={"aten::_scaled_dot_product_cudnn_attention_backward": kernels.cudnn_attention_backward},
    ),
    CudaRule(
        "efficient-backward",
        "aten/src/ATen/native/transformers/cuda/attention_backward.cu, _efficient_attention_backward; "
        "mem_eff_attention/kernel_backward.h, workspace_strideBH",
        "Efficient attention's backward multiplies output and gradient first, adds up the query's gradient in tiles, "
        "and makes gradients of shared keys and values for each head.",
        scratch={"aten::_scaled_dot_product_efficient_attention_backward": kernels.efficient_backward},
    ),
    CudaRule(
        "fft",
        "aten/src/ATen/native/cuda/SpectralOps.cpp, _fft_c2r_cufft, _fft_r2c_cufft, _fft_c2c_cufft",
        "Complex to real copies its input; many axes need a second result. What cuFFT's plans take is not known.",
        scratch=dict.fromkeys(("aten::_fft_c2r", "aten::_fft_r2c", "aten::_fft_c2c"), kernels.fft),
    ),
    CudaRule(
        "losses",
        "aten/src/ATen/native/Loss.cpp, binary_cross_entropy_with_logits, soft_margin_loss_out and its backward",
        "Losses that are made of other operators hold what these make, of the size of their input.",
        scratch={
            "aten::binary_cross_entropy_with_logits": kernels.cross_entropy_with_logits,
            "aten::soft_margin_loss": kernels.soft_margin_loss,
            "aten::soft_margin_loss_backward": kernels.soft_margin_loss_backward,
        },
    ),
    CudaRule(
        "sum-type",
        "aten/src/ATen/native/ReduceOpsUtils.h, make_reduction_from_out_ty; ReduceOps.cpp, impl_func_cum_ops",
        "Sums of flags and of small integers copy them into the type of the result, 8 bytes each.",
        scratch=dict.fromkeys(
            ("aten::sum", "aten::nansum", "aten::mean", "aten::prod", *kernels.RUNNING), kernels.in_result_type
        ),
    ),
    CudaRule(
        "reduction",
        "aten/src/ATen/native/cuda/Reduce.cuh, setReduceConfig",
        "Sums and means of very many values are shared between blocks, which leave partial sums in memory.",
        scratch=dict.fromkeys(("aten::sum", "aten::mean"), kernels.reduction),
    ),
)
RULE_NAMES = tuple(rule.name for rule in RULES)
