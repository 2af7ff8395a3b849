"""An ordered table of rules, and the first that holds decides: what recordings and snapshots say of blocks alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from tracer.analysis.kinds import Evidence, Kind
from tracer.arrays import Bool, Int, PerBlock


class _HasLength(Protocol):
    def __len__(self) -> int: ...


FactsT = TypeVar("FactsT", bound=_HasLength)


@dataclass(frozen=True, slots=True)
class Rule(Generic[FactsT]):
    """One row of a table, about facts of B blocks.

    Attributes:
        evidence: How the kind is known.
        kind: What it is, or [B] what each of them is.
        holds: [B] for which blocks.
    """

    evidence: Evidence
    kind: Kind | Callable[[FactsT], PerBlock[Int]]
    holds: Callable[[FactsT], PerBlock[Bool]]


def first_that_holds(
    rules: Sequence[Rule[FactsT]], facts: FactsT, *, otherwise: Evidence
) -> tuple[PerBlock[Int], PerBlock[Int]]:
    """[B] `Kind` and [B] `Evidence` of each block, by the first rule that holds.

    Args:
        rules: In their order.
        facts: Of the blocks.
        otherwise: The evidence of a block that no rule knows; its kind is `Kind.UNKNOWN`.
    """
    kind = np.full(len(facts), Kind.UNKNOWN, np.int64)
    evidence = np.full(len(facts), otherwise, np.int64)
    is_open = np.ones(len(facts), np.bool_)
    for rule in rules:
        rows = np.flatnonzero(is_open & rule.holds(facts))
        evidence[rows] = rule.evidence
        kind[rows] = int(rule.kind) if isinstance(rule.kind, Kind) else rule.kind(facts)[rows]
        is_open[rows] = False
    return kind, evidence
