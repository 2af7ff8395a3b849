"""One sentence that says why two peaks differ, where shapes or bytes prove it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from tracer.analysis.kinds import Kind, words_of
from tracer.analysis.peak_diff import PeakChange, PeakDiff
from tracer.analysis.peak_row import PeakRow

_MOST_NAMED = 3
_PROOF = 0.9  # Part of the changed bytes that has to change as the sentence says
_DIMENSIONS = ("first", "second", "third", "fourth", "fifth")
_OF_LOGITS = ("cross_entropy", "log_softmax", "nll_loss")
_SIDES = (Kind.PARAMETER, Kind.GRADIENT, Kind.OPTIMIZER_STATE)


def cause_of(diff: PeakDiff) -> str:
    """Return the cause as a sentence, or the empty text where nothing proves one.

    `The batch doubled (the first dimension of the inputs, 8 -> 16): activation x2.00, logits x2.00.`
    """
    pairs = tuple(_pairs(diff))
    return (
        _other_type(diff, pairs) or _other_inputs(diff, pairs) or _other_parameters(diff) or _equal_factor(diff) or ""
    )


@dataclass(frozen=True, slots=True)
class _Pair:
    """The same tensor's row on both sides."""

    before: PeakRow
    after: PeakRow

    @property
    def bytes(self) -> int:
        return abs(self.after.bytes - self.before.bytes)

    @property
    def sizes(self) -> tuple[tuple[int, int, int], ...]:
        """Dimension, counted from 0, and its size before and after, of dimensions that changed."""
        both = enumerate(zip(self.before.shape or (), self.after.shape or (), strict=True))
        return tuple((number, old, new) for number, (old, new) in both if old != new)

    @property
    def factor(self) -> Fraction | None:
        """How many times as many elements; None of a tensor without elements."""
        old, new = prod(self.before.shape or ()), prod(self.after.shape or ())
        return Fraction(new, old) if old and new else None


def _pairs(diff: PeakDiff) -> Iterator[_Pair]:
    """Rows of one line, module and operator whose shapes have as many dimensions, the larger ones first."""
    sides: dict[tuple[object, ...], tuple[list[PeakRow], list[PeakRow]]] = {}
    for side, peak in enumerate((diff.before, diff.after)):
        for row in sorted(peak.rows, key=lambda row: -row.bytes):
            if row.shape is not None:
                key = (row.category, row.module, row.op, row.name, row.line, len(row.shape))
                sides.setdefault(key, ([], []))[side].append(row)
    for old, new in sides.values():
        if len(old) == len(new):
            yield from map(_Pair, old, new)


def _other_type(diff: PeakDiff, pairs: Sequence[_Pair]) -> str:
    """Other types of numbers in tensors of the same shapes."""
    same = [pair for pair in pairs if not pair.sizes and pair.before.dtype != pair.after.dtype]
    if not _proves(diff, same, pairs):
        return ""
    largest = max(same, key=lambda pair: pair.bytes)
    old, new = largest.before.dtype, largest.after.dtype
    return f"Tensors of {old} became {new}, with the same shapes: {_factors(diff)}."


def _other_inputs(diff: PeakDiff, pairs: Sequence[_Pair]) -> str:
    """A dimension of the inputs that all changed tensors follow, with the same parameters."""
    inputs = {sizes for pair in pairs if pair.before.category == Kind.INPUT.name and len(sizes := pair.sizes) == 1}
    if len({size for (size,) in inputs}) != 1 or not _has_same_parameters(diff):
        return ""
    (((dimension, old, new),),) = inputs
    # Memory of attention grows with the square of a length.
    followed = {Fraction(new, old), Fraction(new, old) ** 2} if old and new else set()
    if not _proves(diff, [pair for pair in pairs if pair.factor in followed], pairs):
        return ""
    name = "batch" if dimension == 0 else f"{_ordinal(dimension)} dimension of the inputs"
    where = f"the first dimension of the inputs, {old} -> {new}" if dimension == 0 else f"{old} -> {new}"
    return f"The {name} {_grew(new / old)} ({where}): {_factors(diff)}."


