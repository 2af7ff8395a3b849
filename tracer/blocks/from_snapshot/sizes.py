"""Proofs by counting sizes: a model's parameters, its gradients and its optimizer state have the same sizes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Final

import numpy as np

from tracer.arrays import Bools, Ints

if TYPE_CHECKING:
    from tracer.snapshot.columns import Segments


# Fewer copies of a size than this for each gradient of it: parameters alone, not parameters and state of their size.
_COPIES_WITH_STATE = 2
# Measured with `python -m benchmarks.rule_gain numbers`: points of the bytes of a set of programs with another number.
# A block of a model's weights is of this share of the largest's bytes at least; biases and norms are smaller. With 0,
# 0.8 fewer are right of further programs that are recorded after a warm-up; 1/16 is the same.
_SHARE_OF_LARGEST = 1 / 64
# Large blocks for each layer: with gradients or state there are two or more, for a part of the calls fewer than one.
# With 0.9, 0.3 fewer are right of the same programs, with 0.3 none; with 1.9, 0.1 more, and 0.004 more are wrong.
_FEW_PER_LAYER, _MANY_PER_LAYER = 0.7, 1.5
_MAX_EMBEDDINGS = 2  # Of one model: the embedding, and the head of its size. With 1, 14 fewer are right of public ones
NOTHING: Final = np.zeros(0, dtype=np.int64)


def most_at_once(group: Ints, begin: Ints, end: Ints, amount: Ints | None = None) -> tuple[Ints, Ints]:
    """Return the groups that occur, ascending, and the most of each that is in use at the same time [groups].

    Args:
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
    """Mark blocks that have the size of one of the others."""
    has_size: Bools = np.isin(size, others)
    return has_size


def as_many_as(
    candidates: Bools, size: Ints, of_sizes: Ints, numbers: Ints, *, others: Ints = NOTHING, are_some: bool = False
) -> Bools:
    """Candidates of those sizes of which there are no more than one for each.

    If state of their size were among them, there would be twice as many. Where only some are counted yet, one size
    that has no copies says it of all.
    """
    if not len(of_sizes):
        return np.zeros(len(size), dtype=np.bool_)
    at = np.minimum(np.searchsorted(of_sizes, size), len(of_sizes) - 1)
    fits = candidates & (of_sizes[at] == size)
    count = np.bincount(at[fits], minlength=len(of_sizes))
    others = np.sort(others)
    count += np.searchsorted(others, of_sizes, side="right") - np.searchsorted(others, of_sizes)
    few = (count < _COPIES_WITH_STATE * numbers) & (count > 0)
    enough: Bools = fits & (few[at] | (are_some & few.any()))
    return enough


def copies_of(candidates: Ints, of_sizes: Ints, numbers: Ints) -> tuple[int, int]:
    """Return the times that the candidates have all the given sizes, and their bytes, if the times are equal.

    Args:
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
    """Mark blocks of sizes that occur as one model's weights do, without copies as gradients or state.

    A model has about as many large blocks as it calls layers of one weight. Where no such calls are seen, sizes have to
    say it: copies make every size occur a multiple of times, and sizes that occur once say nothing. One more small
    block breaks the multiple, so small sizes say it only beside a large one that is there at most twice, as an
    embedding and a head are.

    Args:
        staying: Sizes of those that were there before and are never freed.
        num_layers: Number of layers that a forward calls, 0 where that is not known.
    """
    sizes, count = np.unique(staying, return_counts=True)
    repeats = count > 1
    if not repeats.any():
        return np.zeros(len(size), dtype=np.bool_)
    is_large = sizes >= _SHARE_OF_LARGEST * sizes[repeats].max()
    ratio = count[is_large].sum() / num_layers if num_layers else 0.0
    may_say = repeats if (is_large & (count <= _MAX_EMBEDDINGS)).any() else repeats & is_large
    is_per_layer = _FEW_PER_LAYER < ratio < _MANY_PER_LAYER if num_layers else np.gcd.reduce(count[may_say]) == 1
    return has_size_of(size, sizes[repeats & is_per_layer])


_TIMES: Final = (2, 3)
"""Times of the gradients: parameters and momentum, or parameters and Adam's averages. More may be a copy.

Without 2, 3.2 fewer are right of programs that are recorded after a warm-up; without 3, 9.5 of further ones; with 4,
0.2 more are wrong.
"""
_FALLING_FROM: Final = 0x1000_0000_0000
"""Addresses that the host's `mmap` gives, from the top down, and the null GPU's. Never so, 5.8 more are wrong."""
_SHARE_OF_SETS: Final = 0.9
"""Share of the gradients' bytes, whose sizes have to be there as many times.

