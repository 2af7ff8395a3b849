"""The training of a Fourier Neural Operator: what `python main.py` profiles.

Shape letters: B batch, I channels in, O channels out, N grid points of an axis, d spatial axes. `N...` stands for one N
for each of the d axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import get_args

import torch
from torch import Tensor

from tracer.workloads.module_steps import SupervisedWorkload

from .fno import FNO
from .fno_layers import Spectrum

Batch = tuple[Tensor, ...]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FnoSettings:
    """An FNO and the data that it is trained on: new noise in every step.

    Raises:
        ValueError: They cannot work; one sentence says which and why. Nothing has been allocated.
    """

    batch_size: int = 8  # Samples B of a batch
    in_channels: int = 3  # Channels I of the data, without the coordinates that the model appends itself
    out_channels: int = 1  # Channels O of the output
    hidden_channels: int = 64  # Channels inside the model
    # Grid points of each axis. One number alone is a square, or fits the number of axes of `n_modes`.
    data_size: int | Sequence[int] = 64
    n_modes: int | Sequence[int] = 32  # Fourier modes of each axis, or one number for all axes
    n_layers: int = 4  # Blocks of the model
    spectrum: Spectrum = "new_zeros"  # How the model allocates its spectra; see `SpectralConv`
    seed: int = 0  # Of weights and data

    def __post_init__(self) -> None:
        sizes, modes = self.sizes_and_modes()
        for name, count, smallest in (
            ("batch size", self.batch_size, 1),
            ("number of input channels", self.in_channels, 1),
            ("number of output channels", self.out_channels, 1),
            ("number of hidden channels", self.hidden_channels, 2),  # the MLP inside a block is half as wide
            ("number of layers", self.n_layers, 1),
            *((f"data size of axis {axis}", n, 1) for axis, n in enumerate(sizes, start=1)),
            *((f"number of modes of axis {axis}", m, 1) for axis, m in enumerate(modes, start=1)),
        ):
            if count < smallest:
                raise ValueError(f"The {name} must be at least {smallest}, not {count}.")
        for axis, (n, m) in enumerate(zip(sizes, modes, strict=True), start=1):
            if m > n:
                raise ValueError(
                    f"The number of modes of axis {axis} is {m}, and a data size of {n} allows {n} at most."
                )
        if self.spectrum not in get_args(Spectrum):
            raise ValueError(f"The spectrum must be one of {', '.join(get_args(Spectrum))}, not {self.spectrum}.")
        if not 0 <= self.seed <= _LARGEST_SEED:
            raise ValueError(f"The seed must be from 0 to {_LARGEST_SEED}, not {self.seed}.")

    def sizes_and_modes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """One entry per axis of both; where both are single numbers there are two axes."""
        size, modes = self.data_size, self.n_modes
        lengths = [len(given) for given in (size, modes) if not isinstance(given, int)] or [2]
        if len(set(lengths)) > 1:
            raise ValueError(f"The data size has {lengths[0]} axes and the number of modes has {lengths[1]}.")
        if not 1 <= lengths[0] <= 3:
            raise ValueError(f"An FNO has 1, 2 or 3 spatial axes, not {lengths[0]}.")
        return (
            (size,) * lengths[0] if isinstance(size, int) else tuple(size),
            (modes,) * lengths[0] if isinstance(modes, int) else tuple(modes),
        )


def build_fno_workload(settings: FnoSettings = FnoSettings(), *, device: torch.device | str) -> SupervisedWorkload:
    """Build the training of an FNO with AdamW, as it comes, and a relative L2 loss.

    Weights and data follow from the seed alone and are the same on every device; the global random state is left as it
    was.
    """
    device, (sizes, modes) = torch.device(device), settings.sizes_and_modes()
    model = _model(settings, modes).to(device)
    host_batch = _batches(settings, sizes)
    return SupervisedWorkload(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        next_batch=lambda: tuple(tensor.to(device, non_blocking=True) for tensor in host_batch()),
        loss=relative_l2_loss,
        device=device,
    )


def _model(settings: FnoSettings, modes: tuple[int, ...]) -> FNO:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(settings.seed)  # torch.manual_seed would reach the accelerators' states too
        return FNO(
            modes,
            in_channels=settings.in_channels,
            out_channels=settings.out_channels,
            hidden_channels=settings.hidden_channels,
            n_layers=settings.n_layers,
            spectrum=settings.spectrum,
        )


def _batches(settings: FnoSettings, sizes: tuple[int, ...]) -> Callable[[], Batch]:
    """Batches on the host, of new noise at every call."""
    input_shape, target_shape = (
        (settings.batch_size, num, *sizes) for num in (settings.in_channels, settings.out_channels)
    )
    generator = torch.Generator().manual_seed(settings.seed)
    drawn = partial(torch.randn, generator=generator, device=generator.device)  # whatever the default device is
    return lambda: (drawn(input_shape), drawn(target_shape))
