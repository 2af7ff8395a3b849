"""The table of rules: an example for each, none of which survives without its rule; no two rules can change places."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training_steps import WORKLOADS, Recorded
from tracer.analysis.kinds import EVIDENCE_TEXT, Evidence, Kind
from tracer.analysis.profiles.attribution import Phase
from tracer.analysis.profiles.classify_blocks import NONE, RULES, Facts, apply_rules
from tracer.analysis.profiles.findings import find_in_cycle
from tracer.analysis.profiles.torch_categories import Category
from tracer.capture.known_storages import Role

# A block that no rule knows but the last: made outside of all phases, and alive at the end.
PLAIN: dict[str, Any] = {
    "role": NONE,
    "made": Phase.OTHER,
    "is_made_unseen": False,
    "freed": NONE,
    "has_tensor": True,
    "freed_by_maker": False,
    "is_gradient": False,
    "is_recomputed": False,
    "category": Category.UNTAGGED,
}
FORWARD, BACKWARD, OPTIMIZER = {"made": Phase.FORWARD}, {"made": Phase.BACKWARD}, {"made": Phase.OPTIMIZER}


def facts(*blocks: dict[str, Any]) -> Facts:
    rows = [{**PLAIN, **block} for block in blocks]
    columns = {}
    for field in fields(Facts):
        is_flag = isinstance(PLAIN[field.name], bool)
        columns[field.name] = np.array([int(row[field.name]) for row in rows], bool if is_flag else np.int64)
    return Facts(**columns)


def classified(*blocks: dict[str, Any], rules: Any = RULES) -> list[tuple[Kind, Evidence]]:
    kinds, evidence = apply_rules(facts(*blocks), rules)
    return [(Kind(kind), Evidence(how)) for kind, how in zip(kinds.tolist(), evidence.tolist(), strict=True)]


# One row per rule, in the table's order: blocks that this rule decides, and what they are.
EXAMPLES: tuple[tuple[Evidence, list[tuple[dict[str, Any], Kind]]], ...] = (
    (
        Evidence.HELD_OBJECT,
        [
            ({"role": Role.PARAMETER}, Kind.PARAMETER),
            ({"role": Role.BUFFER}, Kind.BUFFER),
            ({"role": Role.GRADIENT, **FORWARD}, Kind.GRADIENT),
            ({"role": Role.OPTIMIZER_STATE, "category": Category.TEMPORARY}, Kind.OPTIMIZER_STATE),
            ({"role": Role.INPUT, "made": NONE}, Kind.INPUT),
            # numpy made it in the step, and the model is called with it.
            ({"role": Role.INPUT, "made": NONE, "is_made_unseen": True}, Kind.INPUT),
        ],
    ),
    (
        Evidence.UNSEEN,
        [
            ({"made": NONE, "is_made_unseen": True}, Kind.UNKNOWN),
            # torch takes what another thread has made for an input.
            ({"made": NONE, "is_made_unseen": True, "category": Category.INPUT}, Kind.UNKNOWN),
        ],
    ),
    (Evidence.SEEN_BEFORE, [({"made": NONE}, Kind.BEFORE_RECORDING)]),
    (Evidence.DATA_FLOW, [({"made": NONE, "category": Category.PARAMETER, "freed": Phase.OTHER}, Kind.PARAMETER)]),
    (
        Evidence.NO_TENSOR,
        [
            ({**FORWARD, "freed": Phase.FORWARD, "has_tensor": False, "freed_by_maker": True}, Kind.WORKSPACE),
            # AccumulateGrad's own scratch memory is no gradient.
            (
                {**BACKWARD, "freed": Phase.BACKWARD, "has_tensor": False, "freed_by_maker": True, "is_gradient": True},
                Kind.WORKSPACE,
            ),
        ],
    ),
    (
        Evidence.ACCUMULATED,
        [({**BACKWARD, "is_gradient": True, "is_recomputed": True, "category": Category.INPUT}, Kind.GRADIENT)],
    ),
    (
        Evidence.RECOMPUTED,
        [({**BACKWARD, "is_recomputed": True, "category": Category.AUTOGRAD_DETAIL}, Kind.ACTIVATION)],
    ),
    (
        Evidence.DATA_FLOW,
        [
            ({**FORWARD, "category": Category.ACTIVATION, "freed": Phase.FORWARD}, Kind.ACTIVATION),
            ({**FORWARD, "category": Category.TEMPORARY, "freed": Phase.BACKWARD}, Kind.TEMPORARY),
            ({"category": Category.PARAMETER}, Kind.PARAMETER),
            ({**OPTIMIZER, "category": Category.GRADIENT}, Kind.GRADIENT),
        ],
    ),
    (Evidence.SAVED, [({**FORWARD, "freed": Phase.BACKWARD}, Kind.ACTIVATION)]),
    (
        Evidence.WITHIN_FORWARD,
        [
            ({**FORWARD, "freed": Phase.FORWARD}, Kind.TEMPORARY),
            # A spectrum: torch says parameter, and it is made and freed in a step.
            ({**FORWARD, "freed": Phase.FORWARD, "category": Category.PARAMETER}, Kind.TEMPORARY),
        ],
    ),
    (
        Evidence.HELD_AFTER_BACKWARD,
        [(FORWARD, Kind.ACTIVATION), ({**FORWARD, "freed": Phase.OPTIMIZER}, Kind.ACTIVATION)],
    ),
    (
        Evidence.MADE_IN_BACKWARD,
        [(BACKWARD, Kind.AUTOGRAD_DETAIL), ({**BACKWARD, "category": Category.ACTIVATION}, Kind.AUTOGRAD_DETAIL)],
    ),
    (Evidence.OPTIMIZER_KEPT, [(OPTIMIZER, Kind.OPTIMIZER_STATE)]),
    (
        Evidence.WITHIN_OPTIMIZER,
        [
            ({**OPTIMIZER, "freed": Phase.OPTIMIZER}, Kind.TEMPORARY),
            ({**OPTIMIZER, "freed": Phase.OPTIMIZER, "category": Category.ACTIVATION}, Kind.TEMPORARY),
        ],
    ),
    (Evidence.OUTSIDE, [({}, Kind.UNKNOWN), ({"freed": Phase.FORWARD, "is_gradient": True}, Kind.UNKNOWN)]),
)


def test_every_rule_has_an_example_in_the_tables_order() -> None:
    assert [rule.evidence for rule in RULES] == [evidence for evidence, _ in EXAMPLES]


@pytest.mark.parametrize("number", range(len(RULES)), ids=lambda number: f"{number} {RULES[number].evidence.name}")
def test_a_rule_decides_its_examples(number: int) -> None:
    evidence, blocks = EXAMPLES[number]
    for block, kind in blocks:
        assert classified(block) == [(kind, evidence)], block


@pytest.mark.parametrize("number", range(len(RULES) - 1), ids=lambda number: f"{number} {RULES[number].evidence.name}")
def test_without_a_rule_its_examples_are_something_else(number: int) -> None:
    """The last rule stands for all that no other knows: what it says is what holds without it."""
    _, blocks = EXAMPLES[number]
    others = (*RULES[:number], *RULES[number + 1 :])
    assert all(classified(block) != classified(block, rules=others) for block, _ in blocks)


def overlap(first: int, second: int) -> bool:
    """Whether both rules hold for some block and say different things of it."""
    blocks = [
        dict(zip(PLAIN, values, strict=True))
        for values in itertools.product(
            (NONE, Role.INPUT),
            (NONE, *Phase),
            (False, True),
            (NONE, Phase.FORWARD, Phase.BACKWARD),
            (False, True),
            (False, True),
            (False, True),
            (False, True),
            (Category.UNTAGGED, Category.ACTIVATION, Category.PARAMETER),
        )
    ]
    # Who did not see it being made does not know who made it.
    all_of_them = facts(*(block for block in blocks if block["made"] != NONE or not block["freed_by_maker"]))
    both = RULES[first].holds(all_of_them) & RULES[second].holds(all_of_them)
    return bool(both.any())


@pytest.mark.parametrize("number", range(len(RULES) - 1))
def test_neighbours_that_overlap_cannot_change_places_unseen(number: int) -> None:
    if not overlap(number, number + 1):
        pytest.skip("no block is of both")
    swapped = (*RULES[:number], RULES[number + 1], RULES[number], *RULES[number + 2 :])
    blocks = [block for _, examples in EXAMPLES for block, _ in examples]
    assert classified(*blocks) != classified(*blocks, rules=swapped)


@pytest.mark.parametrize(
    ("block", "is_contradicted"),
    [
        ({"category": Category.PARAMETER}, False),
        ({"category": Category.PARAMETER, "freed": Phase.OTHER}, True),
        ({"category": Category.PARAMETER, **FORWARD}, True),
        ({"category": Category.ACTIVATION, **FORWARD}, False),
        ({"category": Category.ACTIVATION, **BACKWARD}, True),
        ({"category": Category.ACTIVATION, **OPTIMIZER}, True),
        ({"category": Category.GRADIENT, **FORWARD}, False),
    ],
)
def test_a_blocks_life_may_contradict_torch(block: dict[str, Any], is_contradicted: bool) -> None:
    assert facts(block).is_contradicted.tolist() == [is_contradicted]


def test_every_evidence_has_a_text_and_every_text_is_another() -> None:
    assert set(EVIDENCE_TEXT) == set(Evidence)
    assert len(set(EVIDENCE_TEXT.values())) == len(Evidence)


def test_the_document_has_the_rules_in_the_tables_order() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    cells = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith("| `")]
    rows = [evidence for _, _, evidence, *_ in cells]
    assert rows == [EVIDENCE_TEXT[rule.evidence] for rule in RULES]


@pytest.mark.parametrize("name", WORKLOADS)
def test_on_every_workload_a_plain_loop_over_the_rules_agrees(name: str, recorded: Callable[[str], Recorded]) -> None:
    cycle = find_in_cycle(recorded(name).recordings[0])
    from tracer.analysis.profiles.classify_blocks import facts_of

    table = facts_of(cycle.recording, cycle.attribution, cycle.storages, cycle.blocks.torch_category, None)
    for row in range(0, len(cycle.blocks.kind), 7):
        one = replace(table, **{field.name: getattr(table, field.name)[row : row + 1] for field in fields(Facts)})
        rule = next(rule for rule in RULES if rule.holds(one)[0])
        kind = rule.kind if isinstance(rule.kind, Kind) else int(rule.kind(one)[0])
        assert (kind, rule.evidence) == (cycle.blocks.kind[row], cycle.blocks.evidence[row])
