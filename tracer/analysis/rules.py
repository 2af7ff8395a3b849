"""An ordered table of rules, and the first that holds decides: what recordings and snapshots say of blocks alike.

A rule is data: what it says, and the names of the conditions under which it says so. A condition is the name of a
column of truths, `in_backward`, or of its negation, `not in_step`; of several joined by ` or ` one has to hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Protocol, TypeVar

import numpy as np

from tracer.analysis.kinds import Evidence, Kind
from tracer.arrays import Bool, Int, PerBlock

OR, NOT = " or ", "not "
_Table = TypeVar("_Table")


class HasLength(Protocol):
    """A table whose columns are attributes."""

    def __len__(self) -> int: ...


class FactsOf(Generic[_Table]):
    """Makers of a table's facts: columns of one function each, computed when asked for and kept."""

    @staticmethod
    def truth(of: Callable[[_Table], PerBlock[Bool]]) -> cached_property[PerBlock[Bool]]:
        """A fact that is true of a block or not."""
        return cached_property(of)

    @staticmethod
    def number(of: Callable[[_Table], PerBlock[Int]]) -> cached_property[PerBlock[Int]]:
        """A fact that is a number; -1 is none."""
        return cached_property(of)


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of a table of rules, decided for B blocks at a time."""

    evidence: Evidence
    kind: Kind | str  # What it is, or the name of a column of kinds [B]
    when: tuple[str, ...] = ()  # Conditions, all of which have to hold; without any, the rule holds for every block

    def holds(self, facts: HasLength) -> PerBlock[Bool]:
        """[B] for which blocks."""
        return all_hold(self.when, facts)

    def kinds(self, facts: HasLength) -> PerBlock[Int]:
        """[B] what it says that they are."""
        return np.full(len(facts), self.kind, np.int64) if isinstance(self.kind, Kind) else getattr(facts, self.kind)


def all_hold(conditions: Iterable[str], facts: HasLength) -> PerBlock[Bool]:
    """[B] whether every condition does."""
    holds = np.ones(len(facts), np.bool_)
    for condition in conditions:
        holds &= np.logical_or.reduce([_truth(name, facts) for name in condition.split(OR)])
    return holds


def _truth(name: str, facts: HasLength) -> PerBlock[Bool]:
    column: PerBlock[Bool] = getattr(facts, name.removeprefix(NOT))
    return ~column if name.startswith(NOT) else column


def first_that_holds(
    rules: Sequence[Rule], facts: HasLength, *, otherwise: Evidence
) -> tuple[PerBlock[Int], PerBlock[Int]]:
    """[B] `Kind` and [B] `Evidence` of each block, by the first rule that holds.

    Args:
        otherwise: The evidence of a block that no rule knows; its kind is `Kind.UNKNOWN`.
    """
    kind = np.full(len(facts), Kind.UNKNOWN, np.int64)
    evidence = np.full(len(facts), otherwise, np.int64)
    is_open = np.ones(len(facts), np.bool_)
    for rule in rules:
        rows = np.flatnonzero(is_open & rule.holds(facts))
        evidence[rows] = rule.evidence
        kind[rows] = rule.kinds(facts)[rows]
        is_open[rows] = False
    return kind, evidence
