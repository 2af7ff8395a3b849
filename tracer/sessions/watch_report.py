"""Explains a watched run at one moment: its counters, the allocator's history, and who holds what has stayed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from tracer.analysis.profiles.failed_allocation import held_now, with_evaluation
from tracer.analysis.snapshots.findings import explain_replayed, replay_snapshot
from tracer.analysis.snapshots.first_changes import first_changes, with_cause
from tracer.analysis.snapshots.groups import SnapshotRow, group_rows
from tracer.analysis.snapshots.kind_finder import ReplayedDevice
from tracer.analysis.snapshots.modelled import model_device
from tracer.analysis.snapshots.oom import OutOfMemory, beside_others, device_out_of_memory
from tracer.analysis.snapshots.steps import OutlivedGroup, StepEnds, first_whole_step, outlived_groups
from tracer.analysis.steps.step_findings import explain_steps
from tracer.capture.device.device_blocks import device_blocks
from tracer.capture.device.device_ledger import DeviceLedger, device_ledger
from tracer.capture.device.devices import allowed_bytes, device_memory, is_accelerator
from tracer.capture.device.host_memory import host_total_bytes
from tracer.capture.device.memory_counters import read_counters
from tracer.capture.objects.holders import Holder, find_holders
from tracer.capture.objects.known_storages import KnownStorages, Role
from tracer.capture.objects.live_tensors import Alike, live_tensors, look_at_failure, unnamed_tensors
from tracer.capture.objects.storage_observer import StorageObserver
from tracer.capture.sources.source_files import error_line
from tracer.capture.sources.source_line import SourceLine
from tracer.capture.step_columns import StepColumns
from tracer.errors import SnapshotError, error_words
from tracer.results.null_run import caveat_of
from tracer.results.watch_report import Event, HolderName, OutlivedMemory, WatchReport
from tracer.sessions.on_null_gpu import values_read
from tracer.snapshot.load import snapshot_in_memory

_LEAST_KEPT_BYTES, _LEAST_KEPT_SHARE = 1 << 20, 0.005
_MAX_NAMED = 8
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """A watched run's knowledge of itself when it is to be explained."""

    device: torch.device  # The device that is watched
    event: Event  # Why
    events: tuple[Event, ...]  # All so far
    error: BaseException | None  # The error that ends the run, or None
    columns: StepColumns  # The counters so far
    ends: StepEnds | None  # When steps ended, by what the allocator had served; None where it does not count
    snapshot: Mapping[str, Any] | None  # Snapshot of the allocator, with its history; None where there is none
    # Role, name and tensor of what is known of models, optimizers and batches.
    tensors: Callable[[], Iterable[tuple[Role, str, Tensor]]]
    # What was reached and in no module at the beginning, where there is no history.
    earlier: Mapping[str, Alike] | None = None
    earlier_step: int = 0  # The step at whose end that was
    notes: tuple[str, ...] = ()  # Sentences on what is missing
    settings: Mapping[str, object] = field(default_factory=dict)  # What to remember of the run
    found_before: tuple[WatchReport, ...] = ()  # What earlier reports of the run found
    is_evaluating: bool = False  # What is trained is in evaluation mode


def watch_report(moment: Moment) -> WatchReport:
    """Explain a moment. Unreadable parts become notes; the rest is reported."""
    return _Explanation(moment).report()


def limit_of(device: torch.device) -> int | None:
    """Return the memory that this process can have: reserved and free on the device, or the host's."""
    if not is_accelerator(device):
        return host_total_bytes()
    memory, counters, allowed = device_memory(device), read_counters(device), allowed_bytes(device)
    if memory is None or counters is None:
        return None
    most = memory[0] + counters.reserved_bytes
    return most if allowed is None else min(most, allowed)


