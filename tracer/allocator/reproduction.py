"""How far a replay agrees with its recording."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracer.allocator.statistics import Moment, SegmentInfo


@dataclass(frozen=True, slots=True)
class Matched:
    """How many of the recorded decisions of one kind came out."""

    equal: int = 0
    recorded: int = 0

    @property
    def is_exact(self) -> bool:
        """Whether all did."""
        return self.equal == self.recorded


@dataclass(frozen=True, slots=True, eq=False)
class Reproduction:
    """What came of replaying a recording at its own settings.

    Attributes:
        addresses: Where each allocation was placed.
        segments: Segments and pages taken from the driver.
        releases: Segments and pages given back.
        failures: Requests that ran out of memory.
        end_segments: Segments at the end, with everything in them.
        end_blocks: Blocks at the end.
        num_extra: Segment events of the model that the recording does not have.
        recorded_peak_bytes: The most that the recording had reserved.
        peak_bytes: The most that the model had reserved.
        first_difference: The trace entry of the first decision that did not come out; None if all did.
        given_up_at: The trace entry at which comparing ended because most decisions did not come out; else None.
        releases_by_program: Positions of operations at which the program emptied the cache.
        num_retries: How often the recorded allocator emptied its cache for a request.
        refused_bytes: The least that the recorded driver refused: reserved then, and asked for; None if it never did.
        has_counters: Whether free blocks of one size were taken by the age of their segment, as since torch 2.13.
        moments: All blocks at the moments asked for; none where comparing was given up.
    """

    addresses: Matched
    segments: Matched
    releases: Matched
    failures: Matched
    end_segments: Matched
    end_blocks: Matched
    num_extra: int
    recorded_peak_bytes: int
    peak_bytes: int
    first_difference: int | None
    given_up_at: int | None
    releases_by_program: tuple[int, ...]
    num_retries: int
    refused_bytes: int | None
    has_counters: bool
    moments: tuple[Moment, ...]

    @property
    def is_exact(self) -> bool:
        """Whether every decision came out."""
        kinds = (self.addresses, self.segments, self.releases, self.failures, self.end_segments, self.end_blocks)
        return (
            all(kind.is_exact for kind in kinds) and not self.num_extra and self.peak_bytes == self.recorded_peak_bytes
        )


def compare_ends(recorded: Moment, modelled: Moment) -> tuple[Matched, Matched]:
    """Segments that agree in everything, and blocks that do, in whatever segment.

    Args:
        recorded: Segments of the snapshot.
        modelled: Segments of the model when it has replayed the recording.
    """
    modelled_segments = set(map(_without_lives, modelled))
    wanted = list(map(_without_lives, recorded))
    blocks = {block for segment in modelled_segments for block in segment.blocks}
    num_segments = max(len(wanted), len(modelled_segments))  # one too many is as wrong as one too few
    equal_blocks = sum(block in blocks for segment in wanted for block in segment.blocks)
    num_blocks = sum(len(segment.blocks) for segment in wanted)
    return Matched(sum(segment in modelled_segments for segment in wanted), num_segments), Matched(
        equal_blocks, num_blocks
    )


def _without_lives(segment: SegmentInfo) -> SegmentInfo:
    """What both sides know: the recording tells neither lives nor where the pages of an expandable segment begin."""
    return replace(segment, page=None, blocks=tuple(replace(block, life=-1) for block in segment.blocks))
