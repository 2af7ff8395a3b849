"""Results that are much larger than what they are made of: the operator of a line, its operands, its usual remedy.

A row of `REMEDIES` is a condition on facts of a line's results, see `line_results.py`, with the words of the change.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from tracer.answers.allocator.changed_requests import with_smaller_blocks
from tracer.answers.why.case import Case, Cause, GivesUp
from tracer.answers.why.line_results import (
    BINARY,
    CAST,
    CASTS,
    COPIED,
    DECOMPOSED,
    DENSE,
    EXPONENTS,
    INDEXED,
    JOINING,
    REPEATED,
    RESIZED,
    SORTED,
    LineResults,
    results_of_lines,
)
from tracer.answers.why.source import CREATED, calls_on, source_at
from tracer.arrays import Ints
from tracer.blocks.from_snapshot.frames import torch_file
from tracer.blocks.from_snapshot.sites import Site
from tracer.blocks.from_snapshot.sizes import NOTHING
from tracer.blocks.kinds import Kind
from tracer.capture.objects.at_failure import Operand
from tracer.capture.objects.later_uses import Making, Sized
from tracer.snapshot.columns import Frame
from tracer.snapshot.replay import BEFORE
from tracer.units import format_bytes

_LEAST_PERCENT: Final = 25
_MOST_TEXT: Final = 72
_MUCH_SMALLER: Final = 64
"""By how much less the change takes where it makes no such result at all: so little that it does not matter here."""
_PARTS: Final = 8
_TILED: Final = re.compile(r"[/\\]diffusers[/\\]models[/\\]autoencoders[/\\]")
_TILES: Final = 4
_FEW_PARTS: Final = 2
"""Number of joined tensors: an old tensor and what is added to it are no list."""
_TWICE: Final = 2.0
_WIDEST: Final = 9.0
"""By how much more a result takes than its operand at least, where not only its type is wider: bool and int64 are 8."""
_AGAIN: Final = ", each computed again in backward (torch.utils.checkpoint)"


@dataclass(frozen=True, slots=True)
class Remedy:
    """A row: which results it is about, what they are, and what to do in their place."""

    name: str
    when: Callable[[LineResults], bool]
    makes: str | Callable[[LineResults], str]  # As a predicate of the line: `makes every pair of rows`
    change: str | Callable[[LineResults], str]
    gives_up: GivesUp = GivesUp.A_LITTLE
    smaller: int | Callable[[LineResults], int] = _PARTS  # By how much less its results take
    goes_on: bool = False  # Whether what is computed of its results is as large as they are, row by row
    in_function: bool = False  # Whether results of its size on other lines of its function are of the same kind


_LOOKED_UP: Final = ("aten::embedding", "aten::index", "aten::index_select")
_BITS: Final = defaultdict(
    lambda: 16, {"bool": 8, "uint8": 8, "int8": 8, "int32": 32, "float32": 32, "int64": 64, "float64": 64}
)
"""Bits of an element, by its type; 16 for the other types."""
_WIDE: Final = frozenset({"float", "double", "long", "int", "float32", "float64", "int64"})
"""Methods that cast, and types that a cast is given, mostly to more bits."""
_BROADCASTS: Final = re.compile(r"\[[^\]]*\bNone\b|newaxis|unsqueeze|keepdim|\bcdist\b|\bouter\b")


def _is_full_decomposition(line: LineResults) -> bool:
    # torch.svd makes the smaller ones by default.
    is_linalgs = line.makes(*DECOMPOSED) or (line.makes("svd") and "linalg" in line.source)
    is_larger = line.largest_factor >= _TWICE
    return is_linalgs and is_larger and "full_matrices=False" not in line.source.replace(" ", "")


def _looked_up(line: LineResults) -> Making | None:
    """The operator of the line that looks up rows of a table, each several times; None where none is known to."""
    for making in line.before:
        table = making.inputs[0] if making.operator in _LOOKED_UP and making.inputs else None
        if table is not None and len(table.shape) > 1 and making.result.num_elements >= _TWICE * table.num_elements:
            return making if line.stands_out or line.makes(*INDEXED) else None
    return None


def _table_of_copies(line: LineResults) -> Sized | None:
    """The table that the line's result has rows of, each several times; None where it is not known to be so."""
    making = _looked_up(line)
    return making.inputs[0] if making is not None else None


