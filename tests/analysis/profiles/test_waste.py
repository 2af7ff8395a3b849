"""What in a program keeps a block that nobody needs: one rule for each, and no rule for what is needed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.rule_tables import facts_named, told, weaker
from tracer.analysis.profiles.idle_blocks import IdleBlocks
from tracer.analysis.profiles.waste import NO_KIND, RULES, Waste, WasteKind, kinds_of, merge_waste
from tracer.capture.sources.source_line import SourceLine

# What is true of a block that one rule alone knows.
OF_RULE: dict[WasteKind, tuple[str, ...]] = {
    WasteKind.WEIGHTS: ("is_unused_copy",),
    WasteKind.GRADIENTS: ("is_idle_gradient",),
    WasteKind.WIDENED: ("is_widened",),
    WasteKind.GRAPH: ("is_idle", "kept_by_graph"),
    WasteKind.EVALUATION: ("is_idle", "in_evaluation"),
    WasteKind.RETAINED: ("is_idle", "outlives_backward", "is_left_by_backward"),
    WasteKind.TENSORS: ("is_idle", "outlives_step"),
}


def block(*true: str) -> IdleBlocks:
    """One, of which these things are true."""
    names = facts_named(RULES)
    return told(IdleBlocks, {"block": np.zeros(1, np.int64)} | {name: np.array([name in true]) for name in names})


@pytest.mark.parametrize("kind", OF_RULE)
def test_each_rule_names_what_it_is_about_and_nothing_does_without_it(kind: WasteKind) -> None:
    one = block(*OF_RULE[kind])
    assert kinds_of(one).tolist() == [kind]
    assert kinds_of(one, [rule for rule in RULES if rule.kind != kind]).tolist() == [NO_KIND]
    for left_out in OF_RULE[kind]:
        assert kinds_of(block(*(name for name in OF_RULE[kind] if name != left_out))).tolist() == [NO_KIND]


SEVERAL: list[tuple[tuple[str, ...], int]] = [
    (("is_idle", "in_evaluation", "outlives_step"), WasteKind.GRAPH),
    (("is_idle", "outlives_step", "outlives_backward", "is_left_by_backward"), WasteKind.RETAINED),
    (("is_idle", "outlives_step", "kept_by_graph"), WasteKind.GRAPH),
    (("is_idle", "outlives_step", "is_unused_copy"), WasteKind.WEIGHTS),
    (("is_idle", "outlives_step", "is_read_later"), NO_KIND),
    (("outlives_step", "outlives_backward", "in_evaluation", "kept_by_graph"), NO_KIND),
    (("outlives_backward", "is_left_by_backward"), NO_KIND),
    (("is_idle", "is_left_by_backward"), NO_KIND),
    (("is_idle", "outlives_backward"), NO_KIND),
    (("is_idle",), NO_KIND),
]


@pytest.mark.parametrize(("true", "kind"), SEVERAL)
def test_of_several_rules_the_first_has_it(true: tuple[str, ...], kind: int) -> None:
    assert kinds_of(block(*true)).tolist() == [kind]


@pytest.mark.parametrize("number", range(len(RULES)), ids=lambda number: RULES[number].kind.name)
def test_without_a_condition_some_block_is_something_else(number: int) -> None:
    blocks = [*OF_RULE.values(), *(true for true, _ in SEVERAL)]
    for name, when in weaker(RULES[number].when):
        rules = (*RULES[:number], replace(RULES[number], when=when), *RULES[number + 1 :])
        assert any(kinds_of(block(*true)) != kinds_of(block(*true), rules) for true in blocks), name


def waste(kind: WasteKind, size: int, path: str = "", line: int | None = None) -> Waste:
    at = None if line is None else SourceLine("train.py", line)
    return Waste(kind, size, 1, at, (size,), (size,), path, "local variable of main()")


def test_what_one_variable_holds_is_one_finding_and_about_graphs_if_there_are_any() -> None:
    parts = [
        waste(WasteKind.TENSORS, 8, "losses[...]", 3),
        waste(WasteKind.GRAPH, 5, "losses[...] -> graph of the tensor"),
        waste(WasteKind.GRAPH, 2, "losses[...] -> graph of the tensor", 4),
        waste(WasteKind.TENSORS, 9, "cache[...]", 7),
        waste(WasteKind.GRADIENTS, 1, line=8),
        waste(WasteKind.GRADIENTS, 1, line=9),
    ]
    found = merge_waste(parts)
    assert [(one.kind, one.bytes, one.line.line if one.line else None) for one in found] == [
        (WasteKind.GRAPH, 15, 4),
        (WasteKind.TENSORS, 9, 7),
        (WasteKind.GRADIENTS, 1, 8),
        (WasteKind.GRADIENTS, 1, 9),
    ]
    assert sum(one.bytes for one in found) == sum(one.bytes for one in parts)
    assert found[0].count == 3


def test_the_line_to_look_at() -> None:
    made, held = SourceLine("train.py", 3), SourceLine("train.py", 5)
    assert Waste(WasteKind.TENSORS, 1, 1, made, held_at=held).place == held
    assert Waste(WasteKind.TENSORS, 1, 1, made).place == made
    assert Waste(WasteKind.RETAINED, 1, 1, made, held_at=held).place == made
