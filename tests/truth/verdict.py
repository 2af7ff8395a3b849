"""Compares what the tracer says of a program, and what it did to it, with an unwatched run and the bookkeeper."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.truth.bookkeeper import Alive, HeldBy, Instant, Phase
from tests.truth.catalogue import entry_of
from tests.truth.isolate import in_fresh_process
from tests.truth.program import Entry, Provable
from tests.truth.running import (
    Claims,
    Effects,
    Truth,
    first_recorded,
    run_counted,
    run_under_bookkeeper,
    run_unwatched,
    run_watched,
)

COLUMNS = ("crash", "changed", "kept", "wrong_sum", "wrong_peak")
HELD = frozenset(holder.value for holder in HeldBy)
ACTIVATION, WORKSPACE, COMMUNICATION, LEFT = "ACTIVATION", "WORKSPACE", "COMMUNICATION", "HELD"
_OTHERS = (ACTIVATION, WORKSPACE, COMMUNICATION, LEFT)
# What operators make for torch to keep for a library, whatever a graph keeps of it meanwhile.
_LIBRARYS = ("aten._cudnn_init_dropout_state.default",)
# A block that the bookkeeper proves nothing about may be called anything but these.
_FALSE_OF_OTHERS = HELD | {"UNKNOWN", COMMUNICATION}


@dataclass(frozen=True, slots=True)
class Share:
    """So much of so much."""

    right: int = 0
    of: int = 0

    def __add__(self, other: Share) -> Share:
        return Share(self.right + other.right, self.of + other.of)

    @property
    def part(self) -> float:
        """As a number up to 1; of nothing all is right."""
        return self.right / self.of if self.of else 1.0


@dataclass(frozen=True)
class Verdict:
    """Findings about one program. Empty texts and tuples are good.

    Attributes:
        broken: The program itself does not run, or not under the bookkeeper: nothing can be said.
        crash: What the tracer raised, or the files that it could not write.
        changed: What differs from the unwatched run.
        kept: What is alive after the program was let go of, though nobody else keeps it.
        wrong_sum: How the rows differ from the allocator's count.
        wrong_peak: How the peak differs from the truth.
        true_bytes: The least and the most that the peak can be; on a device both are the count of the allocator.
        kinds: Bytes of the right kind, of those that the bookkeeper can prove; None where it can prove none.
        modules, lines: Of the three largest places that made activations.
        beside: Bytes beside torch's allocator that have a place; None without a driver's count.
    """

    name: str
    broken: str = ""
    crash: str = ""
    changed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    wrong_sum: str = ""
    wrong_peak: str = ""
    claimed_bytes: int = 0
    true_bytes: tuple[int, int] = (0, 0)
    kinds: Share | None = None
    modules: Share | None = None
    lines: Share | None = None
    beside: Share | None = None

    @property
    def wrong(self) -> dict[str, str | tuple[str, ...]]:
        """The columns that are wrong, with their findings."""
        return {column: found for column in COLUMNS if (found := getattr(self, column))}


def judge(name: str) -> Verdict:
    """Run a program four times, each in a process of its own, two at a time, and compare."""
    entry, folder = entry_of(name), Path(tempfile.mkdtemp())
    try:
        with ThreadPoolExecutor(2) as two:
            runs = [
                two.submit(in_fresh_process, run, name) for run in (run_unwatched, run_under_bookkeeper, run_counted)
            ]
            runs.append(two.submit(in_fresh_process, run_watched, name, folder))
            results: list[Any] = [run.result() for run in runs]
            plain, booked, counted, watched = results
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for what, run in (("unwatched", plain), ("under the bookkeeper", booked), ("under a bare profiler", counted)):
        if run.value is None:
            return Verdict(name, broken=f"{what}: {run.error}")
    losses, truth = booked.value
    bounds = bounds_of(entry, truth, counted.value)
    if entry.provable is Provable.EXACT and losses != plain.value.losses:
        return Verdict(name, broken="under the bookkeeper: other losses")
    if watched.value is None:
        return Verdict(name, crash=str(watched.error), true_bytes=bounds)
    effects, claims = watched.value
    return _compare(name, plain.value, effects, claims, truth, bounds)


def _compare(
    name: str, plain: Effects, watched: Effects, claims: Claims, truth: Truth, bounds: tuple[int, int]
) -> Verdict:
    if claims.crash:
        return Verdict(name, crash=claims.crash)
    # The bookkeeper sees tensors alone: inside a kernel, what looks like one more of them can be its workspace.
    tensors = [size for size, kind in claims.blocks if kind != WORKSPACE]
    sizes = [size for size, _ in claims.blocks]
    instants = [found for told in (sizes, tensors) for found in instants_of(claims.peak, truth.instants, told)]
    exact = entry_of(name).provable is not Provable.EAGER_TWIN
    batch = knows_batch(name)
    instant = max(instants, key=lambda each: kinds(claims.blocks, each.blocks, knows_batch=batch).part)
    # What was made before the recorded steps has no line in any profiler.
    new = [block for block in instant.blocks if block.step >= first_recorded(instant.step, name)]
    kept = [block for block in new if proven_kind(block, knows_batch=batch) == ACTIVATION]
    return Verdict(
        name,
        changed=tuple(differences(plain, watched)),
        kept=tuple(name for name, alive in watched.alive_after.items() if alive and not plain.alive_after.get(name)),
        wrong_sum=wrong_sum(claims.peak),
        wrong_peak=wrong_peak(claims.peak, bounds),
        claimed_bytes=claims.peak["allocator_peak_bytes"],
        true_bytes=bounds,
        kinds=kinds(claims.blocks, instant.blocks, knows_batch=batch) if exact else None,
        modules=largest(claims.peak["rows"], kept, by_module=True) if exact else None,
        lines=largest(claims.peak["rows"], kept, by_module=False) if exact else None,
    )


# ---- law 1, and the peak ---------------------------------------------------------------------------------------------


def wrong_sum(peak: Mapping[str, Any]) -> str:
    """Rows are the peak and the allocator's count; what is unexplained says by how much they are not."""
    rows = sum(row["bytes"] for row in peak["rows"])
    unexplained = peak.get("unexplained_bytes", 0)
    count = peak["allocator_peak_bytes"]
    if rows == peak["peak_bytes"] == count and not unexplained:
        return ""
    return f"rows {rows:,}, peak {peak['peak_bytes']:,}, unexplained {unexplained:,}, allocator {count:,}"


