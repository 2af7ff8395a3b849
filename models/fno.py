"""A Fourier neural operator, so that there is a real training step to profile without installing one.

The layers and the arithmetic are those of `neuraloperator` 2.0.0 (dense weights, real data), so its weights can be
loaded and the bytes of a step are the bytes that its users see. Two differences, both on purpose: an odd size on an
axis before the last shifts back to where it came from (fixed upstream after that release), and in 1d the kept modes are
copied, where `neuraloperator` keeps the whole spectrum alive through a view of it.

Shape letters: B batch, C hidden channels, I channels in, O channels out, N grid points of an axis, K kept modes of an
axis, d spatial axes. `N...` stands for one N for each of the d axes.

Source:
    Li et al., Fourier Neural Operator for Parametric Partial Differential Equations, 2021, arXiv 2010.08895.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .fno_layers import (
    Activation,
    ChannelMLP,
    GridEmbedding,
    InstanceNorm,
    LinearSkip,
    SoftGate,
    SpectralConv,
    Spectrum,
)

Skip = Literal["linear", "identity", "soft-gating"]
Norm = Literal["group_norm", "instance_norm", "batch_norm"]

_BATCH_NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSettings:
    """Settings that all blocks of one FNO share; the meaning of each field is told in `FNO`."""

    channels: int
    n_modes: tuple[int, ...]
    activation: Activation
    spectrum: Spectrum
    fno_skip: Skip | None
    use_channel_mlp: bool
    channel_mlp_skip: Skip | None
    channel_mlp_hidden: int
    channel_mlp_dropout: float
    norm: Norm | None
    norm_groups: int
    preactivation: bool
    stabilizer: Literal["tanh"] | None


class FNOBlock(nn.Module):
    """Spectral convolution plus skip, then channel MLP plus skip, [B, C, N...] to [B, C, N...]."""

    def __init__(self, settings: BlockSettings, *, last: bool) -> None:
        super().__init__()
        s = settings
        self.spectral = SpectralConv(s.channels, s.n_modes, spectrum=s.spectrum)
        self.skip = _skip(s.fno_skip, s)
        self.mlp, self.mlp_skip = None, None
        if s.use_channel_mlp:
            self.mlp = ChannelMLP(
                s.channels, hidden=s.channel_mlp_hidden, out=s.channels, dropout=s.channel_mlp_dropout
            )
            self.mlp_skip = _skip(s.channel_mlp_skip, s)
        self.norm1, self.norm2 = _norm(s), _norm(s)
        self.activation, self.preactivation, self.stabilizer = s.activation, s.preactivation, s.stabilizer
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block, with the activation before or behind the convolution."""
        return self._preactivated(x) if self.preactivation else self._postactivated(x)

    def _postactivated(self, x: Tensor) -> Tensor:
        skip, mlp_skip = _called(self.skip, x), _called(self.mlp_skip, x)
        h = _sum(_normalised(self.norm1, self.spectral(self._stabilized(x))), skip)
        h = self._mixed(self._activated(h), mlp_skip)
        return self._activated(_normalised(self.norm2, h))

    def _preactivated(self, x: Tensor) -> Tensor:
        x = _normalised(self.norm1, self.activation(x))
        skip, mlp_skip = _called(self.skip, x), _called(self.mlp_skip, x)
        h = self._activated(_sum(self.spectral(self._stabilized(x)), skip))
        return self._mixed(_normalised(self.norm2, h), mlp_skip)

    def _stabilized(self, x: Tensor) -> Tensor:
        return torch.tanh(x) if self.stabilizer == "tanh" else x

    def _activated(self, h: Tensor) -> Tensor:
        return h if self.last else self.activation(h)

    def _mixed(self, h: Tensor, mlp_skip: Tensor | None) -> Tensor:
        return h if self.mlp is None else _sum(self.mlp(h), mlp_skip)


def _called(module: nn.Module | None, x: Tensor) -> Tensor | None:
    return None if module is None else module(x)


def _normalised(norm: nn.Module | None, h: Tensor) -> Tensor:
    result: Tensor = h if norm is None else norm(h)
    return result


def _sum(h: Tensor, skip: Tensor | None) -> Tensor:
    return h if skip is None else h + skip


