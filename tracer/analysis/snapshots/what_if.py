"""What a recorded history would have needed under other settings, and whether it runs on another device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tracer.allocator.caching_allocator import CachingAllocator
from tracer.allocator.history import FailedRequest, Need, Requests
from tracer.allocator.replay import replay as replay_program
from tracer.allocator.replay import smallest_capacity
from tracer.allocator.settings import AllocatorSettings, parse_settings
from tracer.analysis.snapshots.modelled import Modelled
from tracer.block_sizes import SEGMENT_STEP_BYTES
from tracer.collector import paused_gc
from tracer.snapshot.replay import BEFORE
from tracer.units import MIB, format_bytes

AS_RECORDED = ""
_HUNDREDTH = 100
_ROUNDS = 100
_LONG_HISTORY = 200_000
"""Operations; above, the smallest capacity is found to a thousandth, since each step of the search is a replay."""
WORTH_TRYING = (
    "expandable_segments:True",
    "large_segment_size_mb:12",
    "expandable_segments:True,large_segment_size_mb:12",
    "max_split_size_mb:512",
    "max_split_size_mb:128",
    "roundup_power2_divisions:8",
)
"""What helped at least one of the recordings that the model was held against, besides what needs a memory limit."""


@dataclass(frozen=True, slots=True)
class SettingsOutcome:
    """Memory that the history needs under some settings."""

    settings: str  # As they were spelled; empty for the recorded ones
    outcome: Need  # What came of a replay with what the recording had, see `WhatIf.capacity`
    saved_bytes: int  # How much less was reserved at the peak than under the recorded settings; below zero for more
    on_gpu: Need | None  # What came of a replay on the GPU asked about; None if there was none
    smallest_gpu_bytes: int | None  # The least memory on which the history runs; None if it was not asked for
    remarks: tuple[str, ...]  # What is known to go wrong with these settings, and what they do not do here

    @property
    def fits(self) -> bool:
        """Whether every request was served on the GPU asked about."""
        return self.on_gpu is None or self.on_gpu.failure is None


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The answers for one device."""

    device: int  # Its index
    rows: tuple[SettingsOutcome, ...]  # The recorded settings first, then those asked for in their order
    gpu_memory: int | None
    starts_clean: bool  # The recording begins with nothing allocated, so that no cache from before is missing in it
    # What every row had, because the recording reached it; None where it did not, and there is no limit.
    capacity: int | None = None
    recorded_peak_bytes: int = 0  # The most that the recording itself had reserved
    num_failed: int = 0  # Requests that failed in the recording
    # Nothing was allocated after the last failed request: what the program would have asked for then is not known.
    ends_by_failure: bool = False
    not_worth: tuple[str, ...] = ()  # Settings that were searched and save less than a hundredth; they have no row
    step_bytes: int = SEGMENT_STEP_BYTES  # How exactly the smallest GPU was looked for

    @property
    def best(self) -> SettingsOutcome:
        """The first of those that serve the most and are within a hundredth of the least reserved at the peak."""
        served = min(_unserved(row) for row in self.rows)
        rows = [row for row in self.rows if _unserved(row) == served]
        least = min(row.outcome.reserved_peak_bytes for row in rows)
        return next(row for row in rows if (row.outcome.reserved_peak_bytes - least) * _HUNDREDTH <= least)

    @property
    def runs(self) -> bool:
        """Whether the history runs on the GPU asked about under one of the settings asked about.

        Those that were recorded count where no others were named.
        """
        return any(row.fits for row in self.rows[1:] or self.rows)


def _unserved(row: SettingsOutcome) -> tuple[bool, int]:
    return row.outcome.failure is not None, len(row.outcome.unserved)


def what_if(
    modelled: Modelled, settings: Sequence[str] = (), *, search: bool = False, gpu_memory: int | None = None
) -> WhatIf:
    """Replay a history under other settings, each time from a clean allocator.

    Args:
        gpu_memory: Bytes that the allocator can have; None asks only for what is needed.

    Raises:
        SettingsError: torch would not start with some of the settings.
    """
    parsed = [(text, parse_settings(text)) for text in settings]
    searched = [text for text in _searched(modelled) if text not in settings] if search else []
    with paused_gc():
        rows = [
            _row(modelled, text, settings, gpu_memory) for text, settings in [(AS_RECORDED, modelled.settings), *parsed]
        ]
        candidates = [_row(modelled, text, parse_settings(text), gpu_memory) for text in searched]
    helps = [row for row in candidates if _helps(row, rows[0])]
    return WhatIf(
        device=modelled.device,
        rows=(*rows, *helps),
        gpu_memory=gpu_memory,
        starts_clean=not (modelled.history.lives.begin == BEFORE).any(),
        capacity=modelled.capacity,
        recorded_peak_bytes=modelled.reproduction.recorded_peak_bytes,
        num_failed=len(modelled.history.failed),
        ends_by_failure=modelled.history.ends_by_failure,
        not_worth=tuple(row.settings for row in candidates if row not in helps),
        step_bytes=_search_step(modelled.program, modelled.unlimited) if gpu_memory is not None else SEGMENT_STEP_BYTES,
    )


def _searched(modelled: Modelled) -> list[str]:
    """What is worth trying, and known to the torch of the recording."""
    return [text for text in WORTH_TRYING if modelled.knows_large_segments or "large_segment_size_mb" not in text]


