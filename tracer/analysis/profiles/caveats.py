"""What a recording does not show, what was left out and what grows: the same sentences on the screen and the page."""

from __future__ import annotations

from collections.abc import Callable

from tracer.analysis.profiles.block_lifetimes import Storages
from tracer.analysis.profiles.findings import Findings
from tracer.analysis.profiles.growth import Growth
from tracer.analysis.profiles.peak import PeakReport
from tracer.capture.recording import Recording
from tracer.units import format_bytes

# Names under which torch.compile's regions appear: AOTAutograd's function and inductor's graph.
_COMPILED = ("CompiledFunction", "## Call CompiledFxGraph", "Torch-Compiled Region")


def unseen(recording: Recording, storages: Storages) -> tuple[str, ...]:
    """Sentences on what had to be assumed or stays hidden; none for a recording that shows everything.

    Args:
        recording: One cycle.
        storages: One device's blocks.
    """
    sentences = []
    if num_regions := _num_compiled(recording):
        sentences.append(
            f"{num_regions} calls of compiled code hide their modules, lines and operators, and fuse what those would "
            "allocate: what they made is credited to the compiled region and known by its life. Run without "
            "torch.compile to see inside."
        )
    if recording.num_assumed_frees:
        sentences.append(
            f"{recording.num_assumed_frees} blocks were freed by a thread that the profiler does not record; they are "
            "taken to be free from when their address was handed out again."
        )
    if num_unseen := len(set(storages.address[storages.made_unseen].tolist())):
        sentences.append(
            f"{num_unseen} storages were made where the profiler does not record, by another thread or a library "
            "outside torch, such as numpy: each counts from the beginning of a step until its last use there, or until "
            "an input was seen to be let go."
        )
    if num_dead := int(storages.died_unseen.sum()):
        sentences.append(
            f"{num_dead} storages from before the recording were freed without a record of it; each counts until its "
            "address was handed out again or zero_grad let go of it."
        )
    return tuple(sentences)


def counted(peak: PeakReport) -> str:
    """What the rows sum to and what was counted apart from them, by whom; what is in no row, if anything."""
    rows, parts = f"{peak.peak_bytes:,} bytes in the rows below", peak.counted
    if peak.device != "cpu":
        text = f"{rows}, {peak.allocator_peak_bytes:,} by the allocator's count."
    else:
        before = (
            "storages that Python could reach before it" if parts.is_walked else "storages that were used before it"
        )
        shares = [f"{parts.counter_bytes:,} by torch's CPU allocator since the recording began"]
        shares += [f"{parts.before_bytes:,} in {before}"]
        shares += [f"{parts.mapped_bytes:,} in mapped files and shared memory"] * bool(parts.mapped_bytes)
        shares += [f"{parts.unseen_bytes:,} made where nobody records"] * bool(parts.unseen_bytes)
        text = f"{rows}, {peak.allocator_peak_bytes:,} counted apart from them: {', '.join(shares)}."
    if peak.unexplained_bytes:
        text += f" Unexplained: {peak.unexplained_bytes:,} bytes, which no row shows."
    return text


def not_recorded(peak: PeakReport) -> str | None:
    """Which threads the profiler missed and what of theirs is in the peak; None where everything was recorded."""
    unseen = peak.unseen_bytes
    if not peak.threads and not unseen:
        return None
    if not peak.threads:
        return (
            f"{format_bytes(unseen)} of the peak were made where the profiler does not record, by another thread or a "
            "library outside torch: each block is counted from the beginning of the step until its last use in it."
        )
    names = ", ".join(peak.threads)
    return (
        f"The profiler does not record other threads, and {names} called the model: {format_bytes(unseen)} of the peak "
        "were seen in use and not being made, and have no kind and no line; what else those threads held is missing."
    )


def growth_sentence(place: Growth, *, file_name: Callable[[str], str] = str) -> str:
    """What grows, by how much and where; the file as `file_name` shortens it."""
    where = f"{file_name(place.file)}:{place.line}" if place.file else "no line of yours"
    return (
        f"Memory grows by {format_bytes(place.bytes_per_step)} a step: {place.op or 'no operator'} at {where} "
        "makes blocks that outlive the step after their own."
    )


def left_out(findings: Findings) -> tuple[str, ...]:
    """A sentence on cycles that were cut short, if means leave some out."""
    count = findings.breakdown.num_left_out
    if not count:
        return ()
    cycles = "1 cycle was" if count == 1 else f"{count} cycles were"
    here = "" if findings.worst.is_whole else ", and the peak shown is in one that was cut"
    return (f"{cycles} cut short by the end of the run: means (max_mem.txt) leave that out{here}.",)


def _num_compiled(recording: Recording) -> int:
    hidden = {index for index, name in enumerate(recording.strings) if name.startswith(_COMPILED)}
    names = [name for name in recording.ops.name.tolist() if name in hidden]
    # Forward alone: the autograd engine's row of the same function has another name.
    return sum(recording.strings[name] == "CompiledFunction" for name in names) or len(names)
