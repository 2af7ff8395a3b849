"""How much of the device a run takes, where that is so little that nothing has to become less."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracer.analysis.kinds import Kind
from tracer.analysis.snapshots.first_changes import is_small
from tracer.units import format_bytes

if TYPE_CHECKING:
    from tracer.analysis.profiles.peak import PeakReport

_OF_ANY_BATCH = (Kind.PARAMETER, Kind.BUFFER, Kind.OPTIMIZER_STATE)


def room_sentences(peak: PeakReport, device_bytes: int | None) -> tuple[str, ...]:
    """Return how little of the device is taken, and what of the peak a larger batch leaves as it is.

    Args:
        device_bytes: Memory of the device; None if not known.
    """
    taken = max(peak.peak_bytes, peak.allocator.reserved_bytes if peak.allocator is not None else peak.reserved_bytes)
    if device_bytes is None or not peak.rows or not is_small(taken, device_bytes):
        return ()
    fixed = {kind.name for kind in _OF_ANY_BATCH}
    fixed_bytes = sum(row.bytes for row in peak.rows if row.category in fixed)
    stays = (
        f" Parameters, buffers and optimizer state, {format_bytes(fixed_bytes)} of the peak, stay the same with a "
        "larger batch. To see how the rest grows, run it with another batch and compare the two by `diff`."
        if fixed_bytes
        else ""
    )
    share = 100 * taken / device_bytes
    return (f"The run takes {share:.{1 if share < 10 else 0}f} % of the GPU's {format_bytes(device_bytes)}.{stays}",)
