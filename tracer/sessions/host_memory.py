"""Host memory of a run: of its process and of all that it has started, as a card's machine would hold it."""

from __future__ import annotations

from dataclasses import replace

from tracer.capture.device.host_follower import followed_peak
from tracer.capture.device.host_peak import HostPeak
from tracer.null_gpu import process


def host_peak() -> HostPeak | None:
    """Return the most that was held at once so far; None where it is not followed.

    On the null GPU pinned memory that nothing has written, such as copies of numbers that are made up, is added.
    """
    peak = followed_peak()
    if peak is None or not process.is_active():
        return peak
    return replace(peak, unwritten_bytes=process.unwritten_pinned_bytes())