def _taken_whole(line: LineResults) -> tuple[Operand, Operand] | None:
    """A tensor and the index that the failed line takes whole rows of it with; None where the request is none such."""
    source = line.source.replace(" ", "")
    for of, index in itertools.permutations(line.operands, 2):
        if index.dtype == "int64" and f"{of.name}[{index.name}]" in source:
            taken_bytes = math.prod(index.shape) * math.prod(of.shape[1:]) * _BITS[of.dtype] // 8
            if taken_bytes <= line.asked_bytes <= _ROUNDED * taken_bytes:
                return of, index
    return None


def _is_row_for_each(line: LineResults) -> bool:
    if _taken_whole(line) is not None:
        return line.largest_factor >= _TWICE
    if line.making is not None:
        return _looked_up(line) is not None
    are_alone = bool(line.operators) and line.operators.issubset(INDEXED)
    return (are_alone or (line.makes("embedding") and line.stands_out)) and line.largest_factor >= _TWICE


def _makes_rows(line: LineResults) -> str:
    if (taken := _taken_whole(line)) is not None:
        of, index = taken
        return f"takes {of.name}[i], of shape {of.shape[1:]}, for each of the {math.prod(index.shape):,} indices"
    if (making := _looked_up(line)) is None:
        return "makes a row for each index"
    table = making.inputs[0]
    times = making.result.num_elements / table.num_elements
    return f"makes rows of a table that has {table.shape[0]:,}, each {times:,.0f} times on average"


def _change_of_rows(line: LineResults) -> str:
    if (taken := _taken_whole(line)) is not None and len(taken[0].shape) > _AXES_OF_A_TABLE:
        return (
            "give an index for each axis, x[rows, columns], or use gather, where one value of each is meant; else go "
            f"over {_PARTS} parts of the indices"
        )
    table = _table_of_copies(line)
    if table is not None and table.shape[0] <= _FEW_ROWS:
        return (
            f"use each of the {table.shape[0]:,} rows once: loop over them, each with all of its own indices (one "
            "matrix product for each row), or compute with the table first and index the result"
        )
    if table is not None and line.makes("embedding"):
        return (
            f"compute with the table first, such as products with its {table.shape[0]:,} rows, and take of the result "
            f"what the indices say (gather), or go over {_PARTS} parts of the indices"
        )
    return (
        "sum them up without making them: a sparse matrix product (torch.sparse.mm), or scatter_add/index_add over "
        f"{_PARTS} parts of the indices; a layer that makes the rows shorter comes first, on the table"
    )


def _less_of_rows(line: LineResults) -> int:
    if (taken := _taken_whole(line)) is not None and len(taken[0].shape) > _AXES_OF_A_TABLE:
        return _MUCH_SMALLER
    table = _table_of_copies(line)
    return _MUCH_SMALLER if table is not None and table.shape[0] <= _FEW_ROWS else _PARTS


_AXES_OF_A_TABLE: Final = 2
_ROUNDED: Final = 1.01
"""A request beside what the result takes, at the most."""
_FEW_ROWS: Final = 64
_PRODUCTS: Final = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::matmul")


def _is_broadcast(making: Making) -> bool:
    """True if an operator by elements makes much more of them than each of its operands has."""
    if making.operator in _PRODUCTS:
        return False
    shapes = [each.shape for each in making.inputs if each.shape]
    try:
        is_by_elements = len(shapes) > 1 and np.broadcast_shapes(*shapes) == making.result.shape
    except ValueError:
        return False
    # Of an expanded tensor each element once.
    own = max((each.size_bytes * 8 / _BITS[each.dtype] for each in making.inputs), default=0)
    return is_by_elements and making.result.num_elements >= _TWICE * own


def _is_every_pair(line: LineResults) -> bool:
    """True if the operator broadcasts; where that is not known, the source does, or the result is as large as that."""
    if line.making is not None:
        return any(map(_is_broadcast, line.before))  # a matrix product may be of a layer
    least = _TWICE if _BROADCASTS.search(line.source) else _WIDEST
    return line.makes(*BINARY) and line.largest_factor >= least


def _makes_pairs(line: LineResults) -> str:
    making = next(filter(_is_broadcast, line.before), None)
    if making is None:
        return "makes a value for every pair that two tensors broadcast to"
    words = [f"({', '.join(map(str, each.shape))})" for each in (*making.inputs[:2], making.result)]
    given = (
        format_bytes(each.size_bytes) if each.shape == making.result.shape else shape
        for each, shape in zip(making.inputs[:2], words, strict=False)
    )
    return f"makes a value for every pair of two tensors, {' and '.join(given)} to {words[-1]}"


