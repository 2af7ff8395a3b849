"""What counting sizes proves: a model's parameters, its gradients and its optimizer state have the same sizes."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracer.arrays import Bools, Ints

# Fewer copies of a size than this for each gradient of it: parameters alone, not parameters and state of their size.
_COPIES_WITH_STATE = 2
_SHARE_THAT_MATTERS = 0.01
# A block of a model's weights is of this share of the largest's bytes at least; biases and norms are smaller.
_SHARE_OF_LARGEST = 1 / 64
# Large blocks for each layer: with gradients or state there are two or more, for a part of the calls fewer than one.
_FEW_PER_LAYER, _MANY_PER_LAYER = 0.7, 1.5
NOTHING: Final = np.zeros(0, dtype=np.int64)


def most_at_once(group: Ints, begin: Ints, end: Ints, amount: Ints | None = None) -> tuple[Ints, Ints]:
    """Return the groups that occur, ascending, and the most of each that is in use at the same time [groups].

    Args:
        group: Group of each block, such as its size [blocks].
        begin: The entry from which on it is in use [blocks].
        end: The entry at which it is free again, which is not before the former [blocks].
        amount: What is summed up, such as bytes [blocks]; None counts blocks.
    """
    amount = np.ones(len(group), np.int64) if amount is None else amount
    at, change = np.concatenate([begin, end]), np.concatenate([amount, -amount])
    both = np.concatenate([group, group])
    # Of what happens at one entry, the end comes first.
    order = np.lexsort((change, at, both))
    groups, first = np.unique(both[order], return_index=True)
    if not len(groups):
        return groups, first
    # Each group comes back to zero, so that one running sum serves all.
    return groups, np.maximum.reduceat(np.cumsum(change[order]), first)


def has_size_of(size: Ints, others: Ints) -> Bools:
    """Which blocks have the size of one of the others."""
    has_size: Bools = np.isin(size, others)
    return has_size


def as_many_as(
    candidates: Bools, size: Ints, of_sizes: Ints, numbers: Ints, *, others: Ints = NOTHING, are_some: bool = False
) -> Bools:
    """Candidates of those sizes of which there are no more than one for each.

    If state of their size were among them, there would be twice as many. Where only some are counted yet, one size that
    matters and has no copies says it of all.

    Args:
        candidates: Which blocks are asked about [blocks].
        size: Size of each block [blocks].
        of_sizes: Sizes, ascending [sizes].
        numbers: How many there are of each [sizes].
    """
    if not len(of_sizes):
        return np.zeros(len(size), dtype=np.bool_)
    at = np.minimum(np.searchsorted(of_sizes, size), len(of_sizes) - 1)
    fits = candidates & (of_sizes[at] == size)
    count = np.bincount(at[fits], minlength=len(of_sizes))
    others = np.sort(others)
    count += np.searchsorted(others, of_sizes, side="right") - np.searchsorted(others, of_sizes)
    few = (count < _COPIES_WITH_STATE * numbers) & (count > 0)
    matters = of_sizes * numbers >= _SHARE_THAT_MATTERS * (of_sizes * numbers).sum()
    enough: Bools = fits & (few[at] | (are_some & (few & matters).any()))
    return enough


def copies_of(candidates: Ints, of_sizes: Ints, numbers: Ints) -> tuple[int, int]:
    """How many times over the candidates have the given sizes, and their bytes, if they all have them as many times.

    Args:
        candidates: Their sizes [blocks]; other sizes than the given ones do not count.
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


def is_one_set(size: Ints, staying: Ints, num_layers: float) -> Bools:
    """Which blocks have a size that occurs as one model's weights do, without copies as gradients or state.

    A model has about as many large blocks as it calls layers of one weight. Where no such calls are seen, sizes have to
    say it: copies make every size occur a multiple of times, and sizes that occur once say nothing.

    Args:
        size: Size of each block [blocks].
        staying: Sizes of those that were there before and are never freed.
        num_layers: Number of layers that a forward calls, 0 where that is not known.
    """
    sizes, count = np.unique(staying, return_counts=True)
    repeats = count > 1
    if not repeats.any():
        return np.zeros(len(size), dtype=np.bool_)
    is_large = sizes >= _SHARE_OF_LARGEST * sizes[repeats].max()
    ratio = count[is_large].sum() / num_layers if num_layers else 0.0
    is_per_layer = _FEW_PER_LAYER < ratio < _MANY_PER_LAYER if num_layers else np.gcd.reduce(count[repeats]) == 1
    return has_size_of(size, sizes[repeats & is_per_layer])
