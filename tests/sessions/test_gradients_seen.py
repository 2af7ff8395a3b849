"""Who received a gradient: judged at the right moment, and over all looks."""

from __future__ import annotations

from tracer.sessions.observations import GradientsSeen


def test_nobody_looked() -> None:
    seen = GradientsSeen()
    assert seen.missing is None
    seen.note({"a": False})
    assert seen.missing is None


def test_one_that_never_had_a_gradient_when_it_had_to_is_missing() -> None:
    seen = GradientsSeen()
    seen.judge({"a": True, "b": False, "c": False})
    assert seen.missing == ("b", "c")
    seen.judge({"c": True})
    assert seen.missing == ("b",)  # type: ignore[comparison-overlap]


def test_a_look_at_another_moment_clears_a_parameter_and_accuses_none() -> None:
    seen = GradientsSeen()
    seen.note({"a": True, "b": False})
    assert seen.missing is None
    seen.judge({"a": False, "d": False})
    assert seen.missing == ("d",)
