"""Why an allocation failed: by hand, and on programs that the model of the allocator runs out of memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.allocator.recorded import Program
from tests.answers.test_snapshot_findings import (
    BACKWARD,
    BASE,
    FORWARD,
    FREE_BACKWARD,
    FREE_FORWARD,
    MIB,
    explain,
    load,
    printed,
)
from tests.snapshot.dumps import Row, block, entry, freed, segment, snapshot
from tests.snapshot.explained import explain_snapshot
from tracer.allocator.fragmentation import Fragmentation, Usable
from tracer.allocator.reserving import OutOfMemoryError
from tracer.answers.answer import cause_and_change
from tracer.answers.findings import ReplayedFindings
from tracer.answers.out_of_memory import (
    Cause,
    FailureFacts,
    OutOfMemory,
    advice_on,
    beside_others,
    cause_of,
    in_evaluation,
)
from tracer.answers.why.first_changes import FirstChange, FirstChanges, with_cause
from tracer.snapshot.load import snapshot_in_memory


def failed(asked: int, device_free: int | None = 0) -> Row:
    event = entry("oom", 0, asked, time_us=9, frames=FORWARD)
    return {key: value for key, value in event.items() if key != "addr"} | {"device_free": device_free}


class TestOutOfMemory:
    def explain(self, tmp_path: Path, asked: int, free: int, **more: Any) -> ReplayedFindings:
        # Two segments of 4 MiB with 3 MiB in use in each: 2 MiB unallocated, the largest hole 1 MiB.
        segments = [
            segment(BASE + 8 * MIB * i, 4 * MIB, [block(BASE + 8 * MIB * i, 3 * MIB, frames=FORWARD)], **more)
            for i in range(2)
        ]
        return explain(tmp_path / "s", [failed(asked, free)], segments)

    def test_fragmentation_is_the_cause(self, tmp_path: Path) -> None:
        (found,) = self.explain(tmp_path, asked=2 * MIB, free=0).failures
        assert (found.asked_bytes, found.device_free_bytes) == (2 * MIB, 0)
        assert (found.allocated_bytes, found.reserved_bytes) == (6 * MIB, 8 * MIB)
        assert (found.unallocated_bytes, found.largest_free_bytes) == (2 * MIB, MIB)
        assert found.fits_without_fragmentation
        # What is in pieces was there before: a replay has it in one, and nothing can be tried.
        assert "expandable_segments" not in found.advice and "record from the start" in found.advice
        assert found.site.file == "/home/me/model.py"
        assert sum(group.bytes for group in found.groups) == found.requested_bytes == 6 * MIB

    @pytest.mark.parametrize(
        ("asked", "free", "device", "is_said"),
        [
            (2 << 30, MIB, 80 << 30, True),
            (2 << 30, MIB, 3 << 30, False),  # without the others there would be 2 GiB less 8 MiB
            (79 << 30, MIB, 80 << 30, False),
            (2 << 30, 78 << 30, 80 << 30, False),  # others have 2 GiB, and nothing is too little
            (2 << 30, MIB, None, False),
        ],
    )
    def test_what_others_hold_is_said_first_where_the_request_would_fit_without_it(
        self, asked: int, free: int, device: int | None, is_said: bool, tmp_path: Path
    ) -> None:
        (event,) = self.explain(tmp_path, asked=asked, free=free).failures
        found = beside_others(event, device)
        assert (found.decisive == "other processes") is is_said
        assert found.advice.endswith(event.advice)
        assert ("Some 78.99 GiB of the device's 80.00 GiB" in found.advice) is is_said

    def test_expandable_segments_are_not_advised_twice(self, tmp_path: Path) -> None:
        (found,) = self.explain(tmp_path, asked=2 * MIB, free=0, expandable=True).failures
        assert found.fits_without_fragmentation
        assert "expandable_segments:True" not in found.advice

    def test_there_is_too_little_in_any_case(self, tmp_path: Path) -> None:
        # One byte more than the two holes of 1 MiB.
        (found,) = self.explain(tmp_path, asked=2 * MIB + 1, free=0).failures
        assert not found.fits_without_fragmentation
        assert found.missing_bytes == 1 and "1 B are still missing" in found.happened("device 0")
        assert "/home/me/model.py:7" in found.advice

    def test_what_holds_most_has_a_remedy_of_its_own(self, tmp_path: Path) -> None:
        seen = [entry("alloc", BASE, 6 * MIB, frames=FORWARD), entry("alloc", BASE + 8 * MIB, MIB, frames=BACKWARD)]
        end = [*freed(BASE, 6 * MIB, frames=FREE_BACKWARD), *freed(BASE + 8 * MIB, MIB, frames=BACKWARD[-1:])]
        (found,) = explain(tmp_path / "s", [*seen, failed(99 * MIB, 0), *end]).failures
        assert "86 % of what was in use is activation" in found.advice
        assert "torch.utils.checkpoint" in found.advice

    @pytest.mark.parametrize(("small", "is_named"), [(19 * MIB // 20, False), (MIB, True)])
    def test_a_line_with_less_than_a_twentieth_is_not_where_to_look_first(
        self, tmp_path: Path, small: int, is_named: bool
    ) -> None:
        """19 MiB in use without a stack, beside a line with 1/20 of 20 MiB or a little less."""
        before = [segment(BASE, 32 * MIB, [block(BASE, 19 * MIB), block(BASE + 20 * MIB, small, frames=FORWARD)])]
        seen = entry("alloc", BASE + 20 * MIB, small, frames=FORWARD)
        (found,) = explain(tmp_path / "s", [seen, failed(99 * MIB, 0)], before).failures
        assert ("Look first at" in found.advice) == is_named

    def test_alone_and_too_large(self, tmp_path: Path) -> None:
        (found,) = explain(tmp_path / "s", [failed(99 * MIB, 0)]).failures
        assert "the request alone is too large" in found.advice

    def test_free_on_the_device_counts(self, tmp_path: Path) -> None:
        (found,) = self.explain(tmp_path, asked=3 * MIB, free=MIB).failures
        assert found.fits_without_fragmentation

    def test_a_block_that_is_large_enough_belongs_to_somebody_else(self, tmp_path: Path) -> None:
        (found,) = self.explain(tmp_path, asked=MIB, free=0).failures
        assert found.largest_free_bytes == found.asked_bytes
        assert "another stream" in found.advice and "expandable" not in found.advice

    @pytest.mark.parametrize(
        ("asked", "reserved"),
        [(1, 2 * MIB), (MIB, 2 * MIB), (MIB + 512, 20 * MIB), (10 * MIB, 10 * MIB), (10 * MIB + 512, 12 * MIB)],
    )
    def test_a_limit_of_the_process(self, tmp_path: Path, asked: int, reserved: int) -> None:
        """Only where the device had room for the whole segment that the request needs."""
        (limited,) = explain(tmp_path / "s", [failed(asked, reserved)]).failures
        assert "set_per_process_memory_fraction" in limited.advice and "with 0 B reserved" in limited.advice
        assert limited.advice.startswith("Nothing else was in use")  # where to look comes first
        (short,) = explain(tmp_path / "s", [failed(asked, reserved - 1)]).failures
        assert "set_per_process_memory_fraction" not in short.advice

    def test_each_line_is_shown_once_and_before_the_peak(self, tmp_path: Path) -> None:
        finding = explain_snapshot(load(tmp_path / "s", snapshot([failed(99 * MIB, 1)] * 3)))
        text = printed(finding)
        assert text.count("Out of memory at forward  ~/model.py:7, entry") == 1
        assert "2 more failures" in text
        assert text.index("Out of memory") < text.index("By kind")
        assert text.count("by line and kind") + text.count("What was in use then\n") == 1, "no table twice"

    def test_the_moment_counts_and_not_the_end(self, tmp_path: Path) -> None:
        trace = [entry("alloc", BASE, 700, frames=FORWARD), failed(99, 1), *freed(BASE, 700, frames=FREE_FORWARD)]
        (found,) = explain(tmp_path / "s", trace, [segment(BASE, 2048, [])]).failures
        assert (found.requested_bytes, found.allocated_bytes, found.largest_free_bytes) == (700, 1024, 1024)

    def test_a_program_that_tries_forever(self, tmp_path: Path) -> None:
        device = explain(tmp_path / "s", [failed(9, 1)] * 60)
        assert len(device.failures) == 50
        assert any("60 out-of-memory events" in note for note in device.notes)


class TestModelled:
    """The allocator's own rules decide what fits; the sentence has to name the one that did not let it."""

    def run_out(self, program: Program, size: int, *, stream: int = 0) -> OutOfMemory:
        with pytest.raises(OutOfMemoryError):
            program.allocator.allocate(size, stream)
        loaded = snapshot_in_memory(program.snapshot())
        (device,) = explain_snapshot(loaded).parts
        (event,) = device.failures
        return event

    def test_memory_of_another_stream_is_no_fragmentation(self) -> None:
        # Stream 1 keeps 4 of its 20 MiB; stream 0 asks for 9, and the device has 40.
        program = Program(0, capacity=40 * MIB)
        program.allocator.allocate(19 * MIB, 0)
        large, _ = program.allocator.allocate(9 * MIB, 1), program.allocator.allocate(4 * MIB, 1)
        program.allocator.free(large)
        event = self.run_out(program, 9 * MIB)
        assert (event.cause, event.usable_free_bytes) == ("other pools", 0)
        assert event.largest_free_bytes >= event.asked_bytes
        assert "another stream or pool" in event.advice and "expandable" not in event.advice
        assert not event.fits_without_fragmentation

    def test_memory_of_a_private_pool_is_no_fragmentation(self) -> None:
        program = Program(0, capacity=60 * MIB)
        pool = (0, 1)
        program.allocator.create_pool(pool)
        program.allocator.begin_allocate_to_pool(pool)
        program.allocator.free(program.allocator.allocate(30 * MIB))
        program.allocator.end_allocate_to_pool(pool)
        event = self.run_out(program, 31 * MIB)
        assert event.cause == "other pools"
        assert "expandable" not in event.advice
        # Tried on the allocator: what the advice says of the cache is so.
        assert "empty_cache() does not help" in event.advice
        program.allocator.empty_cache()
        with pytest.raises(OutOfMemoryError):
            program.allocator.allocate(31 * MIB)

    def test_holes_of_its_own_are_fragmentation(self) -> None:
        # Two segments of 20 MiB with 9 free in each: 18 in all, and no piece of 10.
        program = Program(0, capacity=40 * MIB)
        blocks = [program.allocator.allocate(size * MIB) for size in (9, 8, 9, 8)]
        for one in blocks[::2]:
            program.allocator.free(one)
        event = self.run_out(program, 12 * MIB)
        assert (event.cause, event.fits_without_fragmentation) == ("fragmentation", True)
        assert "expandable_segments:True" in event.advice


