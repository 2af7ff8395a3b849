"""What `gc.freeze` hides from the collector's list is found all the same, and nothing is kept alive for it.

Freezing moves all objects of a process, so that each case has a process of its own.
"""

from __future__ import annotations

import gc
import weakref

import torch
from torch import nn

from tests.truth.isolate import value_in_fresh_process
from tracer.capture.objects.live_tensors import FrozenObjects, objects_of
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule


def _times_noted_and_found_dead() -> tuple[int, bool, bool]:
    before, frozen = gc.freeze, FrozenObjects()
    frozen.start()
    cache = torch.empty(3)
    gc.freeze()
    gc.freeze()
    times = sum(thing is cache for thing in frozen.alive())
    reference = weakref.ref(cache)
    del cache
    is_dead = reference() is None
    frozen.stop()
    return times, is_dead, gc.freeze == before


def test_a_frozen_tensor_is_noted_once_and_not_kept_alive() -> None:
    assert value_in_fresh_process(_times_noted_and_found_dead) == (1, True, True)


def _noted_after_unfreezing() -> int:
    frozen = FrozenObjects()
    frozen.start()
    gc.freeze()
    gc.unfreeze()
    return len(frozen.alive())


def test_what_was_unfrozen_is_on_the_collectors_list_again() -> None:
    assert value_in_fresh_process(_noted_after_unfreezing) == 0


def _seen_by_a_session() -> tuple[bool, bool]:
    before, model = gc.freeze, nn.Linear(4, 4)
    with ProfileSession(model, None, schedule=Schedule(0, 0, 1, 1)) as session:
        cache = torch.empty(1234)
        gc.freeze()
        is_found = any(thing is cache for thing in objects_of((torch.Tensor,)))
        model(torch.ones(1, 4))
        session.step()
    return is_found, gc.freeze == before


def test_a_session_sees_a_cache_that_the_program_froze() -> None:
    """As vLLM does when its engine has started."""
    assert value_in_fresh_process(_seen_by_a_session) == (True, True)
