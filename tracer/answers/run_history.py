"""The allocator's history of a run, for all that ask: it becomes columns once, and joins the recording once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from tracer.answers.findings import RunFindings
from tracer.answers.labels import label_snapshot, labels_of
from tracer.answers.recording_findings import with_allocator_history
from tracer.capture.objects.known_storages import KnownStorages
from tracer.errors import SnapshotError

if TYPE_CHECKING:
    from tracer.answers.failed_allocation import FailedAllocation
    from tracer.answers.ranks import HeldOnDevice
    from tracer.answers.why.first_changes import FirstChanges
    from tracer.blocks.from_recording.cycle import Cycle
    from tracer.capture.objects.at_failure import ObjectsAtFailure
    from tracer.snapshot.columns import Snapshot


_Answer = TypeVar("_Answer")
_SAME_PEAK = 0.05
"""By how much the peaks of a history and of a recording differ at most, where one rounds sizes up."""


class RunHistory:
    """Result of `torch.cuda.memory._snapshot()`, read when it is first needed.

    A history of a newer torch that cannot be read, or that contradicts itself, becomes a note and not a failure.

    Attributes:
        num_later: Number of cycles recorded after the history's cycle, which had the highest peak until then; None if
            the history is of no recorded cycle.
        notes: A sentence on each part of the history that could not be read.
    """

    def __init__(self, snapshot: dict[str, Any] | None, num_later: int | None = 0) -> None:
        """Prepare; nothing is read."""
        self.snapshot, self.num_later = snapshot, num_later
        self._labelled: tuple[Cycle, dict[str, Any]] | None = None
        self._first: tuple[RunFindings, FirstChanges | None] | None = None
        self.notes: list[str] = []

    @cached_property
    def columns(self) -> Snapshot | None:
        """The history as columns; None where there is none that can be read."""
        if self.snapshot is None:
            return None
        from tracer.snapshot.load import snapshot_in_memory

        objects = self.snapshot
        return self._or_note(lambda: snapshot_in_memory(objects))

    def joined(
        self, findings: RunFindings, known: KnownStorages, objects: ObjectsAtFailure | None = None
    ) -> RunFindings:
        """Findings with the peak of one cycle by the allocator's own books, where there is a history of it."""
        columns, num_later = self.columns, self.num_later
        if columns is None or num_later is None:
            return findings
        return (
            self._or_note(lambda: with_allocator_history(findings, columns, num_later, known=known, objects=objects))
            or findings
        )

    def labelled(self, findings: RunFindings | None, known: KnownStorages) -> dict[str, Any] | None:
        """The snapshot, whose entries say what the recording knows of their blocks; None where there is none."""
        cycles = [part.source for part in findings.parts] if findings is not None else []
        cycle = next((cycle for cycle in cycles if cycle.history is not None), None)
        if self.snapshot is None or cycle is None or cycle.history is None:
            return self.snapshot
        if self._labelled is None or self._labelled[0] is not cycle:
            labels = labels_of(cycle.recording, cycle.blocks)
            device, entry = cycle.history.state.device, cycle.history.entry
            labelled = label_snapshot(self.snapshot, cycle.lifetimes, labels, entry, device_index=device)
            self._labelled = cycle, labelled
        return self._labelled[1]

    @property
    def device_out_of_memory(self) -> int | None:
        """The index of the device whose memory ran out last; None if the history tells of none."""
        if self.columns is None:
            return None
        from tracer.answers.out_of_memory import device_out_of_memory

        return device_out_of_memory(self.columns)

    def failed_allocation(
        self,
        findings: RunFindings | None,
        known: KnownStorages,
        device: str,
        objects: ObjectsAtFailure | None = None,
        *,
        device_bytes: int | None = None,
    ) -> FailedAllocation | None:
        """The last allocation that a device of this one's type had no memory for, explained."""
        from tracer.answers.failed_allocation import failed_allocation

        if self.device_out_of_memory is None:
            return None
        kind = device.partition(":")[0]

        def explained() -> FailedAllocation | None:
            snapshot = self._as_written(findings, known)
            return failed_allocation(snapshot, findings, known, objects, device_type=kind, device_bytes=device_bytes)

        return self._or_note(explained)

    def first_changes(
        self, findings: RunFindings, known: KnownStorages, *, device_bytes: int | None = None
    ) -> FirstChanges | None:
        """The first changes to try against the largest peak, replayed; None if the history is of another peak.

        A replay does not know what an engine unmaps while it sleeps, so that its peak would be another one.
        """
        if self.columns is None or len(known.asleep_ns):
            return None
        if self._first is None or self._first[0] is not findings:
            self._first = findings, self._or_note(lambda: self._changes_at_peak(findings, known, device_bytes))
        return self._first[1]

    @property
    def pinned_bytes(self) -> int:
        """Pinned host memory at the end of the recording; 0 before torch 2.15, which does not record it."""
        return 0 if self.columns is None else self.columns.pinned_bytes

    def held(self, own: int) -> tuple[HeldOnDevice, ...]:
        """The most that the process reserves of each device, with lines; empty where it has memory of one alone."""
        columns = self.columns
        if columns is None or all(state.device == own for state in columns.devices):
            return ()
        from tracer.answers.ranks import held_on_devices
        from tracer.answers.snapshot_findings import replay_snapshot

        return self._or_note(lambda: held_on_devices(replay_snapshot(columns))) or ()

    def _changes_at_peak(
        self, findings: RunFindings, known: KnownStorages, device_bytes: int | None
    ) -> FirstChanges | None:
        from tracer.answers.failed_allocation import last_seen
        from tracer.answers.snapshot_findings import replay_snapshot
        from tracer.answers.why.first_changes import first_changes

        index = int(findings.device.partition(":")[2] or 0)
        written = self._as_written(findings, known)
        replayed = replay_snapshot(written, device=index, held=last_seen(known, findings.device))
        (device,) = replayed.devices
        peak_bytes = findings.worst.peak.peak_bytes
        if abs(int(device.replay.requested_bytes.max()) - peak_bytes) > _SAME_PEAK * peak_bytes:
            return None
        return first_changes(device, device_bytes=device_bytes)

    def _as_written(self, findings: RunFindings | None, known: KnownStorages) -> Snapshot:
        """The columns of what memory_snapshot.pkl has, so that the file tells the same."""
        from tracer.snapshot.load import snapshot_in_memory

        labelled = self.labelled(findings, known)
        columns = self.columns if labelled is self.snapshot else snapshot_in_memory(labelled or {})
        assert columns is not None
        return columns

    def _or_note(self, answer: Callable[[], _Answer]) -> _Answer | None:
        try:
            return answer()
        except SnapshotError as error:
            if (note := f"Requested sizes and segments are left out: {error}") not in self.notes:
                self.notes.append(note)
            return None
