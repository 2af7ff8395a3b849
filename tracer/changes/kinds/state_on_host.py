"""Optimizer state that waits in the host's pinned memory between steps."""

from __future__ import annotations

import torch
from torch import Tensor

from tracer.changes import host_copies
from tracer.changes.state_between_steps import StateBetweenSteps


class StateOnHost(StateBetweenSteps, makes="state-on-host"):
    """The state of optimizers is on the device during their steps alone, and else in the host's pinned memory."""

    note = "no optimizer has state on a GPU."

    def is_worthwhile(self, value: Tensor) -> bool:
        """Whether to move it."""
        return host_copies.is_worth_moving(value)

    def put_away(self, value: Tensor, place: Tensor | None) -> Tensor:
        """Copied to the host, to the same memory each time."""
        return (
            host_copies.copied_to_host(value)
            if place is None or place.dtype != value.dtype
            else host_copies.copied(place, value)
        )

    def brought_back(self, place: Tensor, device: torch.device) -> Tensor:
        """Copied to the device."""
        return host_copies.copied_to_device(place, device)
