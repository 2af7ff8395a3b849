"""The next use of each block behind a request that failed: of a program whose reads are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.processes import ROOT, run_python
from tests.truth.isolate import Elsewhere
from tracer.capture.objects.later_uses import LaterUses, NextUse
from tracer.sessions.trials.use_watch import UseWatch

MIB = 1 << 20
ZEROED = NextUse(__file__, 0, "aten::zero_", False, overwrites=True, fails=False, can_be_in_place=False, step=1)


def followed() -> LaterUses | None:
    """Four blocks of 1 to 4 MiB, then the request that failed; of 1, 2, and 3 one is read, freed, overwritten."""
    with UseWatch(0, 4) as watch:
        read, freed, overwritten, viewed = (torch.ones(size * MIB // 4, device="cuda") for size in (1, 2, 3, 4))
        read + 1
        watch.step_ended()
        torch.ones(5, device="cuda")
        del freed
        overwritten.zero_()
        overwritten.sum()
        viewed.view(-1, 1).t()
        read.sum()
        watch.step_ended()
        return watch.found(is_to_the_end=False)


def test_the_first_use_behind_the_failure_is_known(elsewhere: Elsewhere) -> None:
    found = elsewhere(followed)
    assert found is not None
    assert found.is_last == (False, False, False, False)
    first = followed.__code__.co_firstlineno
    assert found.distance == (4, 3, 2, 1)
    assert found.size_bytes == tuple(size * MIB for size in (1, 2, 3, 4))
    assert [found.uses[use] if use < len(found.uses) else None for use in found.use] == [
        replace(
            ZEROED,
            line=first + 4,
            operator="aten::add",
            overwrites=False,
            fails=True,
            can_be_in_place=True,
            step=0,
            leaves_bytes=MIB,
        ),
        None,
        replace(ZEROED, line=first + 8, leaves_bytes=3 * MIB),
        None,
    ]
    assert found.freed[1] == 2 and found.freed[0] == found.freed[2] == found.freed[3] == 0
    assert found.num_steps == 2 and not found.is_to_the_end


def kept_for_a_view() -> list[tuple[int, int, int]]:
    with UseWatch(0, 4) as watch:
        whole = torch.ones(3 << 8, 1024, device="cuda")
        whole.sum()  # three allocations
        view = whole[:1]
        del whole
        torch.ones(5, device="cuda")
        view.sum()
        found = watch.found(is_to_the_end=True)
    assert found is not None
    return list(zip(found.size_bytes, found.read_bytes, found.ahead_bytes, strict=True))


def test_what_a_view_keeps_is_read_in_part_from_then_on(elsewhere: Elsewhere) -> None:
    assert (3 * MIB, 3 * MIB, 4096) in elsewhere(kept_for_a_view)


def parts_that_are_read() -> dict[int, int]:
    """Eight rows of two products, eight columns of a third, and the rows of a padded tensor that are no padding."""
    with UseWatch(0, 20) as watch:
        by_rows, by_columns, saved, padded = (torch.ones(size << 8, 1024, device="cuda") for size in (3, 4, 5, 6))
        weight, trained = (torch.ones(1024, 512, device="cuda", requires_grad=each) for each in (False, True))
        rows, columns = by_rows @ weight, (by_columns @ weight).T.contiguous()
        saved, kept = saved * 1, torch.softmax(torch.ones(7 << 8, 1024, device="cuda", requires_grad=True), -1)
        learned = saved @ trained
        larger = torch.nn.functional.pad(padded, (0, 0, 0, 1536))
        while torch.cuda.memory_stats()["allocation.all.allocated"] < 22:
            torch.ones(5, device="cuda")
        for read in (rows[:8], columns[:8], larger[:1536]):
            read.sum()
        (learned[:8].sum() + kept[:8].sum()).backward()
        found = watch.found(is_to_the_end=True)
    assert found is not None
    return dict(zip(found.size_bytes, found.read_bytes, strict=True))


def test_rows_are_followed_through_products_and_pads_and_columns_are_not(elsewhere: Elsewhere) -> None:
    read = elsewhere(parts_that_are_read)
    assert (read[3 * MIB], read[4 * MIB], read[6 * MIB]) == (8 << 12, 4 * MIB, 6 * MIB)


def test_a_backward_needs_no_more_of_what_forward_saved_than_forward_was_read_for(elsewhere: Elsewhere) -> None:
    read = elsewhere(parts_that_are_read)
    assert (read[5 * MIB], read[7 * MIB]) == (8 << 12, 7 * MIB)


class Marked(TorchDispatchMode):  # type: ignore[misc]
    """A mode of the program's own, on top of the watch's."""

    def __init__(self) -> None:
        super().__init__()
        self.num_seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num_seen += 1
        return func(*args, **(kwargs or {}))


def within_a_mode_of_the_program() -> tuple[int, bool]:
    """Twenty steps far from the failure, then on: none may take the program's mode away."""
    with UseWatch(0, 60) as watch, Marked() as mode:
        for _ in range(20):
            [torch.ones(5, device="cuda") for _ in range(5)]
            watch.step_ended()
        return mode.num_seen, watch.found(is_to_the_end=True) is not None


