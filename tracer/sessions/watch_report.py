"""Explains a watched run at one moment: its counters, the allocator's history, and who holds what has stayed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from tracer.answers.rows import Row, rows_of_lines
from tracer.answers.step_findings import StepFindings, explain_steps
from tracer.answers.watch_report import OUT_OF_MEMORY, Event, HolderName, OutlivedMemory, WatchReport
from tracer.capture.device.device_blocks import device_blocks
from tracer.capture.device.devices import allowed_bytes, device_memory, is_accelerator
from tracer.capture.device.host_memory import host_total_bytes
from tracer.capture.device.memory_counters import read_counters
from tracer.capture.objects.at_failure import Holder
from tracer.capture.objects.holders import find_holders
from tracer.capture.objects.known_storages import KnownStorages, Role
from tracer.capture.objects.live_tensors import live_tensors, unnamed_tensors
from tracer.capture.objects.storage_observer import StorageObserver
from tracer.capture.sources.source_files import error_line
from tracer.capture.sources.source_line import SourceLine
from tracer.errors import SnapshotError, error_words
from tracer.sessions.on_null_gpu import origin_of, values_read
from tracer.sessions.watched_steps import BASELINE_STEP, WatchedSteps
from tracer.snapshot.load import snapshot_in_memory

if TYPE_CHECKING:
    from tracer.answers.failed_allocation import FailedAllocation
    from tracer.blocks.from_snapshot.blocks import ReplayedDevice
    from tracer.capture.objects.failure_look import RunAgain

_LEAST_KEPT_BYTES, _LEAST_KEPT_SHARE = 1 << 20, 0.005
_MAX_NAMED = 8
_Answer = TypeVar("_Answer")


def limit_of(device: torch.device) -> int | None:
    """Return the memory that this process can have: reserved and free on the device, or the host's."""
    if not is_accelerator(device):
        return host_total_bytes()
    memory, counters, allowed = device_memory(device), read_counters(device), allowed_bytes(device)
    if memory is None or counters is None:
        return None
    most = memory[0] + counters.reserved_bytes
    return most if allowed is None else min(most, allowed)


