"""Sentences on a run on the null GPU: that nothing was computed, and a real GPU's memory that is not counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tracer.answers.paths import shorten_paths, whole_place
from tracer.null_gpu import process
from tracer.units import some

if TYPE_CHECKING:
    import torch

    from tracer.answers.findings import RunFindings
    from tracer.capture.run_facts import ValueRead, ValuesRead


CAVEAT = "Null GPU: memory is torch's own, nothing was computed."
USE_CUDA = "Make it use cuda, by its own options or by torch.set_default_device."


def elsewhere(device: str) -> str:
    """A sentence if a script has trained where the null GPU was not asked for anything; empty where it was."""
    return (
        ""
        if device.partition(":")[0] == "cuda"
        else f"The script trained on {device}, so nothing was allocated on the GPU."
    )


def caveat_of(device: torch.device) -> str:
    """The sentence that comes first in all that is said of a run; empty where the device computes."""
    return CAVEAT if device.type == "cuda" and process.is_active() else ""


_NO_CUDNN = (
    "Not counted: cuDNN's workspaces; there is no cuDNN 9.8 or newer here to be asked for them. Published convolution "
    "networks came out 13 % too low to 6 % too high."
)


def notes_of(findings: RunFindings | None) -> tuple[str, ...]:
    """Sentences for a run that computed nothing: memory of a real GPU that is not counted."""
    return tuple(_unknown(findings))


def _unknown(findings: RunFindings | None) -> Iterator[str]:
    """Sentences on further memory of a real GPU, with its usual size where that is known."""
    from tracer.null_gpu.cudnn import answered_version, said_of_workspaces
    from tracer.null_gpu.nccl_buffers import NcclBuffers

    recordings = [cycle.source.recording for cycle in findings.parts] if findings is not None else []
    names = {recording.strings[name] for recording in recordings for name in set(recording.ops.name.tolist())}
    if any("convolution" in name for name in names):
        version = answered_version()
        yield said_of_workspaces(version, "this card") if version else _NO_CUDNN
    if any("_fft_" in name for name in names):
        yield "Estimated: cuFFT's scratch memory, as cuFFT 12 took it on an H100; its rule is not published."
    if any("_cudnn_rnn" in name for name in names):
        yield "Estimated: recurrent layers' scratch memory, as of cuDNN 9.19 on an H100; its rule is not published."
    if words := NcclBuffers.of_this_process().words:
        yield f"Not counted: NCCL's buffers, beside torch's memory: {words}."


_NUM_LISTED, _NUM_PLACES = 5, 3
_ITEM = "aten::_local_scalar_dense"


def values_lines(values: ValuesRead | None) -> tuple[str, ...]:
    """Return the lines on values for a text file."""
    if values is None:
        return ()
    lines = (*values_sentences(values), *(f"  {line}" for line in values_listed(values)))
    return tuple(map(shorten_paths, lines))


def values_listed(values: ValuesRead) -> Iterator[str]:
    """Yield a line for each place where values were read, those that decided sizes first."""
    reads = sorted(values.reads, key=lambda read: not read.decides_size)
    num_listed = _NUM_LISTED + (len(reads) == _NUM_LISTED + 1)
    yield from map(_words, reads[:num_listed])
    if more := reads[num_listed:]:
        yield f"{len(more)} more places: {some(sum(read.count for read in more), 'time')}"


def values_sentences(values: ValuesRead) -> Iterator[str]:
    """Return sentences on the values read, the sizes that they decided, and unknown ones."""
    if values.reads:
        yield _what_was_read(values)
    if empty := [read for read in values.reads if read.num_empty]:
        times = some(sum(read.num_empty for read in empty), "time")
        yield f"A result whose size was computed was empty {times}, at {_places(empty)}: work on it has no memory."
    if values.num_compiled_buffers:
        buffers = some(values.num_compiled_buffers, "buffer")
        yield f"Values unknown: what compiled kernels left in {buffers}."
    if values.left_out:
        reasons = "; ".join(
            f"{left_out.reason} ({some(left_out.count, 'time')})" for left_out in values.left_out[:_NUM_PLACES]
        )
        yield f"Not computed, {some(len(values.left_out), 'operator')}: {reasons}."
    if values.unused_answers:
        yield f"Nothing was read at {', '.join(values.unused_answers)}: --answer had no effect there."


def _what_was_read(values: ValuesRead) -> str:
    sizes = [read for read in values.reads if read.decides_size]
    words = f"The program read {some(sum(read.count for read in values.reads), 'value')} of the device"
    if sizes:
        words += f"; the sizes at {_places(sizes)} were decided by {sum(read.count for read in sizes):,} of them"
    unanswered = next((read for read in [*sizes, *values.reads] if read.line and not read.answered), None)
    if unanswered is None:
        return f"{words}."
    return f"{words}. Set one with --answer {Path(unanswered.file).name}:{unanswered.line}=VALUE."


def _places(reads: Iterable[ValueRead]) -> str:
    places = list(dict.fromkeys(map(_place, reads)))
    more = f" and {len(places) - _NUM_PLACES} more lines" if len(places) > _NUM_PLACES else ""
    return ", ".join(places[:_NUM_PLACES]) + more


def _place(read: ValueRead) -> str:
    return whole_place(read.file, read.line) if read.file else "a line outside Python"


def _words(read: ValueRead) -> str:
    """A drawn number is no result, and is not shown."""
    answer = f"size {read.value}" if read.decides_size else read.value
    if read.answered:
        answer += ", given by --answer"
    elif read.known != "exact":
        answer = f"{answer} from {read.known} numbers" if read.decides_size else f"a number that is {read.known}"
    operator = "item" if read.operator == _ITEM else read.operator.removeprefix("aten::")
    return f"{_place(read)}: {operator}, {some(read.count, 'time')}, {answer}"
