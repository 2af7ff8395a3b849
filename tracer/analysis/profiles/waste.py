"""Memory at the peak that nobody needs: what in the program keeps it, at which line, and what to write instead.

Every finding is made of blocks that are alive at the peak, so its bytes are what the peak would be lower by, as far as
no other moment takes its place. One ordered table of rules says what keeps a block, and the first that holds wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial

import numpy as np

from tracer.analysis.kinds import Kind, all_hold
from tracer.analysis.profiles.findings import CycleFindings, Findings
from tracer.analysis.profiles.frame_ranks import Whose
from tracer.analysis.profiles.idle_blocks import IdleBlocks
from tracer.analysis.profiles.source_lines import PlaceInCode, line_of_frame, place_of
from tracer.arrays import Rows, grouped
from tracer.capture.recording import CallKind, Recording
from tracer.capture.sources.source_line import SourceLine

LEAST_SHARE = 0.01  # Of the peak: less is not worth a line


class WasteKind(IntEnum):
    """What keeps memory that nobody needs."""

    WEIGHTS = 0  # A second copy of the weights, which no recorded step has used
    GRAPH = 1  # A graph that no backward pass goes through, over the end of its step
    EVALUATION = 2  # The same within a call of a model whose result nobody differentiates
    RETAINED = 3  # A graph that a backward pass has gone through
    GRADIENTS = 4  # Gradients that the optimizer has used already
    WIDENED = 5  # A float32 copy of logits in 16 bits
    TENSORS = 6  # Results that are held in a container or an attribute
    VARIABLE = 7  # Results that a variable holds until the next ones take their place


@dataclass(frozen=True, slots=True)
class Waste:
    """Memory at the peak that is kept for one cause."""

    kind: WasteKind
    bytes: int
    count: int
    # The user's line where the model or function was called, or gradients were let go of; None where what is kept is
    # from before the recording.
    line: SourceLine | None
    # Addresses of such blocks that are alive at the end of the last cycle, the oldest first.
    addresses: tuple[int, ...] = ()
    sizes_bytes: tuple[int, ...] = ()  # Bytes of these
    # How it is held, as `losses[...] -> graph of the tensor`; empty where nobody looked, or nothing holds it.
    path: str = ""
    variable: str = ""  # Where that path begins
    held_at: SourceLine | None = None  # The line that puts it there; None where that is not known
    is_batch: bool = False  # Whether it is inputs alone, and no result

    @property
    def place(self) -> SourceLine | None:
        """The line to look at: the one that holds it, or that told backward to leave its graph."""
        return self.line if self.kind == WasteKind.RETAINED else self.held_at or self.line


@dataclass(frozen=True, slots=True)
class WasteRule:
    """A row of the table: of which blocks it says what keeps them."""

    kind: WasteKind
    when: tuple[str, ...]  # Names of facts of `IdleBlocks`, as conditions of `tracer.analysis.kinds`


RULES: tuple[WasteRule, ...] = (
    WasteRule(WasteKind.WEIGHTS, ("is_unused_copy",)),
    WasteRule(WasteKind.GRADIENTS, ("is_idle_gradient",)),
    WasteRule(WasteKind.WIDENED, ("is_widened",)),
    WasteRule(WasteKind.GRAPH, ("is_idle", "kept_by_graph or in_evaluation", "kept_by_graph or outlives_step")),
    WasteRule(WasteKind.EVALUATION, ("is_idle", "in_evaluation")),
    WasteRule(WasteKind.RETAINED, ("is_idle", "outlives_backward", "is_left_by_backward")),
    WasteRule(WasteKind.TENSORS, ("is_idle", "outlives_step", "not is_read_later")),
)
NO_KIND = -1
GRAPH_OF = " -> graph of the tensor"
"""As `tracer.capture.objects.holders` writes the way from a tensor to what its graph keeps."""


def kinds_of(blocks: IdleBlocks, rules: Sequence[WasteRule] = RULES) -> Rows:
    """[I] `WasteKind` of each block by the first rule that holds, -1 for a block that is needed."""
    kinds = np.full(len(blocks), NO_KIND, np.int64)
    for rule in rules:
        kinds[(kinds == NO_KIND) & all_hold(rule.when, blocks)] = rule.kind
    return kinds


def find_waste(findings: Findings) -> tuple[Waste, ...]:
    """Find what the largest peak holds that nobody needs, by cause and line, the largest first.

    That results are held over the end of their step counts only if a variable is known that holds them: who has looked
    (`tracer.sessions.unneeded_memory`) drops the others. Nothing where the recording has no uses of tensors.
    """
    cycle = findings.worst
    if not cycle.recording.flow.has_uses:
        return ()
    blocks = IdleBlocks(cycle)
    kinds = kinds_of(blocks)
    least = LEAST_SHARE * cycle.peak.peak_bytes
    chosen = kinds != NO_KIND
    if cycle.blocks.size_bytes[blocks.block[chosen]].sum() < least:
        return ()
    return _WasteByLine(findings, blocks, kinds).found()


class _WasteByLine:
    """Idle blocks, grouped by cause and line."""

    def __init__(self, findings: Findings, blocks: IdleBlocks, kinds: Rows) -> None:
        self.findings = findings
        self.cycle, self.last = findings.worst, findings.cycles[-1]
        self.blocks, self.kinds = blocks, kinds
        self.lines = _LinesOfWaste(self.cycle)

    def found(self) -> tuple[Waste, ...]:
        sites = _sites(self.cycle, self.blocks.block)
        if any(pool.has_backward for pool in self.findings.graph_pools):  # a replay fills them where they lie
            self.kinds[self.kinds == int(WasteKind.GRADIENTS)] = NO_KIND
        groups: dict[tuple[WasteKind, SourceLine | None], list[int]] = {}
        for at in np.flatnonzero(self.kinds != NO_KIND).tolist():
            kind = WasteKind(int(self.kinds[at]))
            groups.setdefault((kind, self._line(kind, at, sites[at])), []).append(at)
        living = self._living()
        causes = [self._waste(kind, line, rows, sites, living) for (kind, line), rows in groups.items()]
        return tuple(sorted(causes, key=lambda waste: -waste.bytes))

    def _line(self, kind: WasteKind, at: int, place: PlaceInCode) -> SourceLine | None:
        peak_ns = self.blocks.peak_ns
        if kind == WasteKind.GRADIENTS:
            return self.lines.of_function("zero_grad", peak_ns)
        if kind == WasteKind.RETAINED:
            return self.lines.of_function("backward", peak_ns, torchs=True)
        if kind in (WasteKind.GRAPH, WasteKind.EVALUATION) and (call := int(self.blocks.call[at])) >= 0:
            return self.lines.of_call_at(int(self.blocks.facts.model_calls.start_ns[call])) or place.source_line
        return place.source_line

    def _waste(
        self,
        kind: WasteKind,
        line: SourceLine | None,
        rows: list[int],
        sites: Sequence[PlaceInCode],
        living: Mapping[PlaceInCode, list[tuple[int, int]]],
    ) -> Waste:
        lifetimes = self.cycle.lifetimes
        blocks = self.blocks.block[np.array(rows, np.int64)]
        sizes, addresses = lifetimes.size_bytes[blocks], lifetimes.address[blocks]
        # What is from before has no site, and is alive at the end where it was at the peak.
        stays = (lifetimes.allocation[blocks] < 0) & (lifetimes.freed_at[blocks] >= len(lifetimes.events))
        alive = list(zip(addresses[stays].tolist(), sizes[stays].tolist(), strict=True))
        for site in dict.fromkeys(sites[row] for row in rows if sites[row].op is not None):
            alive += living.get(site, [])
        return Waste(
            kind=kind,
            bytes=int(sizes.sum()),
            count=len(rows),
            line=line,
            addresses=tuple(address for address, _ in alive),
            sizes_bytes=tuple(size for _, size in alive),
            is_batch=bool((self.cycle.blocks.kind[blocks] == Kind.INPUT).all()),
        )

    def _living(self) -> dict[PlaceInCode, list[tuple[int, int]]]:
        """Addresses and sizes of what is alive at the end of the last cycle, by site, the oldest first."""
        lifetimes = self.last.lifetimes
        rows = np.flatnonzero((lifetimes.freed_at >= len(lifetimes.events)) & (lifetimes.allocation >= 0))
        rows = rows[np.argsort(lifetimes.made_at[rows], kind="stable")]
        by_site: dict[PlaceInCode, list[tuple[int, int]]] = {}
        pairs = zip(lifetimes.address[rows].tolist(), lifetimes.size_bytes[rows].tolist(), strict=True)
        for site, pair in zip(_sites(self.last, rows), pairs, strict=True):
            by_site.setdefault(site, []).append(pair)
        return by_site


def _sites(cycle: CycleFindings, rows: Rows) -> list[PlaceInCode]:
    blocks = cycle.blocks.take(rows)
    line = np.where(blocks.caller >= 0, blocks.caller, blocks.frame)
    sites = grouped((blocks.op, blocks.module, line), partial(place_of, cycle.recording, cycle.attribution))
    return [sites.keys[site] for site in sites.of_row.tolist()]


class _LinesOfWaste:
    """Lines of the user that called something."""

    def __init__(self, cycle: CycleFindings) -> None:
        self.recording, self.whose = cycle.recording, cycle.attribution.frame_whose

    def of_function(self, name: str, near_ns: int, *, torchs: bool = False) -> SourceLine | None:
        """The user's line that called a function of this name, at the call nearest to a moment."""
        rows = self._calls_of(self.recording, name, torchs=torchs)
        if not len(rows):
            return None
        nearest = rows[np.argsort(np.abs(self.recording.calls.start_ns[rows] - near_ns), kind="stable")]
        return next((line for row in nearest.tolist() if (line := self._users(row)) is not None), None)

    def _calls_of(self, recording: Recording, name: str, *, torchs: bool) -> Rows:
        frames, strings = recording.frames, recording.strings
        wanted = [
            row
            for row, text in enumerate(frames.function.tolist())
            if strings[text] == name and not (torchs and self.whose[row] == Whose.USERS)
        ]
        return np.flatnonzero(np.isin(recording.calls.function, np.array(wanted, np.int64)))

    def of_call_at(self, start_ns: int) -> SourceLine | None:
        """The user's line that called a model at this moment."""
        calls = self.recording.calls
        rows = np.flatnonzero((calls.kind == CallKind.MODULE) & (calls.start_ns == start_ns))
        return self._users(int(rows[0])) if len(rows) else None

    def _users(self, call: int) -> SourceLine | None:
        calls = self.recording.calls
        while call >= 0:
            frame = int(calls.frame[call])
            if frame >= 0 and self.whose[frame] == Whose.USERS:
                return line_of_frame(self.recording, frame)
            call = int(calls.parent[call])
        return None