def bounds_of(entry: Entry, truth: Truth, counted: tuple[int, int]) -> tuple[int, int]:
    """The least and the most that the peak can be.

    The most is what was alive when the window began, less what of it has gone since, and what torch's allocator counts
    from then on, at the worst moment, and what other allocators gave.

    The least is the same without other allocators, and what tensors held at their own peak: a tracer that says less
    missed some. Where tensors held more than the most, it was because the bookkeeper looked on, and where a program is
    compiled they are those of its eager twin: then only what was alive when the window began.
    """
    least, most = counted[0], counted[1] + truth.foreign_bytes
    tensors = truth.start_bytes if entry.provable is Provable.EAGER_TWIN else truth.peak_bytes
    return max(least, min(tensors, most)) - entry.chance_bytes, most + entry.chance_bytes


def wrong_peak(peak: Mapping[str, Any], bounds: tuple[int, int]) -> str:
    """How the peak, as it is told, lies outside the bounds; that it lacks what named threads held is told too."""
    told, (least, most) = peak["allocator_peak_bytes"], bounds
    if peak.get("threads_not_recorded"):
        return ""
    if told < least:
        return f"{told:,} is {least - told:,} less than tensors held"
    if told > most:
        return f"{told:,} is {told - most:,} more than there was"
    return ""


# ---- nothing changed -------------------------------------------------------------------------------------------------


def differences(plain: Effects, watched: Effects) -> list[str]:
    """What is not as in the unwatched run."""
    found = []
    if plain.losses != watched.losses:
        found.append("losses")
    found += [f"bits of {name}" for name in _unequal(plain.tensors, watched.tensors)[:3]]
    if plain.random_states != watched.random_states:
        found.append("random states")
    for what in ("compilations", "torch_state"):
        before, after = getattr(plain, what), getattr(watched, what)
        found += [f"{key}: {after.get(key)}, not {before.get(key)}" for key in _unequal(before, after)]
    late = sum(
        ours and not theirs
        for at_step in zip(watched.batches_alive, plain.batches_alive, strict=True)
        for ours, theirs in zip(*at_step, strict=True)
    )
    return [*found, f"batches alive at the ends of {late} steps too many"] if late else found


