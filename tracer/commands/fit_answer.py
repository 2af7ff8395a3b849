"""The process that makes a trial: the script runs in it on the null GPU, with changes made from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracer.commands.on_card import OnOptions, on_null_gpu, start_on
from tracer.commands.predict_on import script_trial
from tracer.commands.script import Script
from tracer.null_gpu.job.place import RankPlace

if TYPE_CHECKING:
    from tracer.sessions.trials.trial_memory import TrialMemory


def answer_trial(asked: Mapping[str, Any], card: str, on: OnOptions, script: Script, *, num_steps: int = 0) -> None:
    """Run the script with changes on the null GPU, and leave what came of it.

    Args:
        asked: The trial's request; or the pipes, through which it is asked for trials.
    """
    devices = start_on(card)
    from tracer.changes.applied import AppliedChanges
    from tracer.sessions.jobs.child_processes import end_with_parent
    from tracer.sessions.trials.forked_trials import ForkedTrials
    from tracer.sessions.trials.trial_channel import Channel, TrialRequest
    from tracer.sessions.trials.trial_memory import TrialMemory

    def tried(applied: AppliedChanges, more: Sequence[str]) -> dict[str, Any]:
        with_more = script._replace(arguments=[*script.arguments, *more])
        counted = script_trial(with_more, num_steps=num_steps, at_growth=memory.keep)
        return {
            "fits": counted.has_fit,
            "allocated": counted.sizes.peak_allocated_bytes,
            "reserved": counted.sizes.peak_reserved_bytes,
            "built": counted.built_bytes,
            "steps": counted.num_steps,
            "growth": counted.growth_bytes,
            "flops": counted.flops,
            "pinned": counted.pinned_bytes,
            "notes": applied.notes,
        }

    end_with_parent()
    memory = TrialMemory(devices.count)
    if "requests" in asked:
        with ForkedTrials(Channel(**asked), memory.begin) as trials, on_null_gpu(on, None, quiet=True), closing(memory):
            trials.look_out()
            answer = tried(trials.applied, ())
            if trials.folder is not None:
                _leave(answer, memory, trials.folder)
    else:
        request = TrialRequest.of(asked)
        with on_null_gpu(on, None, quiet=True), closing(memory):
            memory.begin(request)
            with AppliedChanges(request.changes) as applied:
                _leave(tried(applied, request.arguments), memory, Path(request.folder))


def _leave(answer: dict[str, Any], memory: TrialMemory, folder: Path) -> None:
    from tracer.exporters.files import write_json
    from tracer.sessions.trials.trial_channel import answer_name, history_name

    place = RankPlace.here()
    rank = place.rank if place is not None else 0
    memory.write(folder / history_name(rank))
    write_json(folder / answer_name(rank), answer)
