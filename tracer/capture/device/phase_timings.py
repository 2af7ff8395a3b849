"""How long forward, backward and optimizer step took, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, pstdev

PHASES = ("model_fwd", "loss_bk", "total_time", "opt_step")
"""Names and order as the file format has them. total_time is all three phases and what lies between them."""


@dataclass(frozen=True, slots=True)
class PhaseTimings:
    """Durations of the phases over several steps."""

    device: str  # Name as `str(torch.device)` writes it
    clock: str  # The device's type in capitals, such as `CUDA`, for its events; `CPU` for the host's clock
    durations_ms: dict[str, tuple[float, ...]]  # Per phase of `PHASES`, one duration per measured step

    def mean_ms(self, phase: str) -> float:
        """Mean over the steps."""
        return fmean(self.durations_ms[phase])

    def std_ms(self, phase: str) -> float:
        """Population standard deviation over the steps, as `numpy.std` computes it."""
        return pstdev(self.durations_ms[phase])