def _skip(kind: Skip | None, settings: BlockSettings) -> nn.Module | None:
    match kind:
        case "linear":
            return LinearSkip(settings.channels)
        case "identity":
            return nn.Identity()
        case "soft-gating":
            return SoftGate(settings.channels, len(settings.n_modes))
        case None:
            return None


def _norm(settings: BlockSettings) -> nn.Module | None:
    match settings.norm:
        case "group_norm":
            return nn.GroupNorm(settings.norm_groups, settings.channels)
        case "instance_norm":
            return InstanceNorm()
        case "batch_norm":
            return _BATCH_NORMS[len(settings.n_modes)](settings.channels)
        case None:
            return None


class FNO(nn.Module):
    """Fourier neural operator in 1, 2 or 3 dimensions, [B, I, N...] to [B, O, N...] on a grid of any size.

    The arguments have the names, meanings and defaults of `neuraloperator`; `norm_groups` and `spectrum` are further.

    Args:
        n_modes: Fourier modes of each axis; as many entries as there are spatial axes.
        in_channels: Channels of the data, without the coordinates that the model appends itself.
        out_channels: Channels of the output.
        hidden_channels: Channels C between lifting and projection.
        n_layers: Number of blocks.
        lifting_channel_ratio: Width inside the lifting MLP, as a multiple of C.
        projection_channel_ratio: Width inside the projection MLP, as a multiple of C.
        positional_embedding: "grid" appends one coordinate channel per axis.
        non_linearity: Activation of the blocks, of lifting and of projection; the MLPs inside blocks use gelu.
        norm: Normalisation, twice a block.
        norm_groups: Groups of "group_norm"; they divide C.
        use_channel_mlp: Whether blocks have a channel MLP.
        channel_mlp_dropout: Dropout probability behind both layers of that MLP.
        channel_mlp_expansion: Width inside that MLP, as a multiple of C.
        channel_mlp_skip: Skip around that MLP, from the block's input.
        fno_skip: Skip around the spectral convolution.
        domain_padding: Share of each axis to pad with zeros on both of its sides; one number, or one per axis.
        preactivation: Whether a block begins with its activation.
        stabilizer: "tanh" bounds what enters the spectral convolution.
        spectrum: How spectra are allocated, which decides what torch's profiler can tag; see `SpectralConv`.

    Raises:
        ValueError: The arguments make no model.
    """

    def __init__(
        self,
        n_modes: Sequence[int],
        *,
        in_channels: int,
        out_channels: int,
        hidden_channels: int,
        n_layers: int = 4,
        lifting_channel_ratio: float = 2,
        projection_channel_ratio: float = 2,
        positional_embedding: Literal["grid"] | None = "grid",
        non_linearity: Activation = F.gelu,
        norm: Norm | None = None,
        norm_groups: int = 1,
        use_channel_mlp: bool = True,
        channel_mlp_dropout: float = 0.0,
        channel_mlp_expansion: float = 0.5,
        channel_mlp_skip: Skip | None = "soft-gating",
        fno_skip: Skip | None = "linear",
        domain_padding: float | Sequence[float] | None = None,
        preactivation: bool = False,
        stabilizer: Literal["tanh"] | None = None,
        spectrum: Spectrum = "new_zeros",
    ) -> None:
        super().__init__()
        self.n_modes, self.in_channels = tuple(n_modes), in_channels
        num_axes = len(self.n_modes)
        self.padding = _padding_shares(domain_padding, num_axes)
        lifting_hidden = int(lifting_channel_ratio * hidden_channels)
        projection_hidden = int(projection_channel_ratio * hidden_channels)
        settings = BlockSettings(
            channels=hidden_channels,
            n_modes=self.n_modes,
            activation=non_linearity,
            spectrum=spectrum,
            fno_skip=fno_skip,
            use_channel_mlp=use_channel_mlp,
            channel_mlp_skip=channel_mlp_skip,
            channel_mlp_hidden=round(hidden_channels * channel_mlp_expansion),
            channel_mlp_dropout=channel_mlp_dropout,
            norm=norm,
            norm_groups=norm_groups,
            preactivation=preactivation,
            stabilizer=stabilizer,
        )
        _check_positive(
            {
                "number of input channels": in_channels,
                "number of output channels": out_channels,
                "number of hidden channels": hidden_channels,
                "number of layers": n_layers,
                "number of channels inside the lifting": lifting_hidden,
                "number of channels inside the projection": projection_hidden,
            }
        )
        _check_block(settings)
        if positional_embedding not in ("grid", None):
            raise ValueError(f"The positional embedding must be 'grid' or None, not {positional_embedding!r}.")

        self.embedding = GridEmbedding() if positional_embedding == "grid" else None
        lifted = in_channels + (num_axes if self.embedding is not None else 0)
        self.lifting = ChannelMLP(lifted, hidden=lifting_hidden, out=hidden_channels, activation=non_linearity)
        self.blocks = nn.ModuleList(FNOBlock(settings, last=i == n_layers - 1) for i in range(n_layers))
        self.projection = ChannelMLP(
            hidden_channels, hidden=projection_hidden, out=out_channels, activation=non_linearity
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map a batch of fields to a batch of fields on the same grid.

        Raises:
            ValueError: The batch has another number of axes or channels than the model.
        """
        if x.ndim != len(self.n_modes) + 2 or x.shape[1] != self.in_channels:
            expected = ["batch", str(self.in_channels), *("points",) * len(self.n_modes)]
            raise ValueError(f"The model takes a batch [{', '.join(expected)}], not one of shape {list(x.shape)}.")
        if self.embedding is not None:
            x = self.embedding(x)
        x = self.lifting(x)
        pads = [round(share * n) for share, n in zip(self.padding, x.shape[2:], strict=True)]
        x = _padded(x, pads)
        for block in self.blocks:
            x = block(x)
        y: Tensor = self.projection(_unpadded(x, pads))
        return y


def _padded(x: Tensor, pads: Sequence[int]) -> Tensor:
    """A field with zeros on both sides of each axis; `F.pad` counts axes from the last."""
    return F.pad(x, [p for pad in reversed(pads) for p in (pad, pad)]) if any(pads) else x


def _unpadded(x: Tensor, pads: Sequence[int]) -> Tensor:
    for axis, pad in enumerate(pads, start=2):
        x = x.narrow(axis, pad, x.shape[axis] - 2 * pad) if pad else x
    return x


def _padding_shares(domain_padding: float | Sequence[float] | None, num_axes: int) -> tuple[float, ...]:
    if domain_padding is None or isinstance(domain_padding, (int, float)):
        shares = (float(domain_padding or 0),) * num_axes
    else:
        shares = tuple(domain_padding)
    if len(shares) != num_axes or any(share < 0 for share in shares):
        raise ValueError(f"The domain padding must be 0 or more, one number or {num_axes}, not {domain_padding!r}.")
    return shares


def _check_positive(counts: Mapping[str, int]) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"The {name} must be at least 1, not {count}.")


def _check_block(settings: BlockSettings) -> None:
    s = settings
    if len(s.n_modes) not in _BATCH_NORMS:
        raise ValueError(f"An FNO has 1, 2 or 3 spatial axes, not the {len(s.n_modes)} of the modes {list(s.n_modes)}.")
    _check_positive({f"number of modes of axis {axis}": m for axis, m in enumerate(s.n_modes, start=1)})
    if s.use_channel_mlp:
        _check_positive({"number of channels inside the channel MLP": s.channel_mlp_hidden})
    if not 0 <= s.channel_mlp_dropout <= 1:
        raise ValueError(f"The dropout must be a probability from 0 to 1, not {s.channel_mlp_dropout}.")
    if s.norm == "group_norm" and (s.norm_groups < 1 or s.channels % s.norm_groups):
        raise ValueError(f"The {s.channels} hidden channels cannot be divided into {s.norm_groups} norm groups.")
    for name, value, known in (
        ("skip of the spectral convolution", s.fno_skip, (*get_args(Skip), None)),
        ("skip of the channel MLP", s.channel_mlp_skip, (*get_args(Skip), None)),
        ("norm", s.norm, (*get_args(Norm), None)),
        ("stabilizer", s.stabilizer, ("tanh", None)),
        ("way to allocate the spectrum", s.spectrum, get_args(Spectrum)),
    ):
        if value not in known:
            raise ValueError(f"The {name} must be one of {', '.join(map(repr, known))}, not {value!r}.")
