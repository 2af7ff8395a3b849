"""Two peaks compared: by hand, to the byte, and where the program between them was edited."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.snapshots.test_findings import BACKWARD, BASE, FORWARD, MALLOC, MIB, UNWIND, load, printed_diff
from tests.snapshot.dumps import Row, block, entry, frame, freed, segment, snapshot
from tracer.analysis.snapshots.diff import diff_snapshots, differing, match_stacks
from tracer.snapshot.columns import Snapshot


class TestDiff:
    def side(self, path: Path, sizes: dict[str, int], *, shift: int = 0, folder: str = "/home/me") -> Snapshot:
        trace, blocks = [], []
        for i, (name, size) in enumerate(sizes.items()):
            where = [UNWIND, MALLOC, frame(name, f"{folder}/model.py", 10 + i + shift)]
            trace.append(entry("alloc", BASE + MIB * i, size, frames=where))
            blocks.append(block(BASE + MIB * i, size))
        return load(path, snapshot(trace, [segment(BASE, 64 * MIB, blocks)]))

    def test_moved_lines_are_no_change(self, tmp_path: Path) -> None:
        a = self.side(tmp_path / "a", {"f": 10, "g": 20})
        b = self.side(tmp_path / "b", {"f": 10, "g": 20}, shift=100)
        (diff,) = diff_snapshots(a, b)
        assert diff.bytes == 0
        assert [change.bytes for change in diff.changes["stack"]] == [0, 0]

    def test_sizes_of_both_sides_by_change(self, tmp_path: Path) -> None:
        a = self.side(tmp_path / "a", {"grows": 10, "stays": 50, "goes": 7})
        b = self.side(tmp_path / "b", {"grows": 100, "stays": 50, "comes": 3}, shift=2)
        (diff,) = diff_snapshots(a, b)
        shown = [(c.name[1].split()[0], c.before_bytes, c.after_bytes) for c in diff.changes["stack"]]
        assert shown == [("grows", 10, 100), ("goes", 7, 0), ("comes", 0, 3), ("stays", 50, 50)]
        assert {sum(c.bytes for c in changes) for changes in diff.changes.values()} == {diff.bytes} == {86}

    def test_the_phases_of_both_peaks(self, tmp_path: Path) -> None:
        sides = [
            load(tmp_path / str(i), snapshot([entry("alloc", BASE, 10, frames=frames), *freed(BASE, 10)]))
            for i, frames in enumerate([FORWARD, BACKWARD])
        ]
        (diff,) = diff_snapshots(*sides)
        assert (diff.before.phase, diff.after.phase) == (None, "backward")
        assert "was in no phase that the recording shows and is now in backward" in printed_diff((diff,))
        assert "The peak was" not in printed_diff(diff_snapshots(sides[0], sides[0]))

    def test_a_device_on_one_side_only(self, tmp_path: Path) -> None:
        a = load(tmp_path / "a", [segment(BASE, 512, [block(BASE, 5)], device=0)])
        b = load(tmp_path / "b", [segment(BASE, 512, [block(BASE, 7)], device=1)])
        found = [(diff.after.device, diff.before.bytes, diff.after.bytes) for diff in diff_snapshots(a, b)]
        assert found == [("device 0", 5, 0), ("device 1", 0, 7)]


MAIN, LOOP = frame("main", "/home/me/train.py", 70), frame("loop", "/home/me/train.py", 50)


def side(path: Path, *stacks: list[Row], size: int = MIB) -> Snapshot:
    """A snapshot in which each stack holds this many bytes, and one more for each after the first."""
    trace, blocks = [], []
    for i, stack in enumerate(stacks):
        trace.append(entry("alloc", BASE + 64 * MIB * i, size + i, frames=[UNWIND, MALLOC, *stack]))
        blocks.append(block(BASE + 64 * MIB * i, size + i))
    return load(path, snapshot(trace, [segment(BASE, 64 * MIB * len(stacks), blocks)]))


def in_file(name: str, file: str, line: int = 3) -> Row:
    return frame(name, f"/home/me/{file}", line)


@pytest.mark.parametrize(
    ("before", "after", "was", "became"),
    [
        ([in_file("f", "m.py"), LOOP, MAIN], [in_file("f", "m.py", 90), LOOP, MAIN], "", ""),
        # One outer frame more.
        ([in_file("f", "m.py"), LOOP], [in_file("f", "m.py"), LOOP, MAIN], "", "main (me/train.py)"),
        # The file has another name.
        ([in_file("f", "m.py"), LOOP], [in_file("f", "new.py"), LOOP], "f (me/m.py)", "f (me/new.py)"),
        # A wrapper in the middle, and one that is gone.
        (
            [in_file("f", "m.py"), in_file("g", "m.py"), LOOP, MAIN],
            [in_file("f", "m.py"), in_file("g", "m.py"), in_file("wrapped", "w.py"), LOOP, MAIN],
            "loop (me/train.py)",
            "wrapped (me/w.py)",
        ),
    ],
    ids=["moved lines", "an outer frame", "a renamed file", "a frame between"],
)
def test_an_edited_program_is_the_same_code(
    tmp_path: Path, before: list[Row], after: list[Row], was: str, became: str
) -> None:
    (diff,) = diff_snapshots(side(tmp_path / "a", before), side(tmp_path / "b", after, size=3 * MIB))
    (change,) = diff.changes["stack"]
    assert (change.before_bytes, change.after_bytes) == (MIB, 3 * MIB)
    assert (change.was, change.became) == (was, became)
    assert ("a frame differs" in printed_diff((diff,))) == bool(was or became)


def test_other_code_is_no_counterpart(tmp_path: Path) -> None:
    one, other = [in_file("f", "m.py"), LOOP, MAIN], [in_file("g", "m.py"), LOOP, MAIN]
    (diff,) = diff_snapshots(side(tmp_path / "a", one), side(tmp_path / "b", other))
    assert sorted(change.bytes for change in diff.changes["stack"]) == [-MIB, MIB]


def test_what_is_equal_is_not_given_to_another(tmp_path: Path) -> None:
    short, long = [in_file("f", "m.py"), LOOP], [in_file("f", "m.py"), LOOP, MAIN]
    (diff,) = diff_snapshots(side(tmp_path / "a", short, long), side(tmp_path / "b", long, short))
    assert [(change.was, change.became) for change in diff.changes["stack"]] == [("", "")] * 2
    assert sorted(change.bytes for change in diff.changes["stack"]) == [-1, 1]


def test_the_start_is_a_phase_with_a_name(tmp_path: Path) -> None:
    held = load(tmp_path / "a", snapshot(freed(BASE, 9), []))
    in_backward = load(tmp_path / "b", snapshot([entry("alloc", BASE, 10, frames=BACKWARD), *freed(BASE, 10)]))
    (diff,) = diff_snapshots(held, in_backward)
    assert "was at the start of the recording and is now in backward" in printed_diff((diff,))


class TestGrowth:
    """How each kind and stack grew: by the most that it had in use at once, because two peaks are at other moments."""

    def step(self, path: Path, size: int, *, weight: int = MIB) -> Snapshot:
        """Activations of four blocks of this size, two at a time; at the largest moment there is only the weight."""
        activation, parameter = (
            [UNWIND, MALLOC, frame(name, "/home/me/model.py", 1)] for name in ("softmax", "make_weight")
        )
        trace: list[Row] = []
        for _ in range(2):
            trace += [entry("alloc", BASE + i * 64 * MIB, size, frames=activation) for i in range(2)]
            trace += [row for i in range(2) for row in freed(BASE + i * 64 * MIB, size)]
        trace.append(entry("alloc", BASE + 512 * MIB, weight, frames=parameter))
        return load(path, snapshot(trace, [segment(BASE, 1024 * MIB, [block(BASE + 512 * MIB, weight)])]))

    def test_of_what_is_at_one_peak_alone(self, tmp_path: Path) -> None:
        before, after = self.step(tmp_path / "a", MIB, weight=4 * MIB), self.step(tmp_path / "b", 4 * MIB)
        for sides, growth, sizes in (((before, after), 4, (0, 8 * MIB)), ((after, before), 1 / 4, (8 * MIB, 0))):
            (diff,) = diff_snapshots(*sides)
            softmax = next(change for change in diff.changes["stack"] if change.name[1].startswith("softmax"))
            assert ((softmax.before_bytes, softmax.after_bytes), softmax.growth) == (sizes, growth)
            assert sum(change.bytes for change in diff.changes["stack"]) == diff.bytes
        text = printed_diff(diff_snapshots(before, after))
        assert "8.00 MiB  x4 " in text and "Growth compares the most that each row had in use at once" in text

    def test_of_a_kind_and_not_the_sum_of_its_stacks(self, tmp_path: Path) -> None:
        """Two stacks of one kind, one after the other, and then both at once."""

        def one_kind(path: Path, *, together: bool) -> Snapshot:
            frames = [[UNWIND, MALLOC, frame(name, "/home/me/model.py", 1)] for name in "fg"]
            made = [entry("alloc", BASE + i * MIB, MIB, frames=stack) for i, stack in enumerate(frames)]
            gone = [freed(BASE + i * MIB, MIB) for i in range(2)]
            trace = [*made, *gone[0], *gone[1]] if together else [made[0], *gone[0], made[1], *gone[1]]
            return load(path, snapshot(trace, []))

        (diff,) = diff_snapshots(one_kind(tmp_path / "a", together=False), one_kind(tmp_path / "b", together=True))
        assert [change.own_peaks for change in diff.changes["kind"]] == [(MIB, 2 * MIB)]
        assert {change.growth for change in diff.changes["stack"]} == {1}

    def test_of_next_to_nothing_is_none(self, tmp_path: Path) -> None:
        few, enough = 65535, 65536
        sizes = ((few, MIB), (MIB, few), (enough, enough))
        found = []
        for number, (was, now) in enumerate(sizes):
            sides = side(tmp_path / f"a{number}", [LOOP], size=was), side(tmp_path / f"b{number}", [LOOP], size=now)
            found += [change.growth for change in diff_snapshots(*sides)[0].changes["stack"]]
        assert found == [None, None, 1]

    def test_a_renamed_file_is_found_at_other_moments_too(self, tmp_path: Path) -> None:
        """At one peak, in a file that has another name; before, it was in use at another moment."""

        def run(path: Path, file: str, first: int, last: int) -> Snapshot:
            f, g = ([UNWIND, MALLOC, in_file(name, file)] for name in "fg")
            trace = [entry("alloc", BASE, first, frames=f), *freed(BASE, first), entry("alloc", BASE, last, frames=g)]
            return load(path, snapshot([*trace, *freed(BASE, last)], []))

        (diff,) = diff_snapshots(run(tmp_path / "a", "m.py", MIB, 2 * MIB), run(tmp_path / "b", "n.py", 3 * MIB, MIB))
        assert {change.name[1]: change.growth for change in diff.changes["stack"]} == {
            "f (me/n.py)": 3,
            "g (me/n.py)": 1 / 2,
        }


A, B, C, D = "f (a.py)", "g (a.py)", "h (a.py)", "main (t.py)"


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        ((A, B), (A, B), True),
        ((A, B), (A, B, D), True),  # an outer frame more
        ((A, B, C, D), (A, B), True),  # two fewer
        ((A, B), ("f (b.py)", "g (b.py)"), True),  # another file
        ((A, B, C, D), (A, D), True),  # half of the shorter one
        ((A, B, C, D), (A, C, B, D), False),  # a quarter
        ((A, B), (B, A), False),
        ((A,), (B,), False),
    ],
)
def test_what_counts_as_the_same_code(before: tuple[str, ...], after: tuple[str, ...], is_same: bool) -> None:
    found = match_stacks([("k", before)], [("k", after)])
    assert found == ({("k", before): ("k", after)} if is_same else {})


def test_another_kind_is_no_counterpart() -> None:
    assert match_stacks([("k", (A, B))], [("l", (A, B))]) == {}


def test_the_longest_inner_part_comes_first() -> None:
    after = [("k", (A, C, D)), ("k", (A, B, D))]
    assert match_stacks([("k", (A, B, C))], after) == {("k", (A, B, C)): ("k", (A, B, D))}


def test_the_frame_that_differs() -> None:
    assert differing((A, B), (A, C)) == (B, C)
    assert differing((A,), (A, D)) == ("", D)
    assert differing((A,), (A,)) == ("", "")


KEYS = st.lists(
    st.tuples(st.sampled_from("kl"), st.lists(st.sampled_from(["f (a)", "f (b)", "g (a)", "h (c)"]), max_size=4)),
    max_size=12,
)


@given(before=KEYS, after=KEYS)
def test_pairs_are_of_one_kind_and_each_is_in_one(
    before: list[tuple[str, list[str]]], after: list[tuple[str, list[str]]]
) -> None:
    lefts, rights = ([(kind, tuple(stack)) for kind, stack in side] for side in (before, after))
    pairs = match_stacks(lefts, rights)
    assert len(set(pairs.values())) == len(pairs)
    assert set(pairs) <= set(lefts) and set(pairs.values()) <= set(rights)
    assert all(old[0] == new[0] for old, new in pairs.items())
    assert all(pairs[key] == key for key in lefts if key in rights)