def _change_of_pairs(line: LineResults) -> str:
    making = next(filter(_is_broadcast, line.before), None)
    shapes = [each.shape for each in making.inputs[:2]] if making is not None else []
    # As a value for each row of (4096, 1) and (4096,)
    is_one_to_one = len({*map(len, shapes)}) == 2 and len({*map(math.prod, shapes)}) == 1
    return (
        "give both the same shape (.squeeze(-1), .unsqueeze(-1)) if each value belongs to one value of the other; else "
        * is_one_to_one
        + "compute what is left of it without it: torch.einsum or matmul where it is a product that is summed, else a "
        f"loop over {_PARTS} parts of its rows, each reduced before the next is made"
    )


def _is_of_several(source: str) -> bool:
    """True if an einsum on a line has more than two operands."""
    return bool(re.search(r"""einsum\(\s*["'][^"'>]*,[^"'>]*,""", source))


def _is_copy_of_rows(line: LineResults) -> bool:
    if line.makes(*REPEATED):
        return True
    if (making := line.making) is None:
        return line.makes(*COPIED) and ".expand(" in line.source
    return making.operator not in _LOOKED_UP and 0 < making.copied_bytes * _TWICE <= making.result.size_bytes


def _change_of_copies(line: LineResults) -> str:
    change = (
        "keep them once: expand() makes a view that takes no memory, and broadcasting, einsum and indexing read it; "
        "repeat after what is computed of them, or compute with one copy after the other"
    )
    if line.makes(*JOINING):
        change += "; a linear layer of joined tensors is a sum of a product with each, which broadcasts"
    return change


def _is_joined(line: LineResults) -> bool:
    return not line.is_saved and line.makes(*JOINING) and len(line.parts) > _FEW_PARTS


def _is_cast_up(line: LineResults) -> bool:
    if line.making is not None:
        given = [each.dtype for each in line.making.inputs]
        is_cast = line.making.operator in CASTS and len(given) == 1
        return not line.is_saved and is_cast and _BITS[line.making.result.dtype] > _BITS[given[0]]
    # With arithmetic on the same line it may be a number that is cast.
    is_alone = not line.makes(*BINARY)
    return not line.is_saved and line.makes(*CAST) and is_alone and bool(calls_on(line.site) & _WIDE)


JOINED: Final = Remedy(
    "joined copy",
    _is_joined,
    "copies a list of tensors into one while the list is still there",
    "write each part into a tensor that was made once in its full size, or keep the parts on the host and join "
    "them there",
    smaller=_MUCH_SMALLER,
)
REMEDIES: Final = (
    Remedy(
        "full matrices",
        _is_full_decomposition,
        "makes square matrices of its longer side, as it does by default",
        "give it full_matrices=False",
        GivesUp.NOTHING,
        smaller=_MUCH_SMALLER,
    ),
    Remedy(
        "sparse made dense",
        lambda line: line.makes(*DENSE),
        "makes a dense matrix of a sparse one",
        "keep it sparse: torch.sparse.mm, index_select and coalesce take it as it is",
        smaller=_MUCH_SMALLER,
        goes_on=True,
    ),
    Remedy(
        "one-hot labels",
        lambda line: line.makes("one_hot"),
        "makes a number for each class of each label (int64)",
        "use the labels themselves: cross_entropy takes the classes' numbers, bincount counts them, an embedding takes "
        "the place of a product with one-hot rows; or go over the classes one by one",
        smaller=_MUCH_SMALLER,
        goes_on=True,
    ),
    Remedy(
        "copies of rows",
        _is_copy_of_rows,
        "repeats the same values in memory",
        _change_of_copies,
        goes_on=True,
    ),
    Remedy("row for each index", _is_row_for_each, _makes_rows, _change_of_rows, smaller=_less_of_rows, goes_on=True),
    Remedy(
        "contracted whole",
        lambda line: line.makes("einsum") and _is_of_several(line.source),
        "contracts more than two tensors, and makes what is between two of them in full",
        "contract two at a time and sum up a loop over the smallest axis that is summed or kept, as "
        f"(a @ w[i] * b).sum(-1), or go over {_PARTS} parts of the rows",
        goes_on=True,
    ),
    Remedy(
        "every pair",
        _is_every_pair,
        _makes_pairs,
        _change_of_pairs,
        goes_on=True,
    ),
    JOINED,
    Remedy(
        "cast up",
        _is_cast_up,
        "makes a copy in more bits for each value",
        f"cast and use it in {_PARTS} parts, or keep the narrow type (bool, uint8, bfloat16) as far as it goes",
        in_function=True,
    ),
    Remedy(
        "resized",
        lambda line: not line.is_saved and line.makes(*RESIZED),
        "makes pictures or masks at their full size",
        f"resize {_PARTS} of them at a time and keep what is made of each, or work at the smaller size and resize the "
        "result on the host",
        GivesUp.TIME_OR_SIZE,
        goes_on=True,
    ),
    Remedy(
        "whole sorted",
        lambda line: line.makes(*SORTED),
        "makes sorted values, an int64 index for each, and buffers of the sort",
        "where a threshold or a few values are wanted take torch.kthvalue, topk or a histogram: they sort no copy",
        smaller=_MUCH_SMALLER,
    ),
    Remedy(
        "value for each class",
        lambda line: not line.is_saved and line.makes(*EXPONENTS),
        "makes as many values as it is given once more",
        f"go over {_PARTS} parts of the rows, and keep what is left of each",
        in_function=True,
    ),
    Remedy(
        "made whole",
        lambda line: not line.is_saved and line.makes(*CREATED) and "Parameter(" not in line.source,
        "allocates it in full",
        "make it on the host, in fewer bits, or fill and use it part by part",
        GivesUp.TIME_OR_SIZE,
    ),
)