def _unequal(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [key for key in sorted({*one, *other}) if one.get(key) != other.get(key)]


# ---- kinds, modules and lines ----------------------------------------------------------------------------------------


def knows_batch(name: str) -> bool:
    """Whether a program says what its batch is; the workloads of other tests do not."""
    return not name.startswith("workload:")


def instants_of(peak: Mapping[str, Any], instants: Iterable[Instant], sizes: Iterable[int]) -> list[Instant]:
    """The bookkeeper's instants that the tracer's peak may be about: of its step and phase, and most alike in sizes.

    The two need not be at one operator: a kernel's own memory, which only one of them sees, makes a peak elsewhere.
    Of several with the same sizes nobody can tell which it is.

    Args:
        peak: The tracer's.
        instants: The bookkeeper's.
        sizes: Of the blocks of the tracer's peak; what they are called plays no part.
    """
    told = Counter(sizes)

    def alike(instant: Instant) -> int:
        true = Counter(block.bytes for block in instant.blocks)
        common = sum(size * number for size, number in (told & true).items())
        return 2 * common - instant.bytes

    chosen = list(instants)
    step, phase = peak.get("step"), str(peak.get("phase"))
    same = [each for each in chosen if step == f"ProfilerStep#{each.step}"]
    like = [each for each in same if each.phase.value == phase]
    # Outside of modules, such as in the loss, the tracer says forward; an optimizer may run inside backward.
    like += [each for each in same if phase == "forward" and each.phase is Phase.OTHER]
    candidates = like or same or chosen
    most = max(map(alike, candidates))
    return [each for each in candidates if alike(each) == most]


def proven_kind(block: Alive, *, knows_batch: bool = True, has_failed: bool = False) -> str | None:
    """What a block certainly is: what somebody holds it as, a gradient, or an activation if it is kept for backward.

    What some parameter has as its gradient later is one already, and so is what an optimizer makes for its state. Where
    a program does not say what its batch is, what it made outside of its modules and out of nothing may be that.

    Args:
        has_failed: Whether the instant is that of a failure, where no rule knows what came to be of a block later.
    """
    if block.op in _LIBRARYS:
        return WORKSPACE
    if block.is_collectives and not block.becomes_gradient and not _is_anothers(block):
        return COMMUNICATION
    if block.holder is not None:
        return block.holder.value
    if block.becomes_gradient and block.phase is not Phase.BEFORE:
        return HeldBy.GRADIENT.value
    if block.becomes_state and block.phase is Phase.OPTIMIZER:
        return HeldBy.OPTIMIZER_STATE.value
    if not knows_batch and block.from_nothing and block.phase is Phase.OTHER:
        return None
    if block.packed and block.phase is not Phase.BEFORE:
        return ACTIVATION
    return LEFT if block.is_left and has_failed else None


def _is_anothers(block: Alive) -> bool:
    """Whether it is held, and not just while a module has its gathered parameters in the place of its own."""
    return block.holder is not None and (block.holder is not HeldBy.PARAMETER or block.phase is Phase.BEFORE)


def kinds(
    claimed: Iterable[tuple[int, str]], alive: Iterable[Alive], *, knows_batch: bool, has_failed: bool = False
) -> Share:
    """Bytes of the right kind.

    Blocks are compared by size: of each, as many are right as both sides have of a kind. A claim that something is
    held, such as a gradient, is wrong for every block beyond those that are. Of what only the bookkeeper has, no kind
    is judged: the two are at different instants, or the peak is wrong, which is judged elsewhere.
    """
    known = {"knows_batch": knows_batch, "has_failed": has_failed}
    proven = ((block.bytes, proven_kind(block, **known)) for block in alive)
    true: Counter[tuple[int, str | None]] = Counter(proven)
    told = Counter(claimed)
    number_told = Counter[int]()
    for (size, _), number in told.items():
        number_told[size] += number
    false_of_others = _FALSE_OF_OTHERS if knows_batch else _FALSE_OF_OTHERS - {HeldBy.INPUT.value}
    total = Share()
    for size in {size for size, _ in true}:
        sure = {kind: true[size, kind] for kind in (*HELD, *_OTHERS) if true[size, kind]}
        right = sum(min(number, told[size, kind]) for kind, number in sure.items())
        absent = sum(number for (bytes_, _), number in true.items() if bytes_ == size) - number_told[size]
        missing = sum(sure.values()) - right - max(0, absent)
        others = true[size, None]
        overclaimed = sum(max(0, told[size, kind] - sure.get(kind, 0)) for kind in false_of_others)
        total += Share(size * right, size * (right + max(missing, min(overclaimed, missing + others))))
    return total


def largest(rows: Iterable[Mapping[str, Any]], kept: Iterable[Alive], *, by_module: bool) -> Share:
    """How many of the three largest places that made activations, `kept`, have as many bytes in the tracer's rows."""
    true: Counter[Any] = Counter()
    for block in kept:
        true[block.module if by_module else (block.file, block.line)] += block.bytes
    told: Counter[Any] = Counter()
    for row in rows:
        module = None if row["module"] in ("(training loop)", "(optimizer)") else row["module"]
        told[module if by_module else (row["file"], row["line"])] += row["bytes"]
    three = true.most_common(3)
    return Share(sum(told[place] >= size for place, size in three), len(three))
