"""The first changes to try so that a recorded program needs less: its causes, each change replayed on the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tracer.answers.allocator.modelled import LONG_HISTORY, Modelled, model_device
from tracer.answers.out_of_memory import LEAST_ROOM, OutOfMemory
from tracer.answers.why import (
    activations,
    attention,
    caches,
    copies,
    evaluation,
    expansion,
    growth,
    holding,
    larger,
    later,
    optimizer,
    precision,
    repeated_parts,
    reserving,
)
from tracer.answers.why.case import Case, Cause, GivesUp
from tracer.blocks.from_snapshot.blocks import ReplayedDevice
from tracer.blocks.from_snapshot.sites import Site
from tracer.capture.objects.at_failure import ObjectsAtFailure
from tracer.snapshot.replay import BEFORE
from tracer.units import MIB, format_bytes

# Every cause, the most avoidable first.
_OF_BLOCKS: Final[tuple[Callable[[Case], Iterator[Cause]], ...]] = (
    holding.reference_cycles,
    holding.kept_by_caches,
    holding.gradients_of_nobody,
    reserving.held_by_traceback,
    activations.held_until_made_again,
    later.not_in_place,
    activations.logits_over_the_step,
    later.not_read_again,
    later.made_before_read,
    growth.growth,
    larger.grown_by_cat,
    growth.parameters_added,
    evaluation.evaluation_with_gradients,
    evaluation.untrained_graphs,
    evaluation.retained_graphs,
    precision.autocast_copies,
    precision.kept_in_more_bits,
    copies.checkpoint_left,
    copies.other_models,
    activations.variables_over_the_step,
    growth.results_of_calls,
    precision.float64,
    precision.weights_in_32_bits,
    precision.moved_before_cast,
    activations.graph_of_gradient,
    optimizer.gradients_freed_late,
    holding.listed_states,
    holding.large_buffers,
    expansion.expansion,
    expansion.by_frames,
    later.read_in_part,
    later.kept_for_a_part,
    holding.kept_in_one_call,
    optimizer.gradients_of_samples,
    activations.logits,
    optimizer.optimizer_temporaries,
    later.gradients_that_wait,
    optimizer.gradient_of_embedding,
    optimizer.state_to_come,
    attention.attention_matrix,
    copies.made_again,
    copies.copies_of_weights,
    holding.idle_models,
    copies.frozen_models,
    copies.gathered_whole,
    copies.gradients_beside_buckets,
    caches.data_on_device,
    caches.kv_cache,
    later.rows_at_once,
    repeated_parts.padded_batch,
    activations.long_batch,
    reserving.one_request,
    repeated_parts.made_of_parameters,
    repeated_parts.kept_by_elements,
    repeated_parts.repeated_parts,
    activations.largest_line,
)
_OF_RESERVING: Final[tuple[Callable[[Case, Modelled], Iterator[Cause]], ...]] = (
    reserving.stranded_in_streams,
    reserving.fragmentation,
    reserving.emptied_cache,
)

MAX_CHANGES: Final = 3
LEAST_PERCENT: Final = 1
_MUCH: Final = 0.25
"""Share of what the most helpful change saves."""
_NEARLY: Final = 0.9
"""Share of what the most helpful change saves, where none saves all that is missing."""
_TIGHT: Final = 0.95
"""Share of the capacity: where that much is reserved under a setting, the next larger request fails."""
_WORTH_SAYING: Final = 0.1
"""Share of the peak: a change that saves less is said below, and not with the peak."""
_LEAST_OF_NAMED: Final = 0.5
"""Share of the bytes that a cause's sentence names, which the replay of its change has to save."""
_SAME: Final = "results stay the same"
_PRICES: Final = {
    GivesUp.NOTHING: _SAME,
    GivesUp.A_LITTLE: "results may differ a little",
    GivesUp.TIME_OR_SIZE: "it costs time, or a smaller size",
}
_SAID_BY_THE_ALLOCATOR: Final = ("fragmentation", "stranded in streams")
_OF_RESERVED_ALONE: Final = (*_SAID_BY_THE_ALLOCATOR, "cached memory")
_SMALL_SHARE: Final = 0.1
"""Share of the device: a program that takes less of it has no need for memory."""
_ROOMY: Final = 0.8
"""Share of the device: where less is taken, a change with a price is not what people look for first."""
_FULL: Final = 0.8
"""Share of the device: where less is taken, no setting of the allocator is worth a word."""
_HALF: Final = 50
_LEAST_RESERVED_BYTES: Final = 64 * MIB
"""Less reserved memory than this is worth no setting on any GPU."""


