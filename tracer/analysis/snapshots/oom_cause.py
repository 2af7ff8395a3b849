"""Why a request failed, and what to do first: the causes in the order in which they rule each other out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Literal

from tracer.analysis.kinds import Kind
from tracer.analysis.snapshots.changed_requests import Trial
from tracer.analysis.snapshots.fragmentation import Fragmentation, Usable
from tracer.analysis.snapshots.groups import SnapshotRow
from tracer.analysis.snapshots.sites import BEFORE_RECORDING, NO_FRAMES
from tracer.arrays import totals_by
from tracer.block_sizes import segment_size
from tracer.units import format_bytes

Cause = Literal["limit", "pending frees", "fragmentation", "other pools", "kept whole", "too little", "not known"]

_NUM_LINES: Final = 3
_LEAST_SHARE: Final = 0.05
"""Of what was in use: a line with less is not where to look first."""
_LASTING = "which no smaller batch shrinks: shard it (FSDP), or keep it in fewer bits."
_REMEDIES = {
    Kind.ACTIVATION: "activation: a smaller batch, torch.utils.checkpoint or bfloat16 shrinks it.",
    Kind.PARAMETER: f"parameters, {_LASTING}",
    Kind.OPTIMIZER_STATE: f"optimizer state, {_LASTING}",
    Kind.GRADIENT: (
        "gradients: free them with zero_grad(set_to_none=True) before the next forward, or shard them (FSDP)."
    ),
    Kind.BEFORE_RECORDING: "from before the recording: record from the start of the program to see what it is.",
}


@dataclass(frozen=True, slots=True)
class FailureFacts:
    """Facts of one failed request."""

    asked_bytes: int
    device_free_bytes: int | None  # What the driver said was free; None if the recording does not say
    memory: Fragmentation
    usable: Usable  # The reserved memory that this request may be served from
    is_expandable: bool
    groups: Sequence[SnapshotRow]
    splits_all: bool = False  # The recording says that no block is kept whole (`max_split_size` is -1)
    is_explained: bool = False  # What filled the memory is said elsewhere, with what to change
    # Whether the request is served in a replay under a change; None where a replay cannot tell.
    serves: Callable[[Trial], bool | None] = lambda _: None

    @property
    def others_free_bytes(self) -> int:
        """Free memory of other streams, of private pools, and of the pool of the other size."""
        return max(self.memory.free_bytes - self.usable.free_bytes, 0)


def fits_without_fragmentation(failure: FailureFacts) -> bool:
    """Whether what the request may use and what the device is known to have had would have sufficed, in one piece."""
    return failure.usable.free_bytes + (failure.device_free_bytes or 0) >= failure.asked_bytes


def cause_of(failure: FailureFacts) -> Cause:
    """The cause, as far as the recording tells."""
    asked_bytes, free, usable = failure.asked_bytes, failure.device_free_bytes, failure.usable
    if free is not None and free >= segment_size(asked_bytes):
        return "limit"
    if usable.largest_free_bytes >= asked_bytes:
        return "kept whole"
    if asked_bytes <= usable.largest_after_pending_bytes:
        return "pending frees"
    if fits_without_fragmentation(failure):
        return "fragmentation"
    if failure.memory.free_bytes + (free or 0) >= asked_bytes:
        return "other pools"
    return "not known" if free is None else "too little"


def advice_on(failure: FailureFacts) -> str:
    """The cause in a sentence, and what to do first."""
    return _SENTENCES[cause_of(failure)](failure)


def _limit(failure: FailureFacts) -> str:
    reserved, free = format_bytes(failure.memory.reserved_bytes), format_bytes(failure.device_free_bytes or 0)
    return (
        f"{_where_to_look(failure)} A limit of this process stopped it with {reserved} reserved, where the device had "
        f"{free} free: look for "
        "torch.cuda.set_per_process_memory_fraction, or memory that another process took and gave back."
    ).strip()


def _pending(failure: FailureFacts) -> str:
    return (
        f"{format_bytes(failure.usable.pending_bytes)} had been freed and were waiting for another stream; with them "
        "the request fits. Fragmentation is not the cause. "
        + _if_served(
            failure,
            "free at once",
            "Let fewer steps run ahead of the other stream (record_stream), or synchronize with it before this line",
            "frees that wait for no stream",
        )
    )


def _fragmentation(failure: FailureFacts) -> str:
    if failure.is_expandable:
        return (
            "This request would have fit if the free memory were in one piece, although segments are expandable: look "
            "for many small blocks that stay between large ones."
        )
    spare = failure.usable.free_bytes + (failure.device_free_bytes or 0) - failure.asked_bytes
    if failure.is_explained:
        pieces = f"The free memory is in pieces, too; in one piece it would exceed the request by {format_bytes(spare)}"
        served = failure.serves("expandable segments")
        if served is None:
            return f"{pieces}."
        return f"{pieces}, and expandable_segments:True {'serves' if served else 'does not serve'} this request."
    advice = _if_served(
        failure,
        "expandable segments",
        "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "expandable_segments:True",
    )
    fits = f"This request would have fit if the free memory were in one piece, with {format_bytes(spare)} to spare."
    if failure.serves("expandable segments") is False:
        return (
            f"{_where_to_look(failure)} {fits} A replay with expandable_segments:True fails here as well, so "
            "that does not help."
        ).strip()
    if not failure.serves("expandable segments") or spare >= _LEAST_SHARE * failure.memory.allocated_bytes:
        return f"{fits} {advice}"
    return (
        f"{_where_to_look(failure)} {fits} {advice} If the program asks for more than that later, it runs out of "
        "memory there."
    ).strip()


def _other_pools(failure: FailureFacts) -> str:
    largest = failure.memory.largest_free_bytes
    piece = (
        f"A free block of {format_bytes(largest)} is large enough, but belongs"
        if largest >= failure.asked_bytes
        else f"{format_bytes(failure.others_free_bytes)} of free memory would help, but belong"
    )
    return (
        f"{piece} to another stream or pool (CUDA graphs have their own), which this request may not use. "
        "Fragmentation is not the cause. "
        + _if_served(failure, "one stream", "Allocate and free on one stream", "one stream and one pool for all")
        + " torch.cuda.empty_cache() does not help: the allocator itself gave back all that it could before it failed."
    )


def _kept_whole(failure: FailureFacts) -> str:
    size = format_bytes(failure.usable.largest_free_bytes)
    large = f"A free block of {size} is large enough, and this request may use it"
    if failure.splits_all:
        return (
            f"{large}: it became free while the request failed, which torch does not look at again, or what the "
            "recording says of streams and pools is not all. Catch the error, and ask again."
        )
    return f"{large}. The allocator keeps large blocks whole under max_split_size_mb. " + _if_served(
        failure, "split all", "Take that setting away", "that setting away"
    )


def _if_served(failure: FailureFacts, trial: Trial, advice: str, change: str) -> str:
    """An advice only if a replay under it serves the request; else that it does not, or that nothing can be told."""
    served = failure.serves(trial)
    if served:
        return f"{advice}: in a replay of the recording with {change}, the request is served."
    if served is None:
        return (
            "What helps against this acts before the recording as well, so that it cannot be tried here: record from "
            f"the start of the program. {_where_to_look(failure)}"
        ).strip()
    return f"A replay with {change} fails here as well, so that does not help. {_where_to_look(failure)}".strip()


def _too_little(failure: FailureFacts) -> str:
    missing = failure.asked_bytes - failure.memory.free_bytes - (failure.device_free_bytes or 0)
    return (
        f"{_where_to_look(failure)} Fragmentation is not the cause: with all free memory in one piece, "
        f"{format_bytes(missing)} would still be missing."
    ).strip()


def _not_known(failure: FailureFacts) -> str:
    return (
        "The recording does not say how much the device had free. What was reserved and free would not have sufficed. "
        f"{_where_to_look(failure)}"
    )


_SENTENCES: Final = {
    "limit": _limit,
    "pending frees": _pending,
    "fragmentation": _fragmentation,
    "other pools": _other_pools,
    "kept whole": _kept_whole,
    "too little": _too_little,
    "not known": _not_known,
}


def _where_to_look(failure: FailureFacts) -> str:
    """The lines that hold most, and what shrinks the kind that holds most."""
    groups = failure.groups
    if failure.is_explained:
        return ""
    if not groups:
        return "Nothing else was in use: the request alone is too large."
    named = [group for group in groups if group.site.frame not in (BEFORE_RECORDING, NO_FRAMES)]
    places = totals_by(named, _place)  # one line may have made blocks of several kinds, and some before the recording
    in_use = sum(group.bytes for group in groups)
    large = [(where, size) for where, (size, _) in places.items() if size >= _LEAST_SHARE * in_use]
    lines = "; ".join(f"{where} with {format_bytes(size)}" for where, size in large[:_NUM_LINES])
    kind, (most, _) = next(iter(totals_by(groups, attrgetter("kind")).items()))
    remedy = _REMEDIES.get(kind)
    parts = [
        f"{100 * most / in_use:.0f} % of what was in use is {remedy}" if remedy and most else "",
        f"Look first at {lines}." if lines else "",
    ]
    return " ".join(part for part in parts if part)


def _place(group: SnapshotRow) -> str:
    if group.site.file is None:
        return group.site.frame
    return f"{group.site.frame} ({group.site.file}:{group.site.line})"