@dataclass(eq=False)
class Moment:
    """A watched run when it is to be explained; unreadable parts become notes, and the rest is reported."""

    device: torch.device  # The device that is watched; in the end, the one whose memory has run out
    events: tuple[Event, ...]  # All so far; the last one is the reason
    error: BaseException | None  # The error that ends the run, or None
    counted: WatchedSteps  # Of the watched device
    snapshot: Mapping[str, Any] | None  # Snapshot of the allocator, with its history; None where there is none
    # Role, name and tensor of what is known of models, optimizers and batches.
    tensors: Callable[[], Iterable[tuple[Role, str, Tensor]]]
    notes: list[str]  # Sentences on what is missing
    settings: Mapping[str, object]  # What to remember of the run
    found_before: WatchReport | None  # The latest report with growth or holders before
    is_evaluating: bool  # What is trained is in evaluation mode
    run_again: RunAgain

    def explained(self) -> WatchReport:
        """Return the report; the caller has paused the collector, so that nothing is freed before it is read."""
        limit_bytes, steps = self._limit_bytes, self._steps  # of the watched device
        history = self._or_note(self._read_history) if self.snapshot is not None else None
        outlived = self._or_note(lambda: tuple(self._outlived(history)))
        counters, error = read_counters(self.device), self.error
        return WatchReport(
            device=str(self.device),
            events=self.events,
            error=error_words(error) if error is not None else "",
            error_line=error_line(error) if error is not None else None,
            columns=self.counted.columns,
            steps=steps,
            limit_bytes=limit_bytes,
            allocated_bytes=counters.allocated_bytes if counters is not None else None,
            reserved_bytes=counters.reserved_bytes if counters is not None else None,
            failed=history.failed if history is not None else None,
            groups=history.groups if history is not None else (),
            outlived=outlived or (),
            notes=tuple(self.notes),
            settings=self.settings,
            found_before=self.found_before if not outlived else None,
            caveat=(caveat := origin_of(self.device).caveat),
            values_read=values_read() if caveat else None,
        )

    @cached_property
    def _limit_bytes(self) -> int | None:
        return limit_of(self.device)

    @cached_property
    def _steps(self) -> StepFindings:
        counted = self.counted
        return explain_steps(counted.columns, limit_bytes=self._limit_bytes, has_allocator=counted.has_allocator)

    def _or_note(self, answer: Callable[[], _Answer]) -> _Answer | None:
        """Return the answer, or add a note in its place."""
        try:
            return answer()
        except SnapshotError as error:
            self.notes.append(f"The allocator's history cannot be read: {error}")
        except Exception as fault:
            self.notes.append(f"A part is missing by an internal fault, {type(fault).__name__}: {fault}")
        return None

    # ------------------------------------------------------------------------------------------------ the history
    def _read_history(self) -> _History | None:
        from tracer.answers.failed_allocation import FailedAllocation, explain_failure, held_now
        from tracer.answers.out_of_memory import device_out_of_memory
        from tracer.answers.snapshot_findings import replay_snapshot
        from tracer.capture.objects.failure_look import look_at_failure

        assert self.snapshot is not None
        columns = snapshot_in_memory(dict(self.snapshot))
        ran_out = device_out_of_memory(columns)
        is_failure = False
        if self.events[-1].what.startswith(OUT_OF_MEMORY) and ran_out is not None:
            self.device, is_failure = torch.device(self.device.type, ran_out), True
        index = self.device.index
        if not any(state.device == index for state in columns.devices):
            return None
        replayed = replay_snapshot(columns, device=index, held_now={index: held_now(self._known(), str(self.device))})
        (device,) = replayed.devices
        if not is_failure:
            alive = device.replay.lives.alive_after(len(device.state.trace) - 1)
            return _History(device, rows_of_lines(device.blocks.take(alive)), None)
        objects = None
        if self.error is not None:  # one that the program has caught has let go of what it held
            objects = look_at_failure(
                self.device, self.error, is_evaluating=self.is_evaluating, run_again=self.run_again
            )
        memory = device_memory(self.device)
        event, first, seen = explain_failure(
            device,
            objects,
            device_bytes=None if memory is None else memory[1],
            grows=self._steps.growth is not None,
        )
        return _History(device, event.groups, FailedAllocation(event, first, None, seen))

    def _known(self) -> KnownStorages:
        """Storages that exist now: of models, optimizers and batches by name, of graphs, and all others."""
        observer = StorageObserver()
        walk = live_tensors()
        if not walk.is_complete:
            self.notes.append("More graphs are alive than were examined: part of what they keep may be missing.")
        blocks = {str(self.device): device_blocks(self.device, bucket_bytes=walk.bucket_bytes)}
        observer.observe((*self.tensors(), *walk.tensors), blocks=blocks)
        return observer.observations()

    # ---------------------------------------------------------------------------------------------- what has stayed
    def _outlived(self, history: _History | None) -> Iterator[OutlivedMemory]:
        if history is None or (ends := self.counted.ends) is None:
            yield from self._outlived_tensors()
            return
        from tracer.blocks.from_snapshot.timeline import outlived_groups

        least = max(_LEAST_KEPT_BYTES, _LEAST_KEPT_SHARE * sum(group.bytes for group in history.groups))
        grows = self._steps.growth is not None
        groups = outlived_groups(history.device, ends)
        chosen = [group for group in groups if group.bytes >= least or (grows and group.bytes_per_step > 0)]
        chosen = chosen[:_MAX_NAMED]
        holders = self._holders([address for group in chosen for address in group.addresses])
        for group in chosen:
            yield OutlivedMemory(
                what=group.kind.words,
                frame=group.site.frame,
                line=SourceLine.known(group.site.file, group.site.line),
                bytes=group.bytes,
                count=group.count,
                bytes_per_step=group.bytes_per_step,
                holders=tuple(
                    HolderName(holder, history.line_of(holder.graph_of))
                    for holder in _holding(holders, group.addresses)
                ),
            )

    def _outlived_tensors(self) -> Iterator[OutlivedMemory]:
        """Without a history: what looks the same and has become more since the beginning, if anything grows."""
        earlier = self.counted.earlier
        if earlier is None or self._steps.growth is None:
            return
        now = unnamed_tensors(self.device)
        num_steps = max(1, self._steps.num_steps - BASELINE_STEP)
        grown = sorted(
            ((alike.bytes - (earlier[look].bytes if look in earlier else 0), look) for look, alike in now.items()),
            reverse=True,
        )
        chosen = [(more, look) for more, look in grown if more >= _LEAST_KEPT_BYTES][:_MAX_NAMED]
        holders = self._holders([address for _, look in chosen for address in now[look].addresses])
        for more, look in chosen:
            yield OutlivedMemory(
                what=f"tensors {look}",
                frame="",
                line=None,
                bytes=now[look].bytes,
                count=now[look].count,
                bytes_per_step=more // num_steps,
                holders=tuple(HolderName(holder) for holder in _holding(holders, now[look].addresses)),
            )

    def _holders(self, addresses: Collection[int]) -> tuple[Holder, ...]:
        return find_holders(addresses, device=self.device, error=self.error) if addresses else ()


@dataclass(frozen=True, slots=True, eq=False)
class _History:
    device: ReplayedDevice
    groups: tuple[Row, ...]
    failed: FailedAllocation | None

    def line_of(self, address: int | None) -> SourceLine | None:
        """The line that made the block which lies at an address at the end."""
        if address is None:
            return None
        lives = self.device.replay.lives
        rows = np.flatnonzero((lives.addr == address) & (lives.end == len(self.device.state.trace)))
        if not len(rows):
            return None
        site = self.device.sites.site(int(lives.stack[rows[0]]))
        return SourceLine.known(site.file, site.line)


def _holding(holders: Iterable[Holder], addresses: Collection[int]) -> list[Holder]:
    wanted = set(addresses)
    counted = [(len(wanted.intersection(holder.addresses)), holder) for holder in holders]
    return [holder for count, holder in sorted(counted, key=lambda pair: -pair[0]) if count]
