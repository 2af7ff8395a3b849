"""What a trial's process may use."""

from __future__ import annotations

import resource
from contextlib import nullcontext

import pytest

from tracer.sessions.trials import trial_memory
from tracer.sessions.trials.trial_channel import TrialRequest
from tracer.sessions.trials.trial_memory import TrialMemory


@pytest.mark.parametrize("limit_s", [0, 100])
def test_a_script_that_never_ends_a_step_is_ended(monkeypatch: pytest.MonkeyPatch, limit_s: int) -> None:
    limits: dict[int, int] = {}
    monkeypatch.setattr(trial_memory, "limited_to", lambda *_: nullcontext())
    monkeypatch.setattr(resource, "setrlimit", lambda what, pair: limits.update({what: pair[0]}))
    TrialMemory(1).begin(TrialRequest((), "", is_limited=False, limit_s=limit_s))
    assert (limits.get(resource.RLIMIT_CPU, 0) >= 100) is (limit_s > 0)
