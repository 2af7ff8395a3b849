"""What counting sizes proves: a model's parameters, its gradients and its optimizer state have the same sizes."""

from __future__ import annotations

import numpy as np

from tracer.arrays import Bools, Ints

# Fewer copies of a size than this for each gradient of it: parameters alone, not parameters and state of their size.
_COPIES_WITH_STATE = 2


def most_at_once(size: Ints, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Of each size that occurs, how many blocks of it were in use at the same time at most.

    Args:
        size: Of each block [blocks].
        begin: The entry from which on it is in use [blocks].
        end: The entry at which it is free again, which is not before the former [blocks].

    Returns:
        The sizes, ascending, and the numbers [sizes].
    """
    at, change = np.concatenate([begin, end]), np.repeat([1, -1], len(size))
    both = np.concatenate([size, size])
    # Of what happens at one entry, the end comes first.
    order = np.lexsort((change, at, both))
    sizes, first = np.unique(both[order], return_index=True)
    if not len(sizes):
        return sizes, first
    # Each size comes back to zero, so that one running sum serves all.
    return sizes, np.maximum.reduceat(np.cumsum(change[order]), first)


def has_size_of(size: Ints, others: Ints) -> Bools:
    """Which blocks have the size of one of the others."""
    found: Bools = np.isin(size, others)
    return found


def as_many_as(candidates: Bools, size: Ints, of_sizes: Ints, numbers: Ints) -> Bools:
    """Candidates of those sizes of which there are no more than one for each.

    If state of their size were among them, there would be twice as many.

    Args:
        candidates: Which blocks are asked about [blocks].
        size: Of each block [blocks].
        of_sizes: Sizes, ascending [sizes].
        numbers: How many there are of each [sizes].
    """
    if not len(of_sizes):
        return np.zeros(len(size), dtype=np.bool_)
    at = np.minimum(np.searchsorted(of_sizes, size), len(of_sizes) - 1)
    fits = candidates & (of_sizes[at] == size)
    count = np.bincount(at[fits], minlength=len(of_sizes))
    few: Bools = count < _COPIES_WITH_STATE * numbers
    enough: Bools = fits & few[at]
    return enough


def copies_of(candidates: Ints, of_sizes: Ints, numbers: Ints) -> tuple[int, int]:
    """How many times over the candidates have the given sizes, and their bytes, if they all have them as many times.

    Args:
        candidates: Their sizes [blocks]; other sizes than the given ones do not count.
        of_sizes: Sizes, ascending [sizes].
        numbers: How many there are of each [sizes].

    Returns:
        The number of times and the bytes; 0 and 0 where it is not the same for every size.
    """
    if not len(of_sizes):
        return 0, 0
    at = np.minimum(np.searchsorted(of_sizes, candidates), len(of_sizes) - 1)
    count = np.bincount(at[of_sizes[at] == candidates], minlength=len(of_sizes))
    times, rest = np.divmod(count, numbers)
    if rest.any() or len(np.unique(times)) > 1:
        return 0, 0
    return int(times[0]), int((count * of_sizes).sum())


def is_one_set(size: Ints) -> bool:
    """Whether these sizes cannot be copies of each other, as parameters, gradients and state are.

    Copies make every size occur a multiple of times; sizes that occur once say nothing.
    """
    _, count = np.unique(size, return_counts=True)
    return bool(np.gcd.reduce(count[count > 1], initial=0) <= 1)
