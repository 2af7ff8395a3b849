"""What torch.compile made of the user's code, said once: graphs, breaks, recompilations, and what stays hidden."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tracer.analysis.profiles.findings import Findings
from tracer.analysis.profiles.peak_rows import origin_of
from tracer.capture.sources.compiled_code import CompiledCode, CompiledFunction, MemoryBudget
from tracer.capture.sources.source_line import SourceLine
from tracer.units import format_bytes

_NUM_SHOWN = 3
_FileName = Callable[[str], str]


def compiled_sentences(findings: Findings, *, file_name: _FileName = str) -> tuple[str, ...]:
    """Sentences on compiled code; none where nothing compiled ran."""
    code = findings.compiled
    if findings.worst.attribution.origins is None:
        return ()
    return (
        _graphs(code),
        *_breaks(code, file_name),
        *_recompilations(code, file_name),
        *_cuda_graphs(code, is_explained=bool(findings.graph_pools)),
        *_recomputed(findings),
        *_budgets(code, file_name),
        *_without_line(findings),
    )


def _graphs(code: CompiledCode) -> str:
    num_backward = sum(graph.is_backward for graph in code.graphs)
    num_forward = len(code.graphs) - num_backward
    breaks, again = _count(len(code.breaks), "graph break"), _count(code.num_recompilations, "recompilation")
    return (
        f"Compiled code ran: {_count(num_forward, 'graph')} of forward and {num_backward} of backward; {breaks} and "
        f"{again} in this run. What they allocate has the line of the operator that each buffer stands for."
    )


def _breaks(code: CompiledCode, file_name: _FileName) -> list[str]:
    shown = [
        f"Graph break{_at(graph_break.line, file_name)}: {graph_break.reason}."
        for graph_break in code.breaks[:_NUM_SHOWN]
    ]
    return shown + _rest(len(code.breaks), "graph break")


def _at(line: SourceLine | None, file_name: _FileName) -> str:
    return "" if line is None else f" at {file_name(line.file)}:{line.line}"


def _recompilations(code: CompiledCode, file_name: _FileName) -> list[str]:
    again = [function for function in code.functions if not function.compile_id.endswith("/0")]
    shown = [
        f"{function.name} ({file_name(function.line.file)}:{function.line.line}) was compiled again{_why(function)}."
        for function in again[:_NUM_SHOWN]
    ]
    return shown + _rest(len(again), "recompilation")


def _why(function: CompiledFunction) -> str:
    return f": {function.reason.strip().splitlines()[0]}" if function.reason.strip() else ""


def _cuda_graphs(code: CompiledCode, *, is_explained: bool) -> list[str]:
    """What `mode="reduce-overhead"` asks for, what it costs, and that it does not get it everywhere."""
    left_out, size_bytes = code.cuda_graphs_left_out, 0 if is_explained else code.cuda_graphs_bytes
    reserved = [
        f"{format_bytes(size_bytes)} are reserved for CUDA graphs, which nothing else may use. While a graph is "
        "replayed, torch counts what it works with as free: so it is in what is reserved, and in no row."
    ]
    if not left_out:
        return reserved if size_bytes else []
    reasons = [reason.rstrip(".") for reason in left_out if reason] or ["this device has none"]
    more = [f"{_count(len(reasons) - _NUM_SHOWN, 'more reason')}"] if len(reasons) > _NUM_SHOWN else []
    why = "; ".join([*reasons[:_NUM_SHOWN], *more])
    missing = (
        f"CUDA graphs were asked for, as mode=reduce-overhead does, and not made: {why}. "
        "What is not in one allocates in every step, as it does without that mode."
    )
    return [*reserved, missing] if size_bytes else [missing]


def _recomputed(findings: Findings) -> list[str]:
    """What backward computes again, which checkpointing, a budget and torch's own choice may all have it do."""
    backward = [node for graph in findings.compiled.graphs if graph.is_backward for node in graph.nodes]
    again = sum(node.is_recomputed for node in backward)
    if not again:
        return []
    cycle = findings.worst
    blocks = zip(cycle.peak.blocks.allocation.tolist(), cycle.peak.blocks.size_bytes.tolist(), strict=True)
    origins = ((origin_of(cycle.attribution, allocation), size_bytes) for allocation, size_bytes in blocks)
    recomputed_bytes = sum(size_bytes for origin, size_bytes in origins if origin is not None and origin.is_recomputed)
    return [
        f"Compiled backward computes {_count(again, 'operator')} of forward again; "
        f"{format_bytes(recomputed_bytes)} of the peak hold the results."
    ]


def _budgets(code: CompiledCode, file_name: _FileName) -> list[str]:
    sentences = []
    for budget in sorted({graph.budget for graph in code.budgets}):
        mine = [graph for graph in code.budgets if graph.budget == budget]
        kept_bytes, by_default = sum(graph.kept_bytes for graph in mine), sum(graph.default_bytes for graph in mine)
        sentences.append(
            f"With an activation_memory_budget of {budget:g} forward keeps {format_bytes(kept_bytes)} for backward; by "
            f"default it would keep {format_bytes(by_default)}.{_computed_again(mine, file_name)}"
        )
    return sentences


def _computed_again(budgets: list[MemoryBudget], file_name: _FileName) -> str:
    totals = Counter[str]()
    for tensor in (tensor for budget in budgets for tensor in budget.recomputed):
        totals[_at(tensor.line, file_name).removeprefix(" at ") or tensor.module or "no line"] += tensor.size_bytes
    if not totals:
        return ""
    shown = [f"{place} ({format_bytes(size_bytes)})" for place, size_bytes in totals.most_common(_NUM_SHOWN)]
    more = [f"{_count(len(totals) - _NUM_SHOWN, 'more line')}"] if len(totals) > _NUM_SHOWN else []
    return f" The results of these lines are recomputed instead of kept: {', '.join([*shown, *more])}."


def _rest(count: int, noun: str) -> list[str]:
    return [f"{_count(count - _NUM_SHOWN, f'more {noun}')}."] if count > _NUM_SHOWN else []


def _without_line(findings: Findings) -> list[str]:
    """How much of the peak has no line in compiled regions, and, if the run came too late for it, how to get it."""
    cycle, total = findings.worst, Counter[str]()
    unknown = {graph.path for graph in findings.compiled.graphs if not graph.nodes}
    blocks = cycle.peak.blocks
    columns = (blocks.allocation.tolist(), blocks.size_bytes.tolist(), blocks.frame.tolist())
    for allocation, size_bytes, frame in zip(*columns, strict=True):
        if origin_of(cycle.attribution, allocation) is not None and frame < 0:
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
