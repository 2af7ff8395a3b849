"""Settings of the caching allocator: they change what is reserved, and nothing that is allocated."""

from __future__ import annotations

from collections.abc import Iterator

from tracer.analysis.snapshots.what_if import WORTH_TRYING
from tracer.changes.change import Change, Situation
from tracer.changes.recommendation import Group, Keeps
from tracer.changes.script_changes import ALLOCATOR_SETTINGS


def candidates(situation: Situation) -> Iterator[Change]:
    """Allocator settings that are worth trying, on CUDA devices."""
    if situation.device != "cuda":
        return
    for settings in WORTH_TRYING:
        yield Change(
            name=f"{ALLOCATOR_SETTINGS}={settings}",
            family="allocator",
            group=Group.MEMORY,
            keeps=Keeps.BITS,
            lines=(f"{ALLOCATOR_SETTINGS}={settings}",),
            settings=settings,
        )
