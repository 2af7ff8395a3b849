"""What a trial's process may use."""

from __future__ import annotations

import resource
from contextlib import nullcontext

import pytest

from tracer.sessions.trials import trial_memory
from tracer.sessions.trials.trial_channel import TrialRequest
from tracer.sessions.trials.trial_memory import LIMIT_S, TrialMemory


@pytest.mark.parametrize(
    ("changes", "is_limited", "is_bounded"), [((), False, True), ((), True, False), (("checkpoint",), False, False)]
)
def test_a_script_that_never_ends_a_step_is_ended_where_memory_does_not(
    monkeypatch: pytest.MonkeyPatch, changes: tuple[str, ...], is_limited: bool, is_bounded: bool
) -> None:
    limits: dict[int, int] = {}
    monkeypatch.setattr(trial_memory, "limited_to", lambda *_: nullcontext())
    monkeypatch.setattr(resource, "setrlimit", lambda what, pair: limits.update({what: pair[0]}))
    TrialMemory(1).begin(TrialRequest(changes, "", is_limited=is_limited))
    assert (limits.get(resource.RLIMIT_CPU, 0) >= LIMIT_S) is is_bounded