@dataclass(frozen=True, slots=True)
class FirstChange:
    """A change that helps, and the peaks of the recorded requests without and with it."""

    words: str
    site: Site | None  # The line whose blocks it is about; None if it is about none in particular
    allocated_before_bytes: int  # The most in use, rounded as the allocator does, as recorded
    allocated_bytes: int  # The most in use with the change
    reserved_before_bytes: int  # The most reserved, as recorded
    reserved_bytes: int  # The most reserved with the change
    num_served: int = 0  # Requests that failed in the recording and are served with the change
    serves_last: bool = False  # The last of these is among them
    removed_bytes: int = 0  # Of what was in use, or asked for, as the last of these was made
    needed_before_bytes: int = 0  # Bytes that the program needs at once, as a second run showed; 0 where not known
    needed_bytes: int = 0  # Of these with the change, as far as the second run was followed; 0 where not known
    missing_bytes: int = 0  # Of these, more than there is; of what it needs as it is, where that is not known
    needs_more: bool = False  # Whether it may need more than that, as blocks that come later are still made
    horizon: str = ""  # Words for the point up to which it was followed
    grows: bool = False  # Whether its cause lets memory grow
    cause: str = ""  # Name of the cause that it removes
    sentence: str = ""  # What that cause is, with its bytes; empty where the change says it
    gives_up: str = ""  # The price of the change; empty where a line is named, and not how to change it
    second: str = ""  # A sentence on another change, where each is too little and both are enough

    @property
    def order(self) -> str:
        """The change as a sentence begins, without its end."""
        return self.words[0].upper() + self.words[1:]

    @property
    def effect(self) -> str:
        """The memory that a replay with the change needs, as the end of a sentence."""
        reserved = self.reserved_before_bytes - self.reserved_bytes
        allocated = self.allocated_before_bytes - self.allocated_bytes
        size, is_said = max((reserved, "are reserved at the most"), (allocated, "are in use at the most"))
        if self.serves_last and self.removed_bytes > size:
            size, is_said = self.removed_bytes, "are in use with it"
        up_to = "up to " if self.needs_more else ""
        less = [f"{up_to}{format_bytes(size)} less {is_said}"] if size > 0 else []
        served = ["the failed request is then served"] if self.serves_last else []
        price = f"; {self.gives_up}" if self.gives_up else ""
        return f"in a replay of the recording {', and '.join((*served, *less))}{self._need}{price}"

    @property
    def _need(self) -> str:
        """The memory that the program needs with the change, as the end of a sentence; empty where it is not known."""
        if not self.needed_bytes:
            is_more = self.missing_bytes > self.saved_bytes
            return (
                f"; as it is, the program needs {format_bytes(self.missing_bytes)} more than there is"
                if is_more
                else ""
            )
        before, needed = format_bytes(self.needed_before_bytes), format_bytes(self.needed_bytes)
        if self.needs_more:
            return f"; followed {self.horizon}, the program then needs {needed} or more in place of {before}"
        rest = f"which may be {format_bytes(self.missing_bytes)}" if self.missing_bytes else "no"
        return (
            f"; followed {self.horizon}, the program then needs about {needed} or less in place of {before}, {rest} "
            "more than there is"
        )

    @property
    def is_too_little(self) -> bool:
        """True if the program is known to need nearly as much more than there is with the change as without it."""
        missing_before = self.missing_bytes + self.spared_bytes
        return bool(self.needed_bytes) and self.missing_bytes > _NEARLY * missing_before

    @property
    def spared_bytes(self) -> int:
        """Bytes that the program needs less; where that is not known, those that the change saves in the recording."""
        return self.needed_before_bytes - self.needed_bytes if self.needed_bytes else self.saved_bytes

    @property
    def saved_bytes(self) -> int:
        """Bytes saved: reserved, or allocated, at the peak, or in use where memory ran out."""
        reserved = self.reserved_before_bytes - self.reserved_bytes
        return max(reserved, self.allocated_before_bytes - self.allocated_bytes, self.removed_bytes)


