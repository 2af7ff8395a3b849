"""What a run's peak holds that nobody needs, with the variables that hold it, while these are still there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tracer.analysis.profiles.findings import Findings
from tracer.analysis.profiles.waste import LEAST_SHARE, Waste, WasteKind, find_waste, put_together, users_lines
from tracer.capture import torch_private
from tracer.capture.objects.holders import NOT_PYTHON, find_holders
from tracer.capture.objects.live_tensors import live_tensors
from tracer.capture.objects.plain_tensors import plain_tensors
from tracer.capture.sources.operator_lines import source_text
from tracer.capture.sources.source_line import SourceLine
from tracer.capture.sources.storing_lines import in_graph, is_bare_variable, lines_that_store, names_on_the_way

_NUM_SEARCHED = 6
"""Findings, by one block each: the way to it takes a look through all of Python's objects for each of its steps."""
_LEAST_BYTES = 1 << 16
"""Less is not worth that look, nor a sentence, however small the peak is."""
_ROUNDED_BYTES = 1 << 20
"""By so much a device's block may be larger than the tensor in it."""
_HELD = (WasteKind.WEIGHTS, WasteKind.GRAPH, WasteKind.RETAINED, WasteKind.TENSORS)
_LINES_OF_A_CALL = 3
_COPIES = re.compile(r"copy|clone|state_dict")


def find_held_waste(findings: Findings, *, error: BaseException | None = None) -> tuple[Waste, ...]:
    """What the largest peak holds that nobody needs, the largest first.

    To be asked while the program's objects are as they were at the end of the last recorded cycle: an address at which
    something else lies by now says nothing. Nothing is kept alive by it.

    Args:
        findings: Of all cycles.
        error: On its way through the program: the functions that it has left count as running.
    """
    least = max(LEAST_SHARE * findings.worst.peak.peak_bytes, _LEAST_BYTES)
    wastes = find_waste(findings)
    due = [one for one in wastes if one.kind in _HELD and one.addresses and one.bytes * _NUM_SEARCHED >= least]
    search = _Search(findings, due[:_NUM_SEARCHED], error) if due else None
    named = wastes if search is None else tuple(map(search.named, wastes))
    kept = put_together(filter(_is_certain, named))
    on_cpu = findings.device == "cpu"
    return tuple(one for one in kept if one.bytes >= least and not (on_cpu and _is_data(one)))


def _is_certain(one: Waste) -> bool:
    """Results that a loop's variable holds are no habit: it is set anew by itself.

    What stays behind a backward pass may be torch's own, as its profiler keeps what torch.func wraps.
    """
    if one.path:
        return True
    return one.kind != WasteKind.TENSORS and (one.kind != WasteKind.RETAINED or _retains(one.line))


def _retains(line: SourceLine | None) -> bool:
    """Whether a call of backward says that it leaves its graph."""
    if line is None:
        return False
    lines = source_text(line.file).splitlines()[line.line - 1 : line.line + _LINES_OF_A_CALL]
    return any("retain_graph" in text or "create_graph" in text for text in lines)


def _is_data(one: Waste) -> bool:
    """Whether it is all from before the recording, and no graph: as a data set is, for which the host is the place."""
    return one.kind == WasteKind.TENSORS and one.line is None


class _Search:
    """Who holds one block of each of some findings."""

    def __init__(self, findings: Findings, wastes: Sequence[Waste], error: BaseException | None) -> None:
        self._lines = users_lines(findings)
        self._files = sorted({line.file for line in self._lines})
        device = torch.device(findings.device)
        there = _sizes_at(device)
        slack = 0 if device.type == "cpu" else _ROUNDED_BYTES
        self._chosen: dict[int, int] = {}
        for one in wastes:
            pairs = zip(one.addresses, one.sizes_bytes, strict=True)
            found = (at for at, size in pairs if at in there and 0 <= size - there[at] <= slack)
            if (address := next(found, None)) is not None:
                self._chosen[id(one)] = address
        addresses = set(self._chosen.values())
        holders = find_holders(addresses, device=device, error=error) if addresses else ()
        self._holders = {address: holder for holder in holders for address in holder.addresses}

    def named(self, one: Waste) -> Waste:
        """The same with the way to it; what is held otherwise than it seemed is another kind."""
        holder = self._holders.get(self._chosen.get(id(one), 0))
        if holder is None or holder.path.startswith(NOT_PYTHON):
            return one
        if one.kind == WasteKind.WEIGHTS:
            return self._copy(one, holder.path, holder.variable)
        path, has_graph = in_graph(holder.path)
        if not has_graph and is_bare_variable(path):
            return replace(one, kind=WasteKind.TENSORS)  # of which this is no reason to be told
        kind = one.kind
        if has_graph and kind == WasteKind.TENSORS:
            kind = WasteKind.GRAPH
        elif not has_graph:
            kind = WasteKind.TENSORS
        names = names_on_the_way(path)
        held_at = self._stored_at(names[-1]) if names else None
        return replace(one, kind=kind, path=path, variable=holder.variable, held_at=held_at)

    def _copy(self, one: Waste, path: str, variable: str) -> Waste:
        """One tensor was looked for: what holds all of the copy is what something was copied to."""
        for name in names_on_the_way(path):
            found = [line for file in self._files for line in lines_that_store(name, file, _COPIES)]
            if found:
                way = path[: path.index(name) + len(name)]
                return replace(one, path=way, variable=variable, held_at=found[-1])
        return replace(one, path=path, variable=variable)

    def _stored_at(self, name: str) -> SourceLine | None:
        """The line that stores something under a name: the last that was seen at work, or else the only one."""
        found = [line for file in self._files for line in lines_that_store(name, file)]
        seen = [line for line in found if line in self._lines]
        return next(reversed(seen), found[0] if len(found) == 1 else None)


def _sizes_at(device: torch.device) -> dict[int, int]:
    """Bytes of each storage that is there now, by address."""
    found: dict[int, int] = {}
    with torch_private.as_plain_tensors():
        for _, _, tensor in live_tensors().tensors:
            for storage in _storages(tensor):
                try:
                    if storage.device == device:
                        found[storage.data_ptr()] = storage.nbytes()
                except (RuntimeError, NotImplementedError):  # one without memory
                    continue
    return found


def _storages(tensor: Tensor | torch.UntypedStorage) -> Iterator[torch.UntypedStorage]:
    if isinstance(tensor, torch.UntypedStorage):
        yield tensor
        return
    try:
        parts: Iterable[torch.UntypedStorage] = [part.untyped_storage() for part in plain_tensors(tensor)]
    except Exception:  # tensors of other people's making raise what they like
        return
    yield from parts
