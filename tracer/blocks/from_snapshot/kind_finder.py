"""Decides the kinds of one device's blocks: what the recording says, what the program held, or the table of rules."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from tracer.arrays import Ints, at
from tracer.blocks.from_snapshot.backward_lines import BackwardLines
from tracer.blocks.from_snapshot.block_facts import facts_of_frees
from tracer.blocks.from_snapshot.classify_blocks import PROOFS, RULES
from tracer.blocks.from_snapshot.counting import BlockFacts
from tracer.blocks.from_snapshot.phases import DevicePhases
from tracer.blocks.from_snapshot.sites import Sites
from tracer.blocks.from_snapshot.stack_facts import Fact, has
from tracer.blocks.kinds import Evidence, Kind, kind_named
from tracer.blocks.rules import apply_rules
from tracer.snapshot.columns import DeviceState, Snapshot
from tracer.snapshot.replay import Lives, as_it_failed

_UNSAID: Final = -1  # Instead of a kind, where a source says none


@dataclass(frozen=True, slots=True)
class HeldNow:
    """Tensors that a process holds at the moment of its snapshot, by the address of the memory."""

    named: Mapping[int, Kind] = field(default_factory=dict)  # Kinds of what modules, optimizers and batches hold
    kept_by_graphs: Collection[int] = frozenset()  # What autograd keeps for a backward
    reached: Collection[int] = frozenset()  # All else that Python reaches as a tensor: held, where no rule knows better

    def proved(self, address: int) -> tuple[Kind, Evidence] | None:
        """Return the proved kind of the memory at an address, and its evidence; None if nothing proves it."""
        if address in self.named:
            return self.named[address], Evidence.HELD_OBJECT
        return (Kind.ACTIVATION, Evidence.KEPT_BY_GRAPH) if address in self.kept_by_graphs else None


NOTHING_HELD: Final = HeldNow()


class KindFinder:
    """Decides the kinds of one device's blocks. In the order of its `Lives`.

    Args:
        held: Kinds by address of what the program held when the history began.
        held_now: What it held when the snapshot was taken.
        devices: The facts of all devices of the snapshot, to which this one's are added: what a stack allocates on one
            of them counts on all.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        state: DeviceState,
        lives: Lives,
        sites: Sites,
        *,
        held: Mapping[int, Kind] | None = None,
        held_now: HeldNow = NOTHING_HELD,
        devices: list[BlockFacts],
    ) -> None:
        self._held_now = held_now
        self._snapshot, self._sites, self._is_at_end = snapshot, sites, lives.end == len(state.trace)
        self._state, self._lives = as_it_failed(state, lives)
        # As an exception frees what it passes, autograd lets go of what it had saved, which says what that was.
        freed, is_known = facts_of_frees(state, lives, sites.facts), self._lives.free_entry == lives.free_entry
        freed = np.where(is_known, freed, freed & int(Fact.RELEASE_SAVED))
        self._held = held or {}
        self.phases = DevicePhases(snapshot, self._state, sites.facts)
        self.facts = BlockFacts(self._state, self._lives, self.phases, sites, freed, PROOFS, devices)
        devices.append(self.facts)

    def phase_at(self, entry: int) -> str:
        """`backward` or `optimizer`, where stacks or annotations show that an entry is in one, else the empty text."""
        for phase, stretches in (("optimizer", self.phases.steps), ("backward", self.phases.backwards)):
            if entry >= 0 and stretches.containing(np.array([entry]))[0] >= 0:
                return phase
        return ""

    @cached_property
    def backward_lines(self) -> BackwardLines:
        """The operations of forward that the blocks of backward belong to."""
        skipped = has(self._sites.facts, Fact.WORKSPACE)
        frames, phases = self._sites.autograd, self.phases
        return BackwardLines(self._lives, frames, phases.backwards, phases.steps, skipped=skipped)

    @property
    def copies_per_gradient(self) -> tuple[int, int]:
        """Return the blocks from before the recording for each gradient, and their bytes; 0 if that varies."""
        kind, _ = self.kinds_and_evidence
        is_not_known = (kind == Kind.UNKNOWN) | (kind == Kind.BEFORE_RECORDING)
        return self.facts.copies_per_gradient(is_not_known)

    @cached_property
    def kinds_and_evidence(self) -> tuple[Ints, Ints]:
        """`Kind` and `Evidence` of every block: the recording's word, the program's, or a rule's."""
        kind, evidence = apply_rules(RULES, self.facts)
        for said, how in (
            (self._held_kinds(), Evidence.HELD_BY_PROGRAM),
            (self._recorded_kinds(), Evidence.SAID_BY_RECORDING),
        ):
            evidence = np.where(said == _UNSAID, evidence, how)
            kind = np.where(said == _UNSAID, kind, said)
        for row in np.flatnonzero(self._is_at_end).tolist() if self._held_now is not NOTHING_HELD else ():
            address = int(self._lives.addr[row])
            if (proved := self._held_now.proved(address)) is not None:
                kind[row], evidence[row] = proved
            elif kind[row] == Kind.UNKNOWN and address in self._held_now.reached:
                kind[row], evidence[row] = Kind.HELD, Evidence.REACHED
        is_from_before = (kind == Kind.UNKNOWN) & self.facts.is_before & (len(self._state.trace) > 0)
        kind[is_from_before], evidence[is_from_before] = Kind.BEFORE_RECORDING, Evidence.SEEN_BEFORE
        return kind, evidence

    def _recorded_kinds(self) -> Ints:
        """The `Kind` that the recording itself gives each block, or `_UNSAID`."""
        lives, category = self._lives, self._state.trace.category
        kind = self._sites.labels[lives.stack]
        if len(category) and (category >= 0).any():
            # A tracer may write an entry's kind, such as `optimizer_state`.
            kinds = (kind_named(text) for text in self._snapshot.texts)
            said = (_UNSAID if of in (None, Kind.UNKNOWN, Kind.BEFORE_RECORDING) else of for of in kinds)
            of_text = np.array([*said, _UNSAID], np.int64)
            kind = np.where(kind == _UNSAID, of_text[at(category, lives.alloc_entry, -1)], kind)
        return kind

    def _held_kinds(self) -> Ints:
        """The `Kind` of what the program held when the history began, or `_UNSAID`."""
        kind = np.full(len(self._lives), _UNSAID, dtype=np.int64)
        if self._held:
            before = np.flatnonzero(self.facts.is_before)
            kind[before] = [self._held.get(place, _UNSAID) for place in self._lives.addr[before].tolist()]
        return kind