def test_a_block_of_its_own_that_is_large_enough_was_kept_whole(tmp_path: Path) -> None:
    trace, held = [failed(12 * MIB)], [segment(BASE, 40 * MIB, [block(BASE, 20 * MIB)])]
    (event,) = explain(tmp_path / "s", trace, held).failures
    assert (event.cause, event.usable_largest_free_bytes) == ("kept whole", 20 * MIB)
    assert "max_split_size_mb" in event.advice and "Take that setting away" not in event.advice
    said = {"allocator_settings": {"max_split_size": -1}}
    (event,) = explain(tmp_path / "t", trace, held, **said).failures
    assert event.cause == "kept whole" and "max_split_size_mb" not in event.advice


def test_what_waits_for_another_stream_is_named_as_the_cause(tmp_path: Path) -> None:
    # 40 MiB freed, not completed: the request for 40 fits as soon as they come back.
    trace = [
        entry("alloc", BASE, 40 * MIB, frames=FORWARD),
        entry("free_requested", BASE, 40 * MIB, frames=FREE_FORWARD),
        failed(40 * MIB),
        entry("free_completed", BASE, 40 * MIB),
    ]
    (event,) = explain(tmp_path / "s", trace, [segment(BASE, 40 * MIB, [])]).failures
    assert (event.cause, event.pending_free_bytes, event.usable_free_bytes) == ("pending frees", 40 * MIB, 0)
    assert "waiting for another stream" in event.advice and "expandable" not in event.advice


