"""What a private pool of the allocator is for: the graphs of torch.cuda, where that can be told, or somebody's own."""

from __future__ import annotations

import re

import numpy as np

from tracer.analysis.snapshots.sites import Sites
from tracer.snapshot.columns import DeviceState

# torch numbers in the first place the pool that a CUDA graph makes for itself, and in the second one those that are
# asked for: by `graph_pool_handle`, as torch.compile does, and by `MemPool`.
_OF_ONE_GRAPH = re.compile(r"^[1-9]\d*,0$")


def pools_of_graphs(state: DeviceState, sites: Sites) -> frozenset[int]:
    """Numbers of the pools in which something was allocated while a CUDA graph was recorded."""
    trace, blocks, segments = state.trace, state.blocks, state.segments
    named = [trace.pool[(trace.pool >= 0) & sites.is_captured[trace.stack]]] if len(trace) else []
    if len(segments) and len(blocks):
        order = np.argsort(segments.address, kind="stable")
        at = order[np.maximum(np.searchsorted(segments.address[order], blocks.address, side="right") - 1, 0)]
        pool = segments.pool[at]
        named.append(pool[(pool >= 0) & sites.is_captured[blocks.stack]])
    return frozenset(number for pools in named for number in np.unique(pools).tolist())


def pool_words(name: str, *, is_of_graphs: bool = False) -> str:
    """A private pool for people.

    Args:
        name: Its two numbers, as in `1,0`.

    Source:
        `MemPool::MemPool` and `graph_pool_handle` in torch's CUDA allocator.
    """
    if _OF_ONE_GRAPH.match(name):
        return f"private pool {name} of a CUDA graph"
    return f"private pool {name} of CUDA graphs" if is_of_graphs else f"private pool {name}"
