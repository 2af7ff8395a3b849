"""Bytes of storages that lie in one another, beside a count of each byte."""

from __future__ import annotations

import numpy as np
import pytest

from tracer.analysis.profiles.shared_memory import own_bytes


def by_hand(address: list[int], size_bytes: list[int]) -> list[int]:
    """Each byte belongs to the piece that begins last, or is the shorter one."""
    owner: dict[int, int] = {}
    for row in sorted(range(len(address)), key=lambda row: (address[row], -size_bytes[row])):
        owner |= dict.fromkeys(range(address[row], address[row] + size_bytes[row]), row)
    return [list(owner.values()).count(row) for row in range(len(address))]


@pytest.mark.parametrize(
    ("address", "size_bytes", "own"),
    [
        ([], [], []),
        ([0, 10, 20], [10, 10, 5], [10, 10, 5]),
        ([0, 2, 5], [10, 2, 1], [7, 2, 1]),
        ([0, 0], [10, 4], [6, 4]),
        ([0, 5], [8, 8], [5, 8]),
        ([5, 0], [0, 10], [0, 10]),
    ],
)
def test_examples(address: list[int], size_bytes: list[int], own: list[int]) -> None:
    assert own_bytes(np.array(address, np.int64), np.array(size_bytes, np.int64)).tolist() == own


@pytest.mark.parametrize("seed", range(20))
def test_each_byte_counts_once(seed: int) -> None:
    chance = np.random.default_rng(seed)
    for _ in range(50):
        address, size_bytes = chance.integers(0, 30, 7), chance.integers(0, 15, 7)
        own = own_bytes(address, size_bytes)
        assert own.tolist() == by_hand(address.tolist(), size_bytes.tolist())
