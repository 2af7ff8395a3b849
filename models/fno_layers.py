"""The layers of a Fourier neural operator, each a module of its own, so that a profiler can name where bytes are made.

Shape letters: B batch, C channels, O channels out, N grid points of an axis, K kept modes of an axis, d spatial axes.
`N...` stands for one N for each of the d axes.

Source:
    Li et al., Fourier Neural Operator for Parametric Partial Differential Equations, 2021, arXiv 2010.08895, in the
    form that `neuraloperator` 2.0.0 gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Activation = Callable[[Tensor], Tensor]
Spectrum = Literal["new_zeros", "torch_zeros"]


class SpectralConv(nn.Module):
    """Multiply the lowest modes by a learned complex weight and drop the others, [B, C, N...] to [B, C, N...].

    The weight has shape [C, C, K...]. On every axis but the last the lowest frequency of the spectrum is in the middle,
    so that the middle of the weight survives on a grid too coarse for all modes. The last axis has the one-sided
    spectrum of real data, K = modes // 2 + 1.

    Args:
        channels: Channels C, in and out.
        n_modes: Modes of each axis; one entry per spatial axis.
        spectrum: How the zero-padded spectrum is allocated. A tensor from `torch.zeros` has no input, and torch's
            profiler then gives no category to it and to all that follows; `new_zeros` keeps the categories.
    """

    def __init__(self, channels: int, n_modes: Sequence[int], *, spectrum: Spectrum = "new_zeros") -> None:
        super().__init__()
        self.modes = (*n_modes[:-1], n_modes[-1] // 2 + 1)
        self.centred = tuple(range(-len(n_modes), -1))
        self.spectrum = spectrum
        std = (1 / channels) ** 0.5
        self.weight = nn.Parameter(std * torch.randn(channels, channels, *self.modes, dtype=torch.cfloat))
        self.bias = nn.Parameter(std * torch.randn(channels, *(1,) * len(n_modes)))

    def forward(self, x: Tensor) -> Tensor:
        """Filter a field: to the spectrum, times the weight, and back, plus a bias."""
        in_spectrum, in_weight = _kept_modes(x.shape[2:], self.modes)
        kept = self._transform(x)[in_spectrum].contiguous()  # in 1d a view would hold the whole spectrum until backward
        padded = self._zeros(kept, (*x.shape[:-1], x.shape[-1] // 2 + 1))
        padded[in_spectrum] = torch.einsum("bi...,io...->bo...", kept, self.weight[in_weight])
        y: Tensor = self._transform_back(padded, x.shape[-1]) + self.bias
        return y

    def _transform(self, x: Tensor) -> Tensor:
        spectrum: Tensor = torch.fft.rfftn(x, dim=(*self.centred, -1), norm="forward")
        return torch.fft.fftshift(spectrum, dim=self.centred) if self.centred else spectrum

    def _zeros(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        if self.spectrum == "new_zeros":
            return like.new_zeros(shape)
        return torch.zeros(shape, dtype=like.dtype, device=like.device)

    def _transform_back(self, spectrum: Tensor, last_size: int) -> Tensor:
        """The field of a spectrum, as `irfftn` has it on the CPU.

        cuFFT reads imaginary parts that a real field does not have, where a CPU ignores them, so they are set to zero
        before the last axis. This needs no gradient: the backward of `irfft` puts zeros there by itself.

        Source:
            pytorch issue 154496, neuraloperator issue 702.
        """
        if self.centred:
            spectrum = torch.fft.ifftshift(spectrum, dim=self.centred)
            spectrum = torch.fft.ifftn(spectrum, dim=self.centred, norm="forward")
        with torch.no_grad():
            spectrum[..., 0].imag.zero_()
            if last_size % 2 == 0:
                spectrum[..., -1].imag.zero_()
        field: Tensor = torch.fft.irfft(spectrum, n=last_size, dim=-1, norm="forward")
        return field


def _kept_modes(size: Sequence[int], modes: Sequence[int]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return the slices of the kept modes: in the centred spectrum, and in the weight."""
    in_spectrum, in_weight = [slice(None)] * 2, [slice(None)] * 2
    for n, m in zip(size[:-1], modes[:-1], strict=True):
        k = min(m, n)
        first, first_in_weight = n // 2 - k // 2, (m - k) // 2
        in_spectrum.append(slice(first, first + k))
        in_weight.append(slice(first_in_weight, first_in_weight + k))
    k = min(modes[-1], size[-1] // 2 + 1)
    return (*in_spectrum, slice(0, k)), (*in_weight, slice(0, k))


class ChannelMLP(nn.Module):
    """Two 1x1 convolutions over the flattened grid, [B, C, N...] to [B, O, N...]; dropout follows both of them."""

    def __init__(
        self, channels: int, *, hidden: int, out: int, activation: Activation = F.gelu, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.fc1 = nn.Conv1d(channels, hidden, 1)
        self.fc2 = nn.Conv1d(hidden, out, 1)
        self.activation, self.dropout = activation, dropout

    def forward(self, x: Tensor) -> Tensor:
        """Mix the channels of each grid point."""
        h = self._dropped(self.activation(self.fc1(x.flatten(2))))
        h = self._dropped(self.fc2(h))
        return h.reshape(x.shape[0], -1, *x.shape[2:])

    def _dropped(self, h: Tensor) -> Tensor:
        return F.dropout(h, self.dropout, self.training) if self.dropout else h


class LinearSkip(nn.Conv1d):
    """A 1x1 convolution without bias over the flattened grid, [B, C, N...] to [B, C, N...]."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the channels of each grid point, linearly."""
        return super().forward(x.flatten(2)).reshape(x.shape)


class SoftGate(nn.Module):
    """One learned factor per channel, starting at 1, [B, C, N...] to [B, C, N...]."""

    def __init__(self, channels: int, num_axes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, channels, *(1,) * num_axes))

    def forward(self, x: Tensor) -> Tensor:
        """Scale each channel."""
        y: Tensor = self.weight * x
        return y


class InstanceNorm(nn.Module):
    """Each channel of each sample to mean 0 and variance 1; nothing is learned and nothing remembered."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise a batch."""
        return F.instance_norm(x)


class GridEmbedding(nn.Module):
    """Append the coordinates k / N of each axis as channels, [B, C, N...] to [B, C + d, N...].

    The grid is kept for the next forward. It is no buffer: it follows from the input and belongs in no state dict.
    Compiled code computes it where it is used: in a CUDA graph, what one replay leaves is gone in the next.
    """

    def __init__(self) -> None:
        super().__init__()
        self._grid: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Put the coordinates behind the data."""
        grid = _coordinates(x) if torch.compiler.is_compiling() else self._kept(x)
        return torch.cat([x, grid.expand(x.shape[0], *grid.shape)], dim=1)

    def _kept(self, x: Tensor) -> Tensor:
        grid = self._grid
        if grid is None or (grid.shape[1:], grid.device, grid.dtype) != (x.shape[2:], x.device, x.dtype):
            grid = self._grid = _coordinates(x)
        return grid


def _coordinates(x: Tensor) -> Tensor:
    """Coordinates of a batch's points, [d, N...]."""
    axes = [torch.linspace(0, 1, n + 1, device=x.device)[:-1] for n in x.shape[2:]]
    return torch.stack(torch.meshgrid(*axes, indexing="ij")).to(x.dtype)
