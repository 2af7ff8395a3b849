"""Memory at a run's peak that is not needed, with the variables that hold it, while these still exist."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from tracer.analysis.profiles.findings import Findings
from tracer.analysis.profiles.idle_blocks import last_peak
from tracer.analysis.profiles.waste import (
    GRAPH_OF,
    LEAST_SHARE,
    Waste,
    WasteKind,
    find_waste,
    merge_waste,
    users_lines,
)
from tracer.capture.objects.holders import Holder, find_common_holder, find_holders
from tracer.capture.objects.live_tensors import live_tensors
from tracer.capture.objects.storage_columns import storages_with_memory
from tracer.capture.sources.source_line import SourceLine
from tracer.capture.sources.storing_lines import (
    has_keyword,
    in_graph,
    is_bare_variable,
    is_updated,
    lines_that_store,
    names_on_the_way,
)
from tracer.capture.torch_private import torch_tensors

_NUM_SEARCHED = 6
"""Findings."""
_NUM_ADDRESSES = 64
"""Of each, the oldest first: the newest ones a loop's variable may hold as well."""
_LEAST_BYTES = 1 << 16
"""Less is not worth that look, nor a sentence, however small the peak is."""
_MOST_MORE = 4
"""Factor: a container that frees more than so many times its bytes holds something else that the program uses."""
_ROUNDED_BYTES = 1 << 20
"""By so much a device's block may be larger than the tensor in it."""
_HELD = (WasteKind.WEIGHTS, WasteKind.GRAPH, WasteKind.RETAINED, WasteKind.TENSORS)
_COPIES = re.compile(r"copy|clone|state_dict")


def find_held_waste(findings: Findings, *, error: BaseException | None = None) -> tuple[Waste, ...]:
    """Find unneeded memory of the largest peak, the largest first.

    To be asked while the program's objects are as they were at the end of the last recorded cycle: an address at which
    something else lies by now says nothing. Nothing is kept alive by it.

    Args:
        error: On its way through the program: the functions that it has left count as running.
    """
    least = max(LEAST_SHARE * findings.worst.peak.peak_bytes, _LEAST_BYTES)
    wastes = find_waste(findings)
    due = [
        waste for waste in wastes if waste.kind in _HELD and waste.addresses and waste.bytes * _NUM_SEARCHED >= least
    ]
    search = _UnneededSearch(findings, due[:_NUM_SEARCHED], error) if due else None
    named = wastes if search is None else [part for waste in wastes for part in search.named(waste)]
    certain = merge_waste(filter(_is_certain, named))
    if search is not None:
        certain = tuple(map(search.counted, certain))
    on_cpu = findings.device == "cpu"
    return tuple(waste for waste in certain if waste.bytes >= least and not (on_cpu and _is_data(waste)))


def _is_certain(waste: Waste) -> bool:
    """Results count where it is known what holds them.

    What stays behind a backward pass may be torch's own, as its profiler keeps what torch.func wraps.
    """
    if waste.kind == WasteKind.RETAINED:
        return _retains(waste.line)
    return bool(waste.path) or waste.kind not in (WasteKind.TENSORS, WasteKind.WEIGHTS)


def _retains(line: SourceLine | None) -> bool:
    """Whether a call of backward says that it leaves its graph."""
    if line is None:
        return False
    return has_keyword(line, ("retain_graph", "create_graph"))


def _is_data(waste: Waste) -> bool:
    """Whether it is all from before the recording, and no graph: as a data set is, for which the host is the place."""
    return waste.kind == WasteKind.TENSORS and waste.line is None


