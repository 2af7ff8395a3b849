"""Find the step of a script with the allocator's highest peak, which may be none of those that were recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tracer.capture.device.device_blocks import ASLEEP
from tracer.capture.device.devices import peak_allocated_bytes
from tracer.units import format_bytes

if TYPE_CHECKING:
    from tracer.answers.run_results import RunResults

_MORE = 1.002


class HighestStep:
    """The step in which the allocator's peak last rose, from 1, and whether it was recorded.

    Attributes:
        before_bytes: The peak before the first step.
        peak_bytes: The peak until the last step that was looked at.
    """

    def __init__(self, device: torch.device) -> None:
        self.before_bytes = self.peak_bytes = peak_allocated_bytes(device) or 0
        self.step, self.is_recorded = 0, False

    def look(self, device: torch.device, step: int, *, is_recorded: bool) -> None:
        """Note the step that ends if it brought the allocator's peak to where it is."""
        peak_bytes = peak_allocated_bytes(device) or 0
        if peak_bytes != self.peak_bytes:
            self.peak_bytes, self.step, self.is_recorded = peak_bytes, step, is_recorded

    def of_another_time(self, results: RunResults | None, device: torch.device) -> str:
        """A sentence if the script used more memory than in any recorded step; else empty.

        Where an engine slept nothing is said: torch's counter has what was unmapped then, and the peak does not.
        """
        if results is None or results.failed_allocation is not None or results.findings is None or ASLEEP.pieces:
            return ""
        peak = results.findings.worst.peak
        if peak.device != str(device):
            return ""
        return self.sentence(peak.allocator_peak_bytes, peak_allocated_bytes(device) or 0)

    def sentence(self, recorded_bytes: int, at_end_bytes: int) -> str:
        """A sentence on a time of a script at which more was allocated than at the peak that is explained.

        Args:
            recorded_bytes: The peak of the recorded steps.
            at_end_bytes: The peak until the script's end.

        Returns:
            "" where it was less, or no more than figures show.
        """
        most_bytes = max(self.before_bytes, self.peak_bytes, at_end_bytes)
        if most_bytes <= _MORE * recorded_bytes or format_bytes(most_bytes) == format_bytes(recorded_bytes):
            return ""
        begins = f"The script used more than the peak below: {format_bytes(most_bytes)}"
        if at_end_bytes > self.peak_bytes:
            return f"{begins}, after the recorded steps. Use --n-wait-steps to record later ones."
        if self.peak_bytes <= self.before_bytes:
            return f"{begins}, before its first step."
        if self.is_recorded:
            return f"{begins}, in step {self.step}, of which the recording has less."
        advice = f"Use --n-wait-steps {self.step - 1} --n-warmup-steps 0 to record it."
        return f"{begins}, in step {self.step}, which was not recorded. {advice}"
