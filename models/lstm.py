"""An LSTM that forecasts a series, the example of a recurrent model to profile.

Shape letters: B batch, T time steps, C channels of the series, W width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tracer.workloads.module_steps import SupervisedWorkload


class Forecaster(nn.Module):
    """A series [B, T, C] to the forecast of each next value [B, T, C]."""

    def __init__(self, *, channels: int = 4, width: int = 32, n_layers: int = 2) -> None:
        super().__init__()
        self.lstm = nn.LSTM(channels, width, num_layers=n_layers, batch_first=True)
        self.head = nn.Linear(width, channels)

    def forward(self, series: Tensor) -> Tensor:
        """The forecast of each next value."""
        states, _ = self.lstm(series)
        forecast: Tensor = self.head(states)
        return forecast


def build(
    *,
    batch_size: int = 8,
    channels: int = 4,
    length: int = 32,
    width: int = 32,
    n_layers: int = 2,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> SupervisedWorkload:
    """Build the training of a forecaster with Adam on random walks.

    Args:
        batch_size: Series B of a batch.
        channels: Channels C of a series.
        length: Time steps T of a series.
        width: Channels W inside the model.
        n_layers: LSTM layers.
        device: Where to train.
        seed: Seed of weights and series.
    """
    device = torch.device(device)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = Forecaster(channels=channels, width=width, n_layers=n_layers)
    model.to(device)
    generator = torch.Generator().manual_seed(seed)

    def next_batch() -> tuple[Tensor, ...]:
        walk = torch.randn(batch_size, length + 1, channels, generator=generator).cumsum(dim=1)
        return tuple(part.contiguous().to(device, non_blocking=True) for part in (walk[:, :-1], walk[:, 1:]))

    return SupervisedWorkload(
        model=model,
        optimizer=torch.optim.Adam(model.parameters()),
        next_batch=next_batch,
        loss=F.mse_loss,
        device=device,
    )
