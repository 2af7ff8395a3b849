"""Rows of a peak as a tree, two peaks compared, and their curves on one axis."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.exporters.page.page_samples import peak_row
from tracer.answers.aligned_curves import MemoryCurve, align, highest, positions_of
from tracer.answers.difference import PeakDiff, SavedPeak, diff_peaks
from tracer.answers.rows import NO_MODULE, Row, module_tree
from tracer.answers.threshold import parse_threshold
from tracer.blocks.from_snapshot.timeline import Band
from tracer.errors import TracerError


# ---- How much a peak may grow: read, compared, and said.
def grown(before_bytes: int, change_bytes: int) -> PeakDiff:
    return diff_peaks(SavedPeak("cpu", before_bytes, None), SavedPeak("cpu", before_bytes + change_bytes, None))


@pytest.mark.parametrize(
    ("text", "after", "exceeded"),
    [
        ("5%", 105, False),
        ("5%", 106, True),
        ("5B", 106, True),
        ("6B", 106, False),
        ("1MiB", 106, False),
        ("0B", 101, True),
        ("0%", 100, False),
    ],
)
def test_thresholds(text: str, after: int, exceeded: bool) -> None:
    assert parse_threshold(text).is_exceeded_by(grown(100, after - 100)) is exceeded


@pytest.mark.parametrize("text", ["", "much", "-5%", "5 %%", "1e9", "5TiB"])
def test_what_is_no_threshold(text: str) -> None:
    with pytest.raises(TracerError) as caught:
        parse_threshold(text)
    assert caught.value.hint


def test_a_bare_number_is_refused_with_what_it_could_mean() -> None:
    with pytest.raises(TracerError, match="A threshold of 100 could be percent or bytes") as caught:
        parse_threshold(" 100 ")
    assert caught.value.hint == "Write 100%, 100MiB or 100B."


@pytest.mark.parametrize(
    ("text", "before", "change", "sentence"),
    [
        ("5%", 1000, 507, "cpu: peak grew 50.7 %, the limit is 5 %."),
        ("5%", 1_000_000, 50_001, "cpu: peak grew 5.000100 %, the limit is 5 %."),
        ("2.5%", 0, 2048, "cpu: peak grew from 0 B to 2.00 KiB, the limit is 2.5 %."),
        ("1MiB", 7, 3 << 20, "cpu: peak grew 3.00 MiB, the limit is 1.00 MiB."),
        ("1MiB", 7, (1 << 20) + 1, "cpu: peak grew 1,048,577 B, the limit is 1,048,576 B."),
    ],
)
def test_why_it_is_exceeded(text: str, before: int, change: int, sentence: str) -> None:
    threshold = parse_threshold(text)
    assert threshold.is_exceeded_by(grown(before, change))
    assert threshold.sentence("cpu", grown(before, change)) == sentence


def test_a_file_is_the_same_in_checkouts_of_other_names() -> None:
    """`main/train.py` and `head/train.py`: unchanged lines are neither gone nor new."""

    def side(root: str, *files: str) -> SavedPeak:
        rows = tuple(Row(4, 1, "INPUT", None, "", "", None, "aten::ones", f"{root}{file}", 3) for file in files)
        return SavedPeak("cpu", sum(row.bytes for row in rows), None, rows)

    for before, after in (("/ci/main/", "/ci/head/"), ("/ci/main/", ""), ("", r"C:\ci\head" + "\\")):
        diff = diff_peaks(side(before, "train.py"), side(after, "train.py"))
        assert [change.bytes for change in diff.changes["line"]] == [0], (before, after)
    diff = diff_peaks(side("/a/", "x/train.py", "y/train.py"), side("/b/", "x/train.py", "z/train.py"))
    assert sorted(change.bytes for change in diff.changes["line"]) == [0, 0]
    diff = diff_peaks(side("/a/", "x/train.py", "y/train.py"), side("/b/", "z/train.py"))
    assert sorted(change.bytes for change in diff.changes["line"]) == [-4, -4, 4], "which of two it is, nobody knows"


# ---- The peak by module: by hand, and that what is below sums to what is above, with nothing lost.
def test_nothing_is_a_root_alone() -> None:
    root = module_tree([])
    assert (root.total_bytes, root.children) == (0, [])


PATHS = st.none() | st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(".".join) | st.just("(training loop)")


@given(st.lists(st.tuples(st.integers(0, 10**12), PATHS), max_size=20))
def test_each_total_is_its_own_bytes_and_its_childrens(drawn: list[tuple[int, str | None]]) -> None:
    root = module_tree([peak_row(size, module=path) for size, path in drawn])
    assert root.total_bytes == sum(size for size, _ in drawn)
    nodes = [node for _, node in root.walk()]
    assert len({node.path for node in nodes}) == len(nodes)
    for node in nodes:
        totals = [child.total_bytes for child in node.children]
        assert node.total_bytes == node.own_bytes + sum(totals)
        assert totals == sorted(totals, reverse=True)
        inside = [size for size, path in drawn if (path or NO_MODULE) == node.path]
        assert node.own_bytes == sum(inside)


# ---- Two recordings on one axis: bytes stay, and the same step and phase lie at the same place.
def curve(levels: list[int], *stretches: tuple[str, int, int]) -> MemoryCurve:
    bands = tuple(Band(kind, kind, start, end) for kind, start, end in stretches)  # type: ignore[arg-type]
    return MemoryCurve(np.arange(len(levels)), {"activation": np.array(levels)}, bands)


def test_the_second_step_of_both_begins_at_one_place() -> None:
    """Two micro-steps before, one after: the backward of the second step is the third before and the second after."""
    before = curve(
        [0, 3, 1, 3, 0, 5, 0], ("backward", 1, 2), ("backward", 3, 4), ("optimizer", 4, 5), ("backward", 5, 6)
    )
    after = curve([0, 6, 0, 0, 9, 0], ("backward", 1, 2), ("optimizer", 2, 3), ("backward", 4, 5))
    both = align(before, after)
    assert [(band.kind, band.start) for band in both.stretches] == [("backward", 1), ("optimizer", 4), ("backward", 6)]
    old, new = both.totals()
    for band, (most_before, most_after) in zip(both.stretches, ((3, 6), (0, 0), (5, 9)), strict=True):
        assert highest(old, both.position, band)[1] == most_before
        assert highest(new, both.position, band)[1] == most_after
    assert (old.max(), new.max()) == (5, 9)


def test_without_steps_beginning_and_end_are_the_same_places() -> None:
    both = align(curve([1, 2, 3, 4]), curve([7, 8]))
    assert both.position.tolist() == [0, 1, 2, 3]
    assert [side.tolist() for side in both.totals()] == [[1, 2, 3, 4], [7, 7, 8, 8]]
    assert both.growth_at(3) == (("activation", 4),)


def test_steps_that_one_side_alone_has_are_beside_no_step_of_the_other() -> None:
    """One step before, which ends with 1, and three after: what follows the first lies beside its end."""
    one = curve([0, 5, 1], ("backward", 1, 2))
    three = curve([0, 6, 1, 7, 1, 8, 1], ("backward", 1, 2), ("backward", 3, 4), ("backward", 5, 6))
    both = align(one, three)
    assert both.position.tolist() == list(range(7))
    assert [side.tolist() for side in both.totals()] == [[0, 5, 1, 1, 1, 1, 1], [0, 6, 1, 7, 1, 8, 1]]
    long_tail = align(curve([0, 5, 4, 3, 2], ("backward", 1, 2)), three)
    assert long_tail.totals()[0].tolist() == [0, 5, 4, 3, 2, 2, 2]


def test_a_kind_that_one_side_lacks_has_no_bytes_there() -> None:
    other = MemoryCurve(np.arange(2), {"gradient": np.array([5, 5])})
    assert align(curve([1, 1]), other).growth_at(0) == (("gradient", 5),)


def test_times_become_positions() -> None:
    times = np.array([10, 10, 20, 30])
    (band,) = positions_of((Band("step", "a", 10, 25),), times, np.array([4, 5, 6, 9]))
    assert (band.start, band.end) == (0, 5)
