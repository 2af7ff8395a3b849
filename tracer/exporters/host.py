"""Host memory of a run: a row of the answer, a sentence for a job's ranks, and host.json.

docs/files.md describes the keys of host.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from tracer.exporters.json_documents.header import json_header
from tracer.units import GIB, format_bytes

if TYPE_CHECKING:  # both load torch
    from tracer.capture.checkpoint_loads import LoadedFile
    from tracer.capture.device.host_peak import HostPeak

VERSION: Final = 1
_MOST_NAMED: Final = 3
_LEAST_LOADED_BYTES: Final = GIB


def host_row(peak: HostPeak) -> str:
    """Return the peak and its parts in a line."""
    parts = [f"this process {format_bytes(peak.own_bytes)}"]
    parts += [f"{part.num_processes} x {part.name} {format_bytes(part.bytes)}" for part in peak.others[:_MOST_NAMED]]
    if rest := peak.others[_MOST_NAMED:]:
        number = sum(part.num_processes for part in rest)
        parts.append(f"{number} more {format_bytes(sum(part.bytes for part in rest))}")
    if peak.unwritten_bytes:
        parts.append(f"pinned and not written here {format_bytes(peak.unwritten_bytes)}")
    pinned = f" Pinned for GPUs at most: {format_bytes(peak.pinned_bytes)}." if peak.pinned_bytes else ""
    return f"Host memory at its most: {format_bytes(peak.bytes)}: {', '.join(parts)}.{pinned}"


def host_json(peak: HostPeak, *, computed: bool) -> dict[str, Any]:
    """Return the document of a run's host memory."""
    return {**json_header("host", VERSION, computed=computed), "bytes": peak.bytes, **asdict(peak)}


def host_sentences(
    peaks: Mapping[int, HostPeak], loads: Mapping[int, Sequence[LoadedFile]], num_on_node: int
) -> tuple[str, ...]:
    """Return what the ranks of a node hold of its host together, and the file that all of them load.

    Args:
        peaks: By rank, of those that are known.
        loads: The files that each has loaded whole, by rank.
        num_on_node: How many ranks a node has; those that are not known are taken for as large as the largest.
    """
    if num_on_node < 2 or not peaks:
        return ()
    rank = max(peaks, key=lambda number: peaks[number].bytes)
    most_bytes = peaks[rank].bytes
    held = (
        f"Host memory: rank {rank:,} holds up to {format_bytes(most_bytes)} with what it has started; {num_on_node:,} "
        f"such ranks of a node hold {format_bytes(num_on_node * most_bytes)}."
    )
    return held, *_load_of_all(loads, num_on_node)


def _load_of_all(loads: Mapping[int, Sequence[LoadedFile]], num_on_node: int) -> tuple[str, ...]:
    """Return a sentence on the largest file that every rank has loaded; none where together they take little."""
    if not loads:
        return ()
    common = set.intersection(*map(set, loads.values()))
    largest = max(common, key=lambda file: (file.bytes, file.path), default=None)
    if largest is None or num_on_node * largest.bytes < _LEAST_LOADED_BYTES:
        return ()
    together = format_bytes(num_on_node * largest.bytes)
    return (
        f"Each of the {num_on_node:,} ranks of a node loads {PurePath(largest.path).name} "
        f"({format_bytes(largest.bytes)}) into host memory, {together} if all do at once: torch.load(..., mmap=True) "
        "has it there once.",
    )
