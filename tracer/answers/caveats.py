"""Sentences on what a recording does not show, what grows and what torch.compile made: the same on screen and page."""

from __future__ import annotations

from tracer.answers.findings import RunFindings
from tracer.answers.growth import Growth
from tracer.answers.peak import Peak
from tracer.blocks.from_recording.block_lifetimes import BlockLifetimes
from tracer.capture.recording import Recording
from tracer.capture.sources.compiled_code import CompiledCode
from tracer.units import format_bytes, some

_NUM_PLACES = 3


def unseen(recording: Recording, lifetimes: BlockLifetimes) -> tuple[str, ...]:
    """Sentences on what had to be assumed or stays hidden; none for a recording that shows everything."""
    sentences = []
    if recording.num_assumed_frees:
        sentences.append(
            f"{some(recording.num_assumed_frees, 'block', 'was/were')} freed by a thread that the profiler does not "
            "record, and counts as freed when its address was handed out again."
        )
    if num_unseen := len(set(lifetimes.address[lifetimes.made_unseen].tolist())):
        sentences.append(
            f"{some(num_unseen, 'storage', 'was/were')} made where the profiler does not record, by another thread or "
            "a library outside torch, such as numpy: each counts from the beginning of a step until its last use "
            "there, or until an input was seen to be freed."
        )
    # Of what a walk has found, weak references tell when it went.
    if not lifetimes.count.is_walked and (num_dead := int(lifetimes.died_unseen.sum())):
        sentences.append(
            f"{some(num_dead, 'block')} from before the recording, freed without a record: each counts until its "
            "address was handed out again. profile_training records when they are freed."
        )
    return tuple(sentences)


def asleep_sentences(peak: Peak) -> tuple[str, ...]:
    """A sentence on what torch counts and an engine that slept had unmapped; none where all was on the device."""
    if not (size_bytes := peak.counted.asleep_bytes):
        return ()
    return (
        f"By torch's count {format_bytes(size_bytes)} more were allocated. They were not on the device: an engine "
        "slept, and had unmapped them.",
    )


def graph_sentences(findings: RunFindings) -> tuple[str, ...]:
    """Sentences on the memory of CUDA graphs, which no row has; none without a graph."""
    pools, peak = findings.graph_pools, findings.worst.peak
    if not pools:
        return ()
    num_graphs, size_bytes = sum(pool.num_graphs for pool in pools), sum(pool.uncounted_bytes for pool in pools)
    graphs = some(num_graphs, "CUDA graph", "works/work")
    text = (
        f"{graphs} in {format_bytes(size_bytes)} of private pools: in use whenever a graph is replayed, although torch "
        "counts it as free, and never anything else's while the graph lives."
    )
    if findings.graph_bytes:
        text += f" With it the step takes {format_bytes(peak.peak_bytes + findings.graph_bytes)} at the peak."
    elif later_bytes := findings.graph_bytes_in(len(findings.peaks) - 1):
        later = format_bytes(later_bytes + findings.peaks[-1].peak_bytes)
        text += f" The peak came before the capture; with that memory the last recorded steps take {later}."
    else:
        text += " The recorded steps' peaks came before that."
    if not all(pool.rows for pool in pools):
        text += " Where no capture was recorded, that is not explained further."
    return (text,)


def counted(peak: Peak) -> str:
    """Return sentences on the sum of the rows, on the parts that were counted apart, and on bytes in no row."""
    rows, parts = f"The rows below sum to {peak.peak_bytes:,} bytes", peak.counted
    total = "the same" if peak.allocator_peak_bytes == peak.peak_bytes else f"{peak.allocator_peak_bytes:,}"
    if peak.device != "cpu":
        text = f"{rows}. The allocator's own count is {total}."
    else:
        before = "tensors that were there before it" if parts.is_walked else "tensors from before it that were used"
        shares = [f"{parts.counter_bytes:,} by torch's CPU allocator since the recording began"]
        shares += [f"{parts.before_bytes:,} in {before}"]
        shares += [f"{parts.mapped_bytes:,} in mapped files and shared memory"] * bool(parts.mapped_bytes)
        shares += [f"{parts.unseen_bytes:,} made where the profiler does not record"] * bool(parts.unseen_bytes)
        text = f"{rows}. An independent count gives {total}: {', '.join(shares)}."
    if peak.unexplained_bytes > 0:
        text += f" Unexplained: {peak.unexplained_bytes:,} bytes, which no row shows."
    elif peak.unexplained_bytes < 0:
        text += f" Unexplained: {-peak.unexplained_bytes:,} bytes, which rows show and the count has not."
    return text