def _other_parameters(diff: PeakDiff) -> str:
    """A model of another size."""
    old, new = (_of_kind(diff, Kind.PARAMETER, side) for side in (0, 1))
    others = [_of_kind(diff, kind, 1) - _of_kind(diff, kind, 0) for kind in _SIDES]
    if not old or not new or old == new or sum(map(abs, others)) < _PROOF * _changed(diff):
        return ""
    return f"The parameters {_grew(new / old)}: {_factors(diff, _SIDES)}."


def _equal_factor(diff: PeakDiff) -> str:
    """Of snapshots, which have no shapes: one factor of every stack's activations, with the same parameters."""
    stacks = [change for change in diff.changes.get("stack", ()) if change.name[0] == Kind.ACTIVATION.words]
    known = [(change, change.growth) for change in stacks if change.growth is not None]
    factors = Counter[str]()
    for change, growth in known:
        factors[f"{growth:.2f}"] += max(change.own_peaks or (change.before_bytes, change.after_bytes))
    if not factors or not _has_same_parameters(diff):
        return ""
    factor, held = factors.most_common(1)[0]
    if factor == "1.00" or held < _PROOF * factors.total():
        return ""
    count = sum(f"{growth:.2f}" == factor for _, growth in known)
    return (
        f"Activations of {count:,} of {len(known):,} stacks are x{factor} and the parameters are the same: the batch, "
        f"or the length of its samples, {_grew(float(factor))}."
    )


# ------------------------------------------------------------------------------------------------------------- words
def _factors(diff: PeakDiff, kinds: Iterable[Kind] = tuple(Kind)) -> str:
    """The largest kinds that changed, each with its factor, and the logits'."""
    named = {kind.name for kind in kinds} | {kind.words for kind in kinds}
    changes = [change for change in _by_kind(diff) if change.name[0] in named and change.bytes]
    words = [f"{words_of(change.name[0])} {_factor(change)}" for change in changes[:_MOST_NAMED]]
    old, new = (sum(row.bytes for row in side.rows if _is_of_logits(row)) for side in (diff.before, diff.after))
    if old and new and old != new and Kind.ACTIVATION in kinds:
        words.append(f"logits x{new / old:.2f}")
    return ", ".join(words)


def _factor(change: PeakChange) -> str:
    if not change.before_bytes or not change.after_bytes:
        return "new" if change.after_bytes else "gone"
    return f"x{change.after_bytes / change.before_bytes:.2f}"


def _grew(factor: float) -> str:
    words = {2.0: "doubled", 0.5: "halved"}
    return words.get(factor, f"became {factor:.3g} times as large")


def _ordinal(dimension: int) -> str:
    return _DIMENSIONS[dimension] if dimension < len(_DIMENSIONS) else f"{dimension + 1}th"


# ------------------------------------------------------------------------------------------------------------- proof
def _proves(diff: PeakDiff, those: Sequence[_Pair], pairs: Sequence[_Pair]) -> bool:
    """Whether these pairs hold nearly all changed bytes, of the pairs and of the peak."""
    held = sum(pair.bytes for pair in those)
    return bool(held) and held >= _PROOF * sum(pair.bytes for pair in pairs) and held >= _PROOF * _changed(diff)


def _changed(diff: PeakDiff) -> int:
    return sum(abs(change.bytes) for change in diff.changes.get("line", diff.changes.get("kind", ())))


def _by_kind(diff: PeakDiff) -> tuple[PeakChange, ...]:
    return diff.changes.get("category", diff.changes.get("kind", ()))


def _of_kind(diff: PeakDiff, kind: Kind, side: int) -> int:
    sizes = ((change.before_bytes, change.after_bytes) for change in _by_kind(diff) if _is_kind(change, kind))
    return sum(size[side] for size in sizes)


def _has_same_parameters(diff: PeakDiff) -> bool:
    """Whether the parameters are as large on both sides, to a thousandth: a snapshot may miss small ones."""
    old, new = (_of_kind(diff, Kind.PARAMETER, side) for side in (0, 1))
    return bool(old) and abs(new - old) * 1000 <= old


def _is_kind(change: PeakChange, kind: Kind) -> bool:
    return change.name[0] in (kind.name, kind.words)


def _is_of_logits(row: PeakRow) -> bool:
    return row.op is not None and any(name in row.op for name in _OF_LOGITS)
