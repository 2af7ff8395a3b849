"""Which blocks backward left for the optimizer, as gradients are, where no uses of tensors say so.

Shapes: B blocks, O operators.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from math import prod
from typing import Final

import numpy as np

from tracer.analysis.profiles.block_lifetimes import BlockLifetimes
from tracer.analysis.profiles.time_spans import TimeSpans, enclosing, merged
from tracer.arrays import Bool, Ints, PerBlock
from tracer.capture.recording import Recording
from tracer.capture.torch_names import ENGINE_PREFIX, OPTIMIZER_PREFIXES, ZERO_GRAD_PREFIX, is_accumulate_grad

_ADDS: Final = ("aten::add_", "aten::add")
ELEMENT_BYTES: Final = (1, 2, 4, 8, 16)
BLOCK_BYTES: Final = 512  # What accelerators' allocators round to; the CPU's does not


def freed_by_zero_grad(recording: Recording, freed_ns: Ints) -> PerBlock[Bool]:
    """[B] whether an optimizer's `zero_grad` let go of it."""
    return np.asarray(enclosing(*_spans(recording, ZERO_GRAD_PREFIX), freed_ns) >= 0, np.bool_)


def met_a_step(recording: Recording, passes: TimeSpans, made_ns: Ints, freed_ns: Ints) -> PerBlock[Bool]:
    """[B] whether a backward pass made it, and it lived when the next optimizer's step behind that pass began."""
    begins, _ = _spans(recording, OPTIMIZER_PREFIXES[0])
    of_pass = enclosing(*passes, made_ns)
    if not len(begins) or not len(passes[1]):
        return np.zeros(len(made_ns), np.bool_)
    ended_ns = passes[1][np.maximum(of_pass, 0)]
    following = np.searchsorted(begins, ended_ns, side="left")
    begin_ns = np.append(begins, np.iinfo(np.int64).max)[following]
    return np.asarray((of_pass >= 0) & (following < len(begins)) & (freed_ns > begin_ns), np.bool_)


def of_gradients_sizes(
    recording: Recording,
    lifetimes: BlockLifetimes,
    passes: TimeSpans,
    made_ns: Ints,
    freed_ns: Ints,
) -> PerBlock[Bool]:
    """[B] whether AccumulateGrad took a tensor of its size in the pass that made it, and none that stayed is too many.

    What AccumulateGrad adds to a gradient that is there already does not stay. Where more blocks of a size outlive the
    pass than it took, some of them are no gradients, and nothing is said of any.
    """
    taken = _taken(recording, passes)
    of_pass = enclosing(*passes, made_ns)
    is_left = np.zeros(len(made_ns), np.bool_)
    if not taken:
        return is_left
    stayed = np.flatnonzero((of_pass >= 0) & (freed_ns > passes[1][np.maximum(of_pass, 0)]))
    step = 1 if recording.devices[lifetimes.device] == "cpu" else BLOCK_BYTES
    sizes = lifetimes.size_bytes[stayed].tolist()
    keys = list(zip(of_pass[stayed].tolist(), sizes, strict=True))
    num_stayed = Counter(keys)
    fits: dict[tuple[int, int], bool] = {}
    for key, count in num_stayed.items():
        number, size = key
        num_taken = sum(
            times
            for elements, times in taken.get(number, {}).items()
            if any(-(-elements * width // step) * step == size for width in ELEMENT_BYTES)
        )
        fits[key] = count <= num_taken
    is_left[stayed] = [fits[key] for key in keys]
    return is_left


def _spans(recording: Recording, prefix: str) -> TimeSpans:
    spans, rows = recording.spans, recording.spans_named(prefix)
    return merged(spans.start_ns[rows], spans.end_ns[rows])


def _taken(recording: Recording, passes: TimeSpans) -> dict[int, dict[int, int]]:
    """By pass and number of elements, how many tensors AccumulateGrad took as gradients, without adding them."""
    ops = recording.ops
    adds = np.zeros(len(ops.name) + 1, np.bool_)
    adds[ops.parent[recording.ops_named(_ADDS.__contains__)]] = True
    rows = recording.ops_named(lambda text: is_accumulate_grad(text) and not text.startswith(ENGINE_PREFIX))
    rows = rows[~adds[rows]]
    number = enclosing(*passes, ops.start_ns[rows])
    sizes_by_pass: dict[int, dict[int, int]] = defaultdict(Counter)
    for of_pass, shapes in zip(number.tolist(), ops.input_shapes[rows].tolist(), strict=True):
        for shape in recording.shapes[shapes][:1]:
            sizes_by_pass[of_pass][prod(shape)] += 1
    return sizes_by_pass
