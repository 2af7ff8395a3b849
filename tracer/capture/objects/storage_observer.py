"""Takes the observations of live tensors during a run.

An observation says that at this time this address held this tensor. It takes addresses and sizes only: no tensor is
kept alive, copied or touched, and no random state, gradient or counter changes.
"""

from __future__ import annotations

import time
import weakref
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, repeat
from operator import itemgetter
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor, nn

from tracer.arrays import Interned, Ints
from tracer.capture.device.device_blocks import ASLEEP, DeviceBlocks
from tracer.capture.device.host_memory import file_at, gaps, mapped_files
from tracer.capture.objects.known_storages import BATCH, KnownStorages, Role
from tracer.capture.objects.storage_columns import address_of, device_of, plain_storages, size_of, storages_with_memory
from tracer.capture.sources.source_line import SourceLine
from tracer.capture.torch_private import torch_graph, torch_tensors
from tracer.nested import leaves

Observed = tuple[Role, str, Tensor | torch.UntypedStorage]
_Part = tuple[Role, str, torch.UntypedStorage, torch.device]
_Row = tuple[int, int, int, int, int, int]
"""Time, address, bytes, role, and the numbers of name and device."""


_Found = dict[tuple[int, int], tuple[_Row, torch.UntypedStorage]]
"""By address and the number of the device."""
_LOWEST_ADDRESS = 1 << 16
"""Linux leaves the pages below out: what begins there is a view of all memory, as the null GPU has, and no block."""
_OWNED = (Role.PARAMETER, Role.BUFFER, Role.GRADIENT, Role.OPTIMIZER_STATE, Role.LEAF)


