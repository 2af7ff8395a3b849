"""Floating point operations of a step: torch's formulas, and ours for what these lack, complex numbers and FFTs.

Counted are matrix products, convolutions, attention and Fourier transforms; what works element by element is not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

_COMPLEX_PRODUCT = 4
"""Real products and sums of complex ones: 4 multiplications and 4 additions, where a real one has 1 and 1."""
_FFT = 5
"""Operations of a complex transform of N points for each N log2 N.

Source:
    The radix-2 algorithm, as FFTW's benchmarks count: http://www.fftw.org/speed/method.html.
"""

_RNN = {"mkldnn_rnn_layer": 2, "mkldnn_rnn_layer_backward": 4}
"""Operations for each weight and each element of the sequences: two matrix products a time step."""


def flops_of(operator: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int:
    """Operations of one operator by its shapes; 0 for one without a formula."""
    namespace, _, name = operator.partition("::")
    if namespace != "aten":
        return 0
    if name in ("_fft_c2c", "_fft_r2c", "_fft_c2r"):
        return _fft_flops(name, args, out)
    if name in _RNN:
        sequence, *weights = args[:3]
        num_steps: int = sequence[..., 0].numel()
        return _RNN[name] * num_steps * sum(int(weight.numel()) for weight in weights)
    formula = flop_registry.get(getattr(torch.ops.aten, name))
    if formula is None:
        return 0
    count = int(formula(*args, **kwargs, out_val=out))
    is_complex = any(isinstance(argument, Tensor) and argument.is_complex() for argument in args)
    return count * _COMPLEX_PRODUCT if is_complex else count


def _fft_flops(name: str, args: Sequence[Any], out: Any) -> int:
    """A real transform has half the points' work of a complex one."""
    tensor, axes = args[0], args[1]
    whole = tensor if name != "_fft_c2r" else out
    points: int = math.prod(whole.shape[axis] for axis in (axes if isinstance(axes, list | tuple) else [axes]))
    if points < 2:
        return 0
    count: float = _FFT * whole.numel() * math.log2(points)
    return round(count if name == "_fft_c2c" else count / 2)