def _helps(row: SettingsOutcome, recorded: SettingsOutcome) -> bool:
    """Whether more is served, or as much with a hundredth less at the peak, or on a GPU a hundredth smaller."""
    if _unserved(row) != _unserved(recorded):
        return _unserved(row) < _unserved(recorded)
    smallest, before = row.smallest_gpu_bytes, recorded.smallest_gpu_bytes
    is_smaller = smallest is not None and before is not None and (before - smallest) * _HUNDREDTH >= before
    return row.saved_bytes * _HUNDREDTH >= recorded.outcome.reserved_peak_bytes or is_smaller


def _row(modelled: Modelled, text: str, settings: AllocatorSettings, gpu_memory: int | None) -> SettingsOutcome:
    program, version = modelled.program, modelled.torch_version
    outcome = modelled.baseline if text == AS_RECORDED else modelled.at_capacity(settings, modelled.capacity)
    smallest = on_gpu = None
    if gpu_memory is not None:
        unlimited = outcome
        if modelled.capacity is not None:
            unlimited = modelled.unlimited if text == AS_RECORDED else modelled.at_capacity(settings, None)
        on_gpu = _on_gpu(program, settings, gpu_memory, unlimited, version)
        smallest = _smallest(program, settings, unlimited, version)
    return SettingsOutcome(
        settings=text,
        outcome=outcome,
        saved_bytes=modelled.baseline.reserved_peak_bytes - outcome.reserved_peak_bytes,
        on_gpu=on_gpu,
        smallest_gpu_bytes=smallest,
        remarks=tuple(_remarks(text, settings, outcome, modelled, gpu_memory)),
    )


def _has_limit(settings: AllocatorSettings) -> bool:
    return settings.per_process_memory_fraction < 1


def _on_gpu(
    program: Requests, settings: AllocatorSettings, gpu_memory: int, unlimited: Need, version: tuple[int, int]
) -> Need:
    """On that much memory; where the replay without limit stays below, nothing would differ."""
    if unlimited.reserved_peak_bytes <= gpu_memory and not _has_limit(settings):
        return unlimited
    return replay_program(program, settings, capacity=gpu_memory, torch_version=version)


def _smallest(program: Requests, settings: AllocatorSettings, unlimited: Need, version: tuple[int, int]) -> int | None:
    """A memory fraction leaves a share of the device to the allocator, and that share is what has to suffice."""
    if not settings.per_process_memory_fraction:
        return None
    least = smallest_capacity(
        program,
        replace(settings, per_process_memory_fraction=1.0),
        unlimited=unlimited,
        resolution=_search_step(program, unlimited),
        torch_version=version,
    )
    return int(-(-least // settings.per_process_memory_fraction))


def _search_step(program: Requests, unlimited: Need) -> int:
    """A segment's step; of long histories a thousandth, see `_LONG_HISTORY`."""
    is_long = len(program.code) > _LONG_HISTORY
    return max(unlimited.reserved_peak_bytes >> 10, SEGMENT_STEP_BYTES) if is_long else SEGMENT_STEP_BYTES


def _remarks(
    text: str, settings: AllocatorSettings, outcome: Need, modelled: Modelled, gpu_memory: int | None
) -> list[str]:
    remarks, baseline = [], modelled.baseline
    if "large_segment_size_mb" in text:
        older = "" if modelled.knows_large_segments else ", and an older one made this recording"
        remarks.append(f"large_segment_size_mb came with torch 2.11{older}.")
    if text != AS_RECORDED:
        remarks += known_trouble(settings, is_worse=outcome.reserved_peak_bytes > baseline.reserved_peak_bytes)
    if settings.garbage_collection_threshold and not (_has_limit(settings) and gpu_memory is not None):
        remarks.append(
            "garbage_collection_threshold acts only under a memory limit: add per_process_memory_fraction, and "
            "--gpu-memory to say of what."
        )
    return remarks


def where_it_fails(failure: FailedRequest, num_entries: int) -> str:
    """The place of a failure, for a sentence."""
    if failure.entry < 0:
        return "before the recording begins"
    return f"at entry {failure.entry:,} of {num_entries:,}"


def known_trouble(settings: AllocatorSettings, *, is_worse: bool) -> list[str]:
    """Sentences on the faults of some settings."""
    sentences = []
    if settings.expandable_segments and settings.max_split_size is not None:
        limit = settings.max_split_size
        both, alone = _held_apart(settings, limit), _held_apart(replace(settings, max_split_size=None), limit)
        if both > alone:
            sentences.append(
                "max_split_size_mb keeps large free blocks of expandable segments from being used again (pytorch issue "
                f"123548): a loop of {_ROUNDS} rounds reserves {format_bytes(both)} with both, {format_bytes(alone)} "
                "with expandable segments alone."
            )
    if is_worse and settings.max_split_size is not None and not settings.expandable_segments:
        sentences.append(
            "max_split_size_mb leaves large free blocks to requests of nearly their size, and reserves more."
        )
    if is_worse and any(parts > 1 for parts in settings.roundup_power2_divisions):
        sentences.append(
            "roundup_power2_divisions makes blocks larger than asked for, and here that costs more than it saves."
        )
    return sentences


def _held_apart(settings: AllocatorSettings, limit: int) -> int:
    """The reserved bytes of the loop of that issue, with blocks in proportion to `max_split_size`.

    Each round makes two blocks whose freed memory is one large piece, and a small one behind it that stays.
    """
    first, second = limit * 91 // 128, limit * 91 // 256
    allocator = CachingAllocator(settings)
    for _ in range(_ROUNDS):
        large = [allocator.allocate(first), allocator.allocate(second)]
        allocator.allocate(2 * MIB)
        for block in large:
            allocator.free(block)
    return allocator.peak_reserved_bytes