@dataclass(frozen=True, slots=True)
class FirstChanges:
    """The first changes to try on one device."""

    changes: tuple[FirstChange, ...]  # The most helpful first, then what a whole line comes to; `MAX_CHANGES` at most
    num_failed: int  # Requests that failed in the recording; a change then is one with which more of them are served
    is_roomy: bool = False  # Whether nothing failed, and a good part of the device is free
    grows: bool = False  # Whether memory grows, by any cause that matters or by the steps that were counted

    @property
    def decisive(self) -> FirstChange | None:
        """The first one, if its cause is known."""
        return self.changes[0] if self.changes and self.changes[0].sentence else None

    @property
    def saves_much(self) -> bool:
        """True if the decisive change removes a good part of the peak; one with a price only if room is short."""
        change = self.decisive
        if change is None or (self.is_roomy and change.gives_up != _SAME):
            return False
        return change.saved_bytes >= _WORTH_SAYING * change.reserved_before_bytes

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences of the causes, but for the one with which a failure's advice begins."""
        rest = self.changes[1:] if self.num_failed and self.decisive is not None else self.changes
        return tuple(change.sentence for change in rest if change.sentence)

    @property
    def words(self) -> str:
        """The first change with its effect, or that nothing helps."""
        if not self.changes:
            return self.nothing_helps
        return f"{self.changes[0].order}: {self.changes[0].effect}."

    @property
    def nothing_helps(self) -> str:
        """Return the sentence for no useful change."""
        if self.num_failed:
            return "None that was tried in a replay serves the failed request and saves a good part of what is missing."
        return f"None that was tried in a replay lowers the peak by {LEAST_PERCENT} %."


def first_changes(
    device: ReplayedDevice,
    *,
    objects: ObjectsAtFailure | None = None,
    device_bytes: int | None = None,
    grows: bool = False,
) -> FirstChanges | None:
    """Try what may help, and keep what does: by a hundredth of the peak at least, or failed requests are served.

    Args:
        objects: What the program's objects told at the failure; the model was in evaluation mode only where it kept
            much for a backward pass all the same. None for a recording from a file.
        device_bytes: Memory of the device; None if not known.
        grows: Whether the steps that were counted show that memory grows.

    Returns:
        None where nothing can be replayed.
    """
    modelled = model_device(device)
    if modelled is None or not (modelled.history.num_allocations or modelled.history.failed):
        return None
    case = Case(device, objects)
    causes = [cause for ask in _OF_BLOCKS for cause in ask(case)]
    # Where the program needs more than there is, no setting of the allocator is enough.
    if not case.missing_bytes and _settings_matter(modelled, device_bytes):
        causes += [cause for ask in _OF_RESERVING for cause in ask(case, modelled.as_it_failed)]
    if not causes and not modelled.history.failed:  # nothing to try, and a replay of a long history takes seconds
        taken = modelled.reproduction.recorded_peak_bytes / device_bytes if device_bytes else 1.0
        return FirstChanges((), 0, is_roomy=taken < _ROOMY)
    modelled = modelled.as_it_failed
    tried = [(cause, _tried(cause, modelled, case)) for cause in causes]
    helping = [
        (cause, change)
        for cause, change in tried
        if change is not None and _helps(change, modelled) and change.saved_bytes >= _LEAST_OF_NAMED * cause.names_bytes
    ]
    helping = [(cause, change) for cause, change in helping if not change.is_too_little]
    taken = modelled.baseline.reserved_peak_bytes / device_bytes if device_bytes else 1.0
    if not modelled.baseline.unserved:
        helping = [(cause, change) for cause, change in helping if _is_of_use(change, taken)]
    most = max((change.spared_bytes for cause, change in helping if cause.gives_up < GivesUp.UNKNOWN), default=0)
    growing = (cause.grows for cause, change in helping if change.num_served or change.spared_bytes >= _MUCH * most)
    why_grows = next(filter(None, growing), "memory grows" if grows else "")
    lasting = (change.saved_bytes for cause, change in helping if not cause.postpones and cause.sentence)
    is_else = max(lasting, default=0) >= _MUCH * modelled.baseline.reserved_peak_bytes
    helping = [(cause, change) for cause, change in helping if not (cause.postpones and why_grows)]
    helping.sort(
        key=lambda pair: _rank(
            *pair,
            is_else=is_else,
            most_bytes=most,
            missing_bytes=case.missing_bytes,
            capacity=modelled.capacity,
            is_full=_is_full(case, modelled),
        )
    )
    if case.is_in_pieces:
        helping.sort(key=lambda pair: pair[0].name not in _OF_RESERVED_ALONE)
    # A change that only names a line is left out if another with the same effect says how to do it.
    known = {
        (change.allocated_bytes, change.reserved_bytes)
        for cause, change in helping
        if cause.gives_up is not GivesUp.UNKNOWN
    }
    changes = tuple(
        change
        for cause, change in helping
        if cause.gives_up is not GivesUp.UNKNOWN or (change.allocated_bytes, change.reserved_bytes) not in known
    )
    if changes and (second := _second(helping, modelled, case)):
        changes = (replace(changes[0], second=second), *changes[1:])
    num_failed = len(modelled.baseline.unserved)
    is_roomy = not num_failed and taken < _ROOMY
    return FirstChanges(changes[:MAX_CHANGES], num_failed, is_roomy=is_roomy, grows=bool(why_grows))