def test_a_mode_of_the_program_stays(elsewhere: Elsewhere) -> None:
    num_seen, is_found = elsewhere(within_a_mode_of_the_program)
    assert num_seen >= 100 and is_found


def long_without_steps() -> tuple[bool, int]:
    done: list[int] = []
    with UseWatch(0, 1, when_done=lambda: done.append(watch.found(is_to_the_end=False) is not None)) as watch:
        while not done and torch.cuda.memory_stats().get("allocation.all.allocated", 0) < 20_000:
            torch.ones(5, device="cuda")
        torch.ones(5, device="cuda")
    return watch.is_done, len(done)


@pytest.mark.slow
def test_a_program_without_steps_is_followed_for_a_while(elsewhere: Elsewhere) -> None:
    assert elsewhere(long_without_steps) == (True, 1)


def _stopped_before() -> LaterUses | None:
    with UseWatch(0, 4) as watch:
        torch.ones(5, device="cuda")
        return watch.found(is_to_the_end=True)


def test_a_program_that_does_not_come_so_far_tells_nothing(elsewhere: Elsewhere) -> None:
    assert elsewhere(_stopped_before) is None


_LEAVES_A_BLOCK_EACH_STEP = """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(20)]).cuda()
optimizer = torch.optim.SGD(model.parameters())
kept = []
for step in range(20):
    model(torch.ones(8192, 1024, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    kept.append(torch.ones(1 << 26, device="cuda"))
"""


@pytest.mark.slow
def test_a_run_that_fails_says_how_much_it_needs_and_with_the_change(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_LEAVES_A_BLOCK_EACH_STEP)
    ran = run_python(ROOT / "main.py", "run", "--on", "h100:3GiB", "train.py", folder=tmp_path)
    words = " ".join(ran.stdout.split())
    assert "With enough memory it needs" in words and "more than there is." in words
    assert "train.py:10" in words and "kept[...] (global variable of train.py)" in words
    assert "followed in the rest of this step and the next one, the program then needs about" in words


def copies() -> tuple[dict[int, int], dict[int, int]]:
    """Bytes of values that a result only copies, by its own bytes; and the bytes that are read of each block."""
    with UseWatch(0, 12) as watch:
        row = torch.ones(1, 1 << 18, device="cuda")
        repeated = row.repeat(3, 1)
        joined = torch.cat([repeated, row, row])
        repeated[0, :5].mul_(2)
        computed = torch.cat([repeated, row, row, row])
        parts = [torch.ones(size << 18, device="cuda") for size in (7, 8)]
        while torch.cuda.memory_stats()["allocation.all.allocated"] < 14:
            torch.ones(5, device="cuda")
        joined.sum(), computed.sum()
        torch.cat(parts)  # nothing reads it
        found = watch.found(is_to_the_end=True)
    assert found is not None
    copied = {making.result.size_bytes: making.copied_bytes for making in found.makings}
    return copied, dict(zip(found.size_bytes, found.ahead_bytes, strict=True))


def test_values_that_a_result_repeats_count_once_until_they_are_computed_with(elsewhere: Elsewhere) -> None:
    copied, _ = elsewhere(copies)
    assert (copied[3 * MIB], copied[5 * MIB], copied[6 * MIB]) == (MIB, 3 * MIB, 6 * MIB)


def test_what_is_read_for_a_result_that_nothing_reads_is_not_needed(elsewhere: Elsewhere) -> None:
    _, ahead = elsewhere(copies)
    assert (ahead[5 * MIB], ahead[7 * MIB], ahead[8 * MIB]) == (5 * MIB, 0, 0)
