"""Decides the kinds of one device's blocks: what the recording says, what the program held, or the table of rules."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from tracer.analysis.kinds import EVIDENCE_TEXT, Evidence, Kind
from tracer.analysis.snapshots.backward_lines import BackwardLines
from tracer.analysis.snapshots.block_facts import BlockFacts, DevicePhases, facts_of
from tracer.analysis.snapshots.classify_blocks import KINDS, NOT_KNOWN, PROOFS, apply_rules
from tracer.analysis.snapshots.counting import (
    agreed,
    copies_per_gradient,
    kinds_of_stacks,
    with_counts,
    with_parameters,
)
from tracer.analysis.snapshots.sites import Sites
from tracer.analysis.snapshots.stack_facts import Fact, has
from tracer.arrays import Bools, Ints
from tracer.snapshot.columns import DeviceState, Snapshot
from tracer.snapshot.replay import BEFORE, Lives

# Words that a tracer writes into an entry's `category`, in torch's spelling.
_RECORDED: Final = {kind.name.lower(): kind.words for kind in Kind if kind.words in KINDS and kind != Kind.UNKNOWN}
RECORDED_EVIDENCE: Final = EVIDENCE_TEXT[Evidence.SAID_BY_RECORDING]
HELD_EVIDENCE: Final = EVIDENCE_TEXT[Evidence.HELD_BY_PROGRAM]


@dataclass(frozen=True, slots=True)
class HeldNow:
    """What a process holds at the moment of its snapshot, by the address of the memory.

    Attributes:
        named: Kinds of what modules, optimizers and batches hold.
        kept_by_graphs: What autograd keeps for a backward.
        reached: All else that Python reaches as a tensor: held, where no rule knows better.
    """

    named: Mapping[int, str] = field(default_factory=dict)
    kept_by_graphs: Collection[int] = frozenset()
    reached: Collection[int] = frozenset()

    def proved(self, address: int) -> str | None:
        """What the memory at an address certainly is."""
        return self.named.get(address) or (Kind.ACTIVATION.words if address in self.kept_by_graphs else None)

    def evidence(self, address: int) -> str:
        """How that is known."""
        return EVIDENCE_TEXT[Evidence.HELD_OBJECT if address in self.named else Evidence.KEPT_BY_GRAPH]


NOTHING_HELD: Final = HeldNow()


class KindFinder:
    """Decides the kinds of one device's blocks. Built once, asked for any rows of its `Lives`.

    Args:
        snapshot: All of it.
        state: The device's part.
        lives: Lives of the same device.
        sites: Sites of the same snapshot.
        held: Kinds by address of what the program held when the history began.
        held_now: What it held when the snapshot was taken.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        state: DeviceState,
        lives: Lives,
        sites: Sites,
        *,
        held: Mapping[int, str] | None = None,
        held_now: HeldNow = NOTHING_HELD,
    ) -> None:
        self._held_now = held_now
        self._snapshot, self._state, self._lives, self._sites = snapshot, state, lives, sites
        self._held = dict(held or {})
        self._phases = DevicePhases(snapshot, state, sites.facts)
        self._together = _SharedStackKinds([self], sites)

    def learn_from(self, together: _SharedStackKinds) -> None:
        """Let all devices of the snapshot say what stacks make; before anything is asked."""
        self._together = together

    @cached_property
    def proved_of_stacks(self) -> Ints:
        """What the blocks of each stack are proved to be on this device, see `kinds_of_stacks` [stacks]."""
        return kinds_of_stacks(self._lives.stack, self._proved, len(self._sites.facts))

    @property
    def backward_runs(self) -> tuple[Ints, Ints]:
        """First entry of each run of entries in backward, and the entry at which it is over; stacks show them."""
        return self._phases.backwards.start, self._phases.backwards.end

    @property
    def optimizer_runs(self) -> tuple[Ints, Ints]:
        """The same of the optimizer's steps, which annotations or stacks show."""
        return self._phases.steps.start, self._phases.steps.end

    def phase_at(self, entry: int) -> str:
        """`backward` or `optimizer`, where stacks or annotations show that an entry is in one, else the empty text."""
        for phase, (start, end) in (("optimizer", self.optimizer_runs), ("backward", self.backward_runs)):
            run = int(np.searchsorted(start, entry, side="right")) - 1
            if entry >= 0 and run >= 0 and entry < end[run]:
                return phase
        return ""

    @property
    def met_backward(self) -> Bools:
        """Whether backward ran while each block was in use [lives]."""
        return self._facts.meets_backward

    @cached_property
    def backward_lines(self) -> BackwardLines:
        """The operations of forward that the blocks of backward belong to."""
        skipped = has(self._sites.facts, Fact.WORKSPACE)
        frames, phases = self._sites.autograd, self._phases
        return BackwardLines(self._lives, frames, phases.backwards, phases.steps, skipped=skipped)

    @property
    def copies_per_gradient(self) -> tuple[int, int]:
        """How many blocks from before the recording there are for each gradient, and their bytes; 0 if that varies."""
        is_not_known = self.kind_numbers(np.arange(len(self._lives.begin))) == KINDS.index(Kind.UNKNOWN.words)
        return copies_per_gradient(self._facts, self._lives, self._proved, is_not_known)

    def kind_numbers(self, rows: Ints) -> Ints:
        """The index into `KINDS` of each of these rows."""
        number = _NUMBER_OF_KIND[self._kinds_and_evidence[0][rows]]
        for known in (self._held_numbers(rows), self._recorded_numbers(rows)):
            number = np.where(known >= 0, known, number)
        for at, (kind, _) in self._of_now(rows, [KINDS[index] for index in number.tolist()]).items():
            number[at] = KINDS.index(kind)
        return number

    def kinds_and_evidence(self, rows: Ints) -> list[tuple[str, str]]:
        """The kind of each row, and how it is known: from the recording, from the program, or by a rule."""
        kind, evidence = self._kinds_and_evidence
        columns = (
            self._recorded_numbers(rows).tolist(),
            self._held_numbers(rows).tolist(),
            _NUMBER_OF_KIND[kind[rows]].tolist(),
            evidence[rows].tolist(),
        )
        pairs = [
            (KINDS[recorded], RECORDED_EVIDENCE)
            if recorded >= 0
            else (KINDS[held_kind], HELD_EVIDENCE)
            if held_kind >= 0
            else (KINDS[ruled], _TEXT[how])
            for recorded, held_kind, ruled, how in zip(*columns, strict=True)
        ]
        for at, known in self._of_now(rows, [kind for kind, _ in pairs]).items():
            pairs[at] = known
        return pairs

    def _of_now(self, rows: Ints, kinds: Sequence[str]) -> dict[int, tuple[str, str]]:
        """Kind and evidence by position in `rows`, where what the program holds now says it; `kinds` are others'."""
        if self._held_now is NOTHING_HELD:
            return {}
        held, pairs = self._held_now, {}
        for at in np.flatnonzero(self._lives.end[rows] == len(self._state.trace)).tolist():
            address = int(self._lives.addr[rows[at]])
            if (kind := held.proved(address)) is not None:
                pairs[at] = kind, held.evidence(address)
            elif kinds[at] == NOT_KNOWN and address in held.reached:
                pairs[at] = Kind.HELD.words, EVIDENCE_TEXT[Evidence.REACHED]
        return pairs

    @cached_property
    def _kinds_and_evidence(self) -> tuple[Ints, Ints]:
        """`Kind` and `Evidence` of every block, by the table of rules."""
        of_stacks = self._together.kinds_of_stacks
        return apply_rules(with_counts(self._facts, self._lives, self._proved, of_stacks))

    @cached_property
    def _facts(self) -> BlockFacts:
        facts = facts_of(self._state, self._lives, self._phases, self._sites)
        return with_parameters(facts, self._lives, apply_rules(facts, PROOFS)[0], self._is_of_line)

    def _is_of_line(self, olds: Ints, news: Ints) -> Bools:
        """Whether the program's own line that freed each of the first made the block beside it."""
        freed, made = self._state.trace.stack[self._lives.free_entry[olds]], self._lives.stack[news]
        lines = self._sites.users_lines
        pairs = zip(freed.tolist(), made.tolist(), strict=True)
        return np.array([lines(old)[:1] == lines(new)[:1] != () for old, new in pairs], dtype=np.bool_)

    @cached_property
    def _proved(self) -> Ints:
        return apply_rules(self._facts, PROOFS)[0]

    def _recorded_numbers(self, rows: Ints) -> Ints:
        """The index into `KINDS` that the recording itself gives each row, or -1."""
        lives = self._lives
        entry, category = lives.alloc_entry[rows], self._state.trace.category
        number = self._together.labels_of_stacks[lives.stack[rows]]
        if len(category) and (category >= 0).any():
            of_text = _kind_numbers([*(text.lower() for text in self._snapshot.texts), ""])
            recorded = of_text[np.where(entry >= 0, category[np.maximum(entry, 0)], -1)]
            number = np.where(number >= 0, number, recorded)
        return number

    def _held_numbers(self, rows: Ints) -> Ints:
        """The index into `KINDS` of what the program held when the history began, or -1."""
        lives = self._lives
        number = np.full(len(rows), -1, dtype=np.int64)
        if self._held:
            before = np.flatnonzero(lives.begin[rows] == BEFORE)
            held_kinds = [self._held.get(address) for address in lives.addr[rows[before]].tolist()]
            number[before] = [KINDS.index(kind) if kind is not None else -1 for kind in held_kinds]
        return number


