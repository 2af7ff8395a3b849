"""Facts of a CUDA operator: whether its result may be computed on the host, and what it writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tracer.capture.torch_private import torch_dispatch

NOT_COMPUTED = (
    "_cudnn",
    "_ctc_loss",
    "_efficient_attention",
    "_embedding_bag",
    "_flash_attention",
    "_flex_attention",
    "_fft_",
    "_fused_",
    "_scaled_dot_product",
    "_thnn_",
    "_transformer_encoder",
    "_triton",
    "adaptive_avg_pool",
    "_adaptive_avg_pool",
    "adaptive_max_pool",
    "avg_pool",
    "batch_norm",
    "conv_depthwise",
    "convolution",
    "cudnn_",
    "fractional_max_pool",
    "grid_sampler",
    "im2col",
    "linalg_",
    "max_pool",
    "miopen_",
    "native_batch_norm",
    "native_dropout",
    "native_group_norm",
    "native_layer_norm",
    "slow_conv",
    "_conv_",
    "_weight_norm",
    "upsample_",
    "_upsample_",
)
"""Beginnings of names: attention, convolution, normalisation, pooling, dropout, and what else decides no size."""
MATRIX_PRODUCTS = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "addbmm", "_addmm_activation", "_grouped_mm"}
)
"""Their work grows faster than what they read and write."""
OVERWRITING = frozenset(
    {
        "bernoulli_",
        "cauchy_",
        "exponential_",
        "fill_",
        "geometric_",
        "log_normal_",
        "normal_",
        "random_",
        "uniform_",
        "zero_",
    }
)
"""In-place operators that do not read what was there."""
NOT_NEGATIVE = frozenset(
    {
        "abs",
        "binary_cross_entropy",
        "huber_loss",
        "linalg_vector_norm",
        "mse_loss",
        "nll_loss_forward",
        "nll_loss2d_forward",
        "norm",
        "smooth_l1_loss",
        "std",
        "var",
        "_foreach_norm",
    }
)
"""Results that are drawn are positive there, as a program expects that takes their root or their logarithm."""
PROBABILITIES = frozenset({"multinomial", "bernoulli", "bernoulli_", "poisson", "binomial", "_standard_gamma"})
"""Random operators that refuse what drawn numbers may be: below zero, above one."""
ALLOCATIONS = frozenset({"empty", "empty_strided", "_efficientzerotensor"})
UNTOUCHED = frozenset(
    {
        "_reshape_alias",
        "as_strided",
        "_pin_memory",
        "is_pinned",
        "is_set_to",
        "record_stream",
        "unfold",
        "view",
        "view_as_complex",
        "view_as_real",
        "set_",
        "_cufft_get_plan_cache_size",
        "_cufft_get_plan_cache_max_size",
        "_cufft_set_plan_cache_max_size",
        "_cufft_clear_plan_cache",
    }
)
"""Operators that neither read nor write values."""


def packet_name(name: str) -> str:
    """`add` of `aten::add.Tensor`."""
    return name.partition("::")[2].partition(".")[0]


@dataclass(frozen=True, slots=True)
class Operator:
    """Facts of an operator for the kernel of ours that stands for it."""

    name: str  # With namespace and overload, as torch registers it
    call: Any  # The operator, to be called with tensors of the host
    computed: bool  # Whether its results may be computed on the host at all
    random: bool  # Whether it draws numbers
    generator: tuple[int, str] | None  # Position and name of its generator's argument; None where it has none
    written: tuple[tuple[int, ...], tuple[str, ...]]  # Positions, and names, of the arguments that it writes to
    overwrites: bool  # Whether what it writes to is not read before
    tensors: tuple[tuple[int, str], ...]  # Positions, and names, of the arguments that are tensors
    by_element: bool  # Whether it takes lists, of which each place is computed by itself
    product: bool  # Whether it is a product of matrices
    not_negative: bool  # Whether its results are never below zero

    @property
    def short_name(self) -> str:
        """`add` of `aten::add.Tensor`."""
        return packet_name(self.name)

    def written_tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """The tensors that a call writes to, those of lists too."""
        positions, names = self.written
        values = [args[n] for n in positions if n < len(args)] + [kwargs[name] for name in names if name in kwargs]
        return tensors_of(values)

    def with_tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call with a tensor for each number that stands for one.

        The dispatcher hands `2` in `tensor % 2` to a kernel in Python as a number; torch's kernel wants a tensor, of
        the type to which the two promote, so that the result has the type that it would have had.
        """
        numbers = [(n, name) for n, name in self.tensors if isinstance(_given(args, kwargs, n, name), _NUMBERS)]
        if not numbers:
            return args, kwargs
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        largest = max(tensors, key=lambda tensor: tensor.dim(), default=None)
        args, kwargs = tuple(args), dict(kwargs)
        for n, name in numbers:
            number = _given(args, kwargs, n, name)
            dtype = torch.result_type(largest, number) if largest is not None else None
            tensor = torch.tensor(number, dtype=dtype, device="cpu")
            if n < len(args):
                args = (*args[:n], tensor, *args[n + 1 :])
            else:
                kwargs[name] = tensor
        return args, kwargs


_NUMBERS = (bool, int, float, complex)


def _given(args: tuple[Any, ...], kwargs: dict[str, Any], position: int, name: str) -> Any:
    return args[position] if position < len(args) else kwargs.get(name)


def tensors_of(values: Any) -> list[torch.Tensor]:
    """The tensors with memory of their own among an operator's arguments or results: by themselves, or in lists."""
    tensors = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple):
            tensors += [tensor for tensor in value if isinstance(tensor, torch.Tensor)]
    return [tensor for tensor in tensors if tensor.layout is torch.strided]


def operator_named(name: str) -> Operator:
    """Return the facts of an operator by the name under which torch has registered its kernel."""
    call = torch_dispatch.operator_by_full_name(name)
    short = packet_name(name)
    return Operator(
        name=name,
        call=call,
        computed=not short.startswith(NOT_COMPUTED) and torch_dispatch.runs_on_host(name),
        random=torch.Tag.nondeterministic_seeded in call.tags,
        generator=torch_dispatch.generator_argument(call),
        written=torch_dispatch.written_arguments(call),
        overwrites=short in OVERWRITING or torch_dispatch.written_by_name_alone(call),
        tensors=torch_dispatch.tensor_arguments(call),
        by_element=short.startswith("_foreach_"),
        product=short in MATRIX_PRODUCTS,
        not_negative=short in NOT_NEGATIVE,
    )
