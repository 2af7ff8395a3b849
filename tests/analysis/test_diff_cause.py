"""Why two peaks differ: proved by shapes or bytes, else nothing is said."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.exporters.page.page_samples import peak_row
from tracer.analysis.diff_cause import cause_of
from tracer.analysis.peak_diff import PeakChange, SavedPeak, diff_peaks
from tracer.analysis.peak_row import PeakRow

MIB = 1 << 20


def side(batch: int, length: int = 4, *, width: int = 8, bits: int = 32, lines: Sequence[int] = (7,)) -> SavedPeak:
    """A step's peak: tokens, weights, the activations of some lines, and logits."""
    dtype, item = f"float{bits}", bits // 8
    activations = [
        peak_row(item * MIB * batch * length, shape=(batch, length, width), dtype=dtype, line=line) for line in lines
    ]
    rows: list[PeakRow] = [
        peak_row(8 * batch * length, category="INPUT", name="batch[0]", shape=(batch, length), dtype="int64"),
        peak_row(4 * MIB * width, category="PARAMETER", op=None, line=None, name="w", shape=(width, width)),
        peak_row(item * MIB * batch, op="aten::cross_entropy_loss", shape=(batch, 16), dtype=dtype, line=80),
        *activations,
    ]
    return SavedPeak("cpu", sum(row.bytes for row in rows), "backward", tuple(rows))


def test_a_doubled_batch_is_named_from_the_shapes_of_the_inputs() -> None:
    assert cause_of(diff_peaks(side(2), side(4))) == (
        "The batch doubled (the first dimension of the inputs, 2 -> 4): activation x2.00, input x2.00, logits x2.00."
    )
    longer = cause_of(diff_peaks(side(2), side(2, length=12)))
    assert longer.startswith("The second dimension of the inputs became 3 times as large (4 -> 12): activation x")


def test_other_numbers_and_other_parameters() -> None:
    assert cause_of(diff_peaks(side(2), side(2, bits=16))).startswith("Tensors of float32 became float16")
    wider = [SavedPeak("cpu", sum(r.bytes for r in rows), None, rows) for rows in
             (side(1, 1).rows[1:2], side(1, 1, width=16).rows[1:2])]  # fmt: skip
    assert cause_of(diff_peaks(*wider)) == "The parameters doubled: parameter x2.00."


def test_nothing_is_said_that_the_shapes_do_not_prove() -> None:
    """The batch doubled, but most of the growth is of another line."""
    assert cause_of(diff_peaks(side(2), side(4, lines=(7, 8, 9)))) == ""
    assert cause_of(diff_peaks(side(2), side(2, lines=(7, 8)))) == ""
    assert cause_of(diff_peaks(side(2), side(2))) == ""


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        *[((0, 350), "new"), ((350, 0), "gone"), ((10, 350), "x35"), ((0, 0), "")],
        *[((25, 25 * 256), "over x100"), ((1, 350), "over x100"), ((350, 1), "under x0.01")],
    ],
)
def test_only_what_was_not_there_is_new(sizes: tuple[int, int], words: str) -> None:
    change = PeakChange(("activation",), sizes[0] * MIB, sizes[1] * MIB, 1, 1)
    assert change.growth_words == words
