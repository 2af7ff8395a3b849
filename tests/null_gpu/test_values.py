"""Values on the null GPU, where a number decides a size."""

from __future__ import annotations

import random

import pytest

from tests.null_gpu.started import assert_well, needs_null_gpu, programs_in, run_program
from tracer.errors import TracerError
from tracer.null_gpu.values.answers import parse_answer
from tracer.null_gpu.values.device_values import Known, KnownRanges
from tracer.null_gpu.values.kernels import rounds

LARGE = (
    "experts_in_a_loop",
    "text_is_generated",
    "objects_are_detected",
    "compiled_code_stays_compiled",
    "a_profile_has_the_same_rows",
    "boxes_are_suppressed",
    "memory_is_the_same",
)
TOGETHER = programs_in("value_programs.py", but=(*LARGE, "what_was_read"))


@needs_null_gpu
def test_programs_in_which_a_number_decides() -> None:
    ended = run_program(*TOGETHER, module="value_programs")
    assert_well(ended, *TOGETHER)


@needs_null_gpu
@pytest.mark.slow
@pytest.mark.parametrize("program", LARGE)
def test_a_large_program(program: str) -> None:
    for package in ("transformers", "torchvision"):
        pytest.importorskip(package)
    ended = run_program(program, module="value_programs")
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.split()[-1] == program


@needs_null_gpu
@pytest.mark.slow
def test_two_runs_read_the_same() -> None:
    first, second = (run_program("what_was_read", module="value_programs").stderr.split()[-1] for _ in range(2))
    assert first == second and len(first) == 64


def test_ranges_are_what_a_list_of_bytes_says() -> None:
    draw = random.Random(0)
    for _ in range(200):
        ranges, naive = KnownRanges(), [Known.UNKNOWN] * 40
        for _ in range(30):
            start, end = sorted(draw.choices(range(41), k=2))
            known = draw.choice(list(Known))
            if known == Known.UNKNOWN and draw.random() < 0.5:
                ranges.forget(start, end)
            else:
                ranges.note(start, end, known)
            naive[start:end] = [known] * (end - start)
            start, end = sorted(draw.choices(range(41), k=2))
            assert ranges.known(start, end) == min(naive[start:end], default=Known.EXACT)
            unknown = {byte for begin, stop in ranges.gaps(start, end) for byte in range(begin, stop)}
            assert unknown == {byte for byte in range(start, end) if naive[byte] == Known.UNKNOWN}
        assert len(ranges) <= 20


def test_what_an_answer_looks_like() -> None:
    assert parse_answer("train.py:12=0.5") == (("train.py", 12), 0.5)
    assert parse_answer("a/b=c.py:3=True") == (("a/b=c.py", 3), True)
    assert parse_answer("train.py:12=7")[1] == 7
    for wrong in ("train.py=3", "train.py:x=3", "train.py:3", ":3=4", "train.py:3=much"):
        with pytest.raises(TracerError, match="is not an answer"):
            parse_answer(wrong)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(-2.0, 2.0, 0), (-0.06, 0.06, range(2, 4)), (-0.02, 0.02, range(10, 15)), (0.1, 0.2, range(300, 450))],
)
def test_how_often_is_drawn_again(low: float, high: float, expected: int | range) -> None:
    """Of a million numbers 0.3 % are beyond three deviations, and 3 beyond them twice; a third beyond one."""
    found = rounds(1_000_000, 0.0, 0.02, low, high)
    assert found in expected if isinstance(expected, range) else found == expected
