"""Laws of a table of rules: each decides its examples, which are something else without it; none can change places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from tests.rule_tables import rows_of, weaker
from tracer.blocks.kinds import Evidence, Kind
from tracer.blocks.rules import Rule, apply_rules

Block = dict[str, Any]
Rules = Sequence[Rule[Any]]


@dataclass(frozen=True)
class RuleExamples:
    """A table of rules, with blocks as they see them."""

    rules: Rules
    facts: Callable[..., Any]  # The table of facts of blocks
    decided: tuple[tuple[Evidence, tuple[tuple[Block, Kind], ...]], ...]  # By each rule, in the table's order
    nearly: tuple[tuple[Block, Kind, Evidence], ...]  # They lack one condition of a rule

    def said(self, blocks: Sequence[Block], rules: Rules | None = None) -> list[tuple[Kind, Evidence]]:
        kinds, evidence = apply_rules(rules or self.rules, self.facts(*blocks))
        return [(Kind(kind), Evidence(how)) for kind, how in zip(kinds.tolist(), evidence.tolist(), strict=True)]

    def check(self) -> None:
        """Ask each rule of its examples, and of blocks that lack one of its conditions."""
        assert [rule.evidence for rule in self.rules] == [evidence for evidence, _ in self.decided]
        for number, (evidence, examples) in enumerate(self.decided):
            blocks, kinds = [block for block, _ in examples], [kind for _, kind in examples]
            assert self.said(blocks) == [(kind, evidence) for kind in kinds], blocks
            if number < len(self.rules) - 1:  # the last one stands for all that no other knows
                without = self.said(blocks, [*self.rules[:number], *self.rules[number + 1 :]])
                assert all(one != (kind, evidence) for one, kind in zip(without, kinds, strict=True)), evidence
        for block, kind, evidence in self.nearly:
            assert self.said([block]) == [(kind, evidence)], block
        # `python -m tests.rule_tables` prints them.
        rows = rows_of(self.rules)
        assert len(rows) == len(self.rules) and all(kind and evidence for kind, evidence, _, _ in rows)

    def check_conditions(self) -> None:
        """Without any condition of a rule some block is something else."""
        table = self.facts(*self._examples(), *(block for block, _, _ in self.nearly))
        kinds, evidence = apply_rules(self.rules, table)
        for number, rule in enumerate(self.rules):
            for name, when in weaker(rule.when):
                others = [*self.rules[:number], replace(rule, when=when), *self.rules[number + 1 :]]
                other_kinds, other_evidence = apply_rules(others, table)
                is_another = (other_kinds != kinds) | (other_evidence != evidence)
                assert is_another.any(), f"{number} {rule.evidence.name} without {name}"

    def check_order(self, drawn: Any, *, are_possible: Any = True) -> None:
        """Neighbours that hold for some of the drawn blocks cannot change places unseen."""
        holds = [rule.holds(drawn) & are_possible for rule in self.rules]
        overlapping = [number for number, (one, next_one) in enumerate(pairwise(holds)) if (one & next_one).any()]
        assert len(overlapping) > 10
        blocks = self._examples()
        for number in overlapping:
            swapped = [*self.rules[:number], self.rules[number + 1], self.rules[number], *self.rules[number + 2 :]]
            assert self.said(blocks) != self.said(blocks, swapped), self.rules[number].evidence.name

    def _examples(self) -> list[Block]:
        return [block for _, examples in self.decided for block, _ in examples]