def test_a_pending_free_of_the_end_state_counts_too(tmp_path: Path) -> None:
    held = block(BASE, 40 * MIB, state="active_pending_free")
    (event,) = explain(tmp_path / "s", [failed(40 * MIB)], [segment(BASE, 40 * MIB, [held])]).failures
    assert event.cause == "pending frees"


def test_a_missing_number_is_not_zero(tmp_path: Path) -> None:
    oom = failed(40 * MIB, 0)
    del oom["device_free"]
    held = segment(BASE, 40 * MIB, [block(BASE, 40 * MIB)])
    (event,) = explain(tmp_path / "s", [oom], [held]).failures
    assert (event.cause, event.device_free_bytes) == ("not known", None)
    assert "does not say how much the device had free" in event.advice and "missing" not in event.advice
    text = printed(explain_snapshot(load(tmp_path / "t", snapshot([oom], [held]))))
    assert "free on the device        not recorded" in text


@pytest.mark.parametrize(("kept", "is_said"), [(20, True), (19, False)])
def test_what_an_evaluation_keeps_is_said_from_a_fifth_on(kept: int, is_said: bool, tmp_path: Path) -> None:
    (event,) = TestOutOfMemory().explain(tmp_path, asked=2 * MIB, free=0).failures
    found = in_evaluation(replace(event, requested_bytes=100), kept)
    assert found.in_evaluation is is_said
    assert found.advice.endswith(event.advice) and ("torch.no_grad()" in found.advice) is is_said
    assert ("keeps 20 B for a backward pass" in found.advice) is is_said


