"""Numbers of 64 bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tracer.analysis.snapshots.causes.case import Case, Cause, GivesUp
from tracer.analysis.snapshots.changed_requests import with_smaller_blocks

_LEAST_PERCENT: Final = 20


def float64(case: Case) -> Iterator[Cause]:
    """Tensors of float64, as NumPy makes them, where the program's objects tell of types."""
    if case.objects is None:
        return
    held, rows = case.alike(case.objects.float64)
    if not case.is_much(held, percent=_LEAST_PERCENT):
        return
    asks = case.asked_stack in case.stack[rows]  # The same lines ask again
    yield Cause(
        "float64",
        f"Tensors of float64 fill {case.words(held)}{case.lines(held)}: NumPy makes float64 unless it is told "
        "otherwise, and float32 takes half.",
        "use float32 (`tensor.float()` where the data is made, `model.float()`)",
        lambda modelled: with_smaller_blocks(modelled, rows, 2, with_last_failure=asks),
        case.largest_site(held),
        GivesUp.A_LITTLE,
    )
