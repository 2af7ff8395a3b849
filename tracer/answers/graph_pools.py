"""The memory that CUDA graphs use while they are replayed, explained from their captures.

torch counts a pool's memory as free between captures, and steps that replay allocate none of it: no row of the peak has
it, and nothing else may use it while the graph lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from tracer.answers.findings import GraphPool, RunFindings
from tracer.answers.recording_findings import find_in_cycle
from tracer.answers.rows import Row, group_rows
from tracer.arrays import Rows, in_use
from tracer.blocks.from_recording.cycle import Cycle
from tracer.blocks.from_recording.origins import with_lines_of_nodes
from tracer.blocks.table import Phase
from tracer.capture.graph_captures import Capture, LivePool
from tracer.capture.objects.known_storages import KnownStorages
from tracer.errors import RecordingError


def graph_pools(
    pools: Iterable[LivePool],
    findings: RunFindings,
    *,
    known: KnownStorages | None,
    module_names: Mapping[int, str],
) -> tuple[GraphPool, ...]:
    """Explain the pools, the largest first.

    Args:
        findings: Of the device, in whose cycles may be captures that were not recorded by themselves.
    """
    found = [_Pool(pool, findings, known, module_names).explained() for pool in pools]
    return tuple(sorted(found, key=lambda pool: -pool.reserved_bytes))


@dataclass(frozen=True, slots=True, eq=False)
class _Blocks:
    cycle: Cycle
    rows: Rows

    @property
    def bytes(self) -> int:
        return int(self.cycle.blocks.size_bytes[self.rows].sum())


class _Pool:
    def __init__(
        self, pool: LivePool, findings: RunFindings, known: KnownStorages | None, module_names: Mapping[int, str]
    ) -> None:
        self._pool, self._findings, self._known, self._module_names = pool, findings, known, module_names
        self._has_backward = False
        self._most: list[_Blocks] = []

    def explained(self) -> GraphPool:
        left: list[_Blocks] = []
        for capture in self._pool.captures:
            left = [_in_use(blocks, capture) for blocks in left]
            if (cycle := self._cycle(capture)) is None:
                self._has_backward |= capture.recording is None  # which may have been one
                continue
            mine = self._made_in(cycle, capture)
            now = [*left, _Blocks(cycle, _alive_at_most(cycle, mine, until_ns=capture.ended_ns))]
            if sum(blocks.bytes for blocks in now) > sum(blocks.bytes for blocks in self._most):
                self._most = now
            left.append(_Blocks(cycle, mine))
        rows: list[Row] = []
        for most in self._most:
            cycle, chosen = most.cycle, most.cycle.blocks.take(most.rows)
            rows += group_rows(chosen)[0]
        ended_ns, size = max(capture.ended_ns for capture in self._pool.captures), self._pool.size
        peaks = self._findings.peaks
        return GraphPool(
            num_graphs=len(self._pool.captures),
            reserved_bytes=size.reserved_bytes,
            allocated_bytes=size.allocated_bytes,
            first_cycle=next((number for number, peak in enumerate(peaks) if peak.time_ns >= ended_ns), len(peaks)),
            has_backward=self._has_backward,
            peak_bytes=sum(row.bytes for row in rows),
            rows=tuple(sorted(rows, key=lambda row: -row.bytes)),
        )

    def _cycle(self, capture: Capture) -> Cycle | None:
        """The recording that has a capture; None if nobody recorded it, or it allocated nothing."""
        if capture.recording is None:
            cycles = [part.source for part in self._findings.parts]
            times = ((cycle, cycle.recording.allocations.time_ns) for cycle in cycles)
            began_ns, ended_ns = capture.began_ns, capture.ended_ns
            return next((of for of, at in times if len(at) and at.min() <= ended_ns and began_ns <= at.max()), None)
        graphs = self._findings.compiled.graphs
        try:
            return find_in_cycle(
                with_lines_of_nodes(capture.recording, graphs),
                known=self._known,
                module_names=self._module_names,
                device=self._findings.device,
                graphs=graphs,
            ).source
        except RecordingError:
            return None

    def _made_in(self, cycle: Cycle, capture: Capture) -> Rows:
        lifetimes = cycle.lifetimes
        made = lifetimes.allocation >= 0
        made_ns = cycle.recording.allocations.time_ns[np.maximum(lifetimes.allocation, 0)]
        mine = np.flatnonzero(made & (made_ns >= capture.began_ns) & (made_ns <= capture.ended_ns))
        phases = cycle.attribution.allocation_phase[lifetimes.allocation[mine]]
        self._has_backward |= bool((phases == int(Phase.BACKWARD)).any())
        return mine


def _in_use(blocks: _Blocks, capture: Capture) -> _Blocks:
    # Of several at one address, the last.
    lifetimes = blocks.cycle.lifetimes
    last = {address: row for row, address in zip(blocks.rows, lifetimes.address[blocks.rows].tolist(), strict=True)}
    kept = [row for address, row in last.items() if address in capture.in_use]
    return _Blocks(blocks.cycle, np.array(sorted(kept), np.int64))


def _alive_at_most(cycle: Cycle, mine: Rows, *, until_ns: int) -> Rows:
    """Return those of some blocks that are alive when most bytes of them are."""
    lifetimes = cycle.lifetimes
    size_bytes, made_at, freed_at = lifetimes.size_bytes[mine], lifetimes.made_at[mine], lifetimes.freed_at[mine]
    is_later = cycle.recording.allocations.time_ns[lifetimes.events] > until_ns
    level = np.where(is_later, 0, in_use(size_bytes, made_at, freed_at, len(lifetimes.events))[1:])
    position = int(np.argmax(level)) if len(level) else -1
    return mine[(made_at <= position) & (freed_at > position)]
