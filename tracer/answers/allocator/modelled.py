"""Agreement of the caching allocator's model with a recording, on which every answer about settings rests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np

from tracer.allocator.blocks import State
from tracer.allocator.fragmentation import free_for_process
from tracer.allocator.history import History, Need, Requests, read_history
from tracer.allocator.replay import program_of, replay
from tracer.allocator.reproduce import Reproduction, reproduce
from tracer.allocator.settings import AllocatorSettings, recorded_settings
from tracer.allocator.start_state import StartState, find_start
from tracer.allocator.state import FIRST_TORCH_WITH_COUNTERS, NEWEST_TORCH
from tracer.allocator.statistics import Moment
from tracer.blocks.from_snapshot.blocks import ReplayedDevice
from tracer.collector import paused_gc
from tracer.snapshot.actions import Action
from tracer.snapshot.columns import DeviceState
from tracer.snapshot.replay import Replay
from tracer.units import format_bytes, some

LONG_HISTORY = 200_000
"""Operations, for which a replay takes a third of a second: above, of a program that was never short of memory no
settings are tried unless they are asked for."""
OLDER_TORCH = (FIRST_TORCH_WITH_COUNTERS[0], FIRST_TORCH_WITH_COUNTERS[1] - 1)


@dataclass(frozen=True, eq=False)
class Modelled:
    """A device's recording, and what the allocator model makes of it."""

    device: int  # Its index
    settings: AllocatorSettings  # Settings that it was recorded under, as far as the snapshot says
    history: History
    reproduction: Reproduction  # The outcome of a replay at these settings
    peak_entry: int  # The entry with the most in use while the most was reserved; -1 for the start
    most_in_use_entry: int  # The entry with the most in use, as requested; -1 for the start
    start: StartState  # What the recording began with
    # Bytes reserved, and bytes that the device had free for the process, where a failed request says so.
    capacity_in_message_bytes: int | None = None
    # Replays begin with what the recording began with, instead of in a clean allocator. Other settings would have made
    # another beginning, so that only other requests can be replayed.
    is_from_start: bool = False

    def moment_after(self, entry: int) -> Moment | None:
        """Return all blocks after one of the two entries; None if the model differs from the recording by then."""
        reproduction = self.reproduction
        left_at = reproduction.first_difference
        if not reproduction.moments or (left_at is not None and left_at <= entry):
            return None
        return reproduction.moments[sorted({self.peak_entry, self.most_in_use_entry}).index(entry)]

    @property
    def most_in_use_bytes(self) -> int | None:
        """Bytes in use at the peak, as torch counts them: a rest that is too small to split off is of its block."""
        moment = self.moment_after(self.most_in_use_entry)
        if moment is None:
            return None
        return sum(block.size for segment in moment for block in segment.blocks if block.state is not State.FREE)

    @property
    def torch_version(self) -> tuple[int, int]:
        """A torch whose rules the recording follows."""
        return NEWEST_TORCH if self.reproduction.has_counters else OLDER_TORCH

    @cached_property
    def program(self) -> Requests:
        """The requests of the program."""
        return program_of(self.history, self.reproduction.releases_by_program)

    @cached_property
    def capacity(self) -> int | None:
        """Bytes that this process could reserve; None if the recording never reached them.

        They are at least the bytes that the device gave, and fewer than it refused. The message of an out of memory
        lies between; retries prove the lower bound alone, and the upper one is taken if a clean allocator needs it.
        """
        reproduction = self.reproduction
        if reproduction.refused_bytes is None:
            return None
        most = max(reproduction.refused_bytes - 1, reproduction.recorded_peak_bytes)
        least = max(min(self.capacity_in_message_bytes or 0, most), reproduction.recorded_peak_bytes)
        return least if self.at_capacity(self.settings, least).failure is None else most

    @cached_property
    def baseline(self) -> Need:
        """A replay of the program at the recorded settings and capacity."""
        return self.at_capacity(self.settings, self.capacity)

    @cached_property
    def as_it_failed(self) -> Modelled:
        """Return the model with a beginning from which each failed request fails again.

        Replays begin with a clean allocator if that suffices, or else with the state that the recording began with: a
        clean one may have room. If the recorded requests fail from neither, replays begin with the clean one.
        """
        from_start = replace(self, is_from_start=True)
        if self._fails_alike or self.start.num_contradictions or not from_start._fails_alike:
            return self
        is_exact = from_start.baseline.reserved_peak_bytes == self.reproduction.recorded_peak_bytes
        return from_start if is_exact else self

    @property
    def _fails_alike(self) -> bool:
        return self.baseline.failure is None and len(self.baseline.unserved) == len(self.history.failed)

    @cached_property
    def unlimited(self) -> Need:
        """A replay at the recorded settings without limit."""
        return self.baseline if self.capacity is None else self.at_capacity(self.settings, None)

    def at_capacity(
        self, settings: AllocatorSettings, capacity: int | None, *, program: Requests | None = None
    ) -> Need:
        """A replay under some settings; a request that failed in the recording may fail again.

        Args:
            settings: The allocator's. A memory fraction is left out: the capacity is what it left.
            capacity: Bytes that can be reserved; None for no limit.
        """
        requests = program or self.program
        whole = replace(settings, per_process_memory_fraction=1.0)
        with paused_gc():
            return replay(
                requests,
                whole,
                capacity=capacity,
                torch_version=self.torch_version,
                goes_on=True,
                start=self.start if self.is_from_start else None,
            )


_modelled: WeakKeyDictionary[ReplayedDevice, Modelled | None] = WeakKeyDictionary()


