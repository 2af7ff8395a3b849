"""Why an allocation failed: what was asked for, what was there, and whether it lay in pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final, Literal

from tracer.allocator.fragmentation import Fragmentation, Usable, fragmentation_after, usable_after
from tracer.answers.allocator.changed_requests import Trial, TriedRequests
from tracer.answers.paths import whole_place
from tracer.answers.rows import Row, rows_of_lines
from tracer.arrays import totals_by
from tracer.block_sizes import SMALL_BYTES, round_size, segment_size
from tracer.blocks.from_snapshot.blocks import ReplayedDevice
from tracer.blocks.from_snapshot.frames import torch_file
from tracer.blocks.from_snapshot.sites import NO_FRAMES, Site
from tracer.blocks.from_snapshot.stack_facts import Fact, has
from tracer.blocks.kinds import BEFORE_RECORDING, Kind
from tracer.snapshot.actions import Action
from tracer.snapshot.columns import Frame, Snapshot
from tracer.snapshot.stacks import NO_STACK
from tracer.units import format_bytes

Cause = Literal["limit", "pending frees", "fragmentation", "other pools", "kept whole", "too little", "not known"]

OTHER_PROCESSES: Final = "other processes"
"""Name of the cause that memory of the device is not this process's."""
_CONTEXT_BYTES: Final = 1 << 30
"""At most of CUDA's context and kernels, which a process takes beside torch's allocator; see null_gpu/cards.py."""
_NUM_LINES: Final = 3
_LEAST_SHARE: Final = 0.05
"""Share of the bytes in use: a line with less is not where to look first."""
LEAST_ROOM: Final = 0.1
"""Share of the bytes in use: with less to spare the program may well fail at a later request."""
_LASTING = (
    "which no smaller batch shrinks: if all of it is needed, keep it in fewer bits, or in parts on several GPUs (FSDP)."
)
_REMEDIES = {
    Kind.ACTIVATION: "activation: a smaller batch, torch.utils.checkpoint or fewer bits shrink it.",
    Kind.PARAMETER: f"parameters (or buffers), {_LASTING}",
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
    groups: Sequence[Row]
    splits_all: bool = False  # The recording says that no block is kept whole (`max_split_size` is -1)
    is_explained: bool = False  # What filled the memory is said elsewhere, with what to change
    # Whether the request is served in a replay under a change; None where a replay cannot tell.
    serves: Callable[[Trial], bool | None] = lambda _: None
    missing_bytes: int = 0  # By how much the program needs more than there is, as a second run showed
    grows: bool = False  # The counters of its steps, or a second run, show that memory grows


def fits_without_fragmentation(failure: FailureFacts) -> bool:
    """True if the memory usable for the request and the known free memory of the device would suffice in one piece."""
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
    others_bytes = failure.usable.free_bytes + failure.usable.elsewhere_bytes
    if others_bytes + (free or 0) >= asked_bytes or failure.memory.largest_free_bytes >= asked_bytes:
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
    if failure.missing_bytes or failure.grows:
        why = "the program asks later for more than there is" if failure.missing_bytes else "memory grows"
        more = (
            f"This request would have fit if the free memory were in one piece, but {why}: no setting of the allocator "
            "is enough."
        )
        return "" if failure.is_explained else f"{_where_to_look(failure)} {more}".strip()
    spare = failure.usable.free_bytes + (failure.device_free_bytes or 0) - failure.asked_bytes
    if failure.is_explained:
        served = failure.serves("expandable segments")
        if served is False:
            return "The free memory is in pieces, too, but expandable_segments:True does not serve this request."
        if spare < LEAST_ROOM * failure.memory.allocated_bytes:
            return ""
        serves = f"; expandable_segments:True serves it, with {format_bytes(spare)} to spare" if served else ""
        return f"The free memory is in pieces, too{serves}."
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
    if not failure.serves("expandable segments") or spare >= LEAST_ROOM * failure.memory.allocated_bytes:
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
        else f"{format_bytes(failure.usable.elsewhere_bytes)} of free memory would help, but belong"
    )
    return (
        f"{piece} to another stream or pool (CUDA graphs have their own, as have blocks of 1 MiB and less), which this "
        "request may not use. "
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


def _not_known(failure: FailureFacts) -> str:
    return (
        "The recording does not say how much the device had free. What was reserved and free would not have sufficed. "
        f"{_where_to_look(failure)}"
    )


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


_SENTENCES: Final = {
    "limit": _limit,
    "pending frees": _pending,
    "fragmentation": _fragmentation,
    "other pools": _other_pools,
    "kept whole": _kept_whole,
    "too little": _where_to_look,
    "not known": _not_known,
}


def _place(group: Row) -> str:
    if group.site.file is None:
        return group.site.frame
    return f"{group.site.frame} ({group.site.file}:{group.site.line})"


# A program that catches the error may try again forever; its first failures say it all.
MAX_EXPLAINED = 50
_LEAST_KEPT_SHARE: Final = 0.2
"""Share of the bytes in use: less is not why an evaluation fails."""


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A failed allocation."""

    entry: int  # Its position in the trace
    time_us: int  # Its time, or -1 where the recording has none
    asked_bytes: int  # What the allocator wanted to reserve or serve
    # What the driver said was free on the device, for all processes; None if not recorded.
    device_free_bytes: int | None
    requested_bytes: int  # Bytes in use at that moment, as asked for
    allocated_bytes: int  # Bytes in use, rounded
    reserved_bytes: int
    unallocated_bytes: int  # Reserved and not in use
    largest_free_bytes: int  # The largest piece of that within one segment
    # The part of the unallocated bytes that this request could use: of its stream, pool and size.
    usable_free_bytes: int
    usable_largest_free_bytes: int  # The largest piece of the usable free bytes
    pending_free_bytes: int  # Freed by the program there, and not to be used until another stream is done with it
    fits_without_fragmentation: bool  # What it could use and what the device had free would have sufficed in one piece
    site: Site
    stack: tuple[str, ...]
    groups: tuple[Row, ...]  # What was in use, by line and kind; sums to `requested_bytes`
    cause: Cause  # Cause in a word or two
    why: tuple[str, ...]  # The cause in sentences, and what to do first where no change was tried
    change: str = ""  # What to change, tried in a replay; empty where nothing decisive is known
    allocators_advice: str = ""  # The cause without the sentence on what filled the memory
    decisive: str = ""  # Name of the cause that the advice begins with, see `causes`; empty where none is known
    in_evaluation: bool = False  # The model was in evaluation mode, and kept much for a backward pass all the same

    @property
    def advice(self) -> str:
        """The cause, and what to do first."""
        return " ".join(filter(None, (*self.why, self.change)))

    @property
    def limit_bytes(self) -> int | None:
        """Memory that this process can have: reserved by it, or free on the device; None where that is not known."""
        free_bytes = self.device_free_bytes
        return None if free_bytes is None or self.cause == "limit" else self.reserved_bytes + free_bytes

    @property
    def missing_bytes(self) -> int:
        """Bytes that are missing even if all free memory were in one piece; 0 where none are, or that is not known."""
        free_bytes = 0 if self.limit_bytes is None else self.limit_bytes - self.allocated_bytes
        return max(0, self.asked_bytes - free_bytes) if self.cause == "too little" else 0

    def happened(self, device: str) -> str:
        """The request, the limit, and how much is missing, in a sentence."""
        site = self.site
        where = f" on {device}" + (f" at {whole_place(site.file, site.line)} ({site.frame})" if site.file else "")
        limit = "" if self.limit_bytes is None else f" of {format_bytes(self.limit_bytes)}"
        missing = format_bytes(self.missing_bytes)
        lacks = f"; with all that is free in one piece, {missing} are still missing" if self.missing_bytes else ""
        return (
            f"Out of memory{where}: {format_bytes(self.asked_bytes)} were asked for with "
            f"{format_bytes(self.allocated_bytes)} in use and {format_bytes(self.reserved_bytes)} reserved{limit}"
            f"{lacks}."
        )


def in_evaluation(event: OutOfMemory, kept_bytes: int) -> OutOfMemory:
    """Begin the advice with the bytes that a model in evaluation mode keeps for backward, if they are many.

    Without gradients forward keeps nothing: a validation that fails so, or the teacher of a distillation, has no
    `torch.no_grad()` around it.
    """
    if kept_bytes < _LEAST_KEPT_SHARE * event.requested_bytes:
        return event
    sentence = (
        f"The model is in evaluation mode, and forward keeps {format_bytes(kept_bytes)} for a backward pass: call it "
        "under `with torch.no_grad():`, and keep loss.item() in place of a loss."
    )
    return replace(event, in_evaluation=True, why=(sentence, *event.why))


def beside_others(event: OutOfMemory, device_bytes: int | None) -> OutOfMemory:
    """Begin the advice with the memory of other processes, if the request would fit without them.

    Args:
        device_bytes: Memory of the device; None if not known.
    """
    free_bytes = event.device_free_bytes
    if device_bytes is None or free_bytes is None or event.cause == "limit":
        return event
    others_bytes = device_bytes - free_bytes - event.reserved_bytes - _CONTEXT_BYTES
    if others_bytes < _LEAST_SHARE * device_bytes or event.asked_bytes > free_bytes + others_bytes:
        return event
    sentence = (
        f"Some {format_bytes(others_bytes)} of the device's {format_bytes(device_bytes)} are in use and not torch's in "
        "this process: other processes hold them (an earlier run, a notebook, a server; nvidia-smi lists them), or "
        "another library in this one. Without them the request would fit."
    )
    return replace(event, why=(sentence, *event.why), decisive=OTHER_PROCESSES)


def explain_ooms(device: ReplayedDevice) -> tuple[OutOfMemory, ...]:
    """Explain the out-of-memory events of one device, in order, the first `MAX_EXPLAINED` of them."""
    trials = TriedRequests(device)
    return tuple(
        _explain(device, entry, trials) for entry in device.state.trace.where(Action.OOM)[:MAX_EXPLAINED].tolist()
    )


def last_out_of_memory(device: ReplayedDevice, *, missing_bytes: int = 0, grows: bool = False) -> OutOfMemory:
    """Explain the last out-of-memory event of one device, which has one.

    Args:
        missing_bytes: By how much the program needs more than there is; 0 where that is not known.
        grows: Whether it is known that memory grows.
    """
    entry = int(device.state.trace.where(Action.OOM)[-1])
    return _explain(device, entry, TriedRequests(device), missing_bytes, grows=grows)


def distinct_failures(events: Sequence[OutOfMemory]) -> tuple[OutOfMemory, ...]:
    """The first failure of each line, as a program that tries again has little to add; of the last one's, the last."""
    of_line: dict[Site, OutOfMemory] = {}
    for event in events:
        of_line.setdefault(event.site, event)
    if events:
        of_line[events[-1].site] = events[-1]
    return tuple(of_line.values())


def device_out_of_memory(snapshot: Snapshot) -> int | None:
    """The index of the device whose memory ran out last; None if no entry says so.

    The histories of devices have no common order but their times.
    """
    last = [
        (int(state.trace.time_us[entries[-1]]), state.device)
        for state in snapshot.devices
        if len(entries := state.trace.where(Action.OOM))
    ]
    return max(last)[1] if last else None


def _site_of_failure(device: ReplayedDevice, entry: int) -> Site:
    """The line that asked; of a thread of autograd's, which has no stack, the line that called backward last."""
    stacks, sites = device.state.trace.stack, device.sites
    site = sites.site(int(stacks[entry]))
    is_users_own = site.file is None or torch_file(Frame(site.frame, site.file, site.line or 0)) is None
    if site.frame != NO_FRAMES and (is_users_own or not has(sites.facts[int(stacks[entry])], Fact.ENGINE)):
        return site
    for stack in stacks[:entry][stacks[:entry] != NO_STACK][::-1].tolist():
        if has(sites.facts[stack], Fact.BACKWARD_CALL):
            called = sites.site(stack)
            return Site("backward", called.file, called.line)
        if sites.labels[stack] < 0:  # which are of what autograd's thread made
            break
    return site


def _explain(
    device: ReplayedDevice, entry: int, trials: TriedRequests, missing_bytes: int = 0, *, grows: bool = False
) -> OutOfMemory:
    state, replay, sites, settings = device.state, device.replay, device.sites, device.snapshot.settings
    trace = state.trace
    asked_bytes, device_free = int(trace.size[entry]), int(trace.addr[entry])
    stack = int(trace.stack[entry])
    failure = FailureFacts(
        asked_bytes=asked_bytes,
        device_free_bytes=device_free if device_free >= 0 else None,
        memory=fragmentation_after(state, replay, entry),
        usable=usable_after(state, replay, entry, is_small=round_size(asked_bytes) <= SMALL_BYTES),
        is_expandable=bool(settings.get("expandable_segments")) or bool(state.segments.is_expandable.any()),
        groups=rows_of_lines(device.blocks.take(replay.lives.alive_after(entry))),
        splits_all=settings.get("max_split_size") == -1,
        serves=lambda trial: trials.serves(trial, entry),
        missing_bytes=missing_bytes,
        grows=grows,
    )
    return OutOfMemory(
        entry=entry,
        time_us=int(trace.time_us[entry]),
        asked_bytes=asked_bytes,
        device_free_bytes=failure.device_free_bytes,
        requested_bytes=int(replay.requested_bytes[entry + 1]),
        allocated_bytes=failure.memory.allocated_bytes,
        reserved_bytes=failure.memory.reserved_bytes,
        unallocated_bytes=failure.memory.free_bytes,
        largest_free_bytes=failure.memory.largest_free_bytes,
        usable_free_bytes=failure.usable.free_bytes,
        usable_largest_free_bytes=failure.usable.largest_free_bytes,
        pending_free_bytes=failure.usable.pending_bytes,
        fits_without_fragmentation=fits_without_fragmentation(failure),
        site=_site_of_failure(device, entry),
        stack=sites.readable(stack),
        groups=tuple(failure.groups),
        cause=cause_of(failure),
        why=tuple(filter(None, (advice_on(failure),))),
        allocators_advice=advice_on(replace(failure, is_explained=True)),
    )