def users_lines(findings: Findings) -> frozenset[SourceLine]:
    """Every line of the user's that the recordings have seen at work."""
    lines: set[SourceLine] = set()
    for cycle in findings.cycles:
        rows = np.flatnonzero(cycle.attribution.frame_whose == Whose.USERS)
        lines |= {line for row in rows.tolist() if (line := line_of_frame(cycle.recording, row)) is not None}
    return frozenset(lines)


def merge_waste(wastes: Iterable[Waste]) -> tuple[Waste, ...]:
    """What one variable holds is one finding, and if graphs are part of it, it is about these; the largest first."""
    merged: dict[tuple[object, ...], Waste] = {}
    for number, waste in enumerate(wastes):
        key = (waste.path.partition(GRAPH_OF)[0], waste.variable) if waste.path else (number,)
        other = merged.get(key)
        merged[key] = waste if other is None else _together(*sorted((other, waste), key=_weight))
    return tuple(sorted(merged.values(), key=lambda waste: -waste.bytes))


def _weight(waste: Waste) -> tuple[bool, bool, int]:
    """Sort key: the finding that names a merged group. Graphs first, then those with a line, then the larger."""
    return waste.kind == WasteKind.TENSORS, waste.line is None, -waste.bytes


def _together(first: Waste, second: Waste) -> Waste:
    return replace(
        first,
        bytes=first.bytes + second.bytes,
        count=first.count + second.count,
        addresses=first.addresses + second.addresses,
        sizes_bytes=first.sizes_bytes + second.sizes_bytes,
        held_at=first.held_at or second.held_at,
    )