@pytest.mark.parametrize(("num_failed", "is_said"), [(0, True), (1, False)])
def test_a_change_that_saves_what_was_missing_is_said_where_the_replay_fails_nowhere(
    tmp_path: Path, num_failed: int, is_said: bool
) -> None:
    """As it began before the recording; where the replay fails too, the change has to serve the request."""
    failure = entry("oom", 0, 80 * MIB, time_us=9, frames=FORWARD)
    (event,) = explain(tmp_path / "s", [entry("alloc", BASE, MIB, frames=FORWARD), failure]).failures
    change = FirstChange(
        "keep less", None, 100 * MIB, 10 * MIB, 100 * MIB, 10 * MIB, cause="graphs kept", sentence="Memory grows."
    )
    said = with_cause(event, FirstChanges((change,), num_failed))
    expected = "Keep less: in a replay of the recording 90.00 MiB less are reserved at the most."
    assert (said.change == expected and said.why[0] == "Memory grows.") == is_said
    assert said.decisive == ("graphs kept" if is_said else "")


# 40 MiB asked for; 30 are free for this request in pieces of 20, 10 wait, and 10 belong to others.
PLAIN: dict[str, Any] = {"asked": 40, "device": 0, "free": 40, "usable": 30, "largest": 20, "pending": 10, "later": 20}


def failure(**changes: Any) -> FailureFacts:
    one = {**PLAIN, **changes}
    one["elsewhere"] = one["free"] - one["usable"]
    return FailureFacts(
        asked_bytes=one["asked"] * MIB,
        device_free_bytes=None if one["device"] is None else one["device"] * MIB,
        memory=Fragmentation(100 * MIB, (100 - one["free"]) * MIB, one["free"] * MIB, one["largest"] * MIB),
        usable=Usable(*(one[of] * MIB for of in ("usable", "largest", "pending", "later", "elsewhere"))),
        is_expandable=one.get("expandable", False),
        serves=lambda _: one.get("serves"),
        groups=(),
    )


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"device": 40}, "limit"),
        ({"device": 39, "usable": 0, "free": 0}, "too little"),
        ({"largest": 40}, "kept whole"),
        ({"later": 40}, "pending frees"),
        ({"later": 39, "usable": 40}, "fragmentation"),
        ({"device": 10}, "fragmentation"),
        ({"device": 9}, "other pools"),
        ({}, "other pools"),
        ({"free": 39}, "too little"),
        ({"free": 39, "device": None}, "not known"),
        ({"free": 40, "device": None}, "other pools"),
        ({"usable": 40, "device": None}, "fragmentation"),
    ],
)
def test_causes_rule_each_other_out(changes: dict[str, Any], cause: Cause) -> None:
    assert cause_of(failure(**changes)) == cause


@pytest.mark.parametrize(
    "changes", [{"later": 40}, {}, {"largest": 40}, {"free": 0, "usable": 0}, {"device": None, "free": 0}]
)
def test_only_fragmentation_is_told_to_set_expandable_segments(changes: dict[str, Any]) -> None:
    assert "expandable_segments" not in advice_on(failure(**changes))
    assert "expandable_segments:True" in advice_on(failure(usable=40, serves=True))
    assert "expandable_segments:True" not in advice_on(failure(usable=40, expandable=True, serves=True))


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"usable": 40}, "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        ({"later": 40}, "synchronize with it before this line"),
        ({}, "Allocate and free on one stream"),
        ({"largest": 40}, "Take that setting away"),
    ],
)
def test_an_advice_is_given_if_the_request_is_then_served(changes: dict[str, Any], advice: str) -> None:
    assert advice in advice_on(failure(**changes, serves=True))
    refuted, unknown = (advice_on(failure(**changes, serves=served)) for served in (False, None))
    assert advice not in refuted and "fails here as well" in refuted
    assert advice not in unknown and "record from the start" in unknown


@pytest.mark.parametrize(("device", "is_warned"), [(15, True), (16, False)])
def test_memory_in_one_piece_is_no_cure_where_little_of_it_is_left(device: int, is_warned: bool) -> None:
    """Of 60 MiB in use, 10 % are 6 MiB."""
    told = advice_on(failure(device=device, serves=True))
    assert f"with {device - 10}.00 MiB to spare" in told
    assert "expandable_segments:True" in told
    assert ("runs out of memory there" in told) == is_warned
    assert "runs out of memory there" not in advice_on(failure(device=device, serves=False))


@pytest.mark.parametrize(("num_failed", "begins"), [(0, "A list keeps"), (1, "Where a request found no memory: A")])
def test_the_cause_of_a_failure_that_the_program_caught_is_told_as_of_that_moment(num_failed: int, begins: str) -> None:
    change = FirstChange("keep less", None, 9, 4, 10, 5, sentence="A list keeps results.")
    (why, *_), _ = cause_and_change(FirstChanges((change,), num_failed))
    assert why.startswith(begins)