def expansion(case: Case) -> Iterator[Cause]:
    """Results of a line that are a good part of what is in use and asked for, by what its operator makes."""
    for line in results_of_lines(case):
        remedy = next((remedy for remedy in REMEDIES if remedy.when(line)), None)
        after = NOTHING if remedy is None else _beside(case, line, remedy)
        goes_on = remedy is not None and remedy.goes_on and case.asked_bytes in case.lives.requested_bytes[line.held]
        asked = case.asked_bytes if goes_on else line.asked_bytes
        much_bytes = case.bytes(line.held) + case.bytes(after) + asked
        if remedy is None or much_bytes * 100 < _LEAST_PERCENT * case.in_use_bytes:
            continue
        where = "in the same function" if remedy.in_function else "after it"
        more = f", and of its size {case.words(after)} {where}{case.lines(after)}" if len(after) else ""
        if asked and not line.asked_bytes:
            more += f", and {format_bytes(asked)} more were asked for"
        if remedy is JOINED:
            more = f", beside {case.words(line.parts)}{case.lines(line.parts, 1)} in the list"
        rows, change = np.union1d(line.rows, after), _said(remedy.change, line)
        smaller = remedy.smaller if isinstance(remedy.smaller, int) else remedy.smaller(line)
        yield Cause(
            remedy.name,
            f"{_subject(line)} {_said(remedy.makes, line)}: {_bytes(case, line)}{_from(line)}{more}{_reduced(line)}.",
            change + (_AGAIN if line.is_saved and f"{_PARTS} parts" in change else ""),
            partial(with_smaller_blocks, rows=rows, divisor=smaller, with_last_failure=asked > 0),
            line.site,
            remedy.gives_up,
            names_bytes=much_bytes,
            behind=partial(_computed, line.making, smaller) if remedy.goes_on and line.making else None,
        )


def _computed(making: Making, smaller: int, later: Making, _: float) -> float:
    """Share that is left of a later block, which may be computed of a result row by row."""
    is_as_large = later.result.num_elements * 2 >= making.result.num_elements
    num_rows = next((size for size in making.result.shape if size > 1), 0)
    return 1 / smaller if is_as_large and num_rows and later.has_rows(num_rows) else 1.0


def _said(words: str | Callable[[LineResults], str], line: LineResults) -> str:
    return words if isinstance(words, str) else words(line)


def _reduced(line: LineResults) -> str:
    """The next use of a result, where little is left of it: `; sum (train.py:5) makes 2.00 MiB of it`."""
    use, making = line.next_use, line.making
    if use is None or making is None or use.in_backward or not use.file or use.overwrites:
        return ""
    if use.leaves_bytes * _PARTS > making.result.size_bytes:
        return ""
    name = use.operator.partition("::")[2].strip("_")
    return f"; {name} ({use.file}:{use.line}) makes {format_bytes(use.leaves_bytes)} of it"


def _beside(case: Case, line: LineResults, remedy: Remedy) -> Ints:
    """Blocks in use about as large as the results of a line, of its function or made after it."""
    size, begin = case.lives.requested_bytes, case.lives.begin
    sizes = np.append(size[line.held], [line.asked_bytes] if line.asked_bytes else [])
    others = np.setdiff1d(case.in_use[~case.stays[case.in_use]], line.held)
    if remedy.in_function:
        others = others[case.kind[others] != Kind.ACTIVATION]
        stacks = [stack for stack in np.unique(case.stack[others]).tolist() if _is_in(case, stack, line.site)]
        is_alike = (size[others] * 2 >= sizes.max()) & (size[others] <= sizes.max() * 2)
        mine: Ints = others[is_alike & np.isin(case.stack[others], stacks)]
        return mine
    if remedy.goes_on and len(line.held):
        later: Ints = others[np.isin(size[others], size[line.held]) & (begin[others] > begin[line.held].min())]
        return later
    return NOTHING


