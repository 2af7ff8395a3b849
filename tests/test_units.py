"""Sizes for people, there and back; numbers with their nouns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.units import GIB, KIB, MIB, format_bytes, format_growth, parse_count, parse_memory, parse_size, some


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (KIB, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (MIB - 1, "1.00 MiB"),
        (-3 * GIB, "-3.00 GiB"),
    ],
)
def test_sizes_are_in_the_largest_unit_that_keeps_them_at_one(size: int, text: str) -> None:
    assert format_bytes(size) == text


@given(st.integers(KIB, 900 * GIB))
def test_a_size_that_is_read_back_is_the_same_to_its_places(size: int) -> None:
    assert parse_size(format_bytes(size)) == pytest.approx(size, rel=0.006)


@pytest.mark.parametrize(
    ("text", "size"), [("24GiB", 24 * GIB), ("500 MiB", 500 * MIB), ("1.5g", 3 * GIB // 2), ("7", 7)]
)
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1GiB", "GiB", "1 XiB", "nan", "1e3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize("text", ["65TiB", "999999999999999T"])
def test_a_size_that_no_device_has_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is more than 64\.00 TiB, the largest size here"):
        parse_size(text)


def test_a_count_is_a_whole_number_up_to_a_largest() -> None:
    assert [parse_count(text) for text in ("7", " -7", "1_000", "007")] == [7, -7, 1000, 7]
    assert parse_count("9", most=9) == 9
    for text in ("", "many", "1.5", "1e3", "--1"):
        with pytest.raises(ValueError, match="is not a whole number"):
            parse_count(text)
    for text in ("10", "-10", "9" * 5000):
        with pytest.raises(ValueError, match="is more than 9, the largest number here"):
            parse_count(text, most=9)


def test_one_has_no_s() -> None:
    assert [some(count, "block") for count in (0, 1, 2, 1000)] == ["0 blocks", "1 block", "2 blocks", "1,000 blocks"]
    assert [some(count, "cycle", "was/were") for count in (1, 3)] == ["1 cycle was", "3 cycles were"]


def test_several_of_a_noun() -> None:
    assert [some(2, noun) for noun in ("block", "entry", "retry", "way", "batch", "process")] == [
        "2 blocks", "2 entries", "2 retries", "2 ways", "2 batches", "2 processes",
    ]  # fmt: skip
    assert some(1, "entry", "has/have") == "1 entry has"


@pytest.mark.parametrize(("text", "size"), [("24GiB", 24 * GIB), ("80B", 80), (str(GIB), GIB)])
def test_memory_is_a_size(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["80", " 24 ", "1.5"])
def test_memory_of_a_few_bytes_lacks_its_unit(text: str) -> None:
    with pytest.raises(ValueError, match="has no unit"):
        parse_memory(text)


@pytest.mark.parametrize(
    ("times", "text"),
    [(None, ""), (4.0, "x4"), (1.984, "x1.98"), (0.25, "x0.25"), (16.02, "x16"), (99.94, "x99.9"), (1234.5, "x1,234")],
)
def test_growth_has_three_places(times: float | None, text: str) -> None:
    assert format_growth(times) == text
