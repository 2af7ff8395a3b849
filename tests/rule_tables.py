"""The tables of rules for people to read, and rules with one condition less.

`python -m tests.rule_tables` prints each table as Markdown: kind, evidence, conditions, and the measured gain.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tracer.blocks.from_recording import classify_blocks as profiles
from tracer.blocks.from_snapshot import classify_blocks as snapshots
from tracer.blocks.kinds import Kind
from tracer.blocks.rules import AnyOf, Condition, FactOf, Not, Rule

TABLES: Mapping[str, Sequence[Rule[Any]]] = {"a recording": profiles.RULES, "a snapshot": snapshots.RULES}
GAINS = Path(__file__).resolve().parents[1] / "benchmarks" / "rule_gains.json"
Row = tuple[str, str, str, str]
Conditions = tuple[Condition[Any], ...]
Table = TypeVar("Table")


def rows_of(rules: Sequence[Rule[Any]]) -> list[Row]:
    """Return kind, evidence, conditions and gain of each rule."""
    has_words = rules is snapshots.RULES
    measured = json.loads(GAINS.read_text(encoding="utf-8"))["snapshots" if has_words else "recordings"]
    assert [name for name, _ in measured] == [rule.evidence.name for rule in rules], "measure with benchmarks.rule_gain"
    return [
        (_kind(rule, has_words), rule.evidence.text, ", ".join(f"`{one.name}`" for one in rule.when), f"{gain:.2f}")
        for rule, (_, gain) in zip(rules, measured, strict=True)
    ]


def _kind(rule: Rule[Any], has_words: bool) -> str:
    if not isinstance(rule.kind, Kind):
        return f"by `{rule.kind.name}`"
    return rule.kind.words if has_words else f"`{rule.kind.name}`"


def weaker(conditions: Conditions) -> Iterator[tuple[str, Conditions]]:
    """Each condition's name and the others without it; of those of which one has to hold, also each of them."""
    for place, condition in enumerate(conditions):
        before, behind = conditions[:place], conditions[place + 1 :]
        yield condition.name, (*before, *behind)
        alternatives = condition.of if isinstance(condition, AnyOf) else ()
        for one in alternatives:
            others = AnyOf(*(other for other in alternatives if other is not one))
            yield f"{condition.name}: {one.name}", (*before, others, *behind)


def facts_named(rules: Sequence[Rule[Any]]) -> set[str]:
    """The names of the truths that rules ask for."""

    def named(condition: Condition[Any]) -> Iterator[str]:
        if isinstance(condition, FactOf):
            yield condition.name
        for one in condition.of if isinstance(condition, AnyOf) else ():
            yield from named(one)
        if isinstance(condition, Not):
            yield from named(condition.of)

    return {name for rule in rules for condition in rule.when for name in named(condition)}


def told(table: type[Table], columns: Mapping[str, Any]) -> Table:
    """Facts that are known, of no recording."""
    facts = object.__new__(table)
    vars(facts).update(columns)
    return facts


def main() -> None:
    """Print the tables."""
    for source, rules in TABLES.items():
        print(f"| kind of a block of {source} | evidence | conditions | gain |\n|---|---|---|---|")
        print("".join(f"| {' | '.join(row)} |\n" for row in rows_of(rules)))


if __name__ == "__main__":
    main()
