"""What is found in a recording and was mended in a rehearsal has that rehearsal's saving; nothing else has one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tracer.analysis.profiles.waste import Waste, WasteKind
from tracer.changes.recommendation import Recommendation
from tracer.changes.unneeded import large, unneeded_memory, unneeded_sentence
from tracer.units import MIB


def waste(kind: WasteKind) -> Waste:
    return Waste(kind, 3 * MIB, 2, line=None)


def tried(change: str, saves_bytes: int) -> Recommendation:
    return Recommendation(change, (), saves_bytes, None, 0, None, "", "", "", "rehearsed")


def test_a_saving_is_that_of_the_change_that_mends_it() -> None:
    rows = (tried("checkpoint blocks.0", 9 * MIB), tried("no_grad in evaluation", 2 * MIB))
    evaluation, weights = unneeded_memory(
        [waste(WasteKind.EVALUATION), waste(WasteKind.WEIGHTS)], device="cuda:0", rehearsed=rows
    )
    assert (evaluation.how_found, evaluation.saves_bytes) == ("rehearsed", 2 * MIB)
    assert "Rehearsed, it saves 2.00 MiB." in unneeded_sentence(evaluation, 10 * MIB)
    assert (weights.how_found, weights.saves_bytes) == ("found in the recording", None)
    assert "Rehearsed" not in unneeded_sentence(weights, 10 * MIB)


def test_without_a_rehearsal_there_is_no_saving() -> None:
    (gradients,) = unneeded_memory([waste(WasteKind.GRADIENTS)], device="cpu")
    assert (gradients.how_found, gradients.saves_bytes) == ("found in the recording", None)


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("path", ["", "losses[...]", "self.cache[...]", "step -> closure variable kept of step()[...]"])
@pytest.mark.parametrize("kind", list(WasteKind))
def test_the_lines_to_paste_are_python(kind: WasteKind, path: str, device: str) -> None:
    (found,) = unneeded_memory([replace(waste(kind), path=path)], device=device)
    compile("\n".join(found.lines), "lines", "exec")


def test_an_attribute_is_assigned_as_one() -> None:
    (found,) = unneeded_memory([replace(waste(WasteKind.TENSORS), path="self.cache[...]")], device="cpu")
    assert found.lines[0].startswith("self.cache = ")


def test_a_twentieth_of_the_peak_is_told_without_being_asked_for() -> None:
    (found,) = unneeded_memory([waste(WasteKind.GRADIENTS)], device="cpu")
    rows = [replace(found, bytes=size) for size in (49, 50, 51)]
    assert [row.bytes for row in large(rows, 1000)] == [50, 51]