def not_recorded(peak: Peak) -> str | None:
    """A sentence on threads the profiler missed and their bytes in the peak; None if everything was recorded."""
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
        "were seen in use and not being made, and have no module and no line; what else those threads held is missing."
    )


def growth_sentences(growth: Growth | None) -> tuple[str, ...]:
    """Sentences on how much memory grows, and the lines that make what stays."""
    if growth is None:
        return ()
    shown, rest = growth.places[:_NUM_PLACES], growth.places[_NUM_PLACES:]
    parts = []
    for growing in shown:
        place = growing.place
        where = f"at {place.file}:{place.line}" if place.file else "at no line of yours"
        size, operator = format_bytes(growing.bytes_per_step), place.op or "no operator"
        parts.append(f"{size} ({growing.kind.words}) by {operator} {where}")
    if rest:
        rest_bytes = sum(place.bytes_per_step for place in rest)
        parts.append(f"{format_bytes(rest_bytes)} from {some(len(rest), 'more place')}")
    origins = f" {'; '.join(parts)}." if parts else " it is not known from where."
    return (
        f"Memory grows by {format_bytes(growth.bytes_per_step)} a step, still in use after the next step:{origins}",
    )


def left_out(findings: RunFindings) -> tuple[str, ...]:
    """A sentence on cycles that were cut short, if means leave some out."""
    count = findings.breakdown.num_left_out
    if not count:
        return ()
    cycles = some(count, "cycle", "was/were")
    of_peak = "" if findings.worst.source.is_whole else ", and the peak shown is in one that was cut"
    return (f"{cycles} cut short by the end of the run: means (max_mem.txt) leave that out{of_peak}.",)


def compiled_sentences(findings: RunFindings) -> tuple[str, ...]:
    """Sentences on compiled code; none where nothing compiled ran."""
    code = findings.compiled
    if findings.worst.source.attribution.origins is None:
        return ()
    num_backward = sum(graph.is_backward for graph in code.graphs)
    num_forward = len(code.graphs) - num_backward
    has_lines = any(graph.nodes for graph in code.graphs)
    lines = " Their buffers have the lines of the operators that they stand for." if has_lines else ""
    ran = f": {_count(num_forward, 'graph')} of forward and {num_backward} of backward.{lines}"
    return (
        # As with torch 2.7 and the backend aot_eager.
        f"Compiled code ran{ran if code.graphs else ', and torch recorded no call of its graphs.'}",
        *_cuda_graphs(code, is_explained=bool(findings.graph_pools)),
        *_without_line(findings),
    )


def _cuda_graphs(code: CompiledCode, *, is_explained: bool) -> list[str]:
    """Return a sentence on the cost of CUDA graphs (`mode="reduce-overhead"`) where their pools are not explained."""
    if is_explained or not code.cuda_graphs_bytes:
        return []
    return [
        f"{format_bytes(code.cuda_graphs_bytes)} are reserved for CUDA graphs, which nothing else may use. While a "
        "graph is replayed, torch counts what it works with as free: so it is in what is reserved, and in no row."
    ]


def _without_line(findings: RunFindings) -> list[str]:
    """Say the share of the peak without a line in compiled regions, and the remedy if the run came too late for it."""
    blocks = findings.worst.peak.blocks
    total_bytes = int(blocks.size_bytes[(blocks.frame < 0) & (blocks.origin >= 0)].sum())
    if not total_bytes:
        return []
    sentence = f"{format_bytes(total_bytes)} of the peak were allocated by compiled code and have no line."
    if not all(graph.nodes for graph in findings.compiled.graphs):
        sentence += (
            " It was compiled before the run: begin profiling before the model is called for the first time, or call "
            "torch.compiler.reset() right after, and it is compiled again with its lines."
        )
    return [sentence]


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def share_sentence(peak: Peak, device_bytes: int | None) -> tuple[str, ...]:
    """Return the share of the device that is taken at the peak."""
    reserved = peak.reserved_then_bytes
    if device_bytes is None or not peak.rows:
        return ()
    share = 100 * max(peak.peak_bytes, reserved) / device_bytes
    words = f"{format_bytes(reserved)} are reserved then, " if reserved else "It is "
    return (f"{words}{share:.{1 if share < 10 else 0}f} % of the GPU's {format_bytes(device_bytes)}.",)