With 0.5, 0.7 more are right of further programs and 0.13 wrong; with 0.99, 0.2 fewer are right of others.
"""
_MAX_SIZES: Final = 100  # So that their combinations are few
_MAX_ODD_SIZES: Final = 2  # A batch and its targets. With 1 the same; with 0, 0.05 fewer are right of programs


@dataclass(frozen=True, slots=True, eq=False)
class SizeSets:
    """Sizes of blocks that are there once for each parameter, and once or twice more for its state.

    A step leaves one gradient for each parameter. Where blocks from before the recording have the gradients' sizes two
    or three times over, one set is the parameters, the others are momentum or Adam's averages. Parameters are made
    first, so their addresses say which. A driver that takes addresses from where the host's `mmap` does (0x7f...) goes
    down from one chunk of 32 MiB to the next, others go up (0.04 to 0.15 and 0.97 of the steps in public recordings);
    within a chunk addresses rise.
    """

    times: int  # Blocks for each gradient: 2 or 3; 0 where most of the gradients' bytes say something else
    sizes: Ints  # Of gradients of which there are as many
    # Of the state of parameters that lie in one block, as those of cuDNN's recurrent layers do: it has a block each.
    of_parts: Ints


def sets_of_sizes(size: Ints, of_sizes: Ints, numbers: Ints) -> SizeSets:
    """Return the times that there are blocks of the gradients' sizes.

    Args:
        of_sizes: Sizes of gradients, ascending [sizes].
        numbers: How many there are of each [sizes].
    """
    nothing = size[:0]
    if not len(of_sizes):
        return SizeSets(0, nothing, nothing)
    at = np.minimum(np.searchsorted(of_sizes, size), len(of_sizes) - 1)
    has_gradient = of_sizes[at] == size
    count = np.bincount(at[has_gradient], minlength=len(of_sizes))
    times = np.where(count % numbers == 0, count // numbers, 0)
    gradient_bytes, parts = of_sizes * numbers, size[~has_gradient]
    for number in _TIMES:
        one_block_bytes = int(gradient_bytes[times == 1].sum())
        of_parts = _that_sum_to((number - 1) * one_block_bytes, parts)
        of_sets = times == number
        known_bytes = gradient_bytes[of_sets].sum() + (one_block_bytes if len(of_parts) else 0)
        if known_bytes >= _SHARE_OF_SETS * gradient_bytes.sum():
            return SizeSets(number, of_sizes[of_sets], of_parts)
    return SizeSets(0, nothing, nothing)


def _that_sum_to(wanted_bytes: int, parts: Ints) -> Ints:
    """The sizes of parts that have so many bytes in all, but for up to two sizes: of a batch and its targets, say."""
    sizes, count = np.unique(parts, return_counts=True)
    of_size = (sizes * count).tolist()
    excess_bytes = sum(of_size) - wanted_bytes
    if wanted_bytes > 0 and len(sizes) <= _MAX_SIZES:
        for number in range(_MAX_ODD_SIZES + 1):
            for odd in combinations(range(len(sizes)), number):
                if sum(of_size[at] for at in odd) == excess_bytes:
                    return np.delete(sizes, odd)
    return sizes[:0]


def first_of_each(rows: Ints, size: Ints, addr: Ints, times: int, segments: Segments) -> Ints:
    """Keep the blocks made first, one in `times` of each size, by the order of their addresses.

    Args:
        rows: The blocks, `times` n of each size.
        size: Requested bytes of all blocks [lives].
    """
    from tracer.allocator.driver import CHUNK_BYTES

    begins = np.sort(segments.address)
    is_falling = bool(len(begins)) and int(begins[0]) >= _FALLING_FROM and not segments.is_expandable.any()
    chunk = begins[np.searchsorted(begins, addr[rows], side="right") - 1] // CHUNK_BYTES if is_falling else 0 * rows
    order = np.lexsort((addr[rows], -chunk, size[rows]))
    sizes = size[rows[order]]
    begin = np.flatnonzero(np.append(True, sizes[1:] != sizes[:-1]))
    number = np.diff(np.append(begin, len(sizes)))
    place = np.arange(len(sizes)) - np.repeat(begin, number)
    return rows[order[place < np.repeat(number // times, number)]]