def model_device(device: ReplayedDevice) -> Modelled | None:
    """Replay one device's recording at its own settings, once; None without a history or a caching allocator.

    A snapshot does not say which torch made it. Where the rules of the newest one do not give every decision, those of
    older ones are tried, and the better ones kept.
    """
    if device not in _modelled:
        _modelled[device] = _model(device)
    return _modelled[device]


def _model(device: ReplayedDevice) -> Modelled | None:
    snapshot, state, replayed = device.snapshot, device.state, device.replay
    if not len(state.trace) or not snapshot.has_allocator:
        return None
    recorded = snapshot.settings
    if "expandable_segments" not in recorded and state.segments.is_expandable.any():
        # Older snapshots do not tell their settings; expandable segments show.
        recorded = {**recorded, "expandable_segments": True}
    settings = recorded_settings(recorded)
    with paused_gc():
        history = read_history(snapshot, state, replayed)
        start = find_start(state, history, settings)
        # After it the most was reserved, and of those entries the most in use; -1 for the start.
        at_peak = np.flatnonzero(replayed.reserved_bytes == replayed.reserved_bytes.max())
        peak_entry = int(at_peak[np.argmax(replayed.requested_bytes[at_peak])]) - 1
        moments = sorted({peak_entry, replayed.peak_entry})
        reproduction = _best_reproduction(state, history, start, settings, moments)
    return Modelled(
        device=state.device,
        settings=settings,
        history=history,
        reproduction=reproduction,
        peak_entry=peak_entry,
        most_in_use_entry=replayed.peak_entry,
        start=start,
        capacity_in_message_bytes=_capacity_in_messages(state, replayed, settings.per_process_memory_fraction),
    )


def _capacity_in_messages(state: DeviceState, replayed: Replay, fraction: float) -> int | None:
    """The least that failed requests say of the device: reserved then, and free for this process."""
    capacities = [
        int(replayed.reserved_bytes[entry + 1]) + free_bytes
        for entry in state.trace.where(Action.OOM).tolist()
        if (free_bytes := free_for_process(state, replayed, entry, fraction)) is not None
    ]
    return min(capacities, default=None)


def _best_reproduction(
    state: DeviceState, history: History, start: StartState, settings: AllocatorSettings, moments: Sequence[int]
) -> Reproduction:
    """Under the rules that hold, or else under those that hold the longest."""

    def under(version: tuple[int, int], *, to_the_end: bool) -> Reproduction:
        return reproduce(
            state,
            history,
            start,
            settings,
            torch_version=version,
            moments=moments,
            stop_at_difference=not to_the_end,
        )

    reached = {}
    for version in (OLDER_TORCH, NEWEST_TORCH):
        reproduction = under(version, to_the_end=False)
        if reproduction.is_exact:
            return reproduction
        reached[version] = (
            history.num_entries if reproduction.first_difference is None else reproduction.first_difference
        )
    return under(max(reached, key=lambda version: reached[version]), to_the_end=True)


def agreement(modelled: Modelled) -> list[str]:
    """Return sentences on the decisions that the model repeated, and on the consequence where some differ."""
    reproduction = modelled.reproduction
    if not reproduction.addresses.recorded and not reproduction.segments.recorded:
        return ["The recording has no allocation, so there is no decision of the allocator to make again."]
    parts = [f"{reproduction.addresses.equal:,} of {reproduction.addresses.recorded:,} addresses"]
    for kind, name in (
        (reproduction.segments, "segments"),
        (reproduction.releases, "releases"),
        (reproduction.failures, "failed requests"),
    ):
        if kind.recorded:
            parts.append(f"{kind.equal:,} of {kind.recorded:,} {name}")
    parts.append(f"{reproduction.end_blocks.equal:,} of {reproduction.end_blocks.recorded:,} blocks at the end")
    if reproduction.is_exact:
        exact = f"A model of torch's allocator repeats every decision in this recording: {', '.join(parts)}."
        number = reproduction.num_retries
        times = {1: "once", 2: "twice"}.get(number, f"{number:,} times")
        retries = f"The allocator emptied its cache to try again {times}; each waits for the GPU."
        return [exact, retries] if number else [exact]
    if reproduction.given_up_at is not None:
        return [
            f"A model of torch's allocator decides most of this recording differently ({parts[0]} agree), and was "
            f"compared up to entry {reproduction.given_up_at:,}: another allocator, or another torch, made it.",
            "What follows is what torch's allocator would need for the same requests, not what this one did.",
        ]
    return [
        f"A model of torch's allocator repeats this recording in part: {', '.join(parts)}.",
        *_what_differs(modelled),
    ]


def _what_differs(modelled: Modelled) -> list[str]:
    reproduction = modelled.reproduction
    sentences = []
    if reproduction.first_difference is not None:
        sentences.append(f"The first decision that differs is at entry {reproduction.first_difference:,}.")
    if modelled.start.num_contradictions:
        sentences.append(f"{modelled.start.num_contradictions:,} entries or blocks contradict the segments at the end.")
    if modelled.start.num_unclear_sizes:
        sentences.append(
            f"Of {modelled.start.num_unclear_sizes:,} blocks from before the recording the size is not known."
        )
    if modelled.history.num_unknown_actions:
        number = modelled.history.num_unknown_actions
        entries = some(number, "entry", "has/have")
        sentences.append(f"{entries} an action that this version does not know: left out.")
    off = reproduction.peak_bytes - reproduction.recorded_peak_bytes
    if off:
        sentences.append(
            f"The model's peak is {format_bytes(abs(off))} {'above' if off > 0 else 'below'} the recorded."
        )
    else:
        sentences.append("The peak of reserved memory is still the recorded one.")
    return sentences