def _is_in(case: Case, stack: int, of: Site) -> bool:
    """True if the line of a stack is in the same function of the program as another line."""
    site = case.sites.site(stack)
    return (site.frame, site.file) == (of.frame, of.file) and site.frame != "<module>"


@dataclass(frozen=True, slots=True)
class OfFrames:
    """A row: blocks of some code of a library's, what it does, and what to ask it for."""

    name: str
    is_one: Callable[[Frame], bool]
    does: str
    change: str
    smaller: int


def is_of_autoencoder(frame: Frame | Site) -> bool:
    """True if a line is of an autoencoder of diffusers."""
    return bool(_TILED.search(frame.file or ""))


OF_FRAMES: Final = (
    OfFrames(
        "attention weights",
        # With need_weights=False the same function calls scaled_dot_product_attention: only torch's own line tells.
        lambda frame: frame.name == "multi_head_attention_forward" and "attn_output_weights" in source_at(frame),
        "torch.nn.MultiheadAttention makes the weights of attention as whole matrices, as it does by default",
        "call it with need_weights=False: it then makes no such matrix",
        _MUCH_SMALLER,
    ),
    OfFrames(
        "samples at once",
        lambda frame: torch_file(frame) == "_functorch/vmap.py",
        "torch.func.vmap computes all samples together",
        f"give vmap chunk_size, so that it goes over the samples in {_PARTS} parts",
        _PARTS,
    ),
    OfFrames(
        "decoding at full size",
        is_of_autoencoder,
        "The autoencoder works on whole images",
        "call vae.enable_tiling(), and vae.enable_slicing() for several images at once",
        _TILES,
    ),
)


def by_frames(case: Case) -> Iterator[Cause]:
    """Blocks that are a good part of what is in use and asked for, by the code of a library that makes them."""
    for row in OF_FRAMES:
        is_made = case.with_frame(row.is_one)
        rows = np.flatnonzero(is_made[case.lives.stack] & ~case.stays & (case.lives.begin > BEFORE))
        held, asked = case.held(rows), case.asked_bytes * bool(is_made[case.asked_stack])
        if case.is_much(held, asked_bytes=asked, percent=_LEAST_PERCENT):
            yield Cause(
                row.name,
                f"{row.does}: {case.with_asked(held, asked)}.",
                row.change,
                partial(with_smaller_blocks, rows=rows, divisor=row.smaller, with_last_failure=asked > 0),
                case.largest_site(held),
                GivesUp.A_LITTLE,
                names_bytes=case.bytes(held) + asked,
            )


def _subject(line: LineResults) -> str:
    place = f"{line.site.file}:{line.site.line}"
    text = line.source if len(line.source) <= _MOST_TEXT else f"{line.source[: _MOST_TEXT - 3]}..."
    return f"`{text}` ({place})" if text else f"{line.site.frame} ({place})"


def _bytes(case: Case, line: LineResults) -> str:
    if case.bytes(line.held) * _MUCH_SMALLER < line.asked_bytes or not len(line.held):
        return f"{format_bytes(line.asked_bytes)} in one tensor"
    more = f", and {format_bytes(line.asked_bytes)} more were asked for" if line.asked_bytes else ""
    holder = case.holder_of(line.held) if len(line.held) > 1 else None
    by = f", held by {case.holder_words(line.held)}" if holder is not None and holder.graph_of is None else ""
    return f"{case.words(line.held)}{by}{more}"


def _from(line: LineResults) -> str:
    """The operands with their bytes, as far as they are known: `, from encoded (25.00 MiB), 80 times as much`."""
    if not line.operands or not line.asked_bytes:
        return ""
    largest = sorted(line.operands, key=lambda operand: -operand.size_bytes)[:2]
    names = " and ".join(f"{operand.name} ({_operand_words(operand)})" for operand in largest)
    times = line.asked_bytes / line.operands_bytes
    return f", from {names}{f', {times:,.0f} times as much' if times >= _TWICE else ''}"


def _operand_words(operand: Operand) -> str:
    size = format_bytes(operand.size_bytes)
    return size if operand.count == 1 else f"{operand.count:,} tensors, {size}"
