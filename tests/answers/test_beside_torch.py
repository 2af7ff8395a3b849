"""Memory beside torch's allocator: rows sum to the driver's count, and a rise has a name only where one call has it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.answers.beside_torch import FIRST, NOT_PLACED, NOT_THERE, beside_sentences, beside_torch
from tracer.capture.run_facts import DriverLooks, KnownCall, Look, OtherProcess

_CUDNN, _CUBLAS = KnownCall(15, "cuDNN", "train.py", 3), KnownCall(17, "cuBLAS", "loss.py", 4)
_BOTH = "one or more of: cuDNN; cuBLAS (loss.py:4)"


def _looks(*beside: int) -> tuple[Look, ...]:
    """Looks at 10, 20, ... with so many bytes beside 100 that are reserved."""
    return tuple(Look(10 * number, size + 100, 100) for number, size in enumerate(beside, 1))


@pytest.mark.parametrize(
    ("driver", "rows"),
    [
        (DriverLooks(_looks(500)), [(500, FIRST)]),
        (DriverLooks(_looks(500, 530), (_CUDNN,)), [(500, FIRST), (30, "cuDNN")]),
        (DriverLooks(_looks(500, 530), (_CUDNN, _CUBLAS)), [(500, FIRST), (30, _BOTH)]),
        (DriverLooks(_looks(500, 530)), [(500, FIRST), (30, NOT_PLACED)]),
        (DriverLooks(_looks(500, 500, 530), (_CUDNN,)), [(500, FIRST), (30, NOT_PLACED)]),  # it rose later
        (DriverLooks(_looks(500, 530, 520), (_CUDNN,)), [(500, FIRST), (20, "cuDNN")]),
        (DriverLooks(_looks(500, 530, 570, 540), (_CUDNN,)), [(500, FIRST), (30, "cuDNN"), (10, NOT_PLACED)]),
        (DriverLooks(_looks(500, 530, 400), (_CUDNN,)), [(400, FIRST)]),
        (DriverLooks(_looks(500), (), (OtherProcess("jupyter", 7, 300),)), [(300, "jupyter, process 7"), (200, FIRST)]),
        (DriverLooks(_looks(-20)), [(-20, NOT_THERE)]),  # an engine sleeps: torch's reserved memory is not mapped
    ],
)
def test_a_rise_is_booked_on_the_known_calls_between_two_looks(
    driver: DriverLooks, rows: list[tuple[int, str]]
) -> None:
    assert [(row.bytes, row.what) for row in beside_torch(driver).rows] == rows


_SIZES = st.lists(st.integers(-50, 1000), min_size=1, max_size=12)
_CALLS = st.lists(st.integers(0, 130), max_size=6)
_OTHERS = st.lists(st.integers(1, 600), max_size=3)


@given(_SIZES, _CALLS, _OTHERS)
def test_rows_and_torchs_reserved_sum_to_the_drivers_count(
    sizes: list[int], times: list[int], others: list[int]
) -> None:
    driver = DriverLooks(
        _looks(*sizes),
        tuple(KnownCall(time, f"call {number}") for number, time in enumerate(sorted(times))),
        tuple(OtherProcess("other", number, size) for number, size in enumerate(others)),
    )
    found = beside_torch(driver)
    assert sum(row.bytes for row in found.rows) + found.reserved_bytes == found.used_bytes == sizes[-1] + 100
    assert all(row.bytes > 0 or row.what == NOT_THERE for row in found.rows)


def test_the_screen_speaks_of_it_where_it_is_more_than_a_twentieth_of_the_device() -> None:
    found = beside_torch(DriverLooks(_looks(500, 530), (_CUDNN,)))
    assert not list(beside_sentences(found, 10_600)) and not list(beside_sentences(found, None))
    (sentence,) = beside_sentences(found, 10_599)
    assert FIRST in sentence