class _WatchedStorage(weakref.ref[torch.UntypedStorage]):
    """A weak reference that is a key of its own, whatever becomes of its storage."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__
    address: int
    device: int


class StorageObserver:
    """Collects observations during a run."""

    def __init__(self) -> None:
        # How many looks found a tensor without an address, by the name of its type
        self.unobserved: Counter[str] = Counter()
        self.threads: dict[str, None] = {}  # Names of other threads that called the model
        # By path of a mapped file the most bytes that tensors outside of models showed of it
        self.mapped_bytes: Counter[str] = Counter()
        # By device the most bytes that tensors showed outside of the memory that its allocator has reserved
        self.foreign_bytes: Counter[str] = Counter()
        self.sees_transforms = False  # Whether a transform of torch.func had wrapped one of the tensors
        # The lines that made what was observed, by name, as far as somebody knows them
        self.lines: dict[str, SourceLine] = {}
        self._rows: list[_Row] = []
        self._names = Interned()
        self._devices = Interned()
        self._walks_ns: list[int] = []
        self._idle: dict[int, tuple[tuple[int, int], ...]] = {}
        self._watched: dict[tuple[int, int], _WatchedStorage] = {}
        # When each ended, in order. It takes its own time, since a call back to Python would be an event of the
        # recording.
        self._ended_ns: defaultdict[_WatchedStorage, int] = defaultdict(time.time_ns)

    def observe(
        self,
        tensors: Iterable[Observed],
        *,
        is_walk: bool = False,
        blocks: Mapping[str, DeviceBlocks] = MappingProxyType({}),
    ) -> None:
        """Note where tensors lie now. A storage that comes twice has the role and name of the first time.

        A storage in memory of a private pool that is not in use holds nothing, and is not noted. Neither is one outside
        of the allocator's segments, as a view of pinned host memory is: the allocator does not count it.

        Args:
            is_walk: Whether these are all that Python can reach.
            blocks: Allocator blocks of each device. What may be a library's workspace is one where no tensor lies;
                what may be a bucket of gradients, one where none lies that has a name;
                what is idle stays so until the next look that has blocks.
        """
        now = time.time_ns()
        if is_walk:
            self._walks_ns.append(now)
        with torch_tensors.as_plain_tensors():
            parts = self._parts(list(tensors))
        storages, devices = [part[2] for part in parts], [part[3] for part in parts]
        numbers = {device: self._devices[text] for device, text in [(device, str(device)) for device in set(devices)]}
        rows = zip(
            repeat(now),
            map(address_of, storages),
            map(size_of, storages),
            [int(part[0]) for part in parts],
            map(self._names.__getitem__, [part[1] for part in parts]),
            map(numbers.__getitem__, devices),
        )
        found: _Found = {}
        for row, storage in zip(rows, storages, strict=True):  # without a call: see storage_columns.py
            place = row[1], row[5]
            if row[1] >= _LOWEST_ADDRESS and row[2] and place not in found:
                found[place] = row, storage
        blocks = {text: self._with_foreign(text, of_device, found) for text, of_device in blocks.items()}
        if is_walk and "cpu" in self._devices:
            blocks["cpu"] = DeviceBlocks(idle=self._in_files(found))
        for text, of_device in blocks.items():
            self._idle[self._devices[text]] = of_device.idle
        for device, pieces in [entry for entry in self._idle.items() if entry[1]]:  # mostly none, and without a call
            found = _outside(found, device, pieces)
        noted = [row for row, _ in found.values()]
        for text, of_device in blocks.items():
            here, sizes = self._devices[text], of_device.sizes  # of the allocator's blocks, by address
            noted = [(*row[:2], sizes.get(row[1], row[2]), *row[3:]) if row[5] == here else row for row in noted]
        self._rows += noted
        cpu = self._devices.get("cpu")
        for row, storage in [
            entry for entry in found.values() if entry[0][5] == cpu and (is_walk or entry[0][3] in BATCH)
        ]:
            self._watch(storage, row[1], row[5])
        for text, (at, end) in [(text, piece) for text, of in blocks.items() for piece in of.idle]:
            self._rows.append((now, at, end - at, int(Role.IDLE), self._names[""], self._devices[text]))
        for text, at, size in [(text, *block) for text, of in blocks.items() for block in of.buckets]:
            there = found.get((at, device := self._devices[text]))
            if there is None or there[0][3] == Role.HELD:
                self._rows.append((now, at, size, int(Role.BUCKET), self._names["DistributedDataParallel"], device))
        if is_walk:  # A look may have taken a tensor for a workspace by its size, 32 MiB on an H100
            self._rows = [row for row in self._rows if row[3] != Role.WORKSPACE or (row[1], row[5]) not in found]
        for text, at, size in [(text, *block) for text, of in blocks.items() for block in of.workspaces]:
            if (at, device := self._devices[text]) not in found:
                self._rows.append((now, at, size, int(Role.WORKSPACE), self._names["cuBLAS"], device))

    def _in_files(self, found: _Found) -> tuple[tuple[int, int], ...]:
        """Begin and end of what tensors show of mapped files and no model or optimizer has: it is not allocated."""
        files, cpu = mapped_files(), self._devices["cpu"]
        inside = [(row, file_at(files, address)) for (address, device), (row, _) in found.items() if device == cpu]
        pieces = [(row[1], row[1] + row[2], row[3], file) for row, file in inside if file is not None]
        owned = [(begin, end) for begin, end, role, _ in pieces if role in _OWNED]
        idle: list[tuple[int, int]] = []
        shown = Counter[str]()
        for begin, end, _, file in sorted(piece for piece in pieces if piece[2] not in _OWNED):
            fresh = gaps(begin, end, [*owned, *idle])
            shown[file.path] += sum(stop - start for start, stop in fresh)
            idle += fresh
        self.mapped_bytes |= shown
        return tuple(sorted(idle))

    def _with_foreign(self, text: str, blocks: DeviceBlocks, found: _Found) -> DeviceBlocks:
        """Return a device's blocks with what tensors show outside of its segments as idle memory."""
        device = self._devices[text]
        places = sorted((row[1], row[1] + row[2]) for (_, where), (row, _) in found.items() if where == device)
        foreign = _outside_of_segments(places, blocks.segments)
        self.foreign_bytes |= Counter({text: sum(end - begin for begin, end in foreign)})
        return replace(blocks, idle=tuple(sorted([*blocks.idle, *foreign])))

    def _parts(self, tensors: list[Observed]) -> list[_Part]:
        """Role, name, storage and device of each; a tensor that is not plain has as many as it has parts."""
        parts = _plain_parts(tensors)
        if parts is not None:
            return parts
        all_parts: list[_Part] = []
        for _, run in groupby(tensors, lambda entry: type(entry[2])):
            alike = list(run)
            parts = _plain_parts(alike)
            all_parts += (
                [(role, name, *part) for role, name, tensor in alike for part in self._storages(tensor)]
                if parts is None
                else parts
            )
        return all_parts

    def _watch(self, storage: torch.UntypedStorage, address: int, device: int) -> None:
        """Note when a storage is let go, which the CPU's allocator does not report of what it did not see being made.

        The reference is weak and keeps nothing alive. The storage's Python object lives as long as its memory.
        """
        watched = self._watched.get((address, device))
        if watched is None or watched() is None:
            watched = _WatchedStorage(storage, self._ended_ns.__getitem__)
            watched.address, watched.device = address, device
            self._watched[address, device] = watched

    def stop(self) -> None:
        """Watch no storage any longer."""
        self._watched.clear()

    def _storages(self, tensor: Tensor | torch.UntypedStorage) -> list[tuple[torch.UntypedStorage, torch.device]]:
        if isinstance(tensor, Tensor):
            self.sees_transforms |= torch_tensors.is_wrapped_by_transform(tensor)
        try:
            return [(storage, storage.device) for storage in storages_with_memory(tensor)]
        # Tensors of other people's making raise what they like; that they were not observed is said in a note.
        except Exception:
            self.unobserved[type(tensor).__name__] += 1
            return []

    def observations(self) -> KnownStorages:
        """Everything observed so far."""
        time_ns, address, size_bytes, role, name, device = _columns(self._rows, 6)
        used, name = np.unique(name, return_inverse=True)  # what came twice has the name of the first time alone
        names = tuple(self._names)
        ends = [(time_ns, ended.address, ended.device) for ended, time_ns in self._ended_ns.items()]
        ends_ns, ends_address, ends_device = _columns(ends, 3)
        asleep = [(self._devices[f"cuda:{piece.device}"], *piece[1:]) for piece in ASLEEP.pieces]
        asleep_device, asleep_address, asleep_size_bytes, asleep_ns, awake_ns = _columns(asleep, 5)
        return KnownStorages(
            time_ns=time_ns,
            address=address,
            size_bytes=size_bytes,
            role=role,
            name=name,
            device=device,
            names=tuple(names[number] for number in used.tolist()),
            devices=tuple(self._devices),
            ends_ns=ends_ns,
            ends_address=ends_address,
            ends_device=ends_device,
            walks_ns=np.array(self._walks_ns, np.int64),
            asleep_address=asleep_address,
            asleep_size_bytes=asleep_size_bytes,
            asleep_device=asleep_device,
            asleep_ns=asleep_ns,
            awake_ns=awake_ns,
            threads=tuple(self.threads),
            lines={name: line for name, line in self.lines.items() if name in self._names},
        )


