"""Several ranks: each writes its own folder, and rank 0 adds what differs between them.

Ranks find each other through files, not through the process group: a rank that has died cannot hold up a collective,
and its neighbours' results are there all the same.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tracer.exporters.files import remove, write_atomically
from tracer.runs.results import RunResults
from tracer.units import format_bytes

RANK_FILE = "rank.json"
SUMMARY_JSON, SUMMARY_TEXT = "ranks.json", "ranks.txt"
WAIT_S, WAIT_AFTER_FAILURE_S = 20.0, 5.0
"""How long rank 0 waits for the others. torchrun kills what is left of a failed run after 30 seconds."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of several, as torchrun's environment tells it.

    Attributes:
        index: From 0, over all machines.
        world_size: How many there are.
        local_index: From 0, on this machine; the number of its device.
        run: Names this start of the program, so that an earlier one's files are not taken for this one's.
    """

    index: int
    world_size: int
    local_index: int
    run: str

    def folder(self, save_dir: Path) -> Path:
        """Where this rank writes."""
        return rank_folder(save_dir, self.index)


def rank_folder(save_dir: Path, index: int) -> Path:
    """`rank3` below the folder of results."""
    return save_dir / f"rank{index}"


def this_rank(environment: Mapping[str, str] = os.environ) -> Rank | None:
    """This process's rank; None where there is only one, or no environment of torchrun's."""
    try:
        index, world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        local_index = int(environment.get("LOCAL_RANK", index))
    except (KeyError, ValueError):
        return None
    if world_size < 2:
        return None
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    return Rank(index, world_size, local_index, "/".join(environment.get(name, "") for name in names))


@dataclass(frozen=True, slots=True)
class RankPeak:
    """What one rank has to say.

    Attributes:
        index: Of the rank.
        run: See `Rank.run`.
        device: Name of its device.
        peak_bytes: Its largest peak; None if nothing was recorded.
        categories: Bytes of the peak by category.
        num_steps: Steps that ended.
        failure: What ended its loop early, in words; empty if nothing did.
        has_ended: Whether its loop has ended; what a rank that is killed leaves behind does not say so.
    """

    index: int
    run: str
    device: str = ""
    peak_bytes: int | None = None
    categories: Mapping[str, int] = field(default_factory=dict)
    num_steps: int = 0
    failure: str = ""
    has_ended: bool = True


@dataclass(frozen=True, slots=True)
class RanksSummary:
    """All ranks beside each other.

    Attributes:
        ranks: Those that have left results, by index.
        missing: Indices of those that have not.
    """

    ranks: tuple[RankPeak, ...]
    missing: tuple[int, ...]

    @property
    def is_final(self) -> bool:
        """Whether nothing more is to come."""
        return not self.missing and all(rank.has_ended for rank in self.ranks)

    @property
    def with_peak(self) -> tuple[RankPeak, ...]:
        """Those that recorded something."""
        return tuple(rank for rank in self.ranks if rank.peak_bytes is not None)

    @property
    def worst(self) -> RankPeak | None:
        """The first of those with the largest peak."""
        return max(self.with_peak, key=lambda rank: rank.peak_bytes or 0, default=None)

    @property
    def spread_bytes(self) -> int:
        """Largest peak less smallest."""
        peaks = [rank.peak_bytes or 0 for rank in self.with_peak]
        return max(peaks) - min(peaks) if peaks else 0

    def differences(self) -> dict[str, tuple[int, int]]:
        """Smallest and largest bytes of each category that is not the same on all ranks, the widest first."""
        names = {name for rank in self.with_peak for name in rank.categories}
        ends = {}
        for name in sorted(names):
            sizes = [rank.categories.get(name, 0) for rank in self.with_peak]
            if min(sizes) != max(sizes):
                ends[name] = (min(sizes), max(sizes))
        return dict(sorted(ends.items(), key=lambda item: item[1][0] - item[1][1]))


def begin(rank: Rank, save_dir: Path) -> None:
    """Forget what an earlier run of the same rank has left.

    Raises:
        OutputError: It cannot be removed, so that it could not be replaced either.
    """
    remove(rank.folder(save_dir) / RANK_FILE)
    if rank.index == 0:
        for name in (SUMMARY_JSON, SUMMARY_TEXT):
            remove(save_dir / name)


def announce(rank: Rank, results: RunResults, save_dir: Path) -> None:
    """Leave what there is to say so far, without waiting for anybody; whoever comes last puts all together.

    A rank that dies later, and be it rank 0, then takes nothing along.

    Raises:
        OutputError: A file cannot be written.
    """
    _leave(replace(_peak_of(rank, results), has_ended=False), rank, save_dir)
    summary = read_ranks(save_dir, rank.world_size, run=rank.run)
    if rank.index == 0 or not summary.missing:
        _write_summary(summary, save_dir)


def _leave(peak: RankPeak, rank: Rank, save_dir: Path) -> None:
    write_atomically(rank.folder(save_dir) / RANK_FILE, json.dumps(asdict(peak), indent=1) + "\n")


def finish(rank: Rank, results: RunResults, save_dir: Path) -> RanksSummary | None:
    """Leave this rank's results for rank 0, which puts all together.

    A rank 0 whose own loop failed does not wait for long: most likely it failed because another one is gone.

    Raises:
        OutputError: A file cannot be written.
    """
    _leave(_peak_of(rank, results), rank, save_dir)
    if rank.index != 0:
        return None
    wait_s = WAIT_S if results.failure is None else WAIT_AFTER_FAILURE_S
    return write_summary(save_dir, rank.world_size, run=rank.run, wait_s=wait_s)


def _peak_of(rank: Rank, results: RunResults) -> RankPeak:
    error = results.failure.error if results.failure is not None else None
    failure = f"{type(error).__name__}: {error}".strip(": ").splitlines()[0] if error is not None else ""
    if results.findings is None:
        return RankPeak(rank.index, rank.run, num_steps=results.num_steps, failure=failure)
    peak = results.findings.worst.peak
    return RankPeak(
        index=rank.index,
        run=rank.run,
        device=peak.device,
        peak_bytes=peak.peak_bytes,
        categories=dict(peak.by_category()),
        num_steps=results.num_steps,
        failure=failure,
    )


def write_summary(
    save_dir: Path,
    world_size: int,
    *,
    run: str,
    wait_s: float = WAIT_S,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> RanksSummary:
    """Write ranks.txt and ranks.json at once, and again whenever there is more to say, until all ranks have ended.

    Args:
        save_dir: With a folder for each rank.
        world_size: How many ranks there are.
        run: Of which start; files of others are passed over.
        wait_s: For how long, in seconds, to wait for ranks that have not ended.
        clock: Seconds.
        pause: Waits for so many seconds.

    Raises:
        OutputError: A file cannot be written.
    """
    deadline = clock() + wait_s
    written: RanksSummary | None = None
    while True:
        summary = read_ranks(save_dir, world_size, run=run)
        if summary != written:
            written = summary
            _write_summary(summary, save_dir)
        if summary.is_final or clock() >= deadline:
            return summary
        pause(0.1)


def _write_summary(summary: RanksSummary, save_dir: Path) -> None:
    write_atomically(save_dir / SUMMARY_TEXT, summary_text(summary))
    write_atomically(save_dir / SUMMARY_JSON, json.dumps(_as_json(summary), indent=1) + "\n")


def read_ranks(save_dir: Path, world_size: int, *, run: str) -> RanksSummary:
    """What the ranks have left so far."""
    found = []
    for index in range(world_size):
        with suppress(OSError, ValueError, TypeError):
            left = RankPeak(**json.loads((rank_folder(save_dir, index) / RANK_FILE).read_text(encoding="utf-8")))
            if left.run == run:
                found.append(left)
    there = {rank.index for rank in found}
    return RanksSummary(tuple(found), tuple(index for index in range(world_size) if index not in there))


def _as_json(summary: RanksSummary) -> dict[str, Any]:
    return {
        "world_size": len(summary.ranks) + len(summary.missing),
        "worst_rank": summary.worst.index if summary.worst is not None else None,
        "spread_bytes": summary.spread_bytes,
        "missing": list(summary.missing),
        "differences": {name: {"min": low, "max": high} for name, (low, high) in summary.differences().items()},
        "ranks": [asdict(rank) for rank in summary.ranks],
    }


def summary_text(summary: RanksSummary) -> str:
    """Peak per rank, the worst, the spread, and what differs by category."""
    lines = ["Peak memory of each rank:", "-------------------------"]
    for rank in summary.ranks:
        peak = "nothing recorded" if rank.peak_bytes is None else f"{rank.peak_bytes:,} bytes on {rank.device}"
        lines.append(f"rank {rank.index}: {peak}{_end(rank)}")
    lines += [f"rank {index}: left no results" for index in summary.missing]
    if summary.worst is not None:
        share = 100 * summary.spread_bytes / (summary.worst.peak_bytes or 1)
        lines += ["", f"Worst: rank {summary.worst.index}, {format_bytes(summary.worst.peak_bytes or 0)}"]
        lines.append(f"Spread: {format_bytes(summary.spread_bytes)}, {share:.1f} % of the worst")
    lines += ["", *_difference_lines(summary)]
    return "\n".join(lines).rstrip() + "\n"


def _end(rank: RankPeak) -> str:
    if rank.failure:
        return f"; ended in step {rank.num_steps + 1} by {rank.failure}"
    return "" if rank.has_ended else f"; has not ended so far, after step {rank.num_steps}"


def _difference_lines(summary: RanksSummary) -> list[str]:
    differences = summary.differences()
    if not differences:
        return ["No category differs."] if len(summary.with_peak) > 1 else []
    rows = [f"{name}: {low:,} to {high:,} bytes" for name, (low, high) in differences.items()]
    return ["What differs:", *rows]
