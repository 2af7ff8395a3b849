"""What an FNO must keep for its backward pass, by arithmetic alone: something to hold a measurement against."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

_FLOAT_BYTES, _COMPLEX_BYTES = 4, 8


def saved_bytes_closed_form(
    *,
    batch_size: int,
    data_size: Sequence[int],
    n_modes: Sequence[int],
    in_channels: int,
    out_channels: int,
    hidden_channels: int,
    n_layers: int = 4,
    channel_mlp_expansion: float = 0.5,
    lifting_channel_ratio: float = 2,
    projection_channel_ratio: float = 2,
    positional_embedding: Literal["grid"] | None = "grid",
    loss: Literal["mse", "relative_l2", "none"] = "mse",
) -> int:
    """Bytes that autograd saves in one forward pass of an FNO, parameters not counted.

    It holds for the other defaults of `models.fno.FNO`: linear and soft-gating skips, gelu behind the convolution, no
    norm, dropout, padding or stabilizer, single precision. The modes enter only through the kept spectra: activations
    grow with the grid, parameters with the modes.

    Args:
        batch_size: Samples B.
        data_size: Grid points of each axis; N is their product.
        n_modes: Fourier modes of each axis, none more than its grid points; K is the product of the kept ones.
        in_channels: Channels of the data, without coordinates.
        out_channels: Channels of the output.
        hidden_channels: Channels C between lifting and projection.
        n_layers: Number of blocks L.
        channel_mlp_expansion: Width inside a block's MLP, as a multiple e of C.
        lifting_channel_ratio: Width inside the lifting, as a multiple of C.
        projection_channel_ratio: Width inside the projection, as a multiple of C.
        positional_embedding: Whether coordinates are appended to the data.
        loss: The loss that the forward ends with: "mse" saves output and target, "relative_l2" their difference, and
            the norms of both for each sample and channel.

    Returns:
        With A = 4BCN, H = 4B round(eC) N and T = 8BCK bytes: lifting, (L - 1) (4A + 2H + T) + (2A + 2H + T) for the
        blocks, of which the last has no activation outside its MLP, projection and loss.

    Raises:
        ValueError: An axis has more modes than grid points (a part of the weight would then be saved as well).

    Source:
        Derived from the layers; equal to the byte to what `torch.autograd.graph.saved_tensors_hooks` counts.
    """
    if len(n_modes) != len(data_size) or any(m > n for m, n in zip(n_modes, data_size, strict=False)):
        raise ValueError(f"The modes {list(n_modes)} do not fit the grid {list(data_size)}.")
    per_channel = _FLOAT_BYTES * batch_size * math.prod(data_size)  # one channel on the grid
    num_coordinates = len(data_size) if positional_embedding == "grid" else 0
    lifting = per_channel * (in_channels + num_coordinates + 2 * int(lifting_channel_ratio * hidden_channels))

    field = per_channel * hidden_channels
    mlp = 2 * per_channel * round(channel_mlp_expansion * hidden_channels)
    spectrum = _COMPLEX_BYTES * batch_size * hidden_channels * math.prod((*n_modes[:-1], n_modes[-1] // 2 + 1))
    blocks = (n_layers - 1) * (4 * field + mlp + spectrum) + (2 * field + mlp + spectrum)

    projection = field + 2 * per_channel * int(projection_channel_ratio * hidden_channels)
    output = per_channel * out_channels
    norms = 2 * _FLOAT_BYTES * batch_size * out_channels
    return lifting + blocks + projection + {"mse": 2 * output, "relative_l2": output + norms, "none": 0}[loss]
