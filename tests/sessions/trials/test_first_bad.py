"""The first bad point: whatever cannot be asked, the answer is as narrow as what can be asked allows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tracer.sessions.trials.bisections import find_first_bad


@given(st.integers(2, 60), st.data())
def test_the_answer_is_the_border_of_all_points_that_can_be_asked(num_points: int, data: st.DataObject) -> None:
    first_bad = data.draw(st.integers(1, num_points - 1))
    unknown = data.draw(st.sets(st.integers(1, num_points - 2))) if num_points > 2 else set()
    asked: list[int] = []

    def is_bad(index: int) -> bool | None:
        asked.append(index)
        return None if index in unknown else index >= first_bad

    found = find_first_bad(num_points, is_bad)
    known = [index for index in range(num_points) if index not in unknown]
    assert found.good == max(index for index in known if index < first_bad)
    assert found.bad == min(index for index in known if index >= first_bad)
    assert found.num_asked == len(asked) == len(set(asked)) and not {0, num_points - 1} & set(asked)


def test_known_points_are_halved() -> None:
    """Of 1,024 commits between the ends, ten or eleven are asked."""
    borders = range(1, 1026, 25)
    assert {find_first_bad(1026, border.__le__).num_asked for border in borders} == {10, 11}


def test_a_long_stretch_that_cannot_be_asked_is_left_soon() -> None:
    """Half of 1,000 commits do not run, those in the middle: the next one asked is far from the last."""
    broken = range(250, 750)
    found = find_first_bad(1000, lambda index: None if index in broken else index >= 900)
    assert (found.good, found.bad) == (899, 900) and found.num_asked < 14
    found = find_first_bad(1000, lambda index: None if index in broken else index >= 100)
    assert (found.good, found.bad) == (99, 100) and found.num_asked < 14
