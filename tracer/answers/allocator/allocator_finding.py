"""Answers of the allocator's model about a snapshot: other settings and GPUs, and why memory ran out or grew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tracer.allocator.history import Need
from tracer.allocator.replay import replay as replay_program
from tracer.allocator.settings import AllocatorSettings, parse_settings, recorded_settings
from tracer.answers.allocator.modelled import Modelled, agreement, model_device
from tracer.answers.allocator.reserved import Reserved, reserved_at_end, reserved_at_peak
from tracer.answers.out_of_memory import in_evaluation, last_out_of_memory
from tracer.answers.why.case import Case
from tracer.answers.why.first_changes import FirstChanges, first_changes
from tracer.blocks.from_snapshot.blocks import ReplayedDevice
from tracer.capture.objects.at_failure import ObjectsAtFailure
from tracer.collector import paused_gc
from tracer.snapshot.actions import Action
from tracer.snapshot.replay import BEFORE

NO_HISTORY = "There is no history to be replayed, so neither settings nor another GPU can be tried on it."
NO_ALLOCATOR = (
    "The recording is of a run without torch's caching allocator, such as one on the CPU: neither its settings nor "
    "another GPU can be tried on it."
)
AS_RECORDED = ""
_HUNDREDTH = 100


@dataclass(frozen=True, slots=True)
class SettingsOutcome:
    """Memory that the history needs under some settings."""

    settings: str  # As they were spelled; empty for the recorded ones
    outcome: Need  # A replay with the capacity of the recording, see `WhatIf.capacity`
    saved_bytes: int  # The reserved peak under the recorded settings less that under these; negative if these need more
    on_gpu: Need | None  # A replay on the GPU asked about; None without one

    @property
    def fits(self) -> bool:
        """True if every request is served on the GPU asked about, or none was asked about."""
        return self.on_gpu is None or self.on_gpu.failure is None

    @property
    def unserved(self) -> tuple[bool, int]:
        """True if the replay ends early, and the number of requests that fail again as in the recording."""
        return self.outcome.failure is not None, len(self.outcome.unserved)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The answers for one device."""

    rows: tuple[SettingsOutcome, ...]  # The recorded settings first, then those asked for in their order
    gpu_memory: int | None
    starts_clean: bool  # The recording begins with nothing allocated, so that no cache from before is missing in it
    # Limit on the reserved bytes of every replay, which the recording reached; None if it reached none.
    capacity: int | None
    recorded_peak_bytes: int  # The most that the recording itself had reserved
    num_failed: int  # Requests that failed in the recording
    # Nothing was allocated after the last failed request: what the program would have asked for then is not known.
    ends_by_failure: bool

    @property
    def best(self) -> SettingsOutcome:
        """The first of those that serve the most and are within a hundredth of the least reserved at the peak."""
        served = min(row.unserved for row in self.rows)
        rows = [row for row in self.rows if row.unserved == served]
        least = min(row.outcome.reserved_peak_bytes for row in rows)
        return next(row for row in rows if (row.outcome.reserved_peak_bytes - least) * _HUNDREDTH <= least)

    @property
    def runs(self) -> bool:
        """True if the history runs on the GPU asked about under one of the settings asked about.

        Without other settings the recorded ones count.
        """
        return any(row.fits for row in self.rows[1:] or self.rows)


def _what_if(modelled: Modelled, settings: Sequence[str], gpu_memory: int | None) -> WhatIf:
    """Replay a history under other settings, each time from a clean allocator."""
    parsed = [(AS_RECORDED, modelled.settings), *((text, parse_settings(text)) for text in settings)]
    with paused_gc():
        rows = tuple(_row(modelled, text, settings, gpu_memory) for text, settings in parsed)
    return WhatIf(
        rows=rows,
        gpu_memory=gpu_memory,
        starts_clean=not (modelled.history.lives.begin == BEFORE).any(),
        capacity=modelled.capacity,
        recorded_peak_bytes=modelled.reproduction.recorded_peak_bytes,
        num_failed=len(modelled.history.failed),
        ends_by_failure=modelled.history.ends_by_failure,
    )


def _row(modelled: Modelled, text: str, settings: AllocatorSettings, gpu_memory: int | None) -> SettingsOutcome:
    program, version = modelled.program, modelled.torch_version
    outcome = modelled.baseline if text == AS_RECORDED else modelled.at_capacity(settings, modelled.capacity)
    on_gpu = None
    if gpu_memory is not None:
        unlimited = outcome
        if modelled.capacity is not None:
            unlimited = modelled.unlimited if text == AS_RECORDED else modelled.at_capacity(settings, None)
        # A limit that the replay without one never reaches changes nothing.
        is_below = unlimited.reserved_peak_bytes <= gpu_memory and settings.per_process_memory_fraction >= 1
        on_gpu = (
            unlimited if is_below else replay_program(program, settings, capacity=gpu_memory, torch_version=version)
        )
    return SettingsOutcome(
        settings=text,
        outcome=outcome,
        saved_bytes=modelled.baseline.reserved_peak_bytes - outcome.reserved_peak_bytes,
        on_gpu=on_gpu,
    )


@dataclass(frozen=True, slots=True, eq=False)
class AllocatorFinding:
    """Answers of the model about one device."""

    modelled: Modelled | None  # The replay at the recorded settings; None without a history
    # How far it agrees with the recording, in sentences; or that what was asked cannot be answered.
    agreement: tuple[str, ...]
    at_peak: Reserved | None  # Why so much was reserved when the most was; None if the model cannot say
    at_end: Reserved  # Why so much was reserved when the snapshot was taken
    what_if: WhatIf | None  # Other settings and devices, if any were asked about
    first: FirstChanges | None = None  # What to try first; None where nothing can be replayed


def explain_allocator(
    device: ReplayedDevice,
    *,
    settings: Sequence[str] = (),
    gpu_memory: int | None = None,
    objects: ObjectsAtFailure | None = None,
) -> AllocatorFinding:
    """Replay one device of a snapshot through the model; see `with_allocator` for the arguments."""
    has_questions = bool(settings) or gpu_memory is not None
    unasked = (NO_HISTORY if device.snapshot.has_allocator else NO_ALLOCATOR,) if has_questions else ()
    modelled = model_device(device)
    can_replay = modelled is not None and modelled.history.num_allocations > 0
    own = modelled.settings if modelled is not None else recorded_settings(device.snapshot.settings)
    return AllocatorFinding(
        modelled=modelled,
        agreement=tuple(agreement(modelled)) if modelled is not None else unasked,
        at_peak=reserved_at_peak(modelled) if modelled is not None else None,
        at_end=reserved_at_end(device, own),
        what_if=_what_if(modelled, settings, gpu_memory)
        if modelled is not None and can_replay and has_questions
        else None,
        first=first_changes(device, objects=_at_failure(device, objects)),
    )


def _at_failure(device: ReplayedDevice, objects: ObjectsAtFailure | None) -> ObjectsAtFailure | None:
    """Facts of a device's failure; its model counts as evaluating only if the evaluation holds much."""
    if objects is None or not len(device.state.trace.where(Action.OOM)):
        return None
    case = Case(device, objects)
    kept_bytes = case.bytes(case.kept_for_backward)
    evaluates = objects.is_evaluating and in_evaluation(last_out_of_memory(device), kept_bytes).in_evaluation
    return replace(objects, is_evaluating=evaluates)
