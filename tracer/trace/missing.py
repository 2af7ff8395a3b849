"""What a trace does not have, each in a sentence with the option of torch.profiler.profile that brings it."""

from __future__ import annotations

from tracer.capture.recording import CallKind, Recording
from tracer.trace.tables import TraceTables


def missing_sentences(tables: TraceTables, recording: Recording) -> tuple[str, ...]:
    """A sentence for each thing that is missing."""
    is_missing = {
        "Without allocations, nothing is known of memory: profile_memory=True.": not len(tables.memory),
        "Without Python's calls, rows have no line and no module: with_stack=True.": not len(tables.python),
        "Lines are those where functions begin: later versions of torch write where calls were made from.": (
            len(tables.python) > 0 and not (tables.python["called_from"] >= 0).any()
        ),
        "No call of a module is in it: with_stack=True, and the whole step under the profiler.": (
            len(tables.python) > 0 and not (recording.calls.kind == CallKind.MODULE).any()
        ),
        "Without shapes of inputs, tensors have bytes alone: record_shapes=True.": (
            len(tables.operators) > 0 and not tables.has_shapes
        ),
        "No steps are marked: call prof.step() behind each, and begin recording with one (schedule).": (
            not len(recording.step_starts_ns)
        ),
        "Nothing ran on a GPU while it was recorded: activities=[CPU, CUDA].": not len(tables.work),
    }
    sentences = [sentence for sentence, holds in is_missing.items() if holds]
    if tables.num_without_address:
        sentences.append(
            f"{tables.num_without_address:,} allocations and frees say no address, as before torch 1.12: which free is "
            "whose is not known, and they are left out."
        )
    if tables.num_without_count:
        sentences.append(_without_count(tables.num_without_count, tables.num_without_count == len(tables.memory)))
    return tuple(sentences)


def _without_count(number: int, is_every_one: bool) -> str:
    without = f"{number:,} allocations and frees do not say what the allocator counts"
    if is_every_one:
        return (
            f"{without}, as before torch 1.12: what was there before is not known, and the peak is that of what was "
            "recorded."
        )
    return f"{without}: it follows from their sizes and from what the others say."
