"""The address space as the page shows it: reserved ranges under the names of their streams and pools."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tracer.analysis.snapshots.address_space import AddressRanges
from tracer.arrays import Ints
from tracer.exporters.page.model import PageSpace


def page_space(
    ranges: AddressRanges, made_at: Ints, freed_at: Ints, text: Callable[[int], str], *, known_from: int = 0
) -> PageSpace:
    """Reserved ranges by stream and pool."""
    columns = np.stack([ranges.stream, ranges.pool, ~ranges.is_small | ranges.is_expandable], axis=1)
    homes, home = np.unique(columns, axis=0, return_inverse=True)
    return PageSpace(
        homes=tuple(_home(text, *values) for values in homes.tolist()),
        home=home.reshape(-1),
        address=ranges.address,
        size_bytes=ranges.size_bytes,
        made_at=made_at,
        freed_at=freed_at,
        is_expandable=ranges.is_expandable,
        known_from=known_from,
    )


def _home(text: Callable[[int], str], stream: int, pool: int, is_large: int) -> str:
    private = f", private pool {text(pool)}" if pool >= 0 else ""
    return f"stream {stream}{private}{'' if is_large else ', segments for small blocks'}"
