"""Blocks at the rows that are kept: by hand, and against following every block."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.arrays import Ints
from tracer.exporters.page.blocks import KeptBlocks, keep_blocks

NUM_ROWS = 12


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


@pytest.mark.parametrize(("most", "limit"), [(0, 512), (1, 512), (2, 256), (4, 2), (5, 0), (9, 0)])
def test_the_limit_is_the_least_power_of_two_that_is_enough(most: int, limit: int) -> None:
    sizes = ints(1, 100, 200, 300, 511)
    kept = keep_blocks(
        ints(0), made_at=sizes * 0, freed_at=sizes * 0 + 1, size_bytes=sizes, group=sizes * 0, most_blocks=most
    )
    assert kept.smaller_than_bytes == limit
    assert len(kept.block) == int((sizes >= limit).sum()) <= most


BLOCK = st.tuples(
    st.integers(-1, NUM_ROWS - 1), st.integers(0, NUM_ROWS), st.sampled_from([0, 1, 8, 300, 4096]), st.integers(0, 3)
)


@given(st.lists(BLOCK, max_size=25), st.sets(st.integers(0, NUM_ROWS - 1), min_size=1), st.integers(0, 12))
def test_at_every_kept_row_each_group_has_what_its_blocks_have(
    blocks: list[tuple[int, int, int, int]], rows: set[int], most: int
) -> None:
    made, life, size, group = (
        (np.array(column, np.int64) for column in zip(*blocks, strict=True)) if blocks else [ints()] * 4
    )
    freed = np.minimum(np.maximum(made, 0) + life, NUM_ROWS)
    kept_rows = np.array(sorted(rows), np.int64)
    kept = keep_blocks(kept_rows, made_at=made, freed_at=freed, size_bytes=size, group=group, most_blocks=most)
    assert len(kept.block) <= most or kept.smaller_than_bytes == 0
    for position, row in enumerate(kept_rows.tolist()):
        alive = (made <= row) & (freed > row)
        for one in range(4):
            mine = alive & (group == one)
            assert held(kept, position, one, size, group) == (int(size[mine].sum()), int(mine.sum()))


def held(kept: KeptBlocks, position: int, group: int, size: Ints, of_block: Ints) -> tuple[int, int]:
    """Bytes and count of one group, as the page adds them up."""
    large = (kept.first <= position) & (kept.last > position) & (of_block[kept.block] == group)
    small = (kept.change_at <= position) & (kept.change_group == group)
    bytes_ = size[kept.block[large]].sum() + kept.change_bytes[small].sum()
    return int(bytes_), int(large.sum() + kept.change_count[small].sum())
