"""The kinds of a snapshot in the words that the reports of a profiled run use for categories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tracer.analysis.kinds import Kind
from tracer.analysis.snapshots.findings import DeviceFinding
from tracer.analysis.snapshots.groups import Group, kind_of_group

# In the order of a drawing's layers, lowest first.
_LAYERS: Final = (
    Kind.PARAMETER,
    Kind.BUFFER,
    Kind.OPTIMIZER_STATE,
    Kind.BEFORE_RECORDING,
    Kind.INPUT,
    Kind.TEMPORARY,
    Kind.ACTIVATION,
    Kind.EVALUATION,
    Kind.HELD,
    Kind.GRADIENT,
    Kind.AUTOGRAD_DETAIL,
    Kind.COMMUNICATION,
    Kind.WORKSPACE,
    Kind.UNKNOWN,
)
CATEGORY_OF_KIND: Final[Mapping[str, str]] = {kind.words: kind.name for kind in _LAYERS}


def category_of(group: Group, device: DeviceFinding) -> str:
    """The category of a group; what is not known and was there before a recording has one of its own.

    Args:
        group: Blocks of one kind and line.
        device: The device whose peak they are of.
    """
    return CATEGORY_OF_KIND[kind_of_group(group, has_history=device.entries > 0)]


def peak_by_category(device: DeviceFinding) -> tuple[tuple[str, int], ...]:
    """Bytes at the peak by category, largest first; they sum to it."""
    sums: dict[str, int] = {}
    for group in device.peak.groups:
        name = category_of(group, device)
        sums[name] = sums.get(name, 0) + group.bytes
    return tuple(sorted(sums.items(), key=lambda item: (-item[1], item[0])))