def _columns(rows: Sequence[tuple[int, ...]], width: int) -> list[Ints]:
    return [np.ascontiguousarray(column) for column in np.array(rows, np.int64).reshape(-1, width).T]


def _outside(found: _Found, device: int, pieces: Sequence[tuple[int, int]]) -> _Found:
    """Return the places found that lie in none of the given pieces of memory, which are in order."""
    places = [place for place in found if place[1] == device]
    last = map(bisect_right, repeat([begin for begin, _ in pieces]), map(itemgetter(0), places))
    inside = {place for place, at in zip(places, last, strict=True) if at and place[0] < pieces[at - 1][1]}
    return {place: entry for place, entry in found.items() if place not in inside}


def _outside_of_segments(
    places: Iterable[tuple[int, int]], segments: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return what of some places, which are in order, begins in no segment; each byte once.

    Places 0 to 4, 2 to 6 and 10 to 12, a segment from 10 to 20: 0 to 4, 4 to 6. Without segments nothing is known.
    """
    begins = [begin for begin, _ in segments]
    pieces = list[tuple[int, int]]()
    reached = 0
    for begin, end in places if segments else ():
        at = bisect_right(begins, begin)
        if end > reached and (not at or begin >= segments[at - 1][1]):
            pieces.append((max(begin, reached), end))
            reached = end
    return pieces


def _plain_parts(tensors: list[Observed]) -> list[_Part] | None:
    looked_at = [tensor for _, _, tensor in tensors]
    storages = plain_storages(looked_at)
    if storages is None:
        return None
    pairs = zip(tensors, storages, map(device_of, looked_at), strict=True)
    return [(role, name, storage, device) for (role, name, _), storage, device in pairs]


def model_tensors(model: nn.Module) -> Iterator[tuple[Role, str, Tensor]]:
    """A model's parameters, their gradients where there are some, and its buffers, by dotted name."""
    for name, parameter in model.named_parameters():
        yield Role.PARAMETER, name, parameter
    for name, parameter in model.named_parameters():
        if (gradient := torch_graph.gradient_of(parameter)) is not None:
            yield Role.GRADIENT, name, gradient
    for name, buffer in model.named_buffers():
        yield Role.BUFFER, name, buffer


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, names: dict[int, str] | None = None
) -> Iterator[tuple[Role, str, Tensor]]:
    """An optimizer's state tensors, named `parameter.state`, such as `fc1.weight.exp_avg`."""
    for parameter, state in getattr(optimizer, "state", {}).items():
        owner = (names or {}).get(id(parameter), "parameter")
        for key, value in state.items() if isinstance(state, Mapping) else ():
            # LBFGS keeps lists of tensors.
            for _, tensor in leaves(value, Tensor):
                yield Role.OPTIMIZER_STATE, f"{owner}.{key}", tensor


def input_tensors(batch: object, *, role: Role = Role.INPUT) -> Iterator[tuple[Role, str, Tensor]]:
    """The tensors in a batch, however it is nested, named by their path in it."""
    return ((role, path, tensor) for path, tensor in leaves(batch, Tensor, "batch"))
