"""What torch.compile made of the user's code, said once: graphs, breaks, recompilations, and what stays hidden."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tracer.analysis.profiles.findings import Findings
from tracer.analysis.profiles.peak_rows import origin_of
from tracer.capture.compiled_code import CompiledCode, CompiledFunction
from tracer.capture.source_line import SourceLine
from tracer.units import format_bytes

_NUM_SHOWN = 3
_FileName = Callable[[str], str]


def compiled_sentences(findings: Findings, *, file_name: _FileName = str) -> tuple[str, ...]:
    """Sentences on compiled code; none where nothing compiled ran.

    Args:
        findings: Of a run.
        file_name: Shortens the names of files.
    """
    code = findings.compiled
    if findings.worst.attribution.origins is None:
        return ()
    sentences = [_graphs(code), *_breaks(code, file_name), *_recompilations(code, file_name), *_without_line(findings)]
    return tuple(sentences)


def _graphs(code: CompiledCode) -> str:
    num_backward = sum(graph.is_backward for graph in code.graphs)
    num_forward = len(code.graphs) - num_backward
    breaks, again = _count(len(code.breaks), "graph break"), _count(code.num_recompilations, "recompilation")
    return (
        f"Compiled code ran: {_count(num_forward, 'graph')} of forward and {num_backward} of backward; {breaks} and "
        f"{again} in this run. What they allocate has the line of the operator that each buffer stands for."
    )


def _breaks(code: CompiledCode, file_name: _FileName) -> list[str]:
    shown = [f"Graph break{_at(one.line, file_name)}: {one.reason}." for one in code.breaks[:_NUM_SHOWN]]
    return shown + _rest(len(code.breaks), "graph break")


def _at(line: SourceLine | None, file_name: _FileName) -> str:
    return "" if line is None else f" at {file_name(line.file)}:{line.line}"


def _recompilations(code: CompiledCode, file_name: _FileName) -> list[str]:
    again = [one for one in code.functions if not one.compile_id.endswith("/0")]
    shown = [
        f"{one.name} ({file_name(one.line.file)}:{one.line.line}) was compiled again{_why(one)}."
        for one in again[:_NUM_SHOWN]
    ]
    return shown + _rest(len(again), "recompilation")


def _why(function: CompiledFunction) -> str:
    return f": {function.reason.strip().splitlines()[0]}" if function.reason.strip() else ""


def _rest(count: int, noun: str) -> list[str]:
    return [f"{_count(count - _NUM_SHOWN, f'more {noun}')}."] if count > _NUM_SHOWN else []


def _without_line(findings: Findings) -> list[str]:
    """How much of the peak has no line in compiled regions, and, if the run came too late for it, how to get it."""
    cycle, total = findings.worst, Counter[str]()
    unknown = {graph.path for graph in findings.compiled.graphs if not graph.nodes}
    blocks = zip(cycle.peak.blocks.allocation.tolist(), cycle.peak.blocks.size_bytes.tolist(), strict=True)
    for allocation, size_bytes in blocks:
        origin = origin_of(cycle.attribution, allocation)
        if origin is not None and origin.line is None:
            total["bytes"] += size_bytes
    if not total["bytes"]:
        return []
    sentence = f"{format_bytes(total['bytes'])} of the peak were allocated by compiled code and have no line."
    if unknown:
        sentence += (
            " It was compiled before the run: begin profiling before the model is called for the first time, or call "
            "torch.compiler.reset() right after, and it is compiled again with its lines."
        )
    return [sentence]


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
