"""What a row of advice gains, by hand."""

from __future__ import annotations

from dataclasses import replace

from tracer.changes.recommendation import Measured, Recommendation

ROW = Recommendation("a change", (), 30, 20, 0, 0, "", "", "", "rehearsed")


def test_a_row_gains_what_is_allocated_less_or_else_what_is_reserved_less() -> None:
    assert ROW.gain_bytes == 30
    assert replace(ROW, saves_bytes=0).gain_bytes == 20
    assert replace(ROW, saves_bytes=0, saves_reserved_bytes=None).gain_bytes == 0


def test_what_was_measured_counts_and_not_what_was_rehearsed() -> None:
    measured = replace(ROW, measured=Measured(7, 0, 0.0, 0.0, (), ()))
    assert (measured.known_bytes, measured.gain_bytes) == (7, 7)
