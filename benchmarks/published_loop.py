"""One iteration of a measured program, which every collection of them builds on."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Loop:
    """A program's training loop: calling it runs one iteration.

    Attributes:
        model: What is trained.
        optimizer: What updates it, if anything does.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer | None = None

    def __call__(self) -> Tensor | None:
        """One iteration; the loss."""
        raise NotImplementedError