class _UnneededSearch:
    def __init__(self, findings: Findings, wastes: Sequence[Waste], error: BaseException | None) -> None:
        self._lines = users_lines(findings)
        self._files = sorted({line.file for line in self._lines})
        device = torch.device(findings.device)
        size_at = _sizes_at(device)
        slack = 0 if device.type == "cpu" else _ROUNDED_BYTES
        self._device, self._error = device, error
        self._at_peak = _staying_at_peak(findings)
        self._chosen: dict[int, dict[int, int]] = {}
        for waste in wastes:
            pairs = zip(waste.addresses, waste.sizes_bytes, strict=True)
            matches = [(at, size) for at, size in pairs if at in size_at and 0 <= size - size_at[at] <= slack]
            self._chosen[id(waste)] = dict(matches[:_NUM_ADDRESSES])
        addresses = {address for chosen in self._chosen.values() for address in chosen}
        holders = find_holders(addresses, device=device, error=error)
        self._holders = {
            address: holder
            for holder in holders
            if holder.is_certain and not holder.also
            for address in holder.addresses
        }
        self._of_path = {(in_graph(holder.path)[0], holder.variable): holder for holder in self._holders.values()}

    def named(self, waste: Waste) -> Iterator[Waste]:
        """The same with the way to it, in as many parts as there are holders; it may be another kind than it seemed."""
        chosen = self._chosen.get(id(waste), {})
        if waste.kind == WasteKind.WEIGHTS:
            copy = self._copy(waste, chosen)
            if copy is not None:
                yield copy
                return
        addresses_of: dict[Holder, list[int]] = {}
        for address in chosen:
            if (holder := self._holders.get(address)) is not None:
                addresses_of.setdefault(holder, []).append(address)
        if not addresses_of:
            yield waste
            return
        # Made at one line, and held in one way but for what comes and goes; without a line, whatever lay there before.
        if waste.kind != WasteKind.WEIGHTS and (waste.line is not None or len(addresses_of) == 1):
            yield self._held(
                waste, max(addresses_of, key=lambda holder: sum(chosen[address] for address in addresses_of[holder]))
            )
            return
        for holder, addresses in addresses_of.items():
            sizes = tuple(chosen[address] for address in addresses)
            yield self._held(
                replace(
                    waste,
                    kind=WasteKind.TENSORS if waste.kind == WasteKind.WEIGHTS else waste.kind,
                    bytes=sum(sizes),
                    count=len(sizes),
                    addresses=tuple(addresses),
                    sizes_bytes=sizes,
                ),
                holder,
            )

    def _held(self, waste: Waste, holder: Holder) -> Waste:
        path, has_graph = in_graph(holder.path)
        is_variable = is_bare_variable(path.partition(GRAPH_OF)[0])
        if not has_graph and is_variable:
            if waste.is_batch or waste.line is None:
                return replace(waste, kind=WasteKind.TENSORS)  # of which this is no reason to be told
            return self._at(replace(waste, kind=WasteKind.VARIABLE), path, holder)
        kind = waste.kind
        if kind == WasteKind.RETAINED and not _retains(waste.line) and not is_variable:
            kind = WasteKind.GRAPH  # something else than that call keeps it
        if has_graph and kind in (WasteKind.TENSORS, WasteKind.WEIGHTS):
            kind = WasteKind.GRAPH
        elif not has_graph:
            kind = WasteKind.TENSORS
        return self._at(replace(waste, kind=kind), path, holder)

    def _at(self, waste: Waste, path: str, holder: Holder) -> Waste:
        names = names_on_the_way(path)
        held_at = self._stored_at(names[-1]) if names else None
        return replace(waste, path=path, variable=holder.variable, held_at=held_at)

    def _copy(self, waste: Waste, addresses: Collection[int]) -> Waste | None:
        """A copy is what one variable holds all of, some line copies, and none changes as it does a moving average."""
        holder = find_common_holder(addresses, device=self._device, error=self._error)
        names = names_on_the_way(holder.path) if holder is not None and GRAPH_OF not in holder.path else []
        if holder is None or any(is_updated(name, file) for name in names for file in self._files):
            return None
        for name in names:
            lines = [line for file in self._files for line in lines_that_store(name, file, _COPIES)]
            if lines:
                way = holder.path[: holder.path.index(name) + len(name)]
                return replace(waste, path=way, variable=holder.variable, held_at=lines[-1])
        return None

    def counted(self, waste: Waste) -> Waste:
        """With all that letting go frees, whatever line has made it, where most of that is known to be used no more."""
        holder = self._of_path.get((waste.path, waste.variable))
        if holder is None or self._at_peak is None:
            return waste
        freed = [size for address, size in holder.frees if self._at_peak.get(address, -1) >= size]
        if not waste.bytes <= sum(freed) <= _MOST_MORE * waste.bytes:
            return waste
        return replace(waste, bytes=sum(freed), count=len(freed))

    def _stored_at(self, name: str) -> SourceLine | None:
        """The line that stores something under a name: the last that was seen at work, or else the only one."""
        lines = [line for file in self._files for line in lines_that_store(name, file)]
        seen = [line for line in lines if line in self._lines]
        return next(reversed(seen), lines[0] if len(lines) == 1 else None)


def _staying_at_peak(findings: Findings) -> dict[int, int] | None:
    """Bytes by address of what was alive at the peak and still is, where that is in the last cycle."""
    if findings.worst is not findings.cycles[-1]:
        return None
    lifetimes = findings.worst.lifetimes
    rows = lifetimes.alive_at(last_peak(findings.worst))
    rows = rows[lifetimes.freed_at[rows] >= len(lifetimes.events)]
    return dict(zip(lifetimes.address[rows].tolist(), lifetimes.size_bytes[rows].tolist(), strict=True))


def _sizes_at(device: torch.device) -> dict[int, int]:
    sizes: dict[int, int] = {}
    with torch_tensors.as_plain_tensors():
        for _, _, tensor in live_tensors().tensors:
            with suppress(Exception):  # tensors of other people's making raise what they like
                storages = [storage for storage in storages_with_memory(tensor) if storage.device == device]
                sizes |= {storage.data_ptr(): storage.nbytes() for storage in storages}
    return sizes