class _Explanation:
    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self._device = moment.device
        self._notes = list(moment.notes)
        self._limit = limit_of(self._device)
        self._steps = explain_steps(
            moment.columns, limit_bytes=self._limit, has_allocator=read_counters(self._device) is not None
        )
        self._history: _History | None = None

    def report(self) -> WatchReport:
        moment = self._moment
        if moment.snapshot is not None:
            self._history = self._or_note(self._read_history)
        outlived = self._or_note(self._outlived) or ()
        counters, history = read_counters(self._device), self._history
        error = moment.error
        return WatchReport(
            device=str(self._device),
            event=moment.event,
            events=moment.events,
            error=error_words(error) if error is not None else "",
            error_line=error_line(error) if error is not None else None,
            columns=moment.columns,
            steps=self._steps,
            limit_bytes=self._limit,
            allocated_bytes=counters.allocated_bytes if counters is not None else None,
            reserved_bytes=counters.reserved_bytes if counters is not None else None,
            out_of_memory=history.out_of_memory if history is not None else None,
            groups=history.groups if history is not None else (),
            outlived=outlived,
            ledger=self._or_note(self._ledger),
            history_steps=history.num_steps if history is not None else None,
            notes=tuple(self._notes),
            settings=moment.settings,
            found_before=moment.found_before,
            caveat=(caveat := caveat_of(self._device)),
            values_read=values_read() if caveat else None,
        )

    def _or_note(self, answer: Callable[[], _Answer]) -> _Answer | None:
        """Return the answer, or add a note in its place: unreadable parts do not end the report."""
        try:
            return answer()
        except SnapshotError as error:
            self._notes.append(f"The allocator's history cannot be read: {error}")
        except Exception as fault:
            self._notes.append(f"A part is missing by an internal fault, {type(fault).__name__}: {fault}")
        return None

    def _ledger(self) -> DeviceLedger | None:
        if not is_accelerator(self._device):
            return None
        segments = self._moment.snapshot["segments"] if self._moment.snapshot is not None else ()
        return device_ledger(self._device, segments)

    # ------------------------------------------------------------------------------------------------ the history
    def _read_history(self) -> _History | None:
        assert self._moment.snapshot is not None
        columns = snapshot_in_memory(dict(self._moment.snapshot))
        index = self._device.index
        if self._moment.event.what.startswith("out of memory"):
            ran_out = device_out_of_memory(columns)
            index = index if ran_out is None else ran_out
        if not any(state.device == index for state in columns.devices):
            return None
        self._device = torch.device(self._device.type, index)
        kinds_held = {index: held_now(self._known(), str(self._device))}
        replayed = replay_snapshot(columns, device=index, held_now=kinds_held)
        finding = explain_replayed(replayed).devices[0]
        explained = replayed.devices[0]
        alive = explained.replay.lives.alive_after(len(explained.state.trace) - 1)
        ends = self._moment.ends
        event = finding.oom[-1] if finding.oom and self._moment.error is not None else None
        if event is not None:
            is_evaluating = self._moment.is_evaluating
            objects = look_at_failure(self._device, self._moment.error, is_evaluating=is_evaluating)
            event, objects = with_evaluation(event, objects)
            first = first_changes(replayed, explained, model_device(explained), objects=objects)
            memory = device_memory(self._device)
            event = beside_others(with_cause(event, first), None if memory is None else memory[1])
        return _History(
            device=explained,
            groups=group_rows(explained, alive),
            out_of_memory=event,
            num_steps=max(0, int(ends.step[-1]) - first_whole_step(explained, ends) + 1)
            if ends is not None and len(ends.step)
            else None,
        )

    def _known(self) -> KnownStorages:
        """Storages that exist now: of models, optimizers and batches by name, of graphs, and all others."""
        observer = StorageObserver()
        walk = live_tensors()
        if not walk.is_complete:
            self._notes.append("More graphs are alive than were examined: part of what they keep may be missing.")
        blocks = {str(self._device): device_blocks(self._device, bucket_bytes=walk.bucket_bytes)}
        observer.observe((*self._moment.tensors(), *walk.tensors), blocks=blocks)
        return observer.observations()

    # ---------------------------------------------------------------------------------------------- what has stayed
    def _outlived(self) -> tuple[OutlivedMemory, ...]:
        if self._history is not None and self._moment.ends is not None:
            return self._outlived_blocks(self._history, self._moment.ends)
        return self._outlived_tensors()

    def _outlived_blocks(self, history: _History, ends: StepEnds) -> tuple[OutlivedMemory, ...]:
        in_use = sum(group.bytes for group in history.groups)
        least = max(_LEAST_KEPT_BYTES, _LEAST_KEPT_SHARE * in_use)
        groups = outlived_groups(history.device, ends)
        grows = self._steps.growth is not None
        chosen = [group for group in groups if group.bytes >= least or (grows and group.bytes_per_step > 0)][
            :_MAX_NAMED
        ]
        holders = self._holders([address for group in chosen for address in group.addresses])
        return tuple(self._outlived_group(group, holders, history) for group in chosen)

    def _outlived_group(self, group: OutlivedGroup, holders: Iterable[Holder], history: _History) -> OutlivedMemory:
        return OutlivedMemory(
            what=group.kind.words,
            frame=group.site.frame,
            line=SourceLine.known(group.site.file, group.site.line),
            bytes=group.bytes,
            count=group.count,
            bytes_per_step=group.bytes_per_step,
            holders=tuple(
                HolderName(holder, history.line_of(holder.graph_of)) for holder in _holding(holders, group.addresses)
            ),
        )

    def _outlived_tensors(self) -> tuple[OutlivedMemory, ...]:
        """Without a history: what looks the same and has become more since the beginning, if anything grows."""
        earlier, growth = self._moment.earlier, self._steps.growth
        if earlier is None or growth is None:
            return ()
        now = unnamed_tensors(self._device)
        num_steps = max(1, self._steps.num_steps - self._moment.earlier_step)
        grown = sorted(
            ((alike.bytes - (earlier[look].bytes if look in earlier else 0), look) for look, alike in now.items()),
            reverse=True,
        )
        chosen = [(more, look) for more, look in grown if more >= _LEAST_KEPT_BYTES][:_MAX_NAMED]
        holders = self._holders([address for _, look in chosen for address in now[look].addresses])
        return tuple(
            OutlivedMemory(
                what=f"tensors {look}",
                frame="",
                line=None,
                bytes=now[look].bytes,
                count=now[look].count,
                bytes_per_step=more // num_steps,
                holders=tuple(HolderName(holder) for holder in _holding(holders, now[look].addresses)),
            )
            for more, look in chosen
        )

    def _holders(self, addresses: Collection[int]) -> tuple[Holder, ...]:
        if not addresses:
            return ()
        return find_holders(addresses, device=self._device, error=self._moment.error)


@dataclass(frozen=True, slots=True, eq=False)
class _History:
    device: ReplayedDevice
    groups: tuple[SnapshotRow, ...]
    out_of_memory: OutOfMemory | None
    num_steps: int | None

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