def kind_finders(
    snapshot: Snapshot,
    devices: Sequence[tuple[DeviceState, Lives]],
    sites: Sites,
    *,
    held: Mapping[int, str] | None = None,
    held_now: Mapping[int, HeldNow] | None = None,
) -> tuple[KindFinder, ...]:
    """A finder for each device; what a stack allocates on one of them counts on all.

    `held_now` is by the device's index.

    Args:
        snapshot: The whole snapshot.
        devices: Each device and its blocks.
        sites: Sites of the same snapshot.
        held: Kinds by address of what the program held when the history began.
        held_now: By index of the device, what the program held when the snapshot was taken.
    """
    now = held_now or {}
    finders = tuple(
        KindFinder(snapshot, state, lives, sites, held=held, held_now=now.get(state.device, NOTHING_HELD))
        for state, lives in devices
    )
    together = _SharedStackKinds(finders, sites)
    for finder in finders:
        finder.learn_from(together)
    return finders


class _SharedStackKinds:
    """What the devices of a snapshot know in common, worked out once for all of them."""

    def __init__(self, finders: Sequence[KindFinder], sites: Sites) -> None:
        self._finders, self._sites = finders, sites

    @cached_property
    def kinds_of_stacks(self) -> Ints:
        """What each stack makes, on whichever device [stacks]."""
        return agreed(finder.proved_of_stacks for finder in self._finders)

    @cached_property
    def labels_of_stacks(self) -> Ints:
        """The index into `KINDS` that our own label on top of each stack gives, or -1 [stacks]."""
        return np.array([_label_number(word) for word in self._sites.labels], dtype=np.int64)


_TEXT = {int(how): words for how, words in EVIDENCE_TEXT.items()}
_NUMBER_OF_KIND = np.array(
    [KINDS.index(kind.words) if kind.words in KINDS else len(KINDS) - 1 for kind in Kind], dtype=np.int64
)


def _kind_numbers(words: Sequence[str]) -> Ints:
    """The index into `KINDS` of each recorded word, or -1."""
    kinds = (_RECORDED.get(word) for word in words)
    return np.array([KINDS.index(kind) if kind is not None else -1 for kind in kinds], dtype=np.int64)


def _label_number(word: str) -> int:
    """The index into `KINDS` that our own label gives a block, also where it is that nothing is known; else -1."""
    kind = Kind.__members__.get(word.upper())
    return int(_NUMBER_OF_KIND[kind]) if kind is not None else -1
