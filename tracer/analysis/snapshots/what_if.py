"""What a recorded history would have needed under other settings, and whether it runs on another device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tracer.allocator.replay import Failure, Outcome, Program, smallest_capacity
from tracer.allocator.replay import replay as replay_program
from tracer.allocator.settings import AllocatorSettings, parse_settings
from tracer.allocator.sizes import SEGMENT_STEP_BYTES
from tracer.analysis.snapshots.known_trouble import known_trouble
from tracer.analysis.snapshots.modelled import Modelled
from tracer.collector import paused_gc
from tracer.snapshot.replay import BEFORE

AS_RECORDED = ""
_LONG_HISTORY = 200_000
"""Operations; above, the smallest capacity is found to a thousandth, since each step of the search is a replay."""
WORTH_TRYING = (
    "expandable_segments:True",
    "expandable_segments:True,large_segment_size_mb:12",
    "large_segment_size_mb:12",
    "max_split_size_mb:512",
    "max_split_size_mb:128",
    "roundup_power2_divisions:8",
)
"""What helped at least one of the recordings that the model was held against, besides what needs a memory limit."""


@dataclass(frozen=True, slots=True)
class SettingsOutcome:
    """What the history needs under some settings.

    Attributes:
        settings: As they were spelled; empty for the recorded ones.
        outcome: What came of a replay without limit.
        saved_bytes: How much less was reserved at the peak than under the recorded settings; below zero for more.
        on_gpu: What came of a replay on the GPU asked about; None if there was none.
        smallest_gpu_bytes: The least memory on which the history runs; None if it was not asked for.
        remarks: What is known to go wrong with these settings, and what they do not do here.
    """

    settings: str
    outcome: Outcome
    saved_bytes: int
    on_gpu: Outcome | None
    smallest_gpu_bytes: int | None
    remarks: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether every request was served on the GPU asked about."""
        return self.on_gpu is None or self.on_gpu.failure is None


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The answers for one device.

    Attributes:
        device: Its index.
        rows: The recorded settings first, then those asked for in their order.
        gpu_memory: The memory of the GPU asked about.
        starts_clean: The recording begins with nothing allocated, so that no cache from before is missing in it.
    """

    device: int
    rows: tuple[SettingsOutcome, ...]
    gpu_memory: int | None
    starts_clean: bool

    @property
    def best(self) -> SettingsOutcome:
        """The settings with the least reserved at the peak; of equals the one with the fewest driver calls."""
        return min(self.rows, key=lambda row: (row.outcome.reserved_peak_bytes, row.outcome.num_driver_calls))

    @property
    def runs(self) -> bool:
        """Whether the history runs on the GPU asked about under one of the settings asked about.

        Those that were recorded count where no others were named.
        """
        return any(row.fits for row in self.rows[1:] or self.rows)


def what_if(modelled: Modelled, settings: Sequence[str] = (), *, gpu_memory: int | None = None) -> WhatIf:
    """Replay a history under other settings, each time from a clean allocator.

    Args:
        modelled: The recording.
        settings: Settings to try, spelled as in PYTORCH_CUDA_ALLOC_CONF.
        gpu_memory: Bytes that the allocator can have; None asks only for what is needed.

    Raises:
        SettingsError: torch would not start with some of the settings.
    """
    parsed = [(text, parse_settings(text)) for text in settings]
    with paused_gc():
        rows = [
            _row(modelled, text, settings, gpu_memory) for text, settings in [(AS_RECORDED, modelled.settings), *parsed]
        ]
    return WhatIf(
        device=modelled.device,
        rows=tuple(rows),
        gpu_memory=gpu_memory,
        starts_clean=not (modelled.history.lives.begin == BEFORE).any(),
    )


def _row(modelled: Modelled, text: str, settings: AllocatorSettings, gpu_memory: int | None) -> SettingsOutcome:
    program, version = modelled.program, modelled.torch_version
    unlimited = modelled.baseline
    if text != AS_RECORDED:
        unlimited = replay_program(program, _without_limit(settings), torch_version=version)
    smallest = on_gpu = None
    if gpu_memory is not None:
        on_gpu = _on_gpu(program, settings, gpu_memory, unlimited, version)
        smallest = _smallest(program, settings, unlimited, version)
    return SettingsOutcome(
        settings=text,
        outcome=unlimited,
        saved_bytes=modelled.baseline.reserved_peak_bytes - unlimited.reserved_peak_bytes,
        on_gpu=on_gpu,
        smallest_gpu_bytes=smallest,
        remarks=tuple(_remarks(text, settings, unlimited, modelled.baseline, gpu_memory)),
    )


def _without_limit(settings: AllocatorSettings) -> AllocatorSettings:
    return replace(settings, per_process_memory_fraction=1.0)


def _has_limit(settings: AllocatorSettings) -> bool:
    return settings.per_process_memory_fraction < 1


def _on_gpu(
    program: Program, settings: AllocatorSettings, gpu_memory: int, unlimited: Outcome, version: tuple[int, int]
) -> Outcome:
    """On that much memory; where the replay without limit stays below, nothing would differ."""
    if unlimited.reserved_peak_bytes <= gpu_memory and not _has_limit(settings):
        return unlimited
    return replay_program(program, settings, capacity=gpu_memory, torch_version=version)


def _smallest(
    program: Program, settings: AllocatorSettings, unlimited: Outcome, version: tuple[int, int]
) -> int | None:
    """A memory fraction leaves a share of the device to the allocator, and that share is what has to suffice."""
    if not settings.per_process_memory_fraction:
        return None
    is_long = len(program.code) > _LONG_HISTORY
    least = smallest_capacity(
        program,
        _without_limit(settings),
        unlimited=unlimited,
        resolution=max(unlimited.reserved_peak_bytes >> 10, SEGMENT_STEP_BYTES) if is_long else SEGMENT_STEP_BYTES,
        torch_version=version,
    )
    return int(-(-least // settings.per_process_memory_fraction))


def _remarks(
    text: str, settings: AllocatorSettings, outcome: Outcome, baseline: Outcome, gpu_memory: int | None
) -> list[str]:
    found = []
    if text != AS_RECORDED:
        found += known_trouble(settings, is_worse=outcome.reserved_peak_bytes > baseline.reserved_peak_bytes)
    if settings.garbage_collection_threshold and not (_has_limit(settings) and gpu_memory is not None):
        found.append(
            "garbage_collection_threshold acts only under a memory limit: add per_process_memory_fraction, and "
            "--gpu-memory to say of what."
        )
    return found


def where_it_fails(failure: Failure, num_entries: int) -> str:
    """The place of a failure, for a sentence."""
    if failure.entry < 0:
        return "before the recording begins"
    return f"at entry {failure.entry:,} of {num_entries:,}"
