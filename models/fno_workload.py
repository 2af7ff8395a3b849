"""The training of a Fourier Neural Operator: what `python main.py` profiles.

Shape letters: B batch, I channels in, O channels out, N grid points of an axis, d spatial axes. `N...` stands for one N
for each of the d axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from typing import Literal, get_args

import torch
from torch import Tensor

from tracer.workloads.supervised import Batch, SupervisedWorkload

from .darcy import darcy_samples
from .fno import FNO
from .fno_layers import Spectrum

Data = Literal["random", "darcy"]

NUM_DARCY_BATCHES = 8
_LARGEST_SEED = 2**63 - 1


def relative_l2_loss(output: Tensor, target: Tensor) -> Tensor:
    """Norm of the error over norm of the target, of each sample and channel, summed; [B, O, N...] to a scalar.

    Source:
        `LpLoss(d=2, p=2)` of `neuraloperator` 2.0.0 for two axes, and its like for others.
    """
    error = torch.linalg.vector_norm((output - target).flatten(2), dim=-1)
    scale = torch.linalg.vector_norm(target.flatten(2), dim=-1)
    loss: Tensor = (error / (scale + 1e-8)).sum()
    return loss


def build_fno_workload(
    *,
    batch_size: int = 8,
    in_channels: int = 3,
    out_channels: int = 1,
    hidden_channels: int = 64,
    data_size: int | Sequence[int] = 64,
    n_modes: int | Sequence[int] = 32,
    n_layers: int = 4,
    device: torch.device | str,
    data: Data = "random",
    spectrum: Spectrum = "new_zeros",
    seed: int = 0,
) -> SupervisedWorkload:
    """Build the training of an FNO with AdamW, as it comes, and a relative L2 loss.

    Weights and data follow from the seed alone and are the same on every device; the global random state is left as it
    was.

    Args:
        batch_size: Samples B of a batch.
        in_channels: Channels I of the data, without the coordinates that the model appends itself.
        out_channels: Channels O of the output.
        hidden_channels: Channels inside the model.
        data_size: Grid points of each axis. One number alone is a square, or fits the number of axes of `n_modes`.
        n_modes: Fourier modes of each axis, or one number for all axes.
        n_layers: Blocks of the model.
        device: Where to train.
        data: "random" is new noise in every step; "darcy" is a small set of solved flow problems in two dimensions,
            8 batches in turn, on which the model does learn.
        spectrum: How the model allocates its spectra; see `SpectralConv`.
        seed: Seed of weights and data.

    Raises:
        ValueError: The settings cannot work; nothing has been allocated.
    """
    sizes, modes = _sizes_and_modes(data_size, n_modes)
    check_fno_settings(
        batch_size=batch_size,
        in_channels=in_channels,
        out_channels=out_channels,
        hidden_channels=hidden_channels,
        data_size=data_size,
        n_modes=n_modes,
        n_layers=n_layers,
        data=data,
        spectrum=spectrum,
        seed=seed,
    )
    device = torch.device(device)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach the accelerators' states as well
        model = FNO(
            modes,
            in_channels=in_channels,
            out_channels=out_channels,
            hidden_channels=hidden_channels,
            n_layers=n_layers,
            spectrum=spectrum,
        ).to(device)
    if data == "darcy":
        host_batch = _darcy_batches(batch_size, size=sizes[0], seed=seed)
    else:
        host_batch = _random_batches((batch_size, in_channels, *sizes), (batch_size, out_channels, *sizes), seed=seed)
    return SupervisedWorkload(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        next_batch=lambda: tuple(tensor.to(device, non_blocking=True) for tensor in host_batch()),
        loss=relative_l2_loss,
        device=device,
        description={
            "model": "FNO",
            "optimizer": "AdamW",
            "data": data,
            "batch size": batch_size,
            "input channels": in_channels,
            "output channels": out_channels,
            "hidden channels": hidden_channels,
            "data size": " x ".join(map(str, sizes)),
            "modes": " x ".join(map(str, modes)),
            "layers": n_layers,
            "spectrum": spectrum,
            "seed": seed,
        },
    )


def check_fno_settings(
    *,
    batch_size: int = 8,
    in_channels: int = 3,
    out_channels: int = 1,
    hidden_channels: int = 64,
    data_size: int | Sequence[int] = 64,
    n_modes: int | Sequence[int] = 32,
    n_layers: int = 4,
    data: Data = "random",
    spectrum: Spectrum = "new_zeros",
    seed: int = 0,
) -> None:
    """Find out, without allocating anything, whether an FNO can be built and trained with these settings.

    Args and defaults are those of `build_fno_workload`.

    Raises:
        ValueError: They cannot work; one sentence says which and why.
    """
    sizes, modes = _sizes_and_modes(data_size, n_modes)
    for name, count, smallest in (
        ("batch size", batch_size, 1),
        ("number of input channels", in_channels, 1),
        ("number of output channels", out_channels, 1),
        ("number of hidden channels", hidden_channels, 2),  # the MLP inside a block is half as wide
        ("number of layers", n_layers, 1),
        *((f"data size of axis {axis}", n, 1) for axis, n in enumerate(sizes, start=1)),
        *((f"number of modes of axis {axis}", m, 1) for axis, m in enumerate(modes, start=1)),
    ):
        if count < smallest:
            raise ValueError(f"The {name} must be at least {smallest}, not {count}.")
    for axis, (n, m) in enumerate(zip(sizes, modes, strict=True), start=1):
        if m > n:
            raise ValueError(f"The number of modes of axis {axis} is {m}, and a data size of {n} allows {n} at most.")
    if data not in get_args(Data):
        raise ValueError(f"The data must be one of {', '.join(get_args(Data))}, not {data}.")
    if spectrum not in get_args(Spectrum):
        raise ValueError(f"The spectrum must be one of {', '.join(get_args(Spectrum))}, not {spectrum}.")
    if not 0 <= seed <= _LARGEST_SEED:
        raise ValueError(f"The seed must be from 0 to {_LARGEST_SEED}, not {seed}.")
    if data == "darcy":
        _check_darcy(in_channels, out_channels, sizes)


def _check_darcy(in_channels: int, out_channels: int, sizes: Sequence[int]) -> None:
    if len(sizes) != 2 or sizes[0] != sizes[1] or sizes[0] < 2:
        raise ValueError(
            f"Darcy data need a square of at least 2 x 2, not a data size of {' x '.join(map(str, sizes))}."
        )
    if (in_channels, out_channels) != (3, 1):
        raise ValueError(
            f"Darcy data have 3 input channels and 1 output channel, not {in_channels} and {out_channels}."
        )


def _sizes_and_modes(
    data_size: int | Sequence[int], n_modes: int | Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """One entry per axis of both; where both are single numbers there are two axes."""
    lengths = [len(given) for given in (data_size, n_modes) if not isinstance(given, int)] or [2]
    if len(set(lengths)) > 1:
        raise ValueError(f"The data size has {lengths[0]} axes and the number of modes has {lengths[1]}.")
    if not 1 <= lengths[0] <= 3:
        raise ValueError(f"An FNO has 1, 2 or 3 spatial axes, not {lengths[0]}.")
    sizes = (data_size,) * lengths[0] if isinstance(data_size, int) else tuple(data_size)
    modes = (n_modes,) * lengths[0] if isinstance(n_modes, int) else tuple(n_modes)
    return sizes, modes


def _random_batches(input_shape: Sequence[int], target_shape: Sequence[int], *, seed: int) -> Callable[[], Batch]:
    """New noise at every call."""
    generator = torch.Generator().manual_seed(seed)
    drawn = partial(torch.randn, generator=generator, device=generator.device)  # whatever the default device is
    return lambda: (drawn(input_shape), drawn(target_shape))


def _darcy_batches(batch_size: int, *, size: int, seed: int) -> Callable[[], Batch]:
    """The same batches in turn, each put together anew at every call, as a data loader does."""
    inputs, solutions = darcy_samples(NUM_DARCY_BATCHES * batch_size, size=size, seed=seed)
    starts = cycle(range(0, len(inputs), batch_size))

    def host_batch() -> Batch:
        chosen = slice(start := next(starts), start + batch_size)
        return inputs[chosen].clone(), solutions[chosen].clone()

    return host_batch
