"""The form of a table of rules: conditions on facts of blocks, of which the first rule that holds says what they are.

Each source of blocks has a table: `from_recording/classify_blocks.py` and `from_snapshot/classify_blocks.py`. A fact is
an attribute of the source's class of facts, computed when it is first asked for and kept. On the class it is a
condition of rules, as are negations and alternatives of facts:

    facts.in_backward                            [B], of the blocks of one device
    Facts.in_backward                            the same as a function: `Facts.in_backward(facts)`
    Not(Facts.in_backward)
    AnyOf(Facts.in_backward, Facts.is_before)
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from tracer.arrays import Bool, Int, PerBlock
from tracer.blocks.kinds import Evidence, Kind

_Value = TypeVar("_Value", bound=np.generic)


_Table = TypeVar("_Table", bound=Sized)
_Asked = TypeVar("_Asked", contravariant=True)


class Condition(Protocol[_Asked]):
    """A truth of each block, named as documents have it: `is_over`, `not is_over`, `is_over or is_before`."""

    @property
    def name(self) -> str:
        """The fact's name; with others, such a text."""

    def __call__(self, facts: _Asked, /) -> PerBlock[Bool]:
        """[B] for which blocks it holds."""


class FactOf(cached_property[PerBlock[_Value]], Generic[_Asked, _Value]):
    """A column of a table of facts, computed when it is first asked for: truths, or numbers where -1 is none."""

    @property
    def name(self) -> str:
        """Name of the attribute."""
        return str(self.attrname)

    def __call__(self, facts: _Asked, /) -> PerBlock[_Value]:
        """[B], as the attribute of this table."""
        return self.__get__(facts)


class Not(Generic[_Table]):
    """True of the blocks for which another condition is not."""

    def __init__(self, of: Condition[_Table]) -> None:
        self.of, self.name = of, f"not {of.name}"

    def __call__(self, facts: _Table, /) -> PerBlock[Bool]:
        """[B]."""
        return ~self.of(facts)


class AnyOf(Generic[_Table]):
    """True of the blocks for which one of several conditions is."""

    def __init__(self, *of: Condition[_Table]) -> None:
        self.of, self.name = of, " or ".join(one.name for one in of)

    def __call__(self, facts: _Table, /) -> PerBlock[Bool]:
        """[B]."""
        return np.asarray(np.logical_or.reduce([one(facts) for one in self.of]), np.bool_)


@dataclass(frozen=True, slots=True)
class Rule(Generic[_Table]):
    """A row of a table of rules, decided for B blocks at a time."""

    evidence: Evidence
    kind: Kind | FactOf[Any, Int]  # What the block is, or the column of kinds
    when: tuple[Condition[_Table], ...] = ()  # All have to hold; without any, the rule holds for every block

    def holds(self, facts: _Table) -> PerBlock[Bool]:
        """[B] for which blocks every condition does."""
        holds = np.ones(len(facts), np.bool_)
        for condition in self.when:
            holds &= condition(facts)
        return holds

    def kinds(self, facts: _Table) -> PerBlock[Int]:
        """[B] the kinds that the rule says."""
        return np.full(len(facts), self.kind, np.int64) if isinstance(self.kind, Kind) else self.kind(facts)


def apply_rules(rules: Sequence[Rule[_Table]], facts: _Table) -> tuple[PerBlock[Int], PerBlock[Int]]:
    """[B] `Kind` and [B] `Evidence` of each block by the first rule that holds; UNKNOWN and UNPROVED without one."""
    kind = np.full(len(facts), Kind.UNKNOWN, np.int64)
    evidence = np.full(len(facts), Evidence.UNPROVED, np.int64)
    is_open = np.ones(len(facts), np.bool_)
    for rule in rules:
        rows = np.flatnonzero(is_open & rule.holds(facts))
        evidence[rows] = rule.evidence
        kind[rows] = rule.kinds(facts)[rows]
        is_open[rows] = False
    return kind, evidence
