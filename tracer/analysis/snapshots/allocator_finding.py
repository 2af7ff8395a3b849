"""Everything that the model of the allocator has to say about a snapshot: the findings behind `snapshot --settings`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracer.allocator.settings import recorded_settings
from tracer.analysis.snapshots.findings import ReplayedSnapshot
from tracer.analysis.snapshots.first_changes import FirstChanges, first_changes
from tracer.analysis.snapshots.modelled import Modelled, agreement, model_device
from tracer.analysis.snapshots.reserved import Reserved, reserved_at_end, reserved_at_peak
from tracer.analysis.snapshots.what_if import WhatIf, what_if

NO_HISTORY = "There is no history to be replayed, so neither settings nor another GPU can be tried on it."


@dataclass(frozen=True, slots=True, eq=False)
class AllocatorFinding:
    """Answers of the model about one device."""

    device: int  # Its index
    modelled: Modelled | None  # The replay at the recorded settings; None without a history
    # How far it agrees with the recording, in sentences; or that what was asked cannot be answered.
    agreement: tuple[str, ...]
    at_peak: Reserved | None  # Why so much was reserved when the most was; None if the model cannot say
    at_end: Reserved  # Why so much was reserved when the snapshot was taken
    what_if: WhatIf | None  # Other settings and devices, if any were asked about
    first: FirstChanges | None = None  # What to try first; None where nothing can be replayed


def explain_allocator(
    replayed: ReplayedSnapshot,
    *,
    settings: Sequence[str] = (),
    search_settings: bool = False,
    gpu_memory: int | None = None,
) -> tuple[AllocatorFinding, ...]:
    """Replay every device of a snapshot through the model.

    Raises:
        SettingsError: torch would not start with some of the settings.
    """
    has_questions = bool(settings) or search_settings or gpu_memory is not None
    unasked = (NO_HISTORY,) if has_questions else ()
    findings = []
    for device in replayed.devices:
        modelled = model_device(device)
        can_replay = modelled is not None and modelled.history.num_allocations > 0
        own = modelled.settings if modelled is not None else recorded_settings(replayed.snapshot.settings)
        findings.append(
            AllocatorFinding(
                device=device.state.device,
                modelled=modelled,
                agreement=tuple(agreement(modelled)) if modelled is not None else unasked,
                at_peak=reserved_at_peak(modelled, replayed.sites) if modelled is not None else None,
                at_end=reserved_at_end(device, own),
                what_if=what_if(modelled, settings, search=search_settings, gpu_memory=gpu_memory)
                if modelled is not None and can_replay and has_questions
                else None,
                first=first_changes(replayed, device, modelled),
            )
        )
    return tuple(findings)