def with_cause(event: OutOfMemory, first: FirstChanges | None) -> OutOfMemory:
    """A failure whose advice begins with the decisive cause and its change, as far as there is one."""
    change = first.decisive if first is not None else None
    if first is None or change is None or change.cause in _SAID_BY_THE_ALLOCATOR:
        return event
    # Where the replay of the recording fails nowhere, as it began before, what the change saves has to be enough.
    if not change.num_served and (first.num_failed or change.saved_bytes < event.asked_bytes):
        return event
    # A setting comes behind the change of the program, and not where memory grows.
    is_setting, about = event.cause == "fragmentation", event.allocators_advice
    words = (f"{change.order}: {change.effect}.", change.second, about if is_setting and not first.grows else "")
    why = tuple(filter(None, (change.sentence, "" if is_setting else about)))
    return replace(event, why=why, change=" ".join(filter(None, words)), decisive=change.cause)


def _rank(
    cause: Cause,
    change: FirstChange,
    *,
    is_else: bool,
    most_bytes: int,
    missing_bytes: int,
    capacity: int | None,
    is_full: bool,
) -> tuple[object, ...]:
    """Lasting changes before those that postpone; of those that help much the cheaper, then the more helpful ones.

    Args:
        is_else: Whether a change that lasts saves much of the memory.
        missing_bytes: Bytes that the program needs beyond those that there are: what saves them comes first.
        capacity: Bytes that the device had; None where the recording never reached them.
        is_full: Whether the request itself leaves little of them, and more may be asked for.
    """
    is_tight = is_full or (capacity is not None and change.reserved_bytes > _TIGHT * capacity)
    return (
        cause.postpones and (is_else or is_tight),
        cause.gives_up is GivesUp.UNKNOWN,
        -change.serves_last,
        change.spared_bytes < (min(missing_bytes, _NEARLY * most_bytes) * (not cause.grows) or _MUCH * most_bytes),
        cause.gives_up,
        -change.num_served,
        -round(change.spared_bytes / max(most_bytes, 1), 1),  # of what helps alike, what is asked about first
    )


