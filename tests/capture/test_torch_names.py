"""What torch calls things, in words for people."""

from __future__ import annotations

import pytest

from tracer.capture.torch_names import step_words


@pytest.mark.parametrize(
    ("num_steps", "expected"), [(None, "step 3"), (11, "step 3 of 11"), (3, "step 3 of 3"), (2, "step 3")]
)
def test_a_step_is_one_of_those_that_have_ended_or_stands_alone(num_steps: int | None, expected: str) -> None:
    """The loop may end in the middle of the third step, by an exception or a break: two have ended then."""
    assert step_words("ProfilerStep#2", num_steps) == expected
