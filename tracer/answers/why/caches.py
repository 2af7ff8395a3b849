"""Causes: keys and values of the tokens seen, by the name of the code; a whole set of data on the device."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Final

import numpy as np

from tracer.answers.allocator.changed_requests import with_smaller_blocks, without_blocks
from tracer.answers.why.case import Case, Cause, GivesUp
from tracer.answers.why.copies import are_copies_of_weights
from tracer.answers.why.larger import grown_by_cat
from tracer.arrays import Ints
from tracer.blocks.from_snapshot.frames import is_python
from tracer.blocks.from_snapshot.stack_facts import Fact, has
from tracer.blocks.kinds import Kind
from tracer.snapshot.columns import Frame
from tracer.snapshot.replay import BEFORE

_NAMES: Final = re.compile(
    r"kv_?cache|key_?value|kv_?pool|past_key|inference_cache|\bcache_utils\.py|\bmem_cache/", re.IGNORECASE
)
"""Names of a function, its file or its folder, as transformers, vLLM, SGLang and flash-attention have them."""
_SETTING_OF_ENGINES: Final = {"vllm": "gpu_memory_utilization", "sglang": "mem_fraction_static"}
_LEAST_PERCENT: Final = 20
_PARTS: Final = 2


def kv_cache(case: Case) -> Iterator[Cause]:
    """Blocks that code makes whose name says that it keeps keys and values, where they do not grow by each token."""
    is_named = case.with_frame(_is_of_cache)
    rows = np.flatnonzero(is_named[case.lives.stack] & ~case.stays & (case.lives.begin > BEFORE))
    held = case.held(rows)
    if not case.is_much(held, percent=_LEAST_PERCENT) or any(True for _ in grown_by_cat(case)):
        return
    site = case.largest_site(held)
    why, remedy = _of_cache(PurePath((site.file if site is not None else None) or "").parts)
    yield Cause(
        "KV cache",
        f"The cache of keys and values holds {case.words(held)}{case.lines(held)}: {why}.",
        f"{remedy}: this is with half of it",
        lambda modelled: with_smaller_blocks(modelled, rows, _PARTS),
        site,
        GivesUp.TIME_OR_SIZE,
    )


def _of_cache(library: Sequence[str]) -> tuple[str, str]:
    """Return how large a cache is, and how it is made smaller, by the folders of the code that makes it."""
    if setting := next((name for engine, name in _SETTING_OF_ENGINES.items() if engine in library), ""):
        return f"the engine allocates it when it starts, as much as {setting} leaves", f"set a lower {setting}"
    other = ', or move it to the host (cache_implementation="offloaded")' if "transformers" in library else ""
    return "it grows with the batch and with the length", f"use a smaller batch or a shorter length{other}"


def _is_of_cache(frame: Frame) -> bool:
    file = "/".join(frame.file.replace("\\", "/").split("/")[-2:])
    return is_python(frame) and bool(_NAMES.search(f"{frame.name} {file}"))


_MADE_FOR_A_MODEL: Final = (Fact.OPTIMIZER_STATE, Fact.WORKSPACE)


def data_on_device(case: Case) -> Iterator[Cause]:
    """Blocks from before the first call of a model that are there all the time, and of no model."""
    lives = case.lives
    calls = np.flatnonzero(has(case.sites.facts[case.state.trace.stack], Fact.MODULE_FORWARD))
    if not len(calls):
        return
    is_data = np.isin(case.kind, (Kind.INPUT, Kind.HELD, Kind.UNKNOWN)) & has(case.facts, Fact.STACK)
    is_data &= ~has(case.facts, *_MADE_FOR_A_MODEL) & ~case.is_set_up & (lives.begin > BEFORE)
    # What a line makes again is a batch.
    is_later = (lives.begin > calls[0]) & (lives.begin <= case.entry)
    is_data &= ~np.isin(case.stack, [*np.unique(case.stack[is_later]), case.asked_stack])
    rows = np.flatnonzero(is_data & (lives.begin < calls[0]) & (lives.end > case.entry))
    if not case.is_much(rows, percent=_LEAST_PERCENT) or are_copies_of_weights(case, rows):
        return
    if case.last_learning <= BEFORE and not _are_drawn_from(case, rows):
        return
    yield Cause(
        "data on the device",
        f"{case.words(rows)}{case.lines(rows)} were put on the device before the model was first called, and stay: "
        "a whole set of data, say.",
        'keep it in host memory and move each batch when it is needed (batch.to("cuda", non_blocking=True), with '
        "pin_memory=True in the DataLoader)",
        lambda modelled: without_blocks(modelled, rows),
        case.largest_site(rows),
        GivesUp.A_LITTLE,
    )


_LEAST_DRAWN: Final = 8
"""Times that the largest block of data is larger than a batch of it."""


def _are_drawn_from(case: Case, rows: Ints) -> bool:
    """True if a batch was drawn from data: a far smaller block follows it, and the model keeps less than the data is.

    Otherwise, before a first backward, the data may be the batch.
    """
    size, begin = case.lives.requested_bytes[rows], case.lives.begin[rows]
    is_batch = (size * _LEAST_DRAWN <= size.max()) & (begin > begin[size.argmax()])
    return bool(is_batch.any()) and case.bytes(case.in_use[case.in_model[case.in_use]]) <= case.bytes(rows)