def _tried(cause: Cause, modelled: Modelled, case: Case) -> FirstChange | None:
    """The peaks under a change; None if the replay ends early."""
    changed = cause.make(modelled)
    before, after = modelled.baseline, changed.outcome(modelled)
    if after.failure is not None:
        return None
    needed = case.needed_bytes([(changed, cause.behind)]) if case.missing_bytes else 0
    needed_before = case.missing_bytes + case.usable_bytes
    needed = max(needed + cause.again_bytes, after.allocated_peak_bytes) if needed else 0
    return FirstChange(
        words=cause.change,
        site=cause.site,
        allocated_before_bytes=before.allocated_peak_bytes,
        allocated_bytes=after.allocated_peak_bytes,
        reserved_before_bytes=before.reserved_peak_bytes,
        reserved_bytes=after.reserved_peak_bytes,
        num_served=len(before.unserved) - len(after.unserved),
        removed_bytes=before.wanted_bytes - after.wanted_bytes,
        needed_before_bytes=needed_before,
        needed_bytes=needed,
        missing_bytes=max(needed - case.usable_bytes, 0) if needed else case.missing_bytes * (not cause.grows),
        needs_more=cause.shortens,
        horizon=case.followed.uses.horizon if case.followed is not None else "",
        serves_last=bool(before.unserved) and max(before.unserved) not in after.unserved,
        grows=bool(cause.grows),
        cause=cause.name,
        sentence=cause.sentence,
        gives_up=_SAME if cause.name == "fragmentation" else _PRICES.get(cause.gives_up, ""),
    )


def _second(helping: Sequence[tuple[Cause, FirstChange]], modelled: Modelled, case: Case) -> str:
    """A sentence on a second change with which the program fits, where the first is too little; else empty."""
    (cause, first), *others = helping
    for other, change in others if first.missing_bytes and first.needed_bytes else ():
        if change.missing_bytes and change.needed_bytes and change.sentence and other.gives_up < GivesUp.UNKNOWN:
            needed = case.needed_bytes([(each.make(modelled), each.behind) for each in (cause, other)])
            if needed <= case.usable_bytes:
                fits = f"It fits with a second change, about {format_bytes(needed)} in all."
                return f"{fits} {change.sentence} {change.order}."
    return ""


def _settings_matter(modelled: Modelled, device_bytes: int | None) -> bool:
    """True if the device refused memory or was nearly full, or the recording is short enough to be asked anyway."""
    reproduction = modelled.reproduction
    if modelled.history.failed or reproduction.refused_bytes is not None or len(modelled.program.code) <= LONG_HISTORY:
        return True
    return device_bytes is not None and reproduction.recorded_peak_bytes >= _FULL * device_bytes


def _is_full(case: Case, modelled: Modelled) -> bool:
    """True if the request leaves little of the device, and it is not known that the program needs no more."""
    is_followed = case.objects is not None and case.objects.second_run is not None
    if not case.has_failed or is_followed or modelled.capacity is None:
        return False
    kept = case.in_graphs
    if kept is not None and case.last_learning <= BEFORE and case.is_share(kept, of=case.in_use, percent=_HALF):
        return True  # in a first forward: its backward is still to come
    return modelled.capacity - case.in_use_bytes < LEAST_ROOM * case.in_use_bytes


def is_small(taken_bytes: int, device_bytes: int) -> bool:
    """True if a program takes so little of its device that nothing has to become less."""
    return taken_bytes < _SMALL_SHARE * device_bytes


def _is_of_use(change: FirstChange, taken: float) -> bool:
    """True if a change is worth a sentence where nothing failed.

    On a device that is mostly free, only a known cause is reported, such as a leak; a setting of the allocator only on
    a device that is nearly full.

    Args:
        taken: Share of the device's memory that is taken; 1 if that memory is unknown.
    """
    if change.cause in _OF_RESERVED_ALONE:
        return taken >= _FULL and change.saved_bytes >= _LEAST_RESERVED_BYTES
    return taken >= _SMALL_SHARE or bool(change.sentence)


def _helps(change: FirstChange, modelled: Modelled) -> bool:
    if modelled.baseline.unserved:
        return change.serves_last
    return any(
        before and (before - after) * 100 >= before * LEAST_PERCENT
        for before, after in (
            (change.allocated_before_bytes, change.allocated_bytes),
            (change.reserved_before_bytes, change.reserved_bytes),
        )
    )
