"""Sentences on cuBLAS's workspace, on buffers of collectives, and on 32 bits beside 16."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from tracer.answers.findings import CycleFindings
from tracer.answers.paths import whole_place
from tracer.answers.python_stacks import PythonStacks
from tracer.answers.rows import Row
from tracer.blocks.from_recording.blocks import CUBLAS_WORKSPACE
from tracer.blocks.kinds import Evidence, Kind
from tracer.capture.torch_names import GRADIENT_BUCKETS, in_buffers_of
from tracer.units import format_bytes, some

LEAST_PERCENT: Final = 1  # Of the peak; less is not said
LEAST_WIDE_PERCENT: Final = 10
NUM_MODULES: Final = 2
OTHER: Final = "other buffers of collectives"
_NARROW: Final = ("bfloat16", "float16")
_MADE_IN_STEPS: Final = tuple(
    kind.name for kind in (Kind.ACTIVATION, Kind.AUTOGRAD_DETAIL, Kind.TEMPORARY, Kind.HELD, Kind.EVALUATION)
)


def parallelism_sentences(cycle: CycleFindings) -> tuple[str, ...]:
    """Sentences on cuBLAS, on the buffers of collectives and the modules in them, and on 32 bits beside 16."""
    rows, peak_bytes = cycle.peak.rows, cycle.peak.peak_bytes
    sentences = (workspace_sentence(rows, peak_bytes), _communication(cycle), wide_sentence(rows, peak_bytes))
    return tuple(sentence for sentence in sentences if sentence is not None)


def workspace_sentence(rows: Iterable[Row], peak_bytes: int) -> str | None:
    """The share of cuBLAS, which nothing in the program changes."""
    of_cublas = [row for row in rows if row.name == CUBLAS_WORKSPACE]
    size_bytes = sum(row.bytes for row in of_cublas)
    if not size_bytes or size_bytes * 100 < peak_bytes * LEAST_WIDE_PERCENT:
        return None
    is_kept = of_cublas[0].evidence == Evidence.LIBRARY.text
    when = "keeps for a stream" if is_kept else "allocates for a call and frees behind it"
    return f"cuBLAS has {format_bytes(size_bytes)} of the peak, a workspace that torch {when}; it does not grow."


def _communication(cycle: CycleFindings) -> str | None:
    peak = cycle.peak
    chosen = [row.category == Kind.COMMUNICATION.name for row in peak.rows]
    total = sum(row.bytes for row, is_chosen in zip(peak.rows, chosen, strict=True) if is_chosen)
    if total * 100 < peak.peak_bytes * LEAST_PERCENT:
        return None
    stacks = PythonStacks(cycle.source.recording)
    modules: dict[str, Counter[str]] = {}
    columns = (peak.row_of, peak.blocks.row, peak.blocks.size_bytes)
    for row, allocation, size_bytes in zip(*(column.tolist() for column in columns), strict=True):
        if chosen[row]:
            frames = stacks.of_allocation(allocation)
            named = (in_buffers_of(frame["filename"], frame["name"]) for frame in frames)
            is_bucket = peak.rows[row].evidence == Evidence.GIVEN_TO_REDUCER.text
            words = GRADIENT_BUCKETS if is_bucket else next(filter(None, named), OTHER)
            modules.setdefault(words, Counter())[peak.rows[row].module or ""] += size_bytes
    parts = sorted(modules.items(), key=lambda part: -part[1].total())
    listed = [f"{format_bytes(found.total())} {words}{_of_modules(found)}" for words, found in parts]
    return f"Communication at the peak: {', '.join(listed)}."


def _of_modules(found: Counter[str]) -> str:
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    named = [module for module, _ in ordered if module and not module.startswith("(")]
    if not named:
        return ""
    more = [f"{some(len(named) - NUM_MODULES, 'more module')}"] if len(named) > NUM_MODULES else []
    words = [*named[:NUM_MODULES], *more]
    return f" ({' and '.join([', '.join(words[:-1]), words[-1]] if len(words) > 1 else words)})"


def wide_sentence(rows: Iterable[Row], peak_bytes: int) -> str | None:
    """The line with most bytes of float32 that a step makes where it makes 16 bits too, as of logits that were cast."""
    made = [row for row in rows if row.category in _MADE_IN_STEPS]
    narrow = Counter[str]()
    wide: dict[tuple[str, int | None], list[Row]] = {}
    for row in made:
        if row.dtype in _NARROW:
            narrow[row.dtype] += row.bytes
        elif row.dtype == "float32" and row.file is not None:
            wide.setdefault((row.file, row.line), []).append(row)
    if not wide or narrow.total() * 100 < peak_bytes * LEAST_PERCENT:
        return None
    (file, line), found = max(wide.items(), key=lambda item: sum(row.bytes for row in item[1]))
    size_bytes = sum(row.bytes for row in found)
    if size_bytes * 100 < peak_bytes * LEAST_WIDE_PERCENT:
        return None
    largest = max(found, key=lambda row: row.bytes / row.count)
    shape = " x ".join(f"{length:,}" for length in largest.shape or ())
    return (
        f"In float32 beside {narrow.most_common(1)[0][0]}: {format_bytes(size_bytes)} at {whole_place(file, line)}"
        + (f", the largest tensor {shape}." if shape else ".")
    )
